package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/match"
	"skiff/internal/kind"
)

// source keeps the index of policies of type P with their bindings of type B. E is what a policy is compiled to.
type source[P, B kind.Object, E any] struct {
	objects                         func() Objects
	policyResource, bindingResource schema.GroupResource
	constraints                     func(P) *admissionregistrationv1.MatchResources
	policyName                      func(B) string
	bindingConstraints              func(B) *admissionregistrationv1.MatchResources
	paramKind                       func(P) *admissionregistrationv1.ParamKind
	compile                         func(P) E

	loader *admission.Loader[index[P, B, E]]
}

// index is the policies at one revision. It is immutable.
type index[P, B kind.Object, E any] struct {
	revisions  revisions
	candidates *match.Index[*bound[P, B, E]]
	byIdentity map[identity]*bound[P, B, E]
}

type revisions struct{ policies, bindings int64 }

// identity is a policy with one spec.
type identity struct {
	uid        types.UID
	generation int64
}

// bound is a policy that has bindings.
type bound[P, B kind.Object, E any] struct {
	policy    P
	matcher   *match.Matcher
	bindings  []binding[B]
	paramKind *schema.GroupVersionKind
	// invalid is why the policy cannot be evaluated at all.
	invalid error
	// compiled is made by the first write that needs it.
	compiled func() E
}

type binding[B kind.Object] struct {
	object  B
	matcher *match.Matcher // nil: the binding restricts nothing
	invalid error
}

// prepare must be called before the source is used.
func (s *source[P, B, E]) prepare() {
	s.loader = admission.NewLoader(func(known *index[P, B, E]) bool { return known.revisions == s.lastChange() }, s.read)
}

// read makes the index of the policies in the cache. last is nil for the first.
func (s *source[P, B, E]) read(last *index[P, B, E]) (*index[P, B, E], error) {
	at := s.lastChange() // before the lists: they may have later changes, which the next load sees again
	policies, err := listOf[P](s.objects(), s.policyResource)
	if err != nil {
		return nil, err
	}
	bindings, err := listOf[B](s.objects(), s.bindingResource)
	if err != nil {
		return nil, err
	}
	return s.newIndex(at, policies, bindings, last), nil
}

func (s *source[P, B, E]) lastChange() revisions {
	objects := s.objects()
	return revisions{objects.LastChange(s.policyResource), objects.LastChange(s.bindingResource)}
}

func listOf[T kind.Object](objects Objects, resource schema.GroupResource) ([]T, error) {
	listed, err := objects.List(resource, "", nil)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource.Resource, err)
	}
	typed := make([]T, len(listed))
	for i, obj := range listed {
		var ok bool
		if typed[i], ok = obj.(T); !ok {
			return nil, fmt.Errorf("one of %s is a %T", resource.Resource, obj)
		}
	}
	return typed, nil
}

// newIndex indexes the policies that have bindings, by name. What was compiled for the previous index is kept.
func (s *source[P, B, E]) newIndex(at revisions, policies []P, bindings []B, previous *index[P, B, E]) *index[P, B, E] {
	byPolicy := map[string][]B{}
	for _, b := range bindings {
		byPolicy[s.policyName(b)] = append(byPolicy[s.policyName(b)], b)
	}
	made := &index[P, B, E]{revisions: at, byIdentity: map[identity]*bound[P, B, E]{}}
	var all []*bound[P, B, E]
	for _, p := range policies {
		bindings := byPolicy[p.GetName()]
		if len(bindings) == 0 {
			continue
		}
		id := identity{p.GetUID(), p.GetGeneration()}
		var old *bound[P, B, E]
		if previous != nil {
			old = previous.byIdentity[id]
		}
		next := s.bind(p, bindings, old)
		made.byIdentity[id] = next
		all = append(all, next)
	}
	slices.SortStableFunc(all, func(a, b *bound[P, B, E]) int { return compareNames(a.policy, b.policy) })
	made.candidates = match.NewIndex(all, func(b *bound[P, B, E]) *match.Matcher { return b.matcher })
	return made
}

