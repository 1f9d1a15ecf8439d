// Package authz decides whether a user may do what a request asks. Each policy is one Authorizer in a file of its own; the
// server asks them in order, and the first that has an opinion decides. Without an opinion the answer is no.
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

// Attributes is one question: may this user do this?
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
	// Fields and Labels are the same, read already; a review may give selectors in this form only. They are ignored
	// when the written form is set. Read them through FieldRequirements and LabelRequirements.
	Fields fields.Requirements
	Labels labels.Requirements

	// Path of a request that is not for a resource.
	Path string
}

// Decision is an authorizer's opinion.
type Decision int

// An authorizer that knows nothing about the request has no opinion; the next one is asked.
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

// Authorizer answers questions by one policy. The reason is shown to the client when the answer is no.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (decision Decision, reason string, err error)
}

// Rules is what a user may do, as far as a policy can list it.
type Rules struct {
	Resources []authorizationv1.ResourceRule
	Paths     []authorizationv1.NonResourceRule
	// Incomplete says that the user may be allowed more.
	Incomplete bool
}

// RuleResolver is an Authorizer that can list what it allows. Rules that could be found are returned beside an error.
type RuleResolver interface {
	RulesFor(ctx context.Context, user authn.User, namespace string) (Rules, error)
}

// Named gives an authorizer the name its reasons are shown with.
type Named struct {
	Name string
	Authorizer
}

// Chain asks authorizers in order.
type Chain []Authorizer

// Authorize implements Authorizer: the first opinion counts. Without one, the reasons and errors of all are returned.
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

// RulesFor implements RuleResolver: what any of the authorizers allows.
func (c Chain) RulesFor(ctx context.Context, user authn.User, namespace string) (Rules, error) {
	var all Rules
	var errs []error
	for _, next := range c {
		if named, ok := next.(Named); ok {
			next = named.Authorizer
		}
		lister, ok := next.(RuleResolver)
		if !ok {
			continue
		}
		rules, err := lister.RulesFor(ctx, user, namespace)
		all.Resources = append(all.Resources, rules.Resources...)
		all.Paths = append(all.Paths, rules.Paths...)
		all.Incomplete = all.Incomplete || rules.Incomplete
		if err != nil {
			errs = append(errs, err)
		}
	}
	return all, utilerrors.NewAggregate(errs)
}

// Masters lets members of system:masters do everything.
type Masters struct{}

// Authorize implements Authorizer.
func (Masters) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if slices.Contains(a.User.Groups, authn.GroupMasters) {
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// AlwaysAllowPaths lets everyone read a fixed set of paths: health and version.
type AlwaysAllowPaths []string

// Authorize implements Authorizer.
func (p AlwaysAllowPaths) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if !a.ResourceRequest && a.Verb == "get" && slices.Contains(p, a.Path) {
		return Allow, "", nil
	}
	return NoOpinion, "", nil
}

// AlwaysAllow lets everyone do everything.
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

// AlwaysDeny lets nobody do anything that another policy does not allow.
type AlwaysDeny struct{}

// Authorize implements Authorizer.
func (AlwaysDeny) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return NoOpinion, "Everything is forbidden.", nil
}
