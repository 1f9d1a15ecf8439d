package cel

import (
	"context"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// cachingAuthorizer is the server's authorizer as the CEL library calls it. It keeps decisions for the duration of a request, so that
// many policies can ask the same question.
type cachingAuthorizer struct {
	authorizer authz.Authorizer
	requester  *user.DefaultInfo
	decisions  map[decisionKey]decision
}

// decisionKey is all that a decision depends on. The requester and a service account of the same name can differ in their groups.
type decisionKey struct {
	requester                                         bool
	user, verb                                        string
	group, version, resource, subresource, path       string
	namespace, name, fieldRequirements, labelSelector string
}

type decision struct {
	decision authorizer.Decision
	reason   string
	err      error
}

func newCachingAuthorizer(a authz.Authorizer, u authn.User) *cachingAuthorizer {
	requester := &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups}
	if len(u.Extra) > 0 {
		requester.Extra = make(map[string][]string, len(u.Extra))
		for key, values := range u.Extra {
			requester.Extra[key] = values
		}
	}
	return &cachingAuthorizer{authorizer: a, requester: requester}
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (c *cachingAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	info := a.GetUser()
	// A selector that cannot be parsed is left out: the question becomes wider, and is never allowed wrongly.
	fieldRequirements, _ := a.GetFieldSelector()
	labelRequirements, _ := a.GetLabelSelector()
	key := decisionKey{
		requester: info == user.Info(c.requester), user: info.GetName(), verb: a.GetVerb(),
		group: a.GetAPIGroup(), version: a.GetAPIVersion(), resource: a.GetResource(), subresource: a.GetSubresource(), path: a.GetPath(),
		namespace: a.GetNamespace(), name: a.GetName(), fieldRequirements: fieldKey(fieldRequirements), labelSelector: labelRequirements.String(),
	}
	if known, ok := c.decisions[key]; ok {
		return known.decision, known.reason, known.err
	}
	decided, reason, err := c.authorizer.Authorize(ctx, &authz.Attributes{
		User: userOf(info), Verb: a.GetVerb(), ResourceRequest: a.IsResourceRequest(),
		Group: a.GetAPIGroup(), Version: a.GetAPIVersion(), Resource: a.GetResource(), Subresource: a.GetSubresource(),
		Namespace: a.GetNamespace(), Name: a.GetName(), Fields: fieldRequirements, Labels: labelRequirements, Path: a.GetPath(),
	})
	made := decision{authorizer.DecisionNoOpinion, reason, err}
	switch decided {
	case authz.Allow:
		made.decision = authorizer.DecisionAllow
	case authz.Deny:
		made.decision = authorizer.DecisionDeny
	}
	if c.decisions == nil {
		c.decisions = map[decisionKey]decision{}
	}
	c.decisions[key] = made
	return made.decision, made.reason, made.err
}

// fieldKey is the requirements of a field selector as a string.
func fieldKey(requirements fields.Requirements) string {
	if len(requirements) == 0 {
		return ""
	}
	var b strings.Builder
	for _, r := range requirements {
		b.WriteString(fields.EscapeValue(r.Field) + string(r.Operator) + fields.EscapeValue(r.Value) + ",")
	}
	return b.String()
}

func userOf(info user.Info) authn.User {
	u := authn.User{Username: info.GetName(), UID: info.GetUID(), Groups: info.GetGroups()}
	if extra := info.GetExtra(); len(extra) > 0 {
		u.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for key, values := range extra {
			u.Extra[key] = values
		}
	}
	return u
}
