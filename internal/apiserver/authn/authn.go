// Package authn finds out who sends a request. Each way of proving an identity is one authenticator in a file of its own.
// They come in two shapes: an Authenticator looks at a whole request (certificates, headers of a front proxy), a
// TokenAuthenticator at a bearer token (service accounts, bootstrap tokens, identity providers, webhooks). New puts them
// together in the order in which they are asked; the first that recognises a credential decides.
//
// Two rules hold for all of them. A token is never logged, stored or put into an error. And a credential counts only for
// the audience it was issued for: every token authenticator is told the audiences that are wanted and says which of
// them the token is meant for.
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
	GroupNodes           = "system:nodes"
)

// credentialID is the extra field that names the credential itself, for audit.
const credentialID = "authentication.kubernetes.io/credential-id"

// ErrBadCredential is returned when a credential of the authenticator's own kind was presented and is not valid.
// The server answers 401 unless a later authenticator accepts the request.
var ErrBadCredential = errors.New("invalid credential")

// errBadToken is for a token that nobody recognised.
var errBadToken = errors.New("invalid bearer token")

// Identity is a user, and what else the server should know of how it was found. Identities may be shared: they are
// read-only, their slices and maps included.
type Identity struct {
	User User
	// Audiences are those of the wanted audiences that the credential is meant for. Empty: it is not bound to audiences.
	Audiences []string
	// Warnings are texts for the client, Annotations are for the audit log.
	Warnings    []string
	Annotations map[string]string
}

// Authenticator recognises one kind of credential.
type Authenticator interface {
	// Authenticate returns the user when the request carries a valid credential of this kind, ok=false when it carries
	// none, and an error when it carries one that is not valid.
	Authenticate(r *http.Request) (user User, ok bool, err error)
}

// identifier is an Authenticator that has more to say than the user's name.
type identifier interface {
	identify(r *http.Request) (id Identity, ok bool, err error)
}

// headerOwner is an Authenticator that reads headers nobody behind it may see.
type headerOwner interface {
	dropHeaders(h http.Header)
}

// TokenAuthenticator recognises one kind of bearer token.
type TokenAuthenticator interface {
	// IdentifyToken returns the owner of a token, ok=false when the token is not of this kind, and an error when it is and
	// does not count. A token that is meant for none of the wanted audiences does not count. Without wanted audiences,
	// those of the server are meant.
	IdentifyToken(ctx context.Context, token string, wanted []string) (id Identity, ok bool, err error)
}

// Chain asks authenticators in order.
type Chain []Authenticator

// Authenticate returns the first answer. An error is kept and returned only when nobody accepts the request; AnonymousUser
// does not accept a request that somebody found fault with. Everyone who is authenticated is a member of
// system:authenticated.
func (c Chain) Authenticate(r *http.Request) (User, bool, error) {
	id, ok, err := c.identify(r)
	return id.User, ok, err
}

func (c Chain) identify(r *http.Request) (Identity, bool, error) {
	var errs []error
	for _, a := range c {
		if _, last := a.(AnonymousUser); last && len(errs) > 0 {
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

// dropHeaders removes what could be taken for a credential further on, whoever had sent it.
func (c Chain) dropHeaders(h http.Header) {
	h.Del("Authorization")
	defaultProxyHeaders.drop(h)
	for _, a := range c {
		if owner, ok := a.(headerOwner); ok {
			owner.dropHeaders(h)
		}
	}
}

// tokenChain asks token authenticators in order.
type tokenChain struct {
	audiences []string // the server's own
	members   []TokenAuthenticator
}

// IdentifyToken implements TokenAuthenticator: the first that recognises the token decides; errors count only when nobody does.
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

// unbound makes a TokenAuthenticator of one whose tokens know no audiences: they are meant for the server's own.
type unbound struct {
	audiences []string
	find      func(ctx context.Context, token string) (User, bool, error)
}

// IdentifyToken implements TokenAuthenticator.
func (u unbound) IdentifyToken(ctx context.Context, token string, wanted []string) (Identity, bool, error) {
	if len(wanted) == 0 {
		wanted = u.audiences
	}
	accepted := intersect(u.audiences, wanted)
	if len(wanted) > 0 && len(accepted) == 0 {
		return Identity{}, false, nil
	}
	user, ok, err := u.find(ctx, token)
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
