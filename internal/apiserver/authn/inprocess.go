package authn

import (
	"context"
	"net/http"
)

type userKey struct{}

// WithUser marks a request as coming from a part inside the server's own process. Contexts do not travel over a network,
// so nobody outside can claim it.
func WithUser(ctx context.Context, user User) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

// InProcess accepts requests that WithUser has marked.
type InProcess struct{}

// Authenticate implements Authenticator.
func (InProcess) Authenticate(r *http.Request) (User, bool, error) {
	user, ok := r.Context().Value(userKey{}).(User)
	return user, ok, nil
}
