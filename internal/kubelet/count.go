package kubelet

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/status"
)

// operation is what metrics call the look that a worker is about to take.
func (w *worker) operation() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, changed := !w.looked, w.changed
	w.looked, w.changed = true, false
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

// countStart notes, once, how long a pod took to run. One that ran before this kubelet saw it took no time that is known.
func (w *worker) countStart(pod *corev1.Pod, said *corev1.PodStatus) {
	if w.counted || said.Phase == corev1.PodPending {
		return
	}
	w.counted = true
	if said.Phase == corev1.PodRunning && pod.Status.Phase == corev1.PodPending {
		w.k.Metrics.PodStarted(time.Since(w.born))
	}
}

// countContainer notes that a container was to be started, and why it was not.
func (w *worker) countContainer(kind container.Kind, failed *status.Reason) {
	reason := ""
	if failed != nil {
		reason = failed.Reason
	}
	w.k.Metrics.ContainerStarted(kind, reason)
}
