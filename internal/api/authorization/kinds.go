// Package authorization holds the rows of authorization.k8s.io: may this user, or may I, do something here. They are
// questions: create answers, nothing is stored. Who decides is given to Kinds when the server starts.
package authorization

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"skiff/internal/kind"
)

// Authorizer decides what users may do.
type Authorizer interface {
	// Authorize judges one act, on a resource or on a plain URL; the other is nil. A resource's version is "*" when
	// the client named none. Neither allowed nor denied means that nobody had an opinion.
	Authorize(ctx context.Context, user authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, nonResource *authorizationv1.NonResourceAttributes) (allowed, denied bool, reason string, err error)
	// RulesFor lists what a user may do in a namespace, as far as it can be listed.
	RulesFor(ctx context.Context, user authenticationv1.UserInfo, namespace string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error)
}

// Kinds are the rows of the group.
func Kinds(a Authorizer) []*kind.Kind {
	return []*kind.Kind{localSubjectAccessReview(a), selfSubjectAccessReview(a), selfSubjectRulesReview(a), subjectAccessReview(a)}
}
