package kubelet

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"skiff/internal/kubelet/cri"
)

// The bounds of the time between two checks of sandboxes.
const (
	sandboxCheckMin = 10 * time.Second
	sandboxCheckMax = 5 * time.Minute
)

// sandboxCheck finds out why sandboxes cannot be started. A pod whose sandbox fails may be at fault itself, so the check starts a sandbox that
// asks for nothing: if that fails too, no pod can be started, and the node is not ready. It is made only after the sandbox of a pod has failed.
type sandboxCheck struct {
	// failed is signalled when the sandbox of a pod could not be started, started when it could.
	failed, started chan struct{}

	mu  sync.Mutex
	err error
	// pod is the pod of the check that is being made; nil: none is.
	pod *corev1.Pod
}

func newSandboxCheck() *sandboxCheck {
	return &sandboxCheck{failed: make(chan struct{}, 1), started: make(chan struct{}, 1)}
}

// error is why no sandbox can be started; nil: they can, as far as is known.
func (c *sandboxCheck) error() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// setError records the result of a check, and reports whether it has changed from or to nil.
func (c *sandboxCheck) setError(err error) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = (c.err == nil) != (err == nil)
	c.err = err
	return changed
}

// setPod records the pod of a check that begins, or nil when it has ended.
func (c *sandboxCheck) setPod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pod = pod
}

// podWithUID returns the pod of the check that is being made if it has the UID. No worker has it, but it is a pod of this node.
func (c *sandboxCheck) podWithUID(uid types.UID) (*corev1.Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod == nil || c.pod.UID != uid {
		return nil, false
	}
	return c.pod, true
}

// record records the result of starting the sandbox of a pod.
func (c *sandboxCheck) record(err error) {
	to := c.started
	if err != nil {
		to = c.failed
	} else if c.error() == nil {
		return
	}
	select {
	case to <- struct{}{}:
	default: // it is signalled already
	}
}

// checkSandboxes makes checks until ctx is done: after the sandbox of a pod has failed, and then until one succeeds.
func (k *Kubelet) checkSandboxes(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.sandboxCheck.failed:
		}
		for wait := sandboxCheckMin; ; wait = min(2*wait, sandboxCheckMax) {
			err := k.startCheckSandbox(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if k.sandboxCheck.setError(err) && k.RuntimeChanged != nil {
				k.RuntimeChanged()
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
			case <-k.sandboxCheck.started:
				// The next check confirms it.
				wait = sandboxCheckMin / 2
				continue
			}
			if err == nil {
				break
			}
		}
	}
}

// startCheckSandbox starts a sandbox that asks for nothing, and removes it.
func (k *Kubelet) startCheckSandbox(ctx context.Context) (err error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "sandbox-check", Namespace: metav1.NamespaceSystem, UID: uuid.NewUUID()}}
	pod.Spec.NodeName = k.NodeName
	release, err := k.sandboxes.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	// The network policies wait for a pod that the kubelet has, and housekeeping removes those that it has not.
	k.sandboxCheck.setPod(pod)
	defer k.sandboxCheck.setPod(nil)
	parent, err := k.Cgroups.Ensure(pod, true)
	if err != nil {
		return fmt.Errorf("create the cgroup of a pod: %w", err)
	}
	defer func() {
		if removeErr := k.Cgroups.Remove(pod.UID); removeErr != nil {
			k.Log.Warn("failed to remove the cgroup of a sandbox check", "error", removeErr)
		}
	}()
	config, err := cri.NewSandboxConfig(pod, cri.PodSettings{Host: k.Host, CgroupParent: parent, LogDirectory: cri.PodLogDirectory(k.LogsDir(), pod)})
	if err != nil {
		return err
	}
	id, err := k.Runtime.RunPodSandbox(ctx, config, "")
	if err != nil {
		return fmt.Errorf("the container runtime cannot start a sandbox: %w", err)
	}
	// Also if the kubelet is stopping meanwhile.
	ctx = context.WithoutCancel(ctx)
	if err := k.Runtime.StopPodSandbox(ctx, id); err != nil {
		k.Log.Warn("failed to stop the sandbox of a check", "error", err)
	} else if err := k.Runtime.RemovePodSandbox(ctx, id); err != nil {
		k.Log.Warn("failed to remove the sandbox of a check", "error", err)
	}
	return nil
}
