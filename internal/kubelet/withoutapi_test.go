package kubelet

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPodsWithoutAPI: while the API server cannot be reached, containers that exit are restarted, and probes decide whether they are ready. The status has
// all of it afterwards.
func TestPodsWithoutAPI(t *testing.T) {
	s := newStaticKubelet(t)
	var probes, failing atomic.Int32
	s.runtime.Command = func(context.Context, string, []string) (string, int32, error) {
		probes.Add(1)
		return "", failing.Load(), nil
	}
	s.start()
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ready"}}}, PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 1, SuccessThreshold: 1}
	pod := s.until(s.create(regular("a"), regular("probed", func(c *corev1.Container) { c.ReadinessProbe = probe })), "ready", running)
	s.api.setReachable(false)
	first := s.id(pod, "a")
	s.runtime.Exit(first, 7)
	s.eventually("the container is started again", func() bool { return s.id(pod, "a") != first })
	failing.Store(1)
	before := probes.Load()
	s.eventually("the other is probed", func() bool { return probes.Load() > before+1 })
	s.api.setReachable(true)
	s.until(pod, "reported", func(p *corev1.Pod) bool {
		restarted, probed := p.Status.ContainerStatuses[0], p.Status.ContainerStatuses[1]
		return p.Status.Phase == corev1.PodRunning && restarted.RestartCount == 1 && restarted.LastTerminationState.Terminated != nil &&
			restarted.LastTerminationState.Terminated.ExitCode == 7 && restarted.State.Running != nil && !probed.Ready && probed.RestartCount == 0
	})
}
