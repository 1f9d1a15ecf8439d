package system

import (
	"context"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// tokenReviews answers TokenReviews with the server's own authenticators.
type tokenReviews struct {
	authenticator authn.Authenticator
}

// AuthenticateToken implements authentication.Authenticator. Tokens known today are not bound to audiences: they are
// valid for all that are asked for.
func (r tokenReviews) AuthenticateToken(ctx context.Context, token string, audiences []string) (authenticationv1.UserInfo, []string, bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		return authn.User{}, nil, false, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	user, ok, err := r.authenticator.Authenticate(request)
	return user, audiences, ok, err
}

// accessReviews answers SubjectAccessReviews with the server's own authorizers.
type accessReviews struct {
	authorizer authz.Authorizer
}

// Authorize implements authorization.Authorizer.
func (r accessReviews) Authorize(ctx context.Context, user authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) (allowed, denied bool, reason string, err error) {
	a := &authz.Attributes{User: user}
	if resource != nil {
		a.ResourceRequest, a.Verb, a.Group, a.Version = true, resource.Verb, resource.Group, resource.Version
		a.Resource, a.Subresource, a.Namespace, a.Name = resource.Resource, resource.Subresource, resource.Namespace, resource.Name
	} else {
		a.Verb, a.Path = path.Verb, path.Path
	}
	decision, reason, err := r.authorizer.Authorize(ctx, a)
	return decision == authz.Allow, decision == authz.Deny, reason, err
}

// RulesFor implements authorization.Authorizer. The policies of today are not lists of rules: members of system:masters may do
// everything, everybody may read health and version.
func (r accessReviews) RulesFor(ctx context.Context, user authenticationv1.UserInfo, _ string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error) {
	paths := []authorizationv1.NonResourceRule{{Verbs: []string{"get"}, NonResourceURLs: publicPaths}}
	decision, _, err := authz.Masters{}.Authorize(ctx, &authz.Attributes{User: user})
	if err != nil || decision != authz.Allow {
		return nil, paths, false, err
	}
	all := []string{"*"}
	return []authorizationv1.ResourceRule{{Verbs: all, APIGroups: all, Resources: all}},
		append(paths, authorizationv1.NonResourceRule{Verbs: all, NonResourceURLs: all}), false, nil
}
