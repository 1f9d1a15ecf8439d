package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	// accountTokenSeconds is what is asked for; the server may give another time.
	accountTokenSeconds = 3600
	// shortestTokenLife is what a token counts as living at least: with clocks that differ, it could seem to live no time at all.
	shortestTokenLife = 10 * time.Minute
)

// As returns a client of the same server that acts as a service account. The account is made if it is missing, and its tokens are asked for
// and renewed, with the rights of c. A client inside the server's own process has no credentials to change.
func (c *Client) As(namespace, name string) (*Client, error) {
	if c.local != nil {
		return nil, errors.New("a client inside the server's process acts as the server's own parts")
	}
	config := rest.AnonymousClientConfig(c.Config)
	config.UserAgent = c.Config.UserAgent + "/system:serviceaccount:" + namespace + ":" + name
	holder := &account{owner: c, namespace: namespace, name: name}
	config.Wrap(func(base http.RoundTripper) http.RoundTripper { return accountTransport{base: base, account: holder} })
	as := &Client{kinds: c.kinds, Scheme: c.Scheme}
	if err := as.dial(config); err != nil {
		return nil, fmt.Errorf("make client of service account %s: %w", name, err)
	}
	return as, nil
}

// accountTransport sends requests with the token of a service account.
type accountTransport struct {
	base    http.RoundTripper
	account *account
}

// RoundTrip sends one request. A token that the server refuses is not shown again.
func (t accountTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := t.account.current(r.Context())
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // the caller expects it, whatever the outcome
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := t.base.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		t.account.refuse(token)
	}
	return response, err
}

// account holds the token of a service account.
type account struct {
	owner           *Client
	namespace, name string

	mu    sync.Mutex
	token string
	renew time.Time // a fifth of its life before its end
}

// current returns a token, a new one if there is none or it is old.
func (a *account) current(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.token != "" && now.Before(a.renew) {
		return a.token, nil
	}
	if err := a.ensure(ctx); err != nil {
		return "", fmt.Errorf("make service account %s/%s: %w", a.namespace, a.name, err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(accountTokenSeconds))}}
	var answer authenticationv1.TokenRequest
	if err := For[*corev1.ServiceAccount](a.owner).Act(ctx, a.namespace, a.name, "token", request, &answer); err != nil {
		return "", fmt.Errorf("get a token of service account %s/%s: %w", a.namespace, a.name, err)
	}
	life := max(answer.Status.ExpirationTimestamp.Sub(now), shortestTokenLife)
	a.token, a.renew = answer.Status.Token, now.Add(life-life/5)
	return a.token, nil
}

// ensure makes the account, and its namespace, if they are missing.
func (a *account) ensure(ctx context.Context) error {
	accounts := For[*corev1.ServiceAccount](a.owner)
	if _, err := accounts.Get(ctx, a.namespace, a.name); !apierrors.IsNotFound(err) {
		return err
	}
	namespaces := For[*corev1.Namespace](a.owner)
	if _, err := namespaces.Get(ctx, "", a.namespace); apierrors.IsNotFound(err) {
		// Whether it succeeded shows in what follows.
		_, _ = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace}}, WriteOptions{})
	}
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}}, WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// refuse forgets a token.
func (a *account) refuse(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token == token {
		a.token = ""
	}
}
