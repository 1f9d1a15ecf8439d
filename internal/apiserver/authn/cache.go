package authn

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
)

// sharedLookupTimeout bounds a lookup that several requests may wait for, so that it cannot end with one of them.
const sharedLookupTimeout = 30 * time.Second

// tokenCache remembers what an authenticator that is expensive to ask has said: identity providers and webhooks. It knows
// tokens by their digest only, and asks once for all requests that wait for the same answer.
type tokenCache struct {
	next             TokenAuthenticator
	success, failure time.Duration
	digester         digester
	answers          recent[*cachedAnswer]
	running          singleflight.Group
}

type cachedAnswer struct {
	id    Identity
	ok    bool
	err   error
	until time.Time
}

// newTokenCache keeps yes and no for a while; zero keeps nothing of the kind. Errors are not kept: the next request may
// find the other side in better health.
func newTokenCache(next TokenAuthenticator, success, failure time.Duration) *tokenCache {
	return &tokenCache{next: next, success: success, failure: failure, digester: newDigester()}
}

// IdentifyToken implements TokenAuthenticator.
func (c *tokenCache) IdentifyToken(ctx context.Context, token string, wanted []string) (Identity, bool, error) {
	key := c.digester.of(token, wanted)
	if answer, ok := c.answers.get(key); ok && time.Now().Before(answer.until) {
		return answer.id, answer.ok, answer.err
	}
	result := c.running.DoChan(string(key[:]), func() (any, error) {
		return c.ask(key, token, wanted), nil
	})
	select {
	case r := <-result:
		answer := r.Val.(*cachedAnswer)
		return answer.id, answer.ok, answer.err
	case <-ctx.Done():
		return Identity{}, false, ctx.Err()
	}
}

func (c *tokenCache) ask(key digest, token string, wanted []string) (answer *cachedAnswer) {
	ctx, cancel := context.WithTimeout(context.Background(), sharedLookupTimeout)
	defer cancel()
	answer = &cachedAnswer{}
	// This runs beside the request, where a panic would end the server.
	defer func() {
		if p := recover(); p != nil {
			answer = &cachedAnswer{err: fmt.Errorf("authentication failed unexpectedly: %v", p)}
		}
	}()
	answer.id, answer.ok, answer.err = c.next.IdentifyToken(ctx, token, wanted)
	if answer.err != nil {
		return answer
	}
	life := c.failure
	if answer.ok {
		answer.id.User = withAuthenticated(answer.id.User)
		life = c.success
	}
	if answer.until = time.Now().Add(life); life > 0 {
		c.answers.set(key, answer)
	}
	return answer
}
