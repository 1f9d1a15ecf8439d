// Package authorization defines the kinds of authorization.k8s.io: SubjectAccessReview, LocalSubjectAccessReview,
// SelfSubjectAccessReview and SelfSubjectRulesReview. They are never stored. The Authorizer that evaluates them is passed to Kinds when the server starts.
package authorization

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"skiff/internal/kind"
)

// Authorizer decides what users may do.
type Authorizer interface {
	// Authorize decides one request, for a resource or for a non-resource URL; the other is nil. A resource's version is "*"
	// if the client set none. Neither allowed nor denied means that no authorizer had an opinion.
	Authorize(ctx context.Context, user authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, nonResource *authorizationv1.NonResourceAttributes) (allowed, denied bool, reason string, err error)
	// RulesFor lists what a user may do in a namespace. incomplete is set if some authorizer could not list its rules.
	RulesFor(ctx context.Context, user authenticationv1.UserInfo, namespace string) (resourceRules []authorizationv1.ResourceRule, nonResourceRules []authorizationv1.NonResourceRule, incomplete bool, err error)
}

// Kinds are the kinds of the group.
func Kinds(a Authorizer) []*kind.Kind {
	return []*kind.Kind{localSubjectAccessReview(a), selfSubjectAccessReview(a), selfSubjectRulesReview(a), subjectAccessReview(a)}
}
