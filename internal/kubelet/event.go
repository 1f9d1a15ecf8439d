package kubelet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
)

// podEvent records an event about a pod.
func (k *Kubelet) podEvent(pod *corev1.Pod, eventType, reason, format string, args ...any) {
	k.Events.Event(pod, eventType, reason, fmt.Sprintf(format, args...))
}

// containerEvent records an event about a container.
func (k *Kubelet) containerEvent(pod *corev1.Pod, c *corev1.Container, eventType, reason, message string) {
	k.Events.EventWithFieldPath(pod, container.FieldPath(&pod.Spec, c.Name), eventType, reason, message)
}
