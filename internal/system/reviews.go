package system

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"skiff/internal/apiserver/authz"
)

// accessReviews answers SubjectAccessReviews with the server's own authorizers.
type accessReviews struct {
	authorizer *authz.Authorizers
}

// Authorize implements authorization.Authorizer.
func (r accessReviews) Authorize(ctx context.Context, user authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) (allowed, denied bool, reason string, err error) {
	a, err := authz.ReviewAttributes(user, resource, path)
	if err != nil {
		return false, false, "", err
	}
	decision, reason, err := r.authorizer.Authorize(ctx, a)
	return decision == authz.Allow, decision == authz.Deny, reason, err
}

// RulesFor implements authorization.Authorizer.
func (r accessReviews) RulesFor(ctx context.Context, user authenticationv1.UserInfo, namespace string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error) {
	rules, err := r.authorizer.RulesFor(ctx, user, namespace)
	return rules.Resources, rules.Paths, rules.Incomplete, err
}
