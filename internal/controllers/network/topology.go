package network

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/klog/v2"

	"skiff/internal/controller"
)

var (
	// topologyKey is the key under which the zones are compared with the hints of all services. Keys of services have a namespace.
	topologyKey = controller.Key{Name: "topology"}
	// topologyDelay batches changes of nodes for that.
	topologyDelay = time.Second
)

// zoneCPUs sums up the allocatable CPUs of the ready nodes by zone. It counts nodes as they change, so that the cost of a change does
// not depend on the number of nodes.
type zoneCPUs struct {
	mu     sync.Mutex
	nodes  map[string]nodeCPUs // by name
	byZone map[string]zoneSum
	// changed: the topology cache does not have the current sums.
	changed bool
}

// nodeCPUs is what a node contributes to its zone.
type nodeCPUs struct {
	zone  string
	milli int64
}

type zoneSum struct {
	nodes int
	milli int64
}

// incompleteZone is the zone of nodes without a zone or without CPUs. While there is one, there are no hints.
const incompleteZone = ""

func newZoneCPUs() *zoneCPUs {
	return &zoneCPUs{nodes: map[string]nodeCPUs{}, byZone: map[string]zoneSum{}}
}

// nodeCPUsOf returns the contribution of a node. It is false for nodes that are not ready or that run the control plane.
func nodeCPUsOf(node *corev1.Node) (nodeCPUs, bool) {
	_, controlPlane := node.Labels["node-role.kubernetes.io/control-plane"]
	_, master := node.Labels["node-role.kubernetes.io/master"]
	if controlPlane || master || !nodeReady(node) {
		return nodeCPUs{}, false
	}
	if cpu := node.Status.Allocatable.Cpu(); zoneOf(node) != "" && !cpu.IsZero() {
		return nodeCPUs{zone: zoneOf(node), milli: cpu.MilliValue()}, true
	}
	return nodeCPUs{zone: incompleteZone}, true
}

// observe counts a node, in place of what was counted for it before. It reports whether a sum changed.
func (z *zoneCPUs) observe(node *corev1.Node) bool {
	contribution, counts := nodeCPUsOf(node)
	z.mu.Lock()
	defer z.mu.Unlock()
	before, counted := z.nodes[node.Name]
	if counted == counts && before == contribution {
		return false
	}
	z.uncount(node.Name)
	if counts {
		z.nodes[node.Name] = contribution
		z.add(contribution, 1)
	}
	return true
}

// remove removes a deleted node. It reports whether a sum changed.
func (z *zoneCPUs) remove(node *corev1.Node) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.uncount(node.Name)
}

// uncount removes the contribution of a node. The caller holds mu.
func (z *zoneCPUs) uncount(node string) bool {
	contribution, counted := z.nodes[node]
	if counted {
		delete(z.nodes, node)
		z.add(contribution, -1)
	}
	return counted
}

// add adds a contribution to its zone, or subtracts it. The caller holds mu.
func (z *zoneCPUs) add(contribution nodeCPUs, sign int) {
	z.changed = true
	sum := z.byZone[contribution.zone]
	sum.nodes += sign
	sum.milli += int64(sign) * contribution.milli
	if sum.nodes == 0 {
		delete(z.byZone, contribution.zone)
		return
	}
	z.byZone[contribution.zone] = sum
}

// update passes the sums to the topology cache if they changed.
func (z *zoneCPUs) update(topology *topologycache.TopologyCache) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.changed {
		topology.SetNodes(klog.New(nil), z.asNodes()) // it would log every change of a cluster without zones
		z.changed = false
	}
}

// asNodes returns one node for each zone, with the CPUs of all its nodes. The caller holds mu.
func (z *zoneCPUs) asNodes() (nodes []*corev1.Node) {
	for zone, sum := range z.byZone {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "all nodes of zone " + zone},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(sum.milli, resource.DecimalSI)},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}
		if zone != incompleteZone {
			node.Labels = map[string]string{corev1.LabelTopologyZone: zone}
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func zoneOf(node *corev1.Node) string { return node.Labels[corev1.LabelTopologyZone] }

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
