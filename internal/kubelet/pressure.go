package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Critical tells static pods, their mirrors and pods of the system's own priorities: they do not go when the node runs short.
func Critical(pod *corev1.Pod) bool { return critical(pod) }

// FreeContainers removes what is left of containers that have ended and that nobody asks about any more.
func (k *Kubelet) FreeContainers(ctx context.Context) {
	k.removeOrphans(ctx)
	k.removeDead(ctx)
}
