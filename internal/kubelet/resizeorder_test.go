package kubelet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
)

// cpuPod is a pod that requests CPUs; with a limit it is guaranteed.
func cpuPod(uid types.UID, cpu, limit string) *corev1.Pod {
	c := corev1.Container{Name: "a"}
	memory := resource.MustParse("1Mi")
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: memory}
	if limit != "" {
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit), corev1.ResourceMemory: memory}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

// TestResizeOrder: resizes that the node cannot do together are allocated in the order of compareResizes, whichever worker asks first.
func TestResizeOrder(t *testing.T) {
	now := time.Now()
	withPriority := func(r pendingResize, priority int32) pendingResize {
		r.pod.Spec.Priority = &priority
		return r
	}
	grow := func(uid types.UID, limit string, since time.Time) pendingResize {
		small, large := "", ""
		if limit != "" {
			small, large = "1", "3"
		}
		return pendingResize{pod: cpuPod(uid, "3", large), allocated: cpuPod(uid, "1", small), since: since}
	}
	pending := []pendingResize{ // in their order
		{pod: cpuPod("shrinks", "1", ""), allocated: cpuPod("shrinks", "2", "")},
		withPriority(grow("important", "", time.Time{}), 100),
		grow("guaranteed", "guaranteed", now),
		grow("long", "", now.Add(-time.Hour)),
		grow("short", "", now.Add(-time.Minute)),
		grow("new", "", time.Time{}),
	}
	var order []types.UID
	for _, r := range pending {
		order = append(order, r.pod.UID)
	}
	// check returns why the node has not enough for one of the resizes, beside the others.
	check := func(uid types.UID, all []pendingResize, node *corev1.Node) []rejection {
		i := slices.IndexFunc(all, func(r pendingResize) bool { return r.pod.UID == uid })
		others := slices.Delete(slices.Clone(all), i, i+1)
		var active []*corev1.Pod
		for _, r := range others {
			active = append(active, r.allocated)
		}
		rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		return checkResize(all[i], others, active, node)
	}
	for range 20 {
		shuffled := slices.Clone(pending)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		slices.SortFunc(shuffled, compareResizes)
		for i, r := range shuffled {
			if r.pod.UID != order[i] {
				t.Fatalf("%s is at %d, want %s", r.pod.UID, i, order[i])
			}
		}
	}
	// 7 CPUs are allocated; with the one that is released, 11 are enough for the important and the guaranteed pod.
	node := func(cpu string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi")}}}
	}
	for _, row := range []struct {
		cpu  string
		fits []types.UID
	}{
		{"7", []types.UID{"shrinks"}},
		{"8", []types.UID{"shrinks", "important"}},
		{"10", []types.UID{"shrinks", "important", "guaranteed"}},
		{"16", order},
	} {
		for _, uid := range order {
			reasons := check(uid, pending, node(row.cpu))
			if fits := len(reasons) == 0; fits != slices.Contains(row.fits, uid) {
				t.Errorf("%s on %s CPUs: %v", uid, row.cpu, reasons)
			}
		}
	}
	// A large resize that does not fit does not keep a smaller one waiting.
	huge := withPriority(pendingResize{pod: cpuPod("huge", "100", ""), allocated: cpuPod("huge", "1", "")}, 1000)
	if reasons := check("important", append(slices.Clone(pending), huge), node("9")); len(reasons) > 0 {
		t.Errorf("behind a resize that does not fit: %v", reasons)
	}
}

// TestDeferredResizes: of two deferred resizes the one that comes first is done when a pod has released resources for one of them, although the other was
// requested first and its worker runs first. When that one has released them, the other is retried.
func TestDeferredResizes(t *testing.T) {
	b := newTestKubelet(t) // on a node with 4 CPUs
	filler := b.until(b.create(regular("a", needs("2", "", "", ""))), "running", running)
	burstable := b.until(b.create(regular("a", needs("1", "", "", ""))), "running", running)
	guaranteed := b.until(b.create(regular("a", needs("1", "1", "1Gi", "1Gi"))), "running", running)
	resize := func(pod *corev1.Pod, resources string) {
		t.Helper()
		patch := `{"spec":{"containers":[{"name":"a","resources":` + resources + `}]}}`
		if _, err := b.pods.Patch(b.ctx, pod.Namespace, pod.Name, client.RawPatch(client.StrategicPatch, []byte(patch)), client.WriteOptions{Subresource: "resize"}); err != nil {
			t.Fatal(err)
		}
	}
	isDeferred := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonDeferred
		})
	}
	has := func(milli int64) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			return !isDeferred(p) && p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == milli
		}
	}
	// synced waits until a sync of a pod that begins now is over.
	synced := func(pod *corev1.Pod) {
		t.Helper()
		for range 2 { // the first may have begun before
			before := b.fakes.count("mount " + pod.Name)
			b.kubelet.Changed(pod.UID)
			b.eventually("synced", func() bool { return b.fakes.count("mount "+pod.Name) > before })
		}
	}
	resize(burstable, `{"requests":{"cpu":"2500m"}}`)
	b.until(burstable, "deferred", isDeferred)
	resize(guaranteed, `{"requests":{"cpu":"2500m"},"limits":{"cpu":"2500m"}}`)
	b.until(guaranteed, "deferred", isDeferred)

	release := b.fakes.hold(guaranteed)
	syncs := b.fakes.count("mount " + guaranteed.Name)
	b.kubelet.Changed(guaranteed.UID)
	b.eventually("its worker waits", func() bool { return b.fakes.count("mount "+guaranteed.Name) > syncs })
	b.delete(filler, 1)
	b.gone(filler)
	synced(burstable)
	if p, err := b.pods.Get(b.ctx, burstable.Namespace, burstable.Name); err != nil || !isDeferred(p) || p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() != 1000 {
		t.Fatalf("the resize that comes second was done first: %+v, %v", p.Status, err)
	}
	release()
	b.until(guaranteed, "resized", has(2500))
	b.until(burstable, "deferred", isDeferred)
	resize(guaranteed, `{"requests":{"cpu":"1"},"limits":{"cpu":"1"}}`)
	b.until(burstable, "resized", has(2500))
}

// TestInfeasibleResize: the memory of a container that may swap cannot be resized in place.
func TestInfeasibleResize(t *testing.T) {
	swapping := cri.Host{LimitedSwap: true, SwapController: true, CgroupV2: true}
	restart := []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	for _, row := range []struct {
		name       string
		host       cri.Host
		memory     string
		policy     []corev1.ContainerResizePolicy
		infeasible bool
	}{
		{"with swap", swapping, "2Mi", nil, true},
		{"with swap, other resources", swapping, "1Mi", nil, false},
		{"with swap, restarted", swapping, "2Mi", restart, false},
		{"without swap", cri.Host{}, "2Mi", nil, false},
	} {
		k := &Kubelet{}
		k.Host = row.host
		allocated := cpuPod("a", "1", "")
		allocated.Spec.Containers[0].ResizePolicy = row.policy
		pod := allocated.DeepCopy()
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse(row.memory)
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		if message := k.infeasible(pod, allocated); (message != "") != row.infeasible {
			t.Errorf("%s: %q", row.name, message)
		}
	}
}
