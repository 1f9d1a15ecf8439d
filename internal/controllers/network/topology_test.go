package network

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/klog/v2"
)

// TestRandomZoneCPUs: the sums by zone are those of all nodes, however they change.
func TestRandomZoneCPUs(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 100 {
		sums := newZoneCPUs()
		nodes := map[string]*corev1.Node{}
		for step := range 40 {
			name := fmt.Sprint("n", random.IntN(12))
			if random.IntN(4) == 0 {
				delete(nodes, name)
				sums.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			} else {
				nodes[name] = randomNode(random, name)
				sums.observe(nodes[name])
			}
			if sums.observeAll(nodes) {
				t.Fatalf("seed %d, round %d, step %d: what was counted before changed a sum", seed, round, step)
			}
			var all []*corev1.Node
			for _, node := range nodes {
				all = append(all, node)
			}
			if got, want := cpusOf(sums.asNodes()), cpusOf(all); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, round %d, step %d: CPUs %v, want %v", seed, round, step, got, want)
			}
		}
		for _, node := range nodes {
			sums.remove(node)
		}
		if len(sums.nodes)+len(sums.byZone) > 0 {
			t.Fatalf("seed %d, round %d: %v are left without nodes", seed, round, sums.byZone)
		}
	}
}

// observeAll counts nodes and reports whether a sum changed.
func (z *zoneCPUs) observeAll(nodes map[string]*corev1.Node) (changed bool) {
	for _, node := range nodes {
		changed = z.observe(node) || changed
	}
	return changed
}

// randomNode returns a node of one of three zones, rarely without a zone, CPUs or readiness, or of the control plane.
func randomNode(random *rand.Rand, name string) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("zone", random.IntN(3))}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(500+500*random.IntN(8)), resource.DecimalSI)},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	switch random.IntN(30) {
	case 0:
		delete(node.Labels, corev1.LabelTopologyZone)
	case 1:
		node.Status.Allocatable = nil
	case 2, 3, 4:
		node.Status.Conditions[0].Status = corev1.ConditionUnknown
	case 5, 6:
		node.Labels["node-role.kubernetes.io/control-plane"] = ""
	}
	return node
}

// cpusOf sums up the CPUs of nodes by zone as the topology cache does. It is nil if a node has no zone or no CPUs.
func cpusOf(nodes []*corev1.Node) map[string]int64 {
	cpus := map[string]int64{}
	for _, node := range nodes {
		_, controlPlane := node.Labels["node-role.kubernetes.io/control-plane"]
		if controlPlane || node.Status.Conditions[0].Status != corev1.ConditionTrue {
			continue
		}
		zone, cpu := node.Labels[corev1.LabelTopologyZone], node.Status.Allocatable.Cpu()
		if zone == "" || cpu.IsZero() {
			return nil
		}
		cpus[zone] += cpu.MilliValue()
	}
	return cpus
}

// TestTopologyCacheIsUpdated: the cache gets the sums when they changed, and not otherwise.
func TestTopologyCacheIsUpdated(t *testing.T) {
	sums, topology := newZoneCPUs(), topologycache.NewTopologyCache()
	hinted := func() bool {
		sums.update(topology)
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
		for i := range 6 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprint("10.0.0.", i)}, Zone: new(fmt.Sprint("zone", i%2)), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
		created, _, _ := topology.AddHints(klog.New(nil), &topologycache.SliceInfo{
			ServiceKey: "default/web", AddressType: slice.AddressType, ToCreate: []*discoveryv1.EndpointSlice{slice}})
		return created[0].Endpoints[0].Hints != nil
	}
	node := func(name, zone string) *corev1.Node {
		return aNode(name, func(n *corev1.Node) {
			n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
			n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		})
	}
	for _, step := range []struct {
		what   string
		change func() bool
		hinted bool
	}{
		{"one zone", func() bool { return sums.observe(node("a", "zone0")) }, false},
		{"two zones", func() bool { return sums.observe(node("b", "zone1")) }, true},
		{"a node without a zone", func() bool { return sums.observe(node("c", "")) }, false},
		{"it is deleted", func() bool { return sums.remove(node("c", "")) }, true},
		{"a node moves to the other zone", func() bool { return sums.observe(node("b", "zone0")) }, false},
	} {
		if !step.change() {
			t.Errorf("%s: no change", step.what)
		}
		if got := hinted(); got != step.hinted || sums.changed {
			t.Errorf("%s: hints %t, want %t; to be updated: %t", step.what, got, step.hinted, sums.changed)
		}
	}
	if sums.observe(node("b", "zone0")) || sums.changed {
		t.Error("a heartbeat changes the sums")
	}
}
