package kubelet

import (
	"errors"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNetworkNotReady checks that only pods in the host's network start before the pod network is ready.
func TestNetworkNotReady(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	var isReady atomic.Bool
	b.config.NetworkError = func() error {
		if isReady.Load() {
			return nil
		}
		return errors.New("container runtime network not ready")
	}
	b.start()
	waiting := b.create(regular("a"))
	b.until(b.create(regular("a"), hostNetwork), "running", running)
	found, err := b.pods.Get(b.ctx, waiting.Namespace, waiting.Name)
	if err != nil {
		t.Fatal(err)
	}
	if found.Status.Phase == corev1.PodRunning || b.runtime.ContainerID(string(waiting.UID), "a") != "" {
		t.Errorf("a pod was started without network: %+v", found.Status)
	}
	isReady.Store(true)
	b.kubelet.SyncAll()
	b.until(waiting, "running", running)
}
