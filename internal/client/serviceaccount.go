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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	// tokenExpirationSeconds is the requested lifetime; the server may grant another.
	tokenExpirationSeconds = 3600
	// minTokenLifetime is the assumed minimum lifetime: with clock skew, a token may seem to be expired already.
	minTokenLifetime = 10 * time.Minute
)

// AsServiceAccount returns a client of the same server that authenticates as a service account. The account is created if it does not
// exist, and its tokens are requested and renewed with the credentials of c. It fails for a client inside the server's process.
func (c *Client) AsServiceAccount(namespace, name string) (*Client, error) {
	if c.local != nil {
		return nil, errors.New("a client inside the server's process cannot authenticate as a service account")
	}
	config := rest.AnonymousClientConfig(c.Config)
	config.UserAgent = c.Config.UserAgent + "/system:serviceaccount:" + namespace + ":" + name
	tokens := &tokenSource{client: c, namespace: namespace, name: name}
	config.Wrap(func(base http.RoundTripper) http.RoundTripper { return tokenTransport{base: base, tokens: tokens} })
	derived := &Client{kinds: c.kinds, Scheme: c.Scheme}
	if err := derived.buildRESTClients(config); err != nil {
		return nil, fmt.Errorf("create client of service account %s: %w", name, err)
	}
	return derived, nil
}

// tokenTransport adds the token of a service account to requests.
type tokenTransport struct {
	base   http.RoundTripper
	tokens *tokenSource
}

// RoundTrip sends one request. A token that the server rejects is not used again.
func (t tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := t.tokens.token(r.Context())
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // RoundTrip must always close the body
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := t.base.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		t.tokens.invalidate(token)
	}
	return response, err
}

// tokenSource caches the token of a service account.
type tokenSource struct {
	client          *Client
	namespace, name string

	mu      sync.Mutex
	cached  string
	renewAt time.Time // after four fifths of its lifetime
}

// token returns the cached token, or requests a new one.
func (s *tokenSource) token(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.cached != "" && now.Before(s.renewAt) {
		return s.cached, nil
	}
	if err := s.ensureServiceAccount(ctx); err != nil {
		return "", fmt.Errorf("create service account %s/%s: %w", s.namespace, s.name, err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenExpirationSeconds))}}
	var response authenticationv1.TokenRequest
	if err := For[*corev1.ServiceAccount](s.client).CreateSubresource(ctx, types.NamespacedName{Namespace: s.namespace, Name: s.name}, "token", request, &response); err != nil {
		return "", fmt.Errorf("request token of service account %s/%s: %w", s.namespace, s.name, err)
	}
	lifetime := max(response.Status.ExpirationTimestamp.Sub(now), minTokenLifetime)
	s.cached, s.renewAt = response.Status.Token, now.Add(lifetime-lifetime/5)
	return s.cached, nil
}

// ensureServiceAccount creates the account and its namespace if they do not exist.
func (s *tokenSource) ensureServiceAccount(ctx context.Context) error {
	accounts := For[*corev1.ServiceAccount](s.client)
	if _, err := accounts.Get(ctx, s.namespace, s.name); !apierrors.IsNotFound(err) {
		return err
	}
	namespaces := For[*corev1.Namespace](s.client)
	if _, err := namespaces.Get(ctx, "", s.namespace); apierrors.IsNotFound(err) {
		// A failure shows in the next create.
		_, _ = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, WriteOptions{})
	}
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}}, WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// invalidate drops a token that the server has rejected.
func (s *tokenSource) invalidate(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cached == token {
		s.cached = ""
	}
}
