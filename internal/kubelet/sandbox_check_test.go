package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
)

// recordingCgroups remembers the pod whose cgroup was made last.
type recordingCgroups struct {
	fakeCgroups
	ensured types.UID
}

func (c *recordingCgroups) Ensure(pod *corev1.Pod, starts bool) (string, error) {
	c.ensured = pod.UID
	return c.fakeCgroups.Ensure(pod, starts)
}

// A node is not ready if its runtime cannot start any sandbox, and says why; a pod whose own sandbox fails does not make it so.
func TestSandboxCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime, fakes := critest.NewFake(), &fakeDependencies{}
		var broken atomic.Bool
		var k *Kubelet
		cgroups := &recordingCgroups{fakeCgroups: fakeCgroups{fakes}}
		var checks, changes atomic.Int32
		runtime.Fail = func(call, object string) error {
			if call != "RunPodSandbox" || object != "sandbox-check" {
				return nil
			}
			checks.Add(1)
			// The network policies let only pods pass that the kubelet has, and others are removed as orphans.
			uid := cgroups.ensured
			if pod, ok := k.PodWithUID(uid); !ok || pod.Spec.NodeName != "node-1" || !k.has(uid) {
				t.Errorf("the kubelet does not have the pod of a check: %v, %t", pod, ok)
			}
			if broken.Load() {
				return errors.New("expected cgroupsPath to be of format slice:prefix:name")
			}
			return nil
		}
		k = &Kubelet{sandboxes: newSandboxSemaphore(), sandboxCheck: newSandboxCheck(), Config: Config{
			NodeName: "node-1", Root: t.TempDir(), Runtime: cri.New(runtime), Cgroups: cgroups, RuntimeChanged: func() { changes.Add(1) }, Log: slog.New(slog.DiscardHandler),
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.checkSandboxes(ctx) }()
		failed := errors.New("unknown sysctl")

		// The pod is at fault. A hundred failures in a second are one check.
		for range 100 {
			k.sandboxCheck.record(failed)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if err := k.RuntimeError(); err != nil || checks.Load() != 1 || changes.Load() != 0 {
			t.Errorf("after a pod's failure: error %v, %d checks, %d changes", err, checks.Load(), changes.Load())
		}
		if sandboxes, err := k.Runtime.ListPodSandboxes(ctx, ""); err != nil || len(sandboxes) != 0 {
			t.Errorf("the check left sandboxes: %v, %v", sandboxes, err)
		}
		time.Sleep(time.Hour)

		// The runtime is at fault. It is checked again in growing intervals.
		broken.Store(true)
		checks.Store(0)
		k.sandboxCheck.record(failed)
		synctest.Wait()
		if err := k.RuntimeError(); err == nil || !strings.Contains(err.Error(), "the container runtime cannot start a sandbox: expected cgroupsPath") || changes.Load() != 1 {
			t.Errorf("with a broken runtime: error %v, %d changes", err, changes.Load())
		}
		time.Sleep(time.Hour)
		if n := checks.Load(); n < 10 || n > 20 {
			t.Errorf("%d checks in an hour", n)
		}

		// It has been repaired: the first pod that starts shows it.
		broken.Store(false)
		k.sandboxCheck.record(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if err := k.RuntimeError(); err != nil || changes.Load() != 2 {
			t.Errorf("with a repaired runtime: error %v, %d changes", err, changes.Load())
		}
		if k.has(cgroups.ensured) {
			t.Error("the kubelet has the pod of a check that has ended")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
