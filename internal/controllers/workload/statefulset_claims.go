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

// claimsOf returns the claims of a pod of the set.
func (s *statefulSetSync) claimsOf(pod *corev1.Pod) (claims []*corev1.PersistentVolumeClaim) {
	for i := range s.set.Spec.VolumeClaimTemplates {
		claim := s.set.Spec.VolumeClaimTemplates[i].DeepCopy()
		claim.Name, claim.Namespace = claimName(s.set, claim, ordinalOf(pod)), s.set.Namespace
		claim.Labels = maps.Clone(claim.Labels)
		for key, value := range s.set.Spec.Selector.MatchLabels {
			metav1.SetMetaDataLabel(&claim.ObjectMeta, key, value)
		}
		claims = append(claims, claim)
	}
	return claims
}

// hasStaleClaim reports whether a claim of a new pod is still owned by a former pod of that name: the garbage collector will
// delete it.
func (s *statefulSetSync) hasStaleClaim(pod *corev1.Pod) bool {
	if s.retentionPolicy().WhenScaled == appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		return false
	}
	return slices.ContainsFunc(s.claimsOf(pod), func(claim *corev1.PersistentVolumeClaim) bool {
		existing := s.claims[claim.Name]
		return existing != nil && hasStaleOwnerRef(existing, pod, podKind)
	})
}

// ensureClaims plans the missing claims of a pod. It returns those that are being deleted and must be recreated later; their
// deletion triggers no sync, so the key is requeued.
func (s *statefulSetSync) ensureClaims(pod *corev1.Pod) (deleting []string) {
	for _, claim := range s.claimsOf(pod) {
		if existing := s.claims[claim.Name]; existing != nil {
			if existing.DeletionTimestamp != nil {
				deleting = append(deleting, claim.Name)
				s.plan.Requeue(claimRequeueDelay)
			}
			continue
		}
		claim.OwnerReferences = s.desiredOwners(claim, pod)
		s.claimCreates = append(s.claimCreates, controller.NewCreate(claim).
			Ignoring(metav1.StatusReasonAlreadyExists).
			OnSuccess(controller.Event{Object: s.set, Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate",
				Message: fmt.Sprintf("Create Claim %s Pod %s in StatefulSet %s success", claim.Name, pod.Name, s.set.Name)}).
			OnFailure(controller.Event{Object: s.set, Type: corev1.EventTypeWarning, Reason: "FailedCreate",
				Message: fmt.Sprintf("Create Claim %s for Pod %s in StatefulSet %s failed error: %%s", claim.Name, pod.Name, s.set.Name)}))
	}
	return deleting
}

// claimsBeingDeleted is the error message for claims that are being deleted.
func claimsBeingDeleted(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("pvc %s is being deleted", name))
	}
	if len(all) == 1 {
		return all[0]
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// retentionPolicy is the claim retention policy, Retain by default.
func (s *statefulSetSync) retentionPolicy() appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	if p := s.set.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		return *p
	}
	return appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType}
}

// newClaimOwnerUpdates plans updates of claims whose owner references differ from what the policy requires.
func (s *statefulSetSync) newClaimOwnerUpdates(pod *corev1.Pod) (writes []controller.Write) {
	for _, claim := range s.claimsOf(pod) {
		existing := s.claims[claim.Name]
		if existing == nil || hasStaleOwnerRef(existing, s.set, statefulSetKind) || hasStaleOwnerRef(existing, pod, podKind) {
			continue // owned by a former set or pod of that name: left to the garbage collector
		}
		if s.hasConflictingController(existing, pod) {
			if !owns(s.set, existing) && !owns(pod, existing) {
				continue
			}
			s.plan.Events = append(s.plan.Events, controller.Event{Object: s.set, Type: corev1.EventTypeWarning, Reason: "ConflictingController",
				Message: fmt.Sprintf("PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", existing.Name)})
		}
		if want := s.desiredOwners(existing, pod); !sameOwnerRefs(existing.OwnerReferences, want) {
			changed := existing.DeepCopy()
			changed.OwnerReferences = want
			writes = append(writes, controller.NewUpdate(changed))
		}
	}
	return writes
}

// desiredOwners returns the owner references a claim should have: the set, if claims are deleted with the set; the pod, if they
// are deleted when scaled down.
func (s *statefulSetSync) desiredOwners(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) []metav1.OwnerReference {
	refs := filter(claim.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return !refersTo(ref, s.set, statefulSetKind) && !refersTo(ref, pod, podKind)
	})
	if s.hasConflictingController(claim, pod) {
		return refs
	}
	const remove = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	policy, scaledDown := s.retentionPolicy(), !inRange(s.set, pod)
	switch {
	case policy.WhenScaled == remove && scaledDown:
		refs = append(refs, *metav1.NewControllerRef(pod, podKind))
	case policy.WhenDeleted == remove:
		refs = append(refs, *metav1.NewControllerRef(s.set, statefulSetKind))
	}
	return refs
}

// hasConflictingController reports whether another controller owns the claim. Then the policy does not apply.
func (s *statefulSetSync) hasConflictingController(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	const retain = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	if policy := s.retentionPolicy(); policy.WhenScaled == retain && policy.WhenDeleted == retain {
		return false
	}
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool {
		switch {
		case refersTo(ref, s.set, statefulSetKind):
			return ref.UID != s.set.UID
		case refersTo(ref, pod, podKind):
			return ref.UID != pod.UID
		}
		return ref.Controller != nil && *ref.Controller
	})
}

// refersTo reports whether a reference has the kind and name of an object, though perhaps another UID.
func refersTo(ref metav1.OwnerReference, obj kind.Object, of schema.GroupVersionKind) bool {
	return ref.APIVersion == of.GroupVersion().String() && ref.Kind == of.Kind && ref.Name == obj.GetName()
}

// hasStaleOwnerRef reports whether a claim refers to a former object with the owner's name.
func hasStaleOwnerRef(claim *corev1.PersistentVolumeClaim, owner kind.Object, of schema.GroupVersionKind) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool { return refersTo(ref, owner, of) && ref.UID != owner.GetUID() })
}

func owns(owner kind.Object, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == owner.GetUID() })
}

// sameOwnerRefs compares references by UID and controller flag, in any order.
func sameOwnerRefs(a, b []metav1.OwnerReference) bool {
	controls := func(ref metav1.OwnerReference) bool { return ref.Controller != nil && *ref.Controller }
	return len(a) == len(b) && all(a, func(one metav1.OwnerReference) bool {
		return slices.ContainsFunc(b, func(other metav1.OwnerReference) bool {
			return one.UID == other.UID && controls(one) == controls(other)
		})
	})
}
