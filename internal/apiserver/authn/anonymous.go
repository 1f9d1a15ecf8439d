package authn

import (
	"net/http"
	"slices"
)

// AnonymousUser accepts requests without any credential. It stands last in a chain; what it may do is the authorizer's to say.
type AnonymousUser struct {
	// Paths are the only ones that may be asked for without a credential. Empty: all.
	Paths []string
}

// Authenticate implements Authenticator. A request with a token that nobody recognised is not anonymous.
func (a AnonymousUser) Authenticate(r *http.Request) (User, bool, error) {
	if len(a.Paths) > 0 && !slices.Contains(a.Paths, r.URL.Path) {
		return User{}, false, nil
	}
	if token, _ := bearer(r.Header); token != "" {
		return User{}, false, errBadToken
	}
	return User{Username: Anonymous, Groups: []string{GroupUnauthenticated}}, true, nil
}
