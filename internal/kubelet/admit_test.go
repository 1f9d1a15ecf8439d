package kubelet

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/podstate"
)

// hungPlugin is an allocator whose device plugin does not respond when a pod with devices is admitted.
type hungPlugin struct{ called chan struct{} }

func (h hungPlugin) Allocate(ctx context.Context, pod *corev1.Pod) error {
	if pod.Labels["devices"] == "" {
		return nil
	}
	h.called <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func withDevices(pod *corev1.Pod) { pod.Labels = map[string]string{"devices": "1"} }

// admitting creates a pod with devices, and returns when it is being admitted.
func (h hungPlugin) admitting(b *testKubelet) *corev1.Pod {
	b.Helper()
	pod := b.create(regular("a"), withDevices)
	select {
	case <-h.called:
	case <-time.After(15 * time.Second):
		b.Fatal("the pod is not admitted")
	}
	return pod
}

// TestAdmissionIsInterrupted: a pod that is deleted while it is admitted, or waits for that, does not keep others from being admitted, and the stop of
// the kubelet rejects no pod.
func TestAdmissionIsInterrupted(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	plugin := hungPlugin{make(chan struct{}, 1)}
	b.config.Allocator = plugin
	b.start()
	hung := plugin.admitting(b)
	waiting := b.create(regular("a"))
	b.delete(waiting, 30)
	b.gone(waiting)
	b.delete(hung, 30)
	b.gone(hung)
	b.until(b.create(regular("a")), "running", running)
	hung = plugin.admitting(b)
	b.stop()
	if status, found := b.kubelet.writer.Get(hung.UID); found && status.Phase == corev1.PodFailed {
		t.Errorf("the pod was rejected because the kubelet stopped: %s", status.Message)
	}
}

// TestPreemptionEndsWithKubelet: a kubelet that stops does not wait for pods that it has preempted.
func TestPreemptionEndsWithKubelet(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	b.runtime.IgnoreStop = func(string) bool { return true }
	b.start()
	slow := func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(20)) }
	full := b.until(b.create(regular("a", needs("3", "", "", "")), slow), "running", running)
	critical := b.create(prioritized(podstate.SystemCriticalPriority), regular("a", needs("2", "", "", "")))
	b.eventually("preempted", func() bool {
		b.kubelet.mu.Lock()
		w := b.kubelet.workers[full.UID]
		b.kubelet.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.evicted != nil
	})
	began := time.Now()
	b.stop()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the kubelet took %s to stop", took)
	}
	if status, found := b.kubelet.writer.Get(critical.UID); found {
		t.Errorf("the critical pod has the status %+v", status)
	}
}
