package volume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// Tokens are replaced when a fifth of their lifetime is left, at the latest after a day, with jitter.
const (
	maxTokenAge = 24 * time.Hour
	tokenJitter = 10 * time.Second
)

// tokens caches the service account tokens of this node's pods until they are due for renewal.
type tokens struct {
	request func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	now     func() time.Time

	mu     sync.Mutex
	cached map[tokenKey]*token
}

type tokenKey struct {
	pod      types.UID
	account  string
	audience string
	seconds  int64
}

type token struct {
	text               string
	refreshAt, expires time.Time
	// renewed is set if a volume gets another one when it is due for renewal.
	renewed bool
}

func newTokens(c *client.Client) *tokens {
	return &tokens{
		now: time.Now, cached: map[tokenKey]*token{},
		request: func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			response := &authenticationv1.TokenRequest{}
			return response, client.For[*corev1.ServiceAccount](c).CreateSubresource(ctx, types.NamespacedName{Namespace: namespace, Name: account}, "token", r, response)
		},
	}
}

// get returns a token that is not due for renewal. If renewing fails, the current one is used until it expires. renewed is false for a volume that uses
// the token only once.
func (t *tokens) get(ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection, renewed bool) (token, error) {
	key := tokenKey{pod: pod.UID, account: pod.Spec.ServiceAccountName, audience: source.Audience}
	if source.ExpirationSeconds != nil {
		key.seconds = *source.ExpirationSeconds
	}
	t.mu.Lock()
	cached := t.cached[key]
	have := token{}
	if cached != nil {
		cached.renewed = cached.renewed || renewed
		have = *cached
	}
	t.mu.Unlock()
	if cached != nil && t.now().Before(have.refreshAt) {
		return have, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	response, err := t.request(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
	switch {
	case err != nil && cached == nil:
		return token{}, fmt.Errorf("failed to fetch token: %w", err)
	case err != nil && t.now().After(have.expires):
		return token{}, fmt.Errorf("token expired and refresh failed: %w", err)
	case err != nil:
		return have, nil
	}
	fresh := &token{text: response.Status.Token, expires: response.Status.ExpirationTimestamp.Time, renewed: renewed || have.renewed}
	fresh.refreshAt = tokenRefreshTime(t.now(), response)
	t.mu.Lock()
	t.cached[key] = fresh
	t.mu.Unlock()
	return *fresh, nil
}

// tokenRefreshTime returns when a token is due for renewal.
func tokenRefreshTime(now time.Time, response *authenticationv1.TokenRequest) time.Time {
	until := response.Status.ExpirationTimestamp.Time
	life := until.Sub(now)
	if seconds := response.Spec.ExpirationSeconds; seconds != nil {
		life = time.Duration(*seconds) * time.Second
	}
	due := until.Add(-life / 5)
	if latest := until.Add(-life).Add(maxTokenAge); due.After(latest) {
		due = latest
	}
	return due.Add(-rand.N(tokenJitter))
}

func (t *tokens) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.cached {
		if key.pod == uid {
			delete(t.cached, key)
		}
	}
}
