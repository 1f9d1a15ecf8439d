package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// IsCritical reports whether a pod is a static pod, a mirror pod or has a system-critical priority. Such pods are not evicted.
func IsCritical(pod *corev1.Pod) bool { return isCritical(pod) }

// FreeContainers removes dead containers and orphaned pods.
func (k *Kubelet) FreeContainers(ctx context.Context) {
	k.removeOrphans(ctx)
	k.removeDead(ctx)
}