func compareNames[T kind.Object](a, b T) int {
	switch {
	case a.GetName() < b.GetName():
		return -1
	case a.GetName() > b.GetName():
		return 1
	}
	return 0
}

// bind prepares a policy with its bindings. old is the same policy of the previous index, or nil.
func (s *source[P, B, E]) bind(p P, bindings []B, old *bound[P, B, E]) *bound[P, B, E] {
	next := &bound[P, B, E]{policy: p}
	if old != nil {
		next.matcher, next.invalid, next.paramKind, next.compiled = old.matcher, old.invalid, old.paramKind, old.compiled
	} else {
		next.matcher, next.invalid = compileCriteria(s.constraints(p))
		next.compiled = sync.OnceValue(func() E { return s.compile(p) })
		if k := s.paramKind(p); k != nil {
			if gv, err := schema.ParseGroupVersion(k.APIVersion); err != nil {
				next.invalid = fmt.Errorf("failed to parse paramKind APIVersion: %w", err)
			} else {
				gvk := gv.WithKind(k.Kind)
				next.paramKind = &gvk
			}
		}
	}
	slices.SortStableFunc(bindings, func(a, b B) int { return compareNames(a, b) })
	for _, b := range bindings {
		bound := binding[B]{object: b}
		if constraints := s.bindingConstraints(b); constraints != nil {
			bound.matcher, bound.invalid = compileCriteria(constraints)
		}
		next.bindings = append(next.bindings, bound)
	}
	return next
}

// compileCriteria compiles matchConstraints or matchResources. Objects of an older server may lack what is required now.
func compileCriteria(m *admissionregistrationv1.MatchResources) (*match.Matcher, error) {
	switch {
	case m == nil:
		return match.Compile(match.Criteria{AllWithoutRules: true}), errors.New("policy contained no match constraints, a required field")
	case m.NamespaceSelector == nil:
		return match.Compile(match.Criteria{AllWithoutRules: true}), fmt.Errorf(nilSelector, "namespace")
	case m.ObjectSelector == nil:
		return match.Compile(match.Criteria{AllWithoutRules: true}), fmt.Errorf(nilSelector, "object")
	}
	return match.Compile(match.Criteria{
		Rules: m.ResourceRules, Exclude: m.ExcludeResourceRules, AllWithoutRules: true,
		NamespaceSelector: m.NamespaceSelector, ObjectSelector: m.ObjectSelector, MatchPolicy: m.MatchPolicy,
	}), nil
}

const nilSelector = "a nil %s selector was passed, please ensure selectors are initialized properly"

// candidates returns the policies that may be about the write.
func (s *source[P, B, E]) candidates(ctx context.Context, a *admission.Attributes) ([]*bound[P, B, E], error) {
	current, err := s.loader.Load(ctx)
	if err != nil {
		return nil, err
	}
	return current.candidates.Candidates(a), nil
}

// handles reports whether a policy may be about the write, or the policies have changed since they were read.
func (s *source[P, B, E]) handles(a *admission.Attributes) bool {
	if isExempt(a) {
		return false
	}
	current, upToDate := s.loader.Current()
	return !upToDate || len(current.candidates.Candidates(a)) > 0
}

// match reports whether the policy is about the write. An error is one of its configuration.
func (b *bound[P, B, E]) match(ctx context.Context, r *match.Request) (admission.Equivalent, bool, error) {
	if b.invalid != nil {
		return admission.Equivalent{}, false, b.invalid
	}
	return b.matcher.Match(ctx, r)
}

// match reports whether the binding is about the write.
func (b *binding[B]) match(ctx context.Context, r *match.Request) (bool, error) {
	if b.invalid != nil || b.matcher == nil {
		return b.invalid == nil, b.invalid
	}
	_, ok, err := b.matcher.Match(ctx, r)
	return ok, err
}
