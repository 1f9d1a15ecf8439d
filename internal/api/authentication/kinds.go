// Package authentication has the reviews of authentication.k8s.io: whose token is this, and who am I. They are never
// stored. The Authenticator that evaluates them is passed to Kinds when the server starts.
package authentication

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"

	"skiff/internal/kind"
)

// Authenticator authenticates tokens.
type Authenticator interface {
	// AuthenticateToken returns the user of a token and those of the requested audiences that the token is valid for.
	// Without requested audiences those of the server apply. ok is false for an unknown token; err is the reason, if there
	// is one.
	AuthenticateToken(ctx context.Context, token string, audiences []string) (user authenticationv1.UserInfo, accepted []string, ok bool, err error)
}

// Kinds are the kinds of the group.
func Kinds(a Authenticator) []*kind.Kind {
	return []*kind.Kind{selfSubjectReview(), tokenReview(a)}
}
