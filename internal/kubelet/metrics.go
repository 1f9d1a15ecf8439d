package kubelet

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/status"
)

// operation returns the operation type of the next sync for metrics.
func (w *worker) operation() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, changed := !w.synced, w.changed
	w.synced, w.changed = true, false
	switch {
	case w.stage != syncing || w.ending():
		return "kill"
	case first:
		return "create"
	case changed:
		return "update"
	}
	return "sync"
}

// recordPodStart records, once, how long a pod took to start. Pods that ran before this kubelet started are not counted.
func (w *worker) recordPodStart(pod *corev1.Pod, podStatus *corev1.PodStatus) {
	if w.startRecorded || podStatus.Phase == corev1.PodPending {
		return
	}
	w.startRecorded = true
	if podStatus.Phase == corev1.PodRunning && pod.Status.Phase == corev1.PodPending {
		w.k.Metrics.PodStarted(time.Since(w.createdAt))
	}
}

// recordContainerStart records the start of a container, or the reason why it failed.
func (w *worker) recordContainerStart(pod *corev1.Pod, start Start, failed *status.Reason) {
	reason := ""
	if failed != nil {
		reason = failed.Reason
	}
	w.k.Metrics.ContainerStarted(start.Kind, reason)
	if images := imageVolumeMounts(pod, start.Container); images > 0 {
		w.k.Metrics.ImageVolumesRequested(images)
		if failed == nil {
			w.k.Metrics.ImageVolumesMounted(images)
		} else if strings.Contains(failed.Message, cri.ImageVolumeMountFailed) {
			w.k.Metrics.ImageVolumesFailed(images)
		}
	}
}

// imageVolumeMounts counts the mounts of image volumes in a container.
func imageVolumeMounts(pod *corev1.Pod, c *corev1.Container) (n int) {
	for _, mount := range c.VolumeMounts {
		if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name && v.Image != nil }) {
			n++
		}
	}
	return n
}
