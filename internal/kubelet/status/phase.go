package status

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/podstate"
)

// tally counts the containers of a pod by state.
type tally struct {
	pendingInit, pendingSidecars int
	initFailed                   bool // and is not restarted
	running, waiting, stopped    int
	stoppedForGood, succeeded    int
	unknown                      int
}

// phase computes the phase of a pod.
func phase(pod *corev1.Pod, status *corev1.PodStatus, ended, initialized bool) corev1.PodPhase {
	var t tally
	for kind, c := range container.All(&pod.Spec) {
		switch {
		case kind == container.Init && container.IsSidecar(c):
			t.sidecar(find(status.InitContainerStatuses, c.Name))
		case kind == container.Init:
			t.init(c, &pod.Spec, find(status.InitContainerStatuses, c.Name))
		case kind == container.Regular:
			t.regular(c, &pod.Spec, find(status.ContainerStatuses, c.Name))
		}
	}
	switch {
	case t.initFailed:
		return corev1.PodFailed
	case t.pendingInit > 0, t.pendingSidecars > 0 && !initialized, t.waiting > 0:
		return corev1.PodPending
	case t.running > 0 && t.unknown == 0:
		return corev1.PodRunning
	case t.running == 0 && t.stopped > 0 && t.unknown == 0:
		finalTermination := t.stopped == t.stoppedForGood || ended && !podstate.IsStatic(pod)
		switch {
		case !finalTermination:
			return corev1.PodRunning // about to be restarted
		case t.stopped == t.succeeded:
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	return corev1.PodPending
}

// lastTermination returns the last termination of a container, or nil.
func lastTermination(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	if s.State.Waiting != nil {
		return s.LastTerminationState.Terminated
	}
	return nil
}

// finalTermination reports whether a terminated container will not be restarted.
func finalTermination(c *corev1.Container, spec *corev1.PodSpec, end *corev1.ContainerStateTerminated) bool {
	return !container.ShouldRestart(c, spec, end.ExitCode) && end.Reason != RestartingAll
}

func (t *tally) init(c *corev1.Container, spec *corev1.PodSpec, s *corev1.ContainerStatus) {
	end := lastTermination(s)
	switch {
	case end == nil:
		t.pendingInit++
	case end.ExitCode != 0 && finalTermination(c, spec, end):
		t.initFailed = true
	}
}

func (t *tally) sidecar(s *corev1.ContainerStatus) {
	switch {
	case s.State.Running != nil:
		if s.Started != nil && !*s.Started {
			t.pendingSidecars++
		}
		t.running++
	case lastTermination(s) != nil:
		// Terminated sidecars do not affect the phase.
	case s.State.Waiting != nil:
		t.pendingSidecars++
		t.waiting++
	default:
		t.pendingSidecars++
		t.unknown++
	}
}

func (t *tally) regular(c *corev1.Container, spec *corev1.PodSpec, s *corev1.ContainerStatus) {
	end := lastTermination(s)
	switch {
	case s.State.Running != nil:
		t.running++
	case end != nil:
		t.stopped++
		if finalTermination(c, spec, end) {
			t.stoppedForGood++
		}
		if s.State.Terminated != nil && end.ExitCode == 0 {
			t.succeeded++
		}
	case s.State.Waiting != nil:
		t.waiting++
	default:
		t.unknown++
	}
}
