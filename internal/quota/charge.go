package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// LimitedResource is a resource that can only be consumed where a quota covers it.
type LimitedResource struct {
	APIGroup string `json:"apiGroup,omitempty"`
	Resource string `json:"resource"`
	// MatchContains are substrings of resource names that need a covering quota.
	MatchContains []string `json:"matchContains,omitempty"`
	// MatchScopes are scopes that need a covering quota.
	MatchScopes []corev1.ScopedResourceSelectorRequirement `json:"matchScopes,omitempty"`
}

// ForbiddenError is the error of a write that quotas forbid. Other errors mean that it could not be evaluated.
type ForbiddenError struct{ reason string }

func (e *ForbiddenError) Error() string { return e.reason }

func forbid(format string, args ...any) error { return &ForbiddenError{fmt.Sprintf(format, args...)} }

// Charge returns what a write adds to each of the quotas: charges[i] belongs to quotas[i] and is nil if the write adds
// nothing to it. It rejects writes that quotas forbid regardless of the remaining amount, which CheckFits checks.
func (e *Evaluator) Charge(quotas []*corev1.ResourceQuota, w Write, limited []LimitedResource, now time.Time) (charges []corev1.ResourceList, err error) {
	used, err := e.usage(w.Object, now)
	if err != nil {
		return nil, err
	}
	required, err := e.required(w.Object, used, limited)
	if err != nil {
		return nil, err
	}
	matching, err := e.match(quotas, w.Object, &required)
	if err != nil {
		return nil, err
	}
	var negative []corev1.ResourceName
	for name, quantity := range used {
		if quantity.Sign() < 0 {
			negative = append(negative, name)
		}
	}
	if len(negative) > 0 {
		return nil, forbid("quota usage is negative for resource(s): %s", join(negative))
	}
	increase := used
	if w.Old != nil {
		before, err := e.usage(w.Old, now)
		if err != nil {
			return nil, err
		}
		increase = Subtract(used, before)
	}
	charges = make([]corev1.ResourceList, len(quotas))
	any := len(matching) == 0 && len(positive(increase)) > 0
	for _, i := range matching {
		// An object that enters the scope of a quota by the update is charged in full.
		add := used
		if w.Old != nil {
			wasInScope, err := e.InScopes(quotas[i], w.Old)
			if err != nil {
				return nil, err
			}
			if wasInScope {
				add = increase
			}
		}
		if add = positive(add); len(add) > 0 {
			any = true
			charges[i] = Mask(add, Names(quotas[i].Status.Hard))
		}
	}
	if !any {
		return make([]corev1.ResourceList, len(quotas)), nil
	}
	return charges, required.covered()
}

// match returns the quotas that count the object and records what they cover.
func (e *Evaluator) match(quotas []*corev1.ResourceQuota, obj runtime.Object, required *requiredQuota) (matching []int, err error) {
	for i, quota := range quotas {
		if err := e.coverScopes(quota, obj, required); err != nil {
			return nil, fmt.Errorf("error matching scopes of quota %s, err: %v", quota.Name, err)
		}
		names := e.MatchingResources(Names(quota.Status.Hard))
		if len(names) == 0 {
			continue
		}
		if in, err := e.InScopes(quota, obj); err != nil {
			return nil, err
		} else if !in {
			continue
		}
		if e.checkRequired != nil {
			if err := e.checkRequired(names, obj); err != nil {
				return nil, forbid("failed quota: %s: %v", quota.Name, err)
			}
		}
		for _, name := range names {
			// The quota controller has not computed the usage yet.
			if _, ok := quota.Status.Used[name]; !ok {
				return nil, forbid("status unknown for quota: %s, resources: %s", quota.Name, join(names))
			}
			required.coveredNames = append(required.coveredNames, name)
		}
		matching = append(matching, i)
	}
	return matching, nil
}

// coverScopes records the quota's scopes that the object is in.
func (e *Evaluator) coverScopes(quota *corev1.ResourceQuota, obj runtime.Object, required *requiredQuota) error {
	if len(required.scopes) == 0 {
		return nil
	}
	for _, scope := range Scopes(&quota.Spec) {
		if in, err := e.inScope(scope, obj); err != nil {
			return fmt.Errorf("error on matching scope %v: %v", scope, err)
		} else if in {
			required.coveredScopes = append(required.coveredScopes, scope.ScopeName)
		}
	}
	return nil
}

// requiredQuota is what must be covered by a quota, and what the quotas cover.
type requiredQuota struct {
	names         []corev1.ResourceName
	scopes        []corev1.ScopedResourceSelectorRequirement
	coveredNames  []corev1.ResourceName
	coveredScopes []corev1.ResourceQuotaScope
}

func (e *Evaluator) required(obj runtime.Object, used corev1.ResourceList, limited []LimitedResource) (requiredQuota, error) {
	var n requiredQuota
	for _, l := range limited {
		for _, scope := range l.MatchScopes {
			if e.inScope == nil {
				break
			}
			in, err := e.inScope(scope, obj)
			if err != nil {
				return requiredQuota{}, fmt.Errorf("error on matching scope %v: %v", scope, err)
			}
			if in {
				n.scopes = append(n.scopes, scope)
			}
		}
		if l.APIGroup != e.Resource.Group || l.Resource != e.Resource.Resource {
			continue
		}
		for name := range positive(used) {
			if slices.ContainsFunc(l.MatchContains, func(part string) bool { return strings.Contains(string(name), part) }) {
				n.names = append(n.names, name)
			}
		}
	}
	return n, nil
}

// covered rejects what no quota covers.
func (q *requiredQuota) covered() error {
	var missing []corev1.ResourceName
	for _, name := range q.names {
		if !slices.Contains(q.coveredNames, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return forbid("insufficient quota to consume: %s", join(slices.Compact(missing)))
	}
	var scopes []corev1.ScopedResourceSelectorRequirement
	for _, scope := range q.scopes {
		if !slices.Contains(q.coveredScopes, scope.ScopeName) {
			scopes = append(scopes, scope)
		}
	}
	if len(scopes) > 0 {
		return forbid("insufficient quota to match these scopes: %v", scopes)
	}
	return nil
}

// CheckFits rejects a charge that exceeds a quota.
func CheckFits(quota *corev1.ResourceQuota, charge corev1.ResourceList) error {
	var exceeded []corev1.ResourceName
	for name, quantity := range charge {
		hard, ok := quota.Status.Hard[name]
		if !ok {
			continue
		}
		sum := quota.Status.Used[name].DeepCopy()
		sum.Add(quantity)
		if sum.Cmp(hard) > 0 {
			exceeded = append(exceeded, name)
		}
	}
	if len(exceeded) == 0 {
		return nil
	}
	return forbid("exceeded quota: %s, requested: %s, used: %s, limited: %s", quota.Name, Format(Mask(charge, exceeded)),
		Format(Mask(quota.Status.Used, exceeded)), Format(Mask(quota.Status.Hard, exceeded)))
}
