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

// Tokens are replaced when a fifth of their life is left, at the latest after a day, and not all at one moment.
const (
	oldestToken = 24 * time.Hour
	tokenJitter = 10 * time.Second
)

// tokens are the service account tokens of this node's pods, kept until they are due.
type tokens struct {
	request func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	now     func() time.Time

	mu    sync.Mutex
	known map[tokenKey]*token
}

type tokenKey struct {
	pod      types.UID
	account  string
	audience string
	seconds  int64
}

type token struct {
	text           string
	refresh, until time.Time
}

func newTokens(c *client.Client) *tokens {
	return &tokens{
		now: time.Now, known: map[tokenKey]*token{},
		request: func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			answer := &authenticationv1.TokenRequest{}
			return answer, client.For[*corev1.ServiceAccount](c).CreateSubresource(ctx, types.NamespacedName{Namespace: namespace, Name: account}, "token", r, answer)
		},
	}
}

// get returns a token that is still good for a while. One that cannot be replaced is used until it ends.
func (t *tokens) get(ctx context.Context, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection) (string, error) {
	key := tokenKey{pod: pod.UID, account: pod.Spec.ServiceAccountName, audience: source.Audience}
	if source.ExpirationSeconds != nil {
		key.seconds = *source.ExpirationSeconds
	}
	t.mu.Lock()
	have := t.known[key]
	t.mu.Unlock()
	if have != nil && t.now().Before(have.refresh) {
		return have.text, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	answer, err := t.request(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
	switch {
	case err != nil && have == nil:
		return "", fmt.Errorf("failed to fetch token: %w", err)
	case err != nil && t.now().After(have.until):
		return "", fmt.Errorf("token expired and refresh failed: %w", err)
	case err != nil:
		return have.text, nil
	}
	fresh := &token{text: answer.Status.Token, until: answer.Status.ExpirationTimestamp.Time}
	fresh.refresh = refreshAt(t.now(), answer)
	t.mu.Lock()
	t.known[key] = fresh
	t.mu.Unlock()
	return fresh.text, nil
}

// refreshAt is when a token is due for replacement.
func refreshAt(now time.Time, answer *authenticationv1.TokenRequest) time.Time {
	until := answer.Status.ExpirationTimestamp.Time
	life := until.Sub(now)
	if seconds := answer.Spec.ExpirationSeconds; seconds != nil {
		life = time.Duration(*seconds) * time.Second
	}
	due := until.Add(-life / 5)
	if latest := until.Add(-life).Add(oldestToken); due.After(latest) {
		due = latest
	}
	return due.Add(-rand.N(tokenJitter))
}

func (t *tokens) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.known {
		if key.pod == uid {
			delete(t.known, key)
		}
	}
}
