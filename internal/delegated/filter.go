// Package delegated authenticates and authorizes requests to components other than the API server: controllers,
// scheduler, kubelet. They delegate authentication (TokenReview) and authorization (SubjectAccessReview) to the API
// server and cache the results for a few seconds. Client certificates are verified locally. Server adds the endpoints all
// components have: health checks, which need no authorization, and metrics.
package delegated

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"skiff/internal/client"
)

// Reviewer authenticates tokens and authorizes users.
type Reviewer interface {
	Token(ctx context.Context, spec authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error)
	Access(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)
}

// Filter authenticates and authorizes requests. Its fields must not change once it is in use.
type Filter struct {
	Reviewer Reviewer
	// ClientCAs returns the current CAs of client certificates; nil disables client certificates.
	ClientCAs func() *x509.CertPool
	// Anonymous treats requests without credentials as system:anonymous instead of rejecting them.
	Anonymous bool
	// AlwaysAllowPaths need no authorization. A trailing "*" matches any suffix.
	AlwaysAllowPaths []string
	// Access returns the attributes that authorize a request; any one of them suffices. nil is PathAccess.
	Access func(r *http.Request) []authorizationv1.SubjectAccessReviewSpec
	// TokenTTL, AllowTTL and DenyTTL are how long results are cached; zero is ten seconds.
	TokenTTL, AllowTTL, DenyTTL time.Duration
	Log                         *slog.Logger

	tokens cache[authenticationv1.TokenReviewStatus]
	access cache[authorizationv1.SubjectAccessReviewStatus]
}

// defaultTTL is how long results are cached by default.
const defaultTTL = 10 * time.Second

const (
	anonymousUser        = "system:anonymous"
	groupUnauthenticated = "system:unauthenticated"
	groupAuthenticated   = "system:authenticated"
)

