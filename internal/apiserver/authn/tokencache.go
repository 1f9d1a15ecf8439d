package authn

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
)

// sharedLookupTimeout bounds a lookup that several requests may wait for. It does not end with the context of one of them.
const sharedLookupTimeout = 30 * time.Second

// tokenCache caches the results of identity providers and webhooks. Tokens are kept as digests only. Concurrent lookups of the
// same token are done once.
type tokenCache struct {
	next             TokenAuthenticator
	success, failure time.Duration
	digester         digester
	results          digestCache[*cachedResult]
	lookups          singleflight.Group
}

type cachedResult struct {
	id      Identity
	ok      bool
	err     error
	expires time.Time
}

// newTokenCache makes a cache that keeps accepted tokens for success and rejected ones for failure; zero disables caching.
// Errors are not cached: they may be temporary.
func newTokenCache(next TokenAuthenticator, success, failure time.Duration) *tokenCache {
	return &tokenCache{next: next, success: success, failure: failure, digester: newDigester()}
}

// IdentifyToken implements TokenAuthenticator.
func (c *tokenCache) IdentifyToken(ctx context.Context, token string, wanted []string) (Identity, bool, error) {
	key := c.digester.sum(token, wanted)
	if result, ok := c.results.get(key); ok && time.Now().Before(result.expires) {
		return result.id, result.ok, result.err
	}
	done := c.lookups.DoChan(string(key[:]), func() (any, error) {
		return c.lookup(key, token, wanted), nil
	})
	select {
	case r := <-done:
		result := r.Val.(*cachedResult)
		return result.id, result.ok, result.err
	case <-ctx.Done():
		return Identity{}, false, ctx.Err()
	}
}

func (c *tokenCache) lookup(key digest, token string, wanted []string) (result *cachedResult) {
	ctx, cancel := context.WithTimeout(context.Background(), sharedLookupTimeout)
	defer cancel()
	result = &cachedResult{}
	// This runs in another goroutine than the request, where a panic would crash the server.
	defer func() {
		if p := recover(); p != nil {
			result = &cachedResult{err: fmt.Errorf("authentication failed unexpectedly: %v", p)}
		}
	}()
	result.id, result.ok, result.err = c.next.IdentifyToken(ctx, token, wanted)
	if result.err != nil {
		return result
	}
	ttl := c.failure
	if result.ok {
		result.id.User = withAuthenticated(result.id.User)
		ttl = c.success
	}
	if result.expires = time.Now().Add(ttl); ttl > 0 {
		c.results.set(key, result)
	}
	return result
}
