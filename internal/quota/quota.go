// Package quota says what an object uses of a namespace's quotas. An Evaluator knows one resource: which names of a quota
// it counts towards, what an object of it uses, which scopes the object is in. Admission charges a write before it is
// stored (Charge, Fit); the quota controller adds up everything there is (Registry.Used). Both must count alike, so both
// count here. Nothing in this package reads or writes anything; what an evaluator must know of other objects it asks
// Devices for.
package quota

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Evaluator knows what objects of one resource use.
type Evaluator struct {
	Resource schema.GroupResource

	// counts says whether a name in a quota is one the evaluator has numbers for.
	counts func(name corev1.ResourceName) bool
	// usage is what an object uses. Pods that ended use less, and that depends on the time.
	usage func(obj runtime.Object, now time.Time) (corev1.ResourceList, error)
	// inScope says whether an object is in a scope; nil: in none.
	inScope func(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error)
	// missing refuses an object that leaves out what a quota on these names makes mustBeSpecified; nil: nothing is.
	checkRequired func(names []corev1.ResourceName, obj runtime.Object) error
	// concerns says whether a write can change what an object uses.
	affectsUsage func(w Write) bool
}

// Write is one write of an object, seen by quota. Old is nil on create.
type Write struct {
	Subresource string
	Object, Old runtime.Object
}

// AffectsUsage reports whether the write can change what the object uses.
func (e *Evaluator) AffectsUsage(w Write) bool { return e.affectsUsage(w) }

// Usage is what the object uses, of everything that quotas can count.
func (e *Evaluator) Usage(obj runtime.Object, now time.Time) (corev1.ResourceList, error) {
	return e.usage(obj, now)
}

// Counted are those of names that the evaluator counts.
func (e *Evaluator) Counted(names []corev1.ResourceName) []corev1.ResourceName {
	var counted []corev1.ResourceName
	for _, name := range names {
		if e.counts(name) {
			counted = append(counted, name)
		}
	}
	return counted
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

// Scopes are the scopes of a quota in one form, whichever of the two ways they were written.
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
	counters   sync.Map // schema.GroupResource → *Evaluator, made when first asked for
}

// NewRegistry makes a registry. devices may be nil: then resource claims count without extended resources.
func NewRegistry(devices Devices) *Registry {
	r := &Registry{evaluators: map[schema.GroupResource]*Evaluator{}}
	for _, e := range []*Evaluator{
		podEvaluator(), serviceEvaluator(), volumeClaimEvaluator(), resourceClaimEvaluator(devices),
		countEvaluator(schema.GroupResource{Resource: "configmaps"}, corev1.ResourceConfigMaps),
		countEvaluator(schema.GroupResource{Resource: "resourcequotas"}, corev1.ResourceQuotas),
		countEvaluator(schema.GroupResource{Resource: "replicationcontrollers"}, corev1.ResourceReplicationControllers),
		countEvaluator(schema.GroupResource{Resource: "secrets"}, corev1.ResourceSecrets),
	} {
		r.evaluators[e.Resource] = e
	}
	return r
}

// For returns the evaluator of a resource, nil when quotas do not count it.
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

// IsIgnored reports whether quotas leave the resource alone: questions that are not stored, and events.
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
