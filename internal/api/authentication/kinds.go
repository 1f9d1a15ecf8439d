// Package authentication holds the rows of authentication.k8s.io that clients may ask: whose token is this, and who am I.
// They are questions: create answers, nothing is stored. Who knows the tokens is given to Kinds when the server starts.
package authentication

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"

	"skiff/internal/kind"
)

// Authenticator knows whose tokens are whose.
type Authenticator interface {
	// AuthenticateToken returns the owner of a token and those of the wanted audiences that the token is meant for.
	// Without wanted audiences the server's own count. ok is false for a token nobody knows; err says why, if there
	// is more to say.
	AuthenticateToken(ctx context.Context, token string, audiences []string) (user authenticationv1.UserInfo, accepted []string, ok bool, err error)
}

// Kinds are the rows of the group.
func Kinds(a Authenticator) []*kind.Kind {
	return []*kind.Kind{selfSubjectReview(), tokenReview(a)}
}
