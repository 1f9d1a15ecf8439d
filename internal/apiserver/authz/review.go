package authz

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// AccessReviewer serves SubjectAccessReviews and SelfSubjectRulesReviews with the server's own authorizers.
type AccessReviewer struct {
	Authorizers *Authorizers
}

// Authorize implements the Authorizer of the authorization.k8s.io kinds.
func (r AccessReviewer) Authorize(ctx context.Context, user authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, nonResource *authorizationv1.NonResourceAttributes) (allowed, denied bool, reason string, err error) {
	a, err := ReviewAttributes(user, resource, nonResource)
	if err != nil {
		return false, false, "", err
	}
	decision, reason, err := r.Authorizers.Authorize(ctx, a)
	return decision == Allow, decision == Deny, reason, err
}

// RulesFor implements the Authorizer of the authorization.k8s.io kinds.
func (r AccessReviewer) RulesFor(ctx context.Context, user authenticationv1.UserInfo, namespace string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error) {
	rules, err := r.Authorizers.RulesFor(ctx, user, namespace)
	return rules.Resources, rules.Paths, rules.Incomplete, err
}
