package kubelet

import "testing"

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