// Wrap returns a handler that filters requests to next. next gets the user with User.
func (f *Filter) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.alwaysAllowed(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		user, ok, err := f.authenticate(r)
		if err != nil && f.Log != nil {
			f.Log.Warn("failed to authenticate request", "path", r.URL.Path, "error", err)
		}
		if !ok {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization") // next does not need the credentials
		if !f.authorize(w, r, user) {
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

type userKey struct{}

// User returns the user that sent a request.
func User(ctx context.Context) (authenticationv1.UserInfo, bool) {
	user, ok := ctx.Value(userKey{}).(authenticationv1.UserInfo)
	return user, ok
}

func (f *Filter) alwaysAllowed(requested string) bool {
	// next could resolve a path that is not clean to another one.
	if requested != path.Clean(requested) {
		return false
	}
	return slices.ContainsFunc(f.AlwaysAllowPaths, func(open string) bool {
		prefix, below := strings.CutSuffix(open, "*")
		return requested == open || below && strings.HasPrefix(requested, prefix)
	})
}

// authenticate returns the user that sent a request. Invalid credentials are rejected, not treated as anonymous.
func (f *Filter) authenticate(r *http.Request) (user authenticationv1.UserInfo, ok bool, err error) {
	if user, ok, err = f.byCertificate(r); ok {
		return user, true, nil
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if token = strings.TrimSpace(token); strings.EqualFold(scheme, "bearer") && token != "" {
		return f.byToken(r.Context(), token)
	}
	if err != nil || !f.Anonymous || r.Header.Get("Authorization") != "" {
		return authenticationv1.UserInfo{}, false, err
	}
	return authenticationv1.UserInfo{Username: anonymousUser, Groups: []string{groupUnauthenticated}}, true, nil
}

func (f *Filter) byCertificate(r *http.Request) (authenticationv1.UserInfo, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || f.ClientCAs == nil {
		return authenticationv1.UserInfo{}, false, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	options := x509.VerifyOptions{Roots: f.ClientCAs(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if options.Roots == nil {
		return authenticationv1.UserInfo{}, false, nil
	}
	for _, cert := range r.TLS.PeerCertificates[1:] {
		options.Intermediates.AddCert(cert)
	}
	if _, err := leaf.Verify(options); err != nil {
		return authenticationv1.UserInfo{}, false, fmt.Errorf("verify client certificate: %w", err)
	}
	if leaf.Subject.CommonName == "" {
		return authenticationv1.UserInfo{}, false, nil
	}
	return authenticationv1.UserInfo{
		Username: leaf.Subject.CommonName, Groups: append(slices.Clone(leaf.Subject.Organization), groupAuthenticated),
	}, true, nil
}

func (f *Filter) byToken(ctx context.Context, token string) (authenticationv1.UserInfo, bool, error) {
	ttl := orDefault(f.TokenTTL)
	status, err := f.tokens.get(digest("token", token), func() (authenticationv1.TokenReviewStatus, time.Duration, error) {
		status, err := f.Reviewer.Token(ctx, authenticationv1.TokenReviewSpec{Token: token})
		return status, ttl, err
	})
	if err != nil {
		return authenticationv1.UserInfo{}, false, fmt.Errorf("review token: %w", err)
	}
	if !status.Authenticated && status.Error != "" {
		return authenticationv1.UserInfo{}, false, fmt.Errorf("token rejected: %s", status.Error)
	}
	return status.User, status.Authenticated, nil
}

// authorize checks whether the user is allowed to make the request, and responds to the request if not.
func (f *Filter) authorize(w http.ResponseWriter, r *http.Request, user authenticationv1.UserInfo) bool {
	access := PathAccess
	if f.Access != nil {
		access = f.Access
	}
	var denied string
	for _, spec := range access(r) {
		allowed, err := f.allowed(r.Context(), spec, user)
		if allowed {
			return true
		}
		if err != nil {
			if f.Log != nil {
				f.Log.Warn("failed to authorize request", "user", user.Username, "path", r.URL.Path, "error", err)
			}
			http.Error(w, fmt.Sprintf("Authorization error (user=%s%s)", user.Username, describe(spec)), http.StatusInternalServerError)
			return false
		}
		denied = describe(spec)
	}
	http.Error(w, fmt.Sprintf("Forbidden (user=%s%s)", user.Username, denied), http.StatusForbidden)
	return false
}

// allowed reviews access to one set of attributes, or returns the cached result.
func (f *Filter) allowed(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec, user authenticationv1.UserInfo) (bool, error) {
	spec.User, spec.UID, spec.Groups = user.Username, user.UID, user.Groups
	for key, value := range user.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[key] = authorizationv1.ExtraValue(value)
	}
	// The encoded spec is the cache key.
	key, err := spec.Marshal()
	if err != nil {
		return false, fmt.Errorf("encode SubjectAccessReview: %w", err)
	}
	status, err := f.access.get(digest("access", string(key)), func() (authorizationv1.SubjectAccessReviewStatus, time.Duration, error) {
		status, err := f.Reviewer.Access(ctx, spec)
		if status.Allowed {
			return status, orDefault(f.AllowTTL), err
		}
		return status, orDefault(f.DenyTTL), err
	})
	return status.Allowed && err == nil, err
}

// describe formats the attributes as upstream's message has them.
func describe(spec authorizationv1.SubjectAccessReviewSpec) string {
	switch {
	case spec.ResourceAttributes != nil:
		return fmt.Sprintf(", verb=%s, resource=%s, subresource=%s", spec.ResourceAttributes.Verb, spec.ResourceAttributes.Resource, spec.ResourceAttributes.Subresource)
	case spec.NonResourceAttributes != nil:
		return fmt.Sprintf(", verb=%s, path=%s", spec.NonResourceAttributes.Verb, spec.NonResourceAttributes.Path)
	}
	return ""
}

// PathAccess returns the attributes of a request's path and method.
func PathAccess(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
	return []authorizationv1.SubjectAccessReviewSpec{{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: Verb(r)}}}
}

// Verb returns the API verb of a method.
func Verb(r *http.Request) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	case http.MethodGet:
		return "get"
	}
	return strings.ToLower(r.Method)
}

func orDefault(d time.Duration) time.Duration {
	if d == 0 {
		return defaultTTL
	}
	return d
}

// digest returns a cache key that does not reveal tokens.
func digest(parts ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(parts, "\x00")))
}

// cacheSize bounds the cache, so that clients cannot exhaust memory with random tokens.
const cacheSize = 4096

// cache stores results until they expire. Errors are not cached.
type cache[T any] struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]entry[T]
}

type entry[T any] struct {
	value   T
	expires time.Time
}

func (c *cache[T]) get(key [sha256.Size]byte, fetch func() (T, time.Duration, error)) (T, error) {
	now := time.Now()
	c.mu.Lock()
	cached, ok := c.entries[key]
	c.mu.Unlock()
	if ok && now.Before(cached.expires) {
		return cached.value, nil
	}
	value, ttl, err := fetch()
	if err != nil {
		return value, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[[sha256.Size]byte]entry[T]{}
	}
	if len(c.entries) >= cacheSize {
		for old, e := range c.entries {
			if now.After(e.expires) {
				delete(c.entries, old)
			}
		}
	}
	if len(c.entries) < cacheSize {
		c.entries[key] = entry[T]{value: value, expires: now.Add(ttl)}
	}
	return value, nil
}

// Reviews returns a Reviewer that uses a client of the API server.
func Reviews(c *client.Client) Reviewer {
	return reviews{client.For[*authenticationv1.TokenReview](c), client.For[*authorizationv1.SubjectAccessReview](c)}
}

type reviews struct {
	tokens client.Resource[*authenticationv1.TokenReview]
	access client.Resource[*authorizationv1.SubjectAccessReview]
}

func (r reviews) Token(ctx context.Context, spec authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error) {
	review, err := r.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: spec}, client.WriteOptions{})
	if err != nil {
		return authenticationv1.TokenReviewStatus{}, err
	}
	return review.Status, nil
}

func (r reviews) Access(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	review, err := r.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, client.WriteOptions{})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	return review.Status, nil
}
