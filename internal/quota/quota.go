// Package quota computes what objects use of a namespace's resource quotas. An Evaluator handles one resource: which
// names of a quota it counts, what an object uses, and which scopes it is in. Admission charges a write before it is
// stored (Charge, CheckFits); the quota controller sums up all objects (Registry.Used). Both must agree, so both use this
// package. It does no I/O; other objects an evaluator depends on come from a ClaimUsageLister.
package quota

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Evaluator computes the usage of the objects of one resource.
type Evaluator struct {
	Resource schema.GroupResource

	// counts reports whether the evaluator counts a name of a quota.
	counts func(name corev1.ResourceName) bool
	// usage returns what an object uses. Pods use less once they have terminated, or a while after their deletion.
	usage func(obj runtime.Object, now time.Time) (corev1.ResourceList, error)
	// inScope reports whether an object is in a scope; nil means never.
	inScope func(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error)
	// checkRequired rejects an object that does not specify resources which a quota on these names requires; nil means
	// none are.
	checkRequired func(names []corev1.ResourceName, obj runtime.Object) error
	// affectsUsage reports whether a write can change what an object uses.
	affectsUsage func(w Write) bool
}

// Write is a write of an object. Old is nil on create.
type Write struct {
	Subresource string
	Object, Old runtime.Object
}

// AffectsUsage reports whether the write can change what the object uses.
func (e *Evaluator) AffectsUsage(w Write) bool { return e.affectsUsage(w) }

// Usage returns what the object uses of everything quotas can count.
func (e *Evaluator) Usage(obj runtime.Object, now time.Time) (corev1.ResourceList, error) {
	return e.usage(obj, now)
}

// MatchingResources returns those of the names that the evaluator counts.
func (e *Evaluator) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	var matching []corev1.ResourceName
	for _, name := range names {
		if e.counts(name) {
			matching = append(matching, name)
		}
	}
	return matching
}

// InScopes reports whether the object is in all of the quota's scopes.
func (e *Evaluator) InScopes(quota *corev1.ResourceQuota, obj runtime.Object) (bool, error) {
	for _, scope := range Scopes(&quota.Spec) {
		if e.inScope == nil {
			return false, nil
		}
		in, err := e.inScope(scope, obj)
		if err != nil || !in {
			return false, err
		}
	}
	return true, nil
}

// Scopes returns the scopes of a quota as selector requirements, from both of its fields.
func Scopes(spec *corev1.ResourceQuotaSpec) []corev1.ScopedResourceSelectorRequirement {
	var scopes []corev1.ScopedResourceSelectorRequirement
	for _, name := range spec.Scopes {
		scopes = append(scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: corev1.ScopeSelectorOpExists})
	}
	if spec.ScopeSelector != nil {
		scopes = append(scopes, spec.ScopeSelector.MatchExpressions...)
	}
	return scopes
}

// Registry has an evaluator for every resource that quotas can count.
type Registry struct {
	evaluators map[schema.GroupResource]*Evaluator
	counters   sync.Map // schema.GroupResource → *Evaluator, created on demand
}

// NewRegistry returns a registry. lister may be nil: then resource claims do not count as extended resources.
func NewRegistry(lister ClaimUsageLister) *Registry {
	r := &Registry{evaluators: map[schema.GroupResource]*Evaluator{}}
	for _, e := range []*Evaluator{
		podEvaluator(), serviceEvaluator(), volumeClaimEvaluator(), resourceClaimEvaluator(lister),
		countEvaluator(schema.GroupResource{Resource: "configmaps"}, corev1.ResourceConfigMaps),
		countEvaluator(schema.GroupResource{Resource: "resourcequotas"}, corev1.ResourceQuotas),
		countEvaluator(schema.GroupResource{Resource: "replicationcontrollers"}, corev1.ResourceReplicationControllers),
		countEvaluator(schema.GroupResource{Resource: "secrets"}, corev1.ResourceSecrets),
	} {
		r.evaluators[e.Resource] = e
	}
	return r
}

// For returns the evaluator of a resource, nil if quotas do not count it.
func (r *Registry) For(resource schema.GroupResource) *Evaluator {
	if e, ok := r.evaluators[resource]; ok {
		return e
	}
	if IsIgnored(resource) {
		return nil
	}
	if e, ok := r.counters.Load(resource); ok {
		return e.(*Evaluator)
	}
	e, _ := r.counters.LoadOrStore(resource, countEvaluator(resource))
	return e.(*Evaluator)
}

// IsIgnored reports whether quotas ignore a resource: reviews, which are not stored, and events.
func IsIgnored(resource schema.GroupResource) bool {
	switch resource.Group {
	case "":
		return resource.Resource == "bindings" || resource.Resource == "componentstatuses" || resource.Resource == "events"
	case "events.k8s.io":
		return resource.Resource == "events"
	case "authentication.k8s.io":
		return resource.Resource == "tokenreviews" || resource.Resource == "selfsubjectreviews"
	case "authorization.k8s.io":
		switch resource.Resource {
		case "subjectaccessreviews", "selfsubjectaccessreviews", "localsubjectaccessreviews", "selfsubjectrulesreviews":
			return true
		}
	}
	return false
}
