package kubelet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// unpreparedClaim returns an error if a pod has a resource claim. This kubelet has no DRA driver plugins that could prepare the devices of a
// claim, and a container must not start without them.
func unpreparedClaim(pod *corev1.Pod) error {
	for i := range pod.Spec.ResourceClaims {
		if claim := &pod.Spec.ResourceClaims[i]; needsClaim(pod, claim) {
			return fmt.Errorf("resource claim %q of the pod needs a DRA driver, and this kubelet does not support DRA drivers", claim.Name)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		return fmt.Errorf("resource claim %s of the pod's extended resources needs a DRA driver, and this kubelet does not support DRA drivers", s.ResourceClaimName)
	}
	return nil
}

// needsClaim reports whether a pod needs a claim of its spec. A status without the claim's name says that none had to be generated.
func needsClaim(pod *corev1.Pod, claim *corev1.PodResourceClaim) bool {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == claim.Name {
			return s.ResourceClaimName != nil
		}
	}
	return true
}
