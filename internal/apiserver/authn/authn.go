// Package authn authenticates requests. Each kind of credential has one authenticator in a file of its own. An Authenticator
// inspects a whole request (client certificates, front-proxy headers), a TokenAuthenticator a bearer token (service accounts,
// bootstrap tokens, identity providers, webhooks). New combines them in a fixed order; the first that recognises the
// credential decides.
//
// Two invariants hold for all of them. A token is never logged, stored or put into an error. And a token is accepted only for
// the audiences it was issued for: every token authenticator gets the target audiences and returns those the token is valid
// for.
package authn

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// User is an authenticated identity.
type User = authenticationv1.UserInfo

// Well-known names.
const (
	Anonymous            = "system:anonymous"
	GroupAuthenticated   = "system:authenticated"
	GroupUnauthenticated = "system:unauthenticated"
	GroupMasters         = "system:masters"
	GroupMonitoring      = "system:monitoring"
	GroupNodes           = "system:nodes"
)

// credentialID is the extra field that identifies the credential in the audit log.
const credentialID = "authentication.kubernetes.io/credential-id"

// ErrBadCredential is returned when a credential of the authenticator's own kind was presented and is not valid.
// The server responds with 401 unless a later authenticator accepts the request.
var ErrBadCredential = errors.New("invalid credential")

// errBadToken is returned for a token that no authenticator recognised.
var errBadToken = errors.New("invalid bearer token")

// Identity is the result of authentication. Identities may be shared: they are read-only, including their slices and maps.
type Identity struct {
	User User
	// Audiences are the target audiences that the credential is valid for. Empty: it is not bound to audiences.
	Audiences []string
	// Warnings are sent to the client, Annotations are for the audit log.
	Warnings    []string
	Annotations map[string]string
}

// Authenticator recognises one kind of credential.
type Authenticator interface {
	// Authenticate returns the user when the request carries a valid credential of this kind, ok=false when it carries
	// none, and an error when it carries one that is not valid.
	Authenticate(r *http.Request) (user User, ok bool, err error)
}

// identifier is an Authenticator that returns more than the user.
type identifier interface {
	identify(r *http.Request) (id Identity, ok bool, err error)
}

// headerOwner is an Authenticator that reads headers which must not reach later handlers.
type headerOwner interface {
	dropHeaders(h http.Header)
}

// TokenAuthenticator recognises one kind of bearer token.
type TokenAuthenticator interface {
	// IdentifyToken returns the identity of a token, ok=false when the token is not of this kind, and an error when it is
	// and is not valid. A token for none of the wanted audiences is not valid. Without wanted audiences, those of the server
	// are used.
	IdentifyToken(ctx context.Context, token string, wanted []string) (id Identity, ok bool, err error)
}

// Chain tries authenticators in order.
type Chain []Authenticator

// Authenticate returns the user of the first authenticator that accepts the request. Errors are returned only when none does.
// AnonymousUser is not tried after an error. Every authenticated user is a member of system:authenticated.
func (c Chain) Authenticate(r *http.Request) (User, bool, error) {
	id, ok, err := c.identify(r)
	return id.User, ok, err
}

func (c Chain) identify(r *http.Request) (Identity, bool, error) {
	var errs []error
	for _, a := range c {
		if _, anonymous := a.(AnonymousUser); anonymous && len(errs) > 0 {
			continue
		}
		id, ok, err := identifyWith(a, r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if ok {
			if _, warning := bearer(r.Header); warning != "" {
				id.Warnings = append(slices.Clip(id.Warnings), warning)
			}
			c.dropHeaders(r.Header)
			id.User = withAuthenticated(id.User)
			return id, true, nil
		}
	}
	return Identity{}, false, utilerrors.NewAggregate(errs)
}

func identifyWith(a Authenticator, r *http.Request) (Identity, bool, error) {
	if i, ok := a.(identifier); ok {
		return i.identify(r)
	}
	user, ok, err := a.Authenticate(r)
	return Identity{User: user}, ok, err
}

// dropHeaders removes all headers that a later handler could take for a credential.
func (c Chain) dropHeaders(h http.Header) {
	h.Del("Authorization")
	defaultProxyHeaders.drop(h)
	for _, a := range c {
		if owner, ok := a.(headerOwner); ok {
			owner.dropHeaders(h)
		}
	}
}

// tokenChain tries token authenticators in order.
type tokenChain struct {
	audiences []string // the server's own
	members   []TokenAuthenticator
}

// IdentifyToken implements TokenAuthenticator: the first that accepts the token decides. Errors are returned only when none does.
func (c *tokenChain) IdentifyToken(ctx context.Context, token string, wanted []string) (Identity, bool, error) {
	if len(wanted) == 0 {
		wanted = c.audiences
	}
	var errs []error
	for _, a := range c.members {
		id, ok, err := a.IdentifyToken(ctx, token, wanted)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if ok {
			id.User = withAuthenticated(id.User)
			return id, true, nil
		}
	}
	return Identity{}, false, utilerrors.NewAggregate(errs)
}

// audienceAgnostic is a TokenAuthenticator for tokens without audiences: they are valid for the server's own.
type audienceAgnostic struct {
	audiences    []string
	authenticate func(ctx context.Context, token string) (User, bool, error)
}

// IdentifyToken implements TokenAuthenticator.
func (a audienceAgnostic) IdentifyToken(ctx context.Context, token string, wanted []string) (Identity, bool, error) {
	if len(wanted) == 0 {
		wanted = a.audiences
	}
	accepted := intersect(a.audiences, wanted)
	if len(wanted) > 0 && len(accepted) == 0 {
		return Identity{}, false, nil
	}
	user, ok, err := a.authenticate(ctx, token)
	if err != nil || !ok {
		return Identity{}, false, err
	}
	return Identity{User: user, Audiences: accepted}, true, nil
}

// intersect returns those of wanted that are in audiences. Equal lists need no copy.
func intersect(audiences, wanted []string) []string {
	if slices.Equal(audiences, wanted) {
		return wanted
	}
	var both []string
	for _, a := range wanted {
		if slices.Contains(audiences, a) {
			both = append(both, a)
		}
	}
	return both
}

func withAuthenticated(u User) User {
	if u.Username == Anonymous {
		return u
	}
	for _, g := range u.Groups {
		if g == GroupAuthenticated || g == GroupUnauthenticated {
			return u
		}
	}
	u.Groups = append(append(make([]string, 0, len(u.Groups)+1), u.Groups...), GroupAuthenticated)
	return u
}

// hasPrefixFold is strings.HasPrefix without regard to case: header names that hold unusual characters are not canonical.
func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
