package kubelet

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestLongGracePeriod: a grace period of more than the nanoseconds that a duration can hold does not end before it has begun.
func TestLongGracePeriod(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	var expired atomic.Bool
	b.runtime.Command = func(ctx context.Context, _ string, _ []string) (string, int32, error) {
		expired.Store(ctx.Err() != nil)
		return "", 0, nil
	}
	b.start()
	const grace = 10_000_000_000
	pod := b.until(b.create(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(grace)) }, regular("a", func(c *corev1.Container) {
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}}
	})), "running", running)
	b.delete(pod, grace)
	b.gone(pod)
	if expired.Load() {
		t.Error("the preStop hook had no time")
	}
}

// TestKillingIsForgotten: nothing is left of containers that were stopped when their pod is removed.
func TestKillingIsForgotten(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(sidecar("s"), regular("a")), "running", running)
	first := b.id(pod, "s")
	list, err := b.runtime.ListPodSandbox(b.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.runtime.StopSandbox(list[0].Id)
	b.eventually("the sidecar is replaced", func() bool {
		id := b.runtime.ContainerID(string(pod.UID), "s")
		return id != "" && id != first
	})
	b.delete(pod, 1)
	b.gone(pod)
	b.eventually("the pod is forgotten", func() bool { return len(b.kubelet.listWorkers()) == 0 })
	b.kubelet.killing.Range(func(id, _ any) bool {
		t.Errorf("container %v is still being stopped", id)
		return true
	})
}
