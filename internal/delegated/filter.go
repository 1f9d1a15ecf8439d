// Package delegated guards the doors of parts that are not the API server: controllers, scheduler, kubelet. Such a part knows no users
// and no rules. It asks the API server who sent a request (TokenReview) and whether they may (SubjectAccessReview), and remembers
// the answers for a few seconds. A client certificate it verifies itself. With the gate come the paths every part offers to those who
// watch over it: health, open to all, and metrics.
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

// Reviewer answers who a token belongs to and what users may do.
type Reviewer interface {
	Token(ctx context.Context, spec authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus, error)
	Access(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)
}

// Filter lets requests through whose sender the API server allows them. Its fields must not change once it is in use.
type Filter struct {
	Reviewer Reviewer
	// ClientCAs returns whose client certificates are believed at the moment. nil: nobody's.
	ClientCAs func() *x509.CertPool
	// Anonymous lets requests without credentials come as far as the key whether they may.
	Anonymous bool
	// Open are paths that need neither; one that ends in "*" is open with everything that begins so.
	AlwaysAllowPaths []string
	// Access says what a request asks for; who may do any of it may come in. nil: its path, with the verb of its method.
	Access func(r *http.Request) []authorizationv1.SubjectAccessReviewSpec
	// TokenTTL, AllowTTL and DenyTTL are how long answers are cacheSize. Zero: ten seconds.
	TokenTTL, AllowTTL, DenyTTL time.Duration
	Log                         *slog.Logger

	tokens cache[authenticationv1.TokenReviewStatus]
	access cache[authorizationv1.SubjectAccessReviewStatus]
}

// defaultTTL is how long an answer is cacheSize.
const defaultTTL = 10 * time.Second

// The names of those without and with credentials.
const (
	anonymousUser        = "system:anonymous"
	groupUnauthenticated = "system:unauthenticated"
	groupAuthenticated   = "system:authenticated"
)

// Wrap puts the gate in front of a handler. The handler finds the user with User.
func (f *Filter) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.alwaysAllowed(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		user, known, err := f.authenticate(r)
		if err != nil && f.Log != nil {
			f.Log.Warn("a request could not be authenticated", "path", r.URL.Path, "error", err)
		}
		if !known {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization") // nobody behind the gate needs the secret
		if !f.authorize(w, r, user) {
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

type userKey struct{}

// User is who sent a request that came through a gate.
func User(ctx context.Context) (authenticationv1.UserInfo, bool) {
	user, ok := ctx.Value(userKey{}).(authenticationv1.UserInfo)
	return user, ok
}

func (f *Filter) alwaysAllowed(requested string) bool {
	// A path that is not clean could mean another one to the handler.
	if requested != path.Clean(requested) {
		return false
	}
	return slices.ContainsFunc(f.AlwaysAllowPaths, func(open string) bool {
		prefix, below := strings.CutSuffix(open, "*")
		return requested == open || below && strings.HasPrefix(requested, prefix)
	})
}

// authenticate finds out who sent a request. Credentials that are there but no good are refused, not taken for none.
func (f *Filter) authenticate(r *http.Request) (user authenticationv1.UserInfo, known bool, err error) {
	if user, known, err = f.byCertificate(r); known {
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
		return authenticationv1.UserInfo{}, false, fmt.Errorf("verify the client's certificate: %w", err)
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
		return authenticationv1.UserInfo{}, false, fmt.Errorf("ask the API server about a token: %w", err)
	}
	if !status.Authenticated && status.Error != "" {
		return authenticationv1.UserInfo{}, false, fmt.Errorf("the API server refuses a token: %s", status.Error)
	}
	return status.User, status.Authenticated, nil
}

// authorize asks whether the user may do what the request asks for, and answers the request if not.
func (f *Filter) authorize(w http.ResponseWriter, r *http.Request, user authenticationv1.UserInfo) bool {
	access := PathAccess
	if f.Access != nil {
		access = f.Access
	}
	var refused string
	for _, spec := range access(r) {
		allowed, err := f.allowed(r.Context(), spec, user)
		if allowed {
			return true
		}
		if err != nil {
			if f.Log != nil {
				f.Log.Warn("a request could not be authorized", "user", user.Username, "path", r.URL.Path, "error", err)
			}
			http.Error(w, fmt.Sprintf("Authorization error (user=%s%s)", user.Username, describe(spec)), http.StatusInternalServerError)
			return false
		}
		refused = describe(spec)
	}
	http.Error(w, fmt.Sprintf("Forbidden (user=%s%s)", user.Username, refused), http.StatusForbidden)
	return false
}

// ask asks one key, or remembers the answer.
func (f *Filter) allowed(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec, user authenticationv1.UserInfo) (bool, error) {
	spec.User, spec.UID, spec.Groups = user.Username, user.UID, user.Groups
	for key, value := range user.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[key] = authorizationv1.ExtraValue(value)
	}
	// What is asked is the key of the answer; the API's own encoding tells any two questions apart.
	key, err := spec.Marshal()
	if err != nil {
		return false, fmt.Errorf("encode the key: %w", err)
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

// describe names what was asked for.
func describe(spec authorizationv1.SubjectAccessReviewSpec) string {
	switch {
	case spec.ResourceAttributes != nil:
		return fmt.Sprintf(", verb=%s, resource=%s, subresource=%s", spec.ResourceAttributes.Verb, spec.ResourceAttributes.Resource, spec.ResourceAttributes.Subresource)
	case spec.NonResourceAttributes != nil:
		return fmt.Sprintf(", verb=%s, path=%s", spec.NonResourceAttributes.Verb, spec.NonResourceAttributes.Path)
	}
	return ""
}

// PathAccess asks for a path, with the verb that a method stands for.
func PathAccess(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
	return []authorizationv1.SubjectAccessReviewSpec{{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: Verb(r)}}}
}

// Verb is the API's word for what a method does.
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

// digest is how a key is cacheSize: a token is nothing to keep in memory.
func digest(parts ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(parts, "\x00")))
}

// cacheSize bounds how many answers are kept, so that strangers cannot fill the memory with tokens they made up.
const cacheSize = 4096

// memory keeps answers for a while. Failures are not kept: the next request may find the API server in better health.
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

// Reviews asks the API server that a client reaches.
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
