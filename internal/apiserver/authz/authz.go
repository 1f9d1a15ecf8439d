// Package authz authorizes requests. Each authorization mode is one Authorizer in a file of its own. The server calls them in
// order, and the first that has an opinion decides. A request that no authorizer allows is denied.
package authz

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"skiff/internal/apiserver/authn"
)

// Attributes describe a request to be authorized.
type Attributes struct {
	User authn.User
	Verb string

	// Resource requests.
	ResourceRequest bool
	Group           string
	Version         string
	Resource        string
	Subresource     string
	Namespace       string
	Name            string
	// FieldSelector and LabelSelector of a list, watch or deletecollection, as the client sent them.
	FieldSelector string
	LabelSelector string
	// Fields and Labels are the same selectors parsed; an access review may have selectors in this form only. They are ignored
	// when the string form is set. Use FieldRequirements and LabelRequirements to read either.
	Fields fields.Requirements
	Labels labels.Requirements

	// Path of a non-resource request.
	Path string
}

// Decision is the result of an authorizer.
type Decision int

// An authorizer that neither allows nor denies a request has no opinion; the next one is called.
const (
	NoOpinion Decision = iota
	Allow
	Deny
)

// String implements fmt.Stringer.
func (d Decision) String() string {
	switch d {
	case Allow:
		return "Allow"
	case Deny:
		return "Deny"
	}
	return "NoOpinion"
}

// Authorizer authorizes requests. The reason is part of the response when the request is denied.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (decision Decision, reason string, err error)
}

// Rules are what a user may do, as far as an authorizer can list it.
type Rules struct {
	Resources []authorizationv1.ResourceRule
	Paths     []authorizationv1.NonResourceRule
	// Incomplete means that the user may be allowed more.
	Incomplete bool
}

// RuleResolver is an Authorizer that can list what it allows. Rules that could be resolved are returned along with an error.
type RuleResolver interface {
	RulesFor(ctx context.Context, user authn.User, namespace string) (Rules, error)
}

// Named gives an authorizer a name, which is part of its reasons.
type Named struct {
	Name string
	Authorizer
}

// Chain calls authorizers in order.
type Chain []Authorizer

// Authorize implements Authorizer: the first authorizer with an opinion decides. Without one, the reasons and errors of all are
// returned.
func (c Chain) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	var reasons []string
	var errs []error
	for _, next := range c {
		decision, reason, err := next.Authorize(ctx, a)
		if decision != NoOpinion {
			return decision, reason, err
		}
		if reason != "" {
			if named, ok := next.(Named); ok {
				reason = named.Name + ": " + reason
			}
			reasons = append(reasons, reason)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return NoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
}

// RulesFor implements RuleResolver: the rules of all authorizers.
func (c Chain) RulesFor(ctx context.Context, user authn.User, namespace string) (Rules, error) {
	var all Rules
	var errs []error
	for _, next := range c {
		if named, ok := next.(Named); ok {
			next = named.Authorizer
		}
		resolver, ok := next.(RuleResolver)
		if !ok {
			continue
		}
		rules, err := resolver.RulesFor(ctx, user, namespace)
		all.Resources = append(all.Resources, rules.Resources...)
		all.Paths = append(all.Paths, rules.Paths...)
		all.Incomplete = all.Incomplete || rules.Incomplete
		if err != nil {
			errs = append(errs, err)
		}
	}
	return all, utilerrors.NewAggregate(errs)
}

// Masters allows everything to members of system:masters.
type Masters struct{}

// Authorize implements Authorizer.
func (Masters) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if slices.Contains(a.User.Groups, authn.GroupMasters) {
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// AlwaysAllowPaths allows everyone to get a fixed set of paths: health and version.
type AlwaysAllowPaths []string

// Authorize implements Authorizer.
func (p AlwaysAllowPaths) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if !a.ResourceRequest && a.Verb == "get" && slices.Contains(p, a.Path) {
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// AlwaysAllow allows every request.
type AlwaysAllow struct{}

// Authorize implements Authorizer.
func (AlwaysAllow) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return Allow, "", nil
}

// RulesFor implements RuleResolver.
func (AlwaysAllow) RulesFor(context.Context, authn.User, string) (Rules, error) {
	all := []string{"*"}
	return Rules{
		Resources: []authorizationv1.ResourceRule{{Verbs: all, APIGroups: all, Resources: all}},
		Paths:     []authorizationv1.NonResourceRule{{Verbs: all, NonResourceURLs: all}},
	}, nil
}

// AlwaysDeny never allows a request; another authorizer of the chain still can.
type AlwaysDeny struct{}

// Authorize implements Authorizer.
func (AlwaysDeny) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return NoOpinion, "Everything is forbidden.", nil
}
