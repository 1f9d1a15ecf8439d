package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/controller"
	"skiff/internal/kind"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// claimsOf are the claims a pod of the set uses.
func (l *statefulLook) claimsOf(pod *corev1.Pod) (claims []*corev1.PersistentVolumeClaim) {
	for i := range l.set.Spec.VolumeClaimTemplates {
		claim := l.set.Spec.VolumeClaimTemplates[i].DeepCopy()
		claim.Name, claim.Namespace = claimName(l.set, claim, ordinalOf(pod)), l.set.Namespace
		claim.Labels = maps.Clone(claim.Labels)
		for key, value := range l.set.Spec.Selector.MatchLabels {
			metav1.SetMetaDataLabel(&claim.ObjectMeta, key, value)
		}
		claims = append(claims, claim)
	}
	return claims
}

// hasStaleClaim says that a claim a new pod needs still belongs to a pod that was here before: the garbage collector removes it, and it is
// not to be used again.
func (l *statefulLook) hasStaleClaim(pod *corev1.Pod) bool {
	if l.policy().WhenScaled == appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		return false
	}
	return slices.ContainsFunc(l.claimsOf(pod), func(claim *corev1.PersistentVolumeClaim) bool {
		known := l.claims[claim.Name]
		return known != nil && isStale(known, pod, podKind)
	})
}

// ensureClaims plans the claims of a pod that do not exist. It returns those that are on their way out and have to be made anew when they are
// gone, which nobody tells: another look is taken after a while.
func (l *statefulLook) ensureClaims(pod *corev1.Pod) (leaving []string) {
	for _, claim := range l.claimsOf(pod) {
		if known := l.claims[claim.Name]; known != nil {
			if known.DeletionTimestamp != nil {
				leaving = append(leaving, claim.Name)
				l.plan.Requeue(claimPatience)
			}
			continue
		}
		claim.OwnerReferences = l.owners(claim, pod)
		l.makeClaims = append(l.makeClaims, controller.Creating(claim).
			Ignoring(metav1.StatusReasonAlreadyExists).
			OnSuccess(controller.Event{Object: l.set, Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate",
				Message: fmt.Sprintf("Create Claim %s Pod %s in StatefulSet %s success", claim.Name, pod.Name, l.set.Name)}).
			OnFailure(controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate",
				Message: fmt.Sprintf("Create Claim %s for Pod %s in StatefulSet %s failed error: %%s", claim.Name, pod.Name, l.set.Name)}))
	}
	return leaving
}

// claimsLeaving says which claims keep a pod from being made.
func claimsLeaving(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("pvc %s is being deleted", name))
	}
	if len(all) == 1 {
		return all[0]
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// policy says what becomes of claims when the set is scaled down or deleted.
func (l *statefulLook) policy() appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	if p := l.set.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		return *p
	}
	return appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType}
}

// ownClaims plans updates of the claims whose owners are not as the policy wants them.
func (l *statefulLook) ownClaims(pod *corev1.Pod) (writes []controller.Write) {
	for _, claim := range l.claimsOf(pod) {
		known := l.claims[claim.Name]
		if known == nil || isStale(known, l.set, statefulSetKind) || isStale(known, pod, podKind) {
			continue // a claim of a set or pod of the same name that is gone belongs to the garbage collector
		}
		if l.hasStranger(known, pod) {
			if !owns(l.set, known) && !owns(pod, known) {
				continue
			}
			l.plan.Events = append(l.plan.Events, controller.Event{Object: l.set, Type: corev1.EventTypeWarning, Reason: "ConflictingController",
				Message: fmt.Sprintf("PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", known.Name)})
		}
		if want := l.owners(known, pod); !sameOwners(known.OwnerReferences, want) {
			changed := known.DeepCopy()
			changed.OwnerReferences = want
			writes = append(writes, controller.Updating(changed))
		}
	}
	return writes
}

// owners are the owner references a claim should have. The owner decides its end: the set, when claims go with the set; the pod, when
// they go with a pod that was scaled down.
func (l *statefulLook) owners(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) []metav1.OwnerReference {
	refs := filter(claim.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return !named(ref, l.set, statefulSetKind) && !named(ref, pod, podKind)
	})
	if l.hasStranger(claim, pod) {
		return refs
	}
	const remove = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	policy, scaledDown := l.policy(), !inRange(l.set, pod)
	switch {
	case policy.WhenScaled == remove && scaledDown:
		refs = append(refs, *metav1.NewControllerRef(pod, podKind))
	case policy.WhenDeleted == remove:
		refs = append(refs, *metav1.NewControllerRef(l.set, statefulSetKind))
	}
	return refs
}

// hasStranger says that someone else controls the claim: the policy does not apply to it.
func (l *statefulLook) hasStranger(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	const retain = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	if policy := l.policy(); policy.WhenScaled == retain && policy.WhenDeleted == retain {
		return false
	}
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool {
		switch {
		case named(ref, l.set, statefulSetKind):
			return ref.UID != l.set.UID
		case named(ref, pod, podKind):
			return ref.UID != pod.UID
		}
		return ref.Controller != nil && *ref.Controller
	})
}

// named says that a reference has an object's kind and name, though perhaps not its uid.
func named(ref metav1.OwnerReference, obj kind.Object, of schema.GroupVersionKind) bool {
	return ref.APIVersion == of.GroupVersion().String() && ref.Kind == of.Kind && ref.Name == obj.GetName()
}

// isStale says that a claim names an owner that was here before this one.
func isStale(claim *corev1.PersistentVolumeClaim, owner kind.Object, of schema.GroupVersionKind) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool { return named(ref, owner, of) && ref.UID != owner.GetUID() })
}

func owns(owner kind.Object, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == owner.GetUID() })
}

// sameOwners compares references by what matters here: who, and whether it controls. Their order does not.
func sameOwners(a, b []metav1.OwnerReference) bool {
	controls := func(ref metav1.OwnerReference) bool { return ref.Controller != nil && *ref.Controller }
	return len(a) == len(b) && all(a, func(one metav1.OwnerReference) bool {
		return slices.ContainsFunc(b, func(other metav1.OwnerReference) bool {
			return one.UID == other.UID && controls(one) == controls(other)
		})
	})
}
