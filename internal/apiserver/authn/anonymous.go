package authn

import (
	"net/http"
	"slices"
)

// AnonymousUser accepts requests without credentials. It is the last of a chain.
type AnonymousUser struct {
	// Paths are the only paths that may be requested without credentials. Empty: all.
	Paths []string
}

// Authenticate implements Authenticator. A request with a token that no authenticator recognised is not anonymous.
func (a AnonymousUser) Authenticate(r *http.Request) (User, bool, error) {
	if len(a.Paths) > 0 && !slices.Contains(a.Paths, r.URL.Path) {
		return User{}, false, nil
	}
	if token, _ := bearer(r.Header); token != "" {
		return User{}, false, errBadToken
	}
	return User{Username: Anonymous, Groups: []string{GroupUnauthenticated}}, true, nil
}
