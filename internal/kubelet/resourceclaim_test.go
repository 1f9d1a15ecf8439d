package kubelet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
)

// fakeClaims are the resource claims of a node.
type fakeClaims struct {
	mu       sync.Mutex
	failing  error // of Prepare and Unprepare
	prepared map[types.UID]bool
}

func (f *fakeClaims) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = err
}

func (f *fakeClaims) isPrepared(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.prepared[uid]
}

func (f *fakeClaims) Prepare(_ context.Context, pod *corev1.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing == nil {
		f.prepared[pod.UID] = true
	}
	return f.failing
}

func (f *fakeClaims) Unprepare(_ context.Context, pod *corev1.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing == nil {
		delete(f.prepared, pod.UID)
	}
	return f.failing
}

func (f *fakeClaims) CDIDevices(pod *corev1.Pod, c *corev1.Container) ([]string, error) {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil, nil
	}
	return []string{"example.com/gpu=" + c.Name}, nil
}

func (f *fakeClaims) Health(pod *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	return []corev1.ResourceStatus{{Name: "claim:gpu", Resources: []corev1.ResourceHealth{{ResourceID: corev1.ResourceID(c.Name), Health: corev1.ResourceHealthStatusHealthy}}}}
}

func withClaim(p *corev1.Pod) {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("claim")}}
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
}

// TestPodWithClaims: no sandbox before the claims are prepared, their devices in the containers and their health in the status, and the pod
// is not terminated before they are unprepared.
func TestPodWithClaims(t *testing.T) {
	b := newTestKubelet(t)
	events := client.NewEventBroadcaster(b.client)
	claims := &fakeClaims{failing: errors.New("prepare dynamic resources: DRA driver x is not registered"), prepared: map[types.UID]bool{}}
	b.stop()
	b.config.Events, b.config.ResourceClaims = events.NewRecorder("kubelet"), claims
	b.start()
	go func() { _ = events.Run(b.ctx) }()
	pod := b.create(regular("a"), withClaim)
	b.eventually("event about the claim", func() bool {
		list, _, err := client.For[*corev1.Event](b.client).List(b.ctx, pod.Namespace, client.Selector{})
		return err == nil && slices.ContainsFunc(list, func(e *corev1.Event) bool {
			return e.InvolvedObject.UID == pod.UID && e.Reason == "FailedPrepareDynamicResources" && e.Message == "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver x is not registered"
		})
	})
	if sandboxes, err := b.runtime.ListPodSandbox(b.ctx, nil); err != nil || len(sandboxes) > 0 {
		t.Errorf("sandboxes %v, %v", sandboxes, err)
	}
	claims.fail(nil)
	b.until(pod, "running with its device", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses[0].AllocatedResourcesStatus) == 1 && p.Status.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources[0].ResourceID == "a"
	})
	if names := b.runtime.CDIDevices(); !slices.Equal(names, []string{"example.com/gpu=a"}) {
		t.Errorf("CDI devices %v", names)
	}
	claims.fail(errors.New("unprepare dynamic resources: busy"))
	b.delete(pod, 1)
	b.until(pod, "stopped, and still there", func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil && p.Status.Phase == corev1.PodRunning && claims.isPrepared(pod.UID)
	})
	claims.fail(nil)
	b.gone(pod)
	if claims.isPrepared(pod.UID) {
		t.Error("the pod is gone, its claims are still prepared")
	}
}

// TestPodWithoutDrivers: without DRA drivers a pod with claims does not start.
func TestPodWithoutDrivers(t *testing.T) {
	pod := &corev1.Pod{}
	k := &Kubelet{}
	if err := k.prepareClaims(t.Context(), pod); err != nil {
		t.Error(err)
	}
	withClaim(pod)
	if err := k.prepareClaims(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "no DRA drivers") {
		t.Error(err)
	}
}
