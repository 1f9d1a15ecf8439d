package decision

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// preemptCase is a cluster that has no free resources for a pod, and the expected preemption.
type preemptCase struct {
	nodes   []*corev1.Node
	running []*corev1.Pod // nominated ones among them, without a node
	budgets []*policyv1.PodDisruptionBudget
	pod     *corev1.Pod
	// node and victims are the way; without one, message tells why.
	node       string
	victims    []string
	violations int
	message    string
}

func (test preemptCase) run(t *testing.T) {
	s := snapshottest.New(t, test.nodes)
	for _, p := range test.running {
		info := snapshottest.PodInfo(t, p)
		s.SetPod(info)
		s.Nominate(info, p.UID, p.Status.NominatedNodeName)
	}
	d, err := Schedule(s, snapshottest.PodInfo(t, test.pod), plugins.DefaultProfile())
	if !IsUnschedulable(err) {
		t.Fatalf("the pod needs no help: %v", err)
	}
	before := s.Dump()
	way, message, err := Preempt(d, schedulertest.BudgetsOf(test.budgets), nil)
	if after := s.Dump(); after != before {
		t.Errorf("looking has changed something:\n%s\n%s", before, after)
	}
	if test.node != "" {
		test.message = fmt.Sprintf("found a potential placement for pod on node %s, preempting %d victims", test.node, len(test.victims))
	}
	if message != test.message {
		t.Errorf("message %q, want %q", message, test.message)
	}
	if (way == nil) != (err != nil) || (way == nil) != (test.node == "") {
		t.Fatalf("%+v, %v", way, err)
	}
	if way == nil {
		return
	}
	var victims []string
	for _, v := range way.Victims {
		victims = append(victims, v.Name)
	}
	if way.Node != test.node || !slices.Equal(victims, test.victims) || way.Violations != test.violations {
		t.Errorf("%v on %q with %d violations, want %v on %q with %d", victims, way.Node, way.Violations, test.victims, test.node, test.violations)
	}
}

func TestPreempt(t *testing.T) {
	green, blue := schedulertest.Labelled("color", "green"), schedulertest.Labelled("color", "blue")
	host := corev1.LabelHostname
	one, two := []*corev1.Node{schedulertest.TestNode("a")}, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
	only := func(options ...schedulertest.NodeOption) []*corev1.Node {
		return []*corev1.Node{schedulertest.TestNode("a", options...)}
	}
	pods := func(all ...*corev1.Pod) []*corev1.Pod { return all }
	budgets := func(all ...*policyv1.PodDisruptionBudget) []*policyv1.PodDisruptionBudget { return all }
	gpu := corev1.ResourceName("example.com/gpu")
	urgent := func(options ...schedulertest.PodOption) *corev1.Pod {
		return schedulertest.TestPod("p", append([]schedulertest.PodOption{schedulertest.Priority(10)}, options...)...)
	}
	for name, test := range map[string]preemptCase{
		// Which pods of a node must go.
		"the least important pods go, and only as many as needed": {
			nodes: one, running: pods(schedulertest.TestPod("p3", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(3)), schedulertest.TestPod("p1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(1)), schedulertest.TestPod("p2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(2))),
			pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"p1"},
		},
		"one important pod stays before two others": {
			nodes: one, running: pods(schedulertest.TestPod("big", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(3)), schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(1), schedulertest.Started(2)), schedulertest.TestPod("y", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(1), schedulertest.Started(1))),
			pod: urgent(schedulertest.RequestingCPU("2")), node: "a", victims: []string{"x", "y"},
		},
		"a small one stays where an important one cannot": {
			nodes: one, running: pods(schedulertest.TestPod("big", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3"), schedulertest.Priority(5)), schedulertest.TestPod("small", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(1))),
			pod: urgent(schedulertest.RequestingCPU("3")), node: "a", victims: []string{"big"},
		},
		"among equals the one that ran longest stays": {
			nodes: one, running: pods(schedulertest.TestPod("young", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Started(1)), schedulertest.TestPod("old", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Started(60))),
			pod: urgent(schedulertest.RequestingCPU("2")), node: "a", victims: []string{"young"},
		},
		"one that has not begun is the youngest": {
			nodes: one, running: pods(schedulertest.TestPod("new", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")), schedulertest.TestPod("old", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Started(0))),
			pod: urgent(schedulertest.RequestingCPU("2")), node: "a", victims: []string{"new"},
		},
		"victims are told the most important first": {
			nodes: one, running: pods(schedulertest.TestPod("p1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(1)), schedulertest.TestPod("p3", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(3)), schedulertest.TestPod("p2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(2)), schedulertest.TestPod("p4", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Priority(4))),
			pod: urgent(schedulertest.RequestingCPU("3")), node: "a", victims: []string{"p3", "p2", "p1"},
		},
		"pods that ask for nothing stay": {
			nodes: one, running: pods(schedulertest.TestPod("idle", schedulertest.OnNode("a"), schedulertest.Priority(1)), schedulertest.TestPod("busy", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5))),
			pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"busy"},
		},
		"one goes for its memory, another for its processor": {
			nodes: one, running: pods(schedulertest.TestPod("m", schedulertest.OnNode("a"), schedulertest.RequestingMemory("20Gi"), schedulertest.Priority(2)), schedulertest.TestPod("c", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3"), schedulertest.Priority(3)), schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("500m"), schedulertest.RequestingMemory("1Gi"), schedulertest.Priority(4))),
			pod: urgent(schedulertest.RequestingCPU("2"), schedulertest.RequestingMemory("16Gi")), node: "a", victims: []string{"c", "m"},
		},
		"for ephemeral storage": {
			nodes: one, running: pods(schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Requesting(corev1.ResourceEphemeralStorage, "80Gi")), schedulertest.TestPod("y", schedulertest.OnNode("a"))),
			pod: urgent(schedulertest.Requesting(corev1.ResourceEphemeralStorage, "40Gi")), node: "a", victims: []string{"x"},
		},
		"for an extended resource": {
			nodes: only(schedulertest.NodeHas(gpu, "2")), running: pods(schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Requesting(gpu, "2"), schedulertest.Priority(5)), schedulertest.TestPod("y", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"))),
			pod: urgent(schedulertest.Requesting(gpu, "1")), node: "a", victims: []string{"x"},
		},
		"for a place among the pods": {
			nodes: only(schedulertest.NodeHas(corev1.ResourcePods, "2")), running: pods(schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Priority(5)), schedulertest.TestPod("y", schedulertest.OnNode("a"), schedulertest.Priority(4))),
			pod: urgent(), node: "a", victims: []string{"y"},
		},
		"for a port of the host": {
			nodes: one, running: pods(schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Port(80, "", "TCP"), schedulertest.Priority(9)), schedulertest.TestPod("y", schedulertest.OnNode("a"), schedulertest.Port(81, "", "TCP"))),
			pod: urgent(schedulertest.Port(80, "", "TCP")), node: "a", victims: []string{"x"},
		},
		"an enemy goes": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), green), schedulertest.TestPod("2", schedulertest.OnNode("a"))),
			pod: urgent(schedulertest.WithAntiAffinity(host, "color", "green")), node: "a", victims: []string{"1"},
		},
		"one whose enemy the pod is goes": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.WithAntiAffinity(host, "color", "green")), schedulertest.TestPod("2", schedulertest.OnNode("a"))),
			pod: urgent(green), node: "a", victims: []string{"1"},
		},
		"one of a crowded domain goes": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2"), schedulertest.Cordoned)},
			running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), green, schedulertest.Priority(2)), schedulertest.TestPod("2", schedulertest.OnNode("a"), green, schedulertest.Priority(1))),
			pod:     urgent(green, schedulertest.Spread(corev1.LabelTopologyZone, 2, corev1.DoNotSchedule, "color=green")), node: "a", victims: []string{"2"},
		},
		"a pod that is on its way out is a victim like any other": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Terminating)), pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"},
		},
		"a pod without priority moves one with less": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(-1))), pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"},
		},
		"the highest of priorities moves the lowest": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(math.MinInt32))), pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.Priority(math.MaxInt32)), node: "a", victims: []string{"1"},
		},
		"pods of an overcrowded node": {
			nodes:   only(schedulertest.NodeHas(corev1.ResourceCPU, "2")),
			running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(1)), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(2))),
			pod:     urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"2", "1"},
		},
		"a pod without requests needs no victims on an overcommitted node": {
			nodes:   only(schedulertest.NodeHas(corev1.ResourcePods, "1")),
			running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("9"), schedulertest.Priority(1))), pod: urgent(), node: "a", victims: []string{"1"},
		},

		// Where it does not help.
		"pods of equal priority stay": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(10))), pod: urgent(schedulertest.RequestingCPU("1")),
			message: "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
		"more important pods stay": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(11))), pod: urgent(schedulertest.RequestingCPU("1")),
			message: "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
		"an empty node that is too small": {
			nodes: only(schedulertest.NodeHas(corev1.ResourceCPU, "1")), pod: urgent(schedulertest.RequestingCPU("2")),
			message: "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"going does not help": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1")), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(20))), pod: urgent(schedulertest.RequestingCPU("3")),
			message: "0/1 nodes are available: 1 Insufficient cpu.",
		},
		"going helps with one thing, not with the other": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4")), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingMemory("32Gi"), schedulertest.Port(80, "", "TCP"), schedulertest.Priority(20))),
			pod: urgent(schedulertest.RequestingCPU("3"), schedulertest.RequestingMemory("1Gi"), schedulertest.Port(80, "", "TCP")), message: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
		},
		"a node the pod may never run on": {
			nodes: only(schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule)), running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.RequestingCPU("1")),
			message: "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"a closed node": {
			nodes: only(schedulertest.Cordoned), running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.RequestingCPU("1")),
			message: "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"a node that is not selected": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.Selecting("disk", "ssd")),
			message: "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"a node without the topology key": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), green)), pod: urgent(green, schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "color=green")),
			message: "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"the friend of whom there is none": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"))), pod: urgent(schedulertest.WithAffinity(host, "color", "green")),
			message: "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"the friend would have to go": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.WithAffinity(host, "color", "green"), schedulertest.RequestingCPU("2")),
			message: "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.",
		},
		"each node for its own reason": {
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b"), schedulertest.TestNode("c"), schedulertest.TestNode("d"), schedulertest.TestNode("e", schedulertest.Taint("k", "", corev1.TaintEffectNoExecute))},
			running: pods(schedulertest.TestPod("1", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(10)), schedulertest.TestPod("2", schedulertest.OnNode("c"), schedulertest.RequestingCPU("1")), schedulertest.TestPod("3", schedulertest.OnNode("c"), schedulertest.RequestingCPU("3"), schedulertest.Priority(20)),
				schedulertest.TestPod("4", schedulertest.OnNode("d"), schedulertest.RequestingCPU("2")), schedulertest.TestPod("5", schedulertest.OnNode("d"), schedulertest.RequestingCPU("2"), schedulertest.Priority(20))),
			pod:     urgent(schedulertest.RequestingCPU("3")),
			message: "0/5 nodes are available: 1 No preemption victims found for incoming pod, 2 Insufficient cpu, 2 Preemption is not helpful for scheduling.",
		},
		"the pod's own nodes are all there is": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(10)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.RequiresNodes(schedulertest.Named("a"))),
			message: "0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
		},
		"the pod's own node": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(9)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.RequiresNodes(schedulertest.Named("a"))),
			node: "a", victims: []string{"1"},
		},

		// Who may preempt.
		"a pod that never preempts": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NeverPreempting), message: "not eligible due to preemptionPolicy=Never.",
		},
		"a pod that says it preempts": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))),
			pod: urgent(schedulertest.RequestingCPU("1"), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority) }), node: "a", victims: []string{"1"},
		},
		"victims are still leaving": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.TerminatingByPreemption)), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")),
			message: "not eligible due to a terminating pod on the nominated node.",
		},
		"never goes before still leaving": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.TerminatingByPreemption)), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a"), schedulertest.NeverPreempting),
			message: "not eligible due to preemptionPolicy=Never.",
		},
		"somebody leaves the nominated node for other reasons": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Terminating)), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")), node: "a", victims: []string{"1"},
		},
		"somebody leaves whom the kubelet evicted": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Terminating, schedulertest.DisruptionTarget(corev1.ConditionTrue, corev1.PodReasonTerminationByKubelet))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")),
			node: "a", victims: []string{"1"},
		},
		"the mark was taken back": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Terminating, schedulertest.DisruptionTarget(corev1.ConditionFalse, corev1.PodReasonPreemptionByScheduler))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")),
			node: "a", victims: []string{"1"},
		},
		"a marked pod that is not leaving": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.DisruptionTarget(corev1.ConditionTrue, corev1.PodReasonPreemptionByScheduler))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")),
			node: "a", victims: []string{"1"},
		},
		"an equal leaves the nominated node": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.TerminatingByPreemption, schedulertest.Priority(10)), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")),
			node: "a", victims: []string{"2"},
		},
		"somebody leaves another node than the nominated one": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4")), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.TerminatingByPreemption, schedulertest.Priority(5))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")),
			node: "a", victims: []string{"1"},
		},
		"somebody leaves the nominated node, which the pod may not run on any more": {
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b")},
			running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.TerminatingByPreemption), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")),
			node: "b", victims: []string{"2"},
		},
		"the nominated node is gone": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4")), schedulertest.TestPod("2", schedulertest.OnNode("z"), schedulertest.TerminatingByPreemption)), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("z")),
			node: "a", victims: []string{"1"},
		},

		// Pods nominated to the node.
		"resources reserved for a pod of higher priority count": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")), schedulertest.TestPod("n", schedulertest.RequestingCPU("2"), schedulertest.Priority(20), schedulertest.NominatedTo("a"))), pod: urgent(schedulertest.RequestingCPU("3")),
			message: "0/1 nodes are available: 1 Insufficient cpu.",
		},
		"resources reserved for a pod of the same priority count": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")), schedulertest.TestPod("n", schedulertest.RequestingCPU("2"), schedulertest.Priority(10), schedulertest.NominatedTo("a"))), pod: urgent(schedulertest.RequestingCPU("3")),
			message: "0/1 nodes are available: 1 Insufficient cpu.",
		},
		"resources reserved for a pod of lower priority do not count": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")), schedulertest.TestPod("n", schedulertest.RequestingCPU("2"), schedulertest.Priority(9), schedulertest.NominatedTo("a"))), pod: urgent(schedulertest.RequestingCPU("3")),
			node: "a", victims: []string{"1"},
		},
		"who comes makes more victims": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Started(1)), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Started(2)), schedulertest.TestPod("3", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Started(3)),
				schedulertest.TestPod("n", schedulertest.RequestingCPU("1"), schedulertest.Priority(10), schedulertest.NominatedTo("a"))),
			pod: urgent(schedulertest.RequestingCPU("2")), node: "a", victims: []string{"2", "1"},
		},
		"the friend that is only on its way is none": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4")), schedulertest.TestPod("n", green, schedulertest.Priority(10), schedulertest.NominatedTo("a"))), pod: urgent(schedulertest.RequestingCPU("1"), schedulertest.WithAffinity(host, "color", "green")),
			message: "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.",
		},

		// Budgets.
		"budgets are kept where possible": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5))),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "green")), pod: urgent(schedulertest.RequestingCPU("1")), node: "b", victims: []string{"2"},
		},
		"budgets are broken where not": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1), green)),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "green")), pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"}, violations: 1,
		},
		"of two on a node the unprotected one goes": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(5))),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "green")), pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"2"},
		},
		"of two that a budget protects the less important one goes": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(5), green)),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "green")), pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"}, violations: 1,
		},
		"what a budget allows is used up by the most important, who then go": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(5), green)),
			budgets: budgets(schedulertest.BudgetFor(1, "color", "green")), pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"2"},
		},
		"a budget that allows one of two": {
			nodes: one, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(5), green)),
			budgets: budgets(schedulertest.BudgetFor(1, "color", "green")), pod: urgent(schedulertest.RequestingCPU("4")), node: "a", victims: []string{"2", "1"}, violations: 1,
		},
		"the node that breaks fewer budgets, though its victims matter more": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), green), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), green), schedulertest.TestPod("3", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(8), green), schedulertest.TestPod("4", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(9))),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "green")), pod: urgent(schedulertest.RequestingCPU("4")), node: "b", victims: []string{"4", "3"}, violations: 1,
		},
		"a disruption that is under way is not counted again": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5))),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "green", func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptedPods = map[string]metav1.Time{"1": {}} })),
			pod:     urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"},
		},
		"a budget of another namespace": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5))),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "green", func(b *policyv1.PodDisruptionBudget) { b.Namespace = "other" })), pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"},
		},
		"a budget for other pods": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5))),
			budgets: budgets(schedulertest.BudgetFor(0, "color", "blue")), pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"},
		},
		"a budget that selects nothing": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1), green), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5))),
			budgets: budgets(schedulertest.BudgetFor(0, "", "", func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil }), schedulertest.BudgetFor(0, "", "", func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} }),
				schedulertest.BudgetFor(0, "", "", func(b *policyv1.PodDisruptionBudget) {
					b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "color", Operator: "Likes"}}}
				})),
			pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"},
		},
		"a pod without labels is in no budget": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5), green)),
			budgets: budgets(schedulertest.BudgetFor(0, "", "", func(b *policyv1.PodDisruptionBudget) {
				b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "shape", Operator: metav1.LabelSelectorOpDoesNotExist}}}
			})),
			pod: urgent(schedulertest.RequestingCPU("1")), node: "a", victims: []string{"1"},
		},
		"two budgets, one of which is used up": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1), green, schedulertest.Labelled("app", "x")), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(5), blue)),
			budgets: budgets(schedulertest.BudgetFor(3, "color", "green"), schedulertest.BudgetFor(0, "app", "x")), pod: urgent(schedulertest.RequestingCPU("1")), node: "b", victims: []string{"2"},
		},

		// Which node.
		"the node whose victim matters least": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(3)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(2)), schedulertest.TestPod("3", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(2))),
			pod: urgent(schedulertest.RequestingCPU("4")), node: "b", victims: []string{"2", "3"},
		},
		"the node with fewer victims": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(2)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(2)), schedulertest.TestPod("3", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(2))),
			pod: urgent(schedulertest.RequestingCPU("4")), node: "a", victims: []string{"1"},
		},
		"the node whose victims matter less in sum": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(3)), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2"), schedulertest.Priority(2)), schedulertest.TestPod("3", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(3)), schedulertest.TestPod("4", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.Priority(1))),
			pod: urgent(schedulertest.RequestingCPU("4")), node: "b", victims: []string{"3", "4"},
		},
		"the victim that ran shortest": {
			nodes: two, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Started(10)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Started(5))),
			pod: urgent(schedulertest.RequestingCPU("4")), node: "b", victims: []string{"2"},
		},
		"a node that fits one victim more": {
			nodes: []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "5"))}, running: pods(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(2)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(2)), schedulertest.TestPod("3", schedulertest.OnNode("b"), schedulertest.RequestingCPU("1"), schedulertest.Priority(1))),
			pod: urgent(schedulertest.RequestingCPU("1")), node: "b", victims: []string{"3"},
		},
	} {
		t.Run(name, test.run)
	}
}

// victimsOf makes the victims of a candidate from their priorities and the minutes they have run.
func victimsOf(node string, violations int, priorities []int32, minutes ...int) plugins.Preemption {
	c := plugins.Preemption{Node: node, Violations: violations}
	for i, n := range priorities {
		o := []schedulertest.PodOption{schedulertest.Priority(n)}
		if i < len(minutes) {
			o = append(o, schedulertest.Started(minutes[i]))
		}
		c.Victims = append(c.Victims, schedulertest.TestPod(fmt.Sprint(node, i), o...))
	}
	return c
}

func TestChoose(t *testing.T) {
	p := func(n ...int32) []int32 { return n }
	for name, test := range map[string]struct {
		candidates []plugins.Preemption
		want       string
	}{
		"nobody":                               {nil, ""},
		"one":                                  {[]plugins.Preemption{victimsOf("a", 5, p(9))}, "a"},
		"one without victims is none":          {[]plugins.Preemption{victimsOf("a", 0, nil)}, ""},
		"one without victims is passed over":   {[]plugins.Preemption{victimsOf("a", 0, nil), victimsOf("b", 3, p(9, 9))}, "b"},
		"violations before everything":         {[]plugins.Preemption{victimsOf("a", 1, p(1)), victimsOf("b", 0, p(9, 9, 9))}, "b"},
		"then the highest priority":            {[]plugins.Preemption{victimsOf("a", 1, p(3)), victimsOf("b", 1, p(2, 2, 2))}, "b"},
		"of negative priorities the lower":     {[]plugins.Preemption{victimsOf("a", 0, p(-1)), victimsOf("b", 0, p(-2))}, "b"},
		"then the sum":                         {[]plugins.Preemption{victimsOf("a", 0, p(5, 4)), victimsOf("b", 0, p(5, 3))}, "b"},
		"few negative ones before many":        {[]plugins.Preemption{victimsOf("a", 0, p(-1, -1)), victimsOf("b", 0, p(-1))}, "b"},
		"fewer before a smaller plain sum":     {[]plugins.Preemption{victimsOf("a", 0, p(1, -9, -9)), victimsOf("b", 0, p(1, 1))}, "b"},
		"the lowest priority there is adds 0":  {[]plugins.Preemption{victimsOf("a", 0, p(5, math.MinInt32, math.MinInt32)), victimsOf("b", 0, p(5, math.MinInt32))}, "b"},
		"the largest sums":                     {[]plugins.Preemption{victimsOf("a", 0, p(math.MaxInt32, math.MaxInt32)), victimsOf("b", 0, p(math.MaxInt32, math.MaxInt32-1))}, "b"},
		"then who has run shortest":            {[]plugins.Preemption{victimsOf("a", 0, p(1), 10), victimsOf("b", 0, p(1), 9)}, "b"},
		"of several the one that ran longest":  {[]plugins.Preemption{victimsOf("a", 0, p(1, 1), 20, 1), victimsOf("b", 0, p(1, 1), 9, 10)}, "b"},
		"but of the most important ones only":  {[]plugins.Preemption{victimsOf("a", 0, p(5, 1), 10, 1), victimsOf("b", 0, p(5, 1), 9, 90)}, "b"},
		"one that has not begun ran shortest":  {[]plugins.Preemption{victimsOf("a", 0, p(1), 0), victimsOf("b", 0, p(1))}, "b"},
		"the first of equals":                  {[]plugins.Preemption{victimsOf("a", 0, p(1), 1), victimsOf("b", 0, p(1), 1), victimsOf("c", 0, p(1), 1)}, "a"},
		"the best of many":                     {[]plugins.Preemption{victimsOf("a", 2, p(1)), victimsOf("b", 1, p(5)), victimsOf("c", 1, p(4, 4)), victimsOf("d", 1, p(4, 3)), victimsOf("e", 3, p(0))}, "d"},
		"order does not matter":                {[]plugins.Preemption{victimsOf("e", 3, p(0)), victimsOf("d", 1, p(4, 3)), victimsOf("c", 1, p(4, 4)), victimsOf("b", 1, p(5)), victimsOf("a", 2, p(1))}, "d"},
		"the most important in the middle":     {[]plugins.Preemption{victimsOf("a", 0, p(1, 5, 3), 1, 60, 1), victimsOf("b", 0, p(1, 5, 3), 1, 50, 90)}, "b"},
		"victims out of order, as an extender": {[]plugins.Preemption{victimsOf("a", 0, p(1, 5), 1, 60), victimsOf("b", 0, p(1, 5), 90, 50)}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if c := plugins.ChooseCandidate(test.candidates); c != nil {
				got = c.Node
			}
			if got != test.want {
				t.Errorf("chose %q, want %q", got, test.want)
			}
		})
	}
}

func TestDefaultPreemptionArguments(t *testing.T) {
	for _, test := range []struct {
		percentage, absolute *int32
		want                 string
	}{
		{nil, nil, "10 100"},
		{ptr.To(int32(0)), nil, "0 100"},
		{nil, ptr.To(int32(0)), "10 0"},
		{ptr.To(int32(100)), ptr.To(int32(7)), "100 7"},
	} {
		rule := plugins.NewDefaultPreemption(&configv1.DefaultPreemptionArgs{MinCandidateNodesPercentage: test.percentage, MinCandidateNodesAbsolute: test.absolute}).(*plugins.DefaultPreemption)
		got := fmt.Sprint(rule.Percentage, rule.Absolute)
		if got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

// Preemption stops at the minimum number of candidates, but only if one of them violates no disruption budget.
func TestPreemptChecksEnoughNodes(t *testing.T) {
	for name, test := range map[string]struct {
		nodes                int
		percentage, absolute int
		protected            int // nodes whose pod a budget protects, from where the search begins
		want                 int // looked at
	}{
		"a share":                                {20, 50, 1, 0, 10},
		"a share rounded down":                   {19, 50, 1, 0, 9},
		"at least so many":                       {20, 10, 5, 0, 5},
		"but not more than there are":            {3, 10, 100, 0, 3},
		"none is still one":                      {20, 1, 0, 0, 1},
		"all":                                    {20, 100, 0, 0, 20},
		"until one breaks no budget":             {20, 10, 1, 7, 8},
		"those that break budgets count besides": {20, 50, 1, 3, 10},
		"all break budgets":                      {6, 10, 1, 6, 6},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot.NewSnapshot()
			for _, n := range schedulertest.TestNodes(test.nodes) {
				s.SetNode(n)
			}
			profile := plugins.DefaultProfile()
			profile.Preemption = &plugins.DefaultPreemption{Percentage: test.percentage, Absolute: test.absolute}
			for i := range test.nodes {
				o := []schedulertest.PodOption{schedulertest.OnNode(s.NodeInfos[i].Name), schedulertest.RequestingCPU("4")}
				// So many pods have come when the search begins: it begins with the first node.
				if i < test.protected {
					o = append(o, schedulertest.Labelled("color", "green"))
				}
				s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("v", i), o...)))
			}
			d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.Priority(1))), profile)
			if !IsUnschedulable(err) {
				t.Fatal(err)
			}
			topo, err := TopologyFor(s, d.Pod, profile)
			if err != nil {
				t.Fatal(err)
			}
			found, _, err := d.candidates(topo, schedulertest.BudgetsOf([]*policyv1.PodDisruptionBudget{schedulertest.BudgetFor(0, "color", "green")}))
			if err != nil || len(found) != test.want {
				t.Errorf("%d candidates, want %d; %v", len(found), test.want, err)
			}
			// Those that break no budget come first.
			broken := slices.IndexFunc(found, func(c plugins.Preemption) bool { return c.Violations > 0 })
			if broken >= 0 && slices.ContainsFunc(found[broken:], func(c plugins.Preemption) bool { return c.Violations == 0 }) {
				t.Errorf("candidates %v", found)
			}
		})
	}
}

// oddPlugin is a rule of a test's own.
type oddPlugin struct {
	check func(node int32) *plugins.Refusal
}

func (oddPlugin) Name() string { return "Odd" }

func (r oddPlugin) Filter(*snapshot.Snapshot, *snapshot.PodInfo) (plugins.Filter, *plugins.Refusal) {
	return plugins.Filter{Check: r.check, Volatile: true}, nil
}

func TestPreemptWhenRulesCannotDecide(t *testing.T) {
	for name, test := range map[string]struct {
		// check is asked about the node with the n-th question about it.
		check   func(node string, n int) *plugins.Refusal
		node    string
		message string
	}{
		"a rule fails": {func(_ string, n int) *plugins.Refusal {
			if n == 1 {
				return plugins.Refuse("Odd", false, "no")
			}
			return &plugins.Refusal{Plugin: "Odd", Err: errors.New("no idea")}
		}, "", `running "Odd" filter plugin: no idea`},
		"a rule fails on one node": {func(node string, n int) *plugins.Refusal {
			if n > 1 && node == "a" {
				return &plugins.Refusal{Plugin: "Odd", Err: errors.New("no idea")}
			}
			return nil
		}, "b", "found a potential placement for pod on node b, preempting 1 victims"},
		"nobody has to go after all": {func(node string, n int) *plugins.Refusal {
			if n == 1 || node == "b" {
				return plugins.Refuse("Odd", false, "no")
			}
			return nil
		}, "", `expected at least one victim pod on node "a"`},
	} {
		t.Run(name, func(t *testing.T) {
			asks := "1"
			if name != "nobody has to go after all" {
				asks = "2"
			}
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3")), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("3")))
			asked := map[int32]int{}
			profile := plugins.DefaultProfile()
			odd := oddPlugin{func(node int32) *plugins.Refusal {
				asked[node]++
				return test.check(s.NodeInfos[node].Name, asked[node])
			}}
			profile.Filters = append([]plugins.FilterPlugin{odd}, profile.Filters...)
			profile.SpreadOrder++
			profile.AffinityOrder++
			d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU(asks), schedulertest.Priority(1))), profile)
			if !IsUnschedulable(err) {
				t.Fatal(err)
			}
			before := s.Dump()
			way, message, err := Preempt(d, nil, nil)
			if message != test.message || (way == nil) != (test.node == "") || way != nil && way.Node != test.node || (err == nil) != (way != nil) || errors.Is(err, ErrPreemptionNotHelpful) {
				t.Errorf("%+v, %q, %v", way, message, err)
			}
			if after := s.Dump(); after != before {
				t.Errorf("looking has changed something:\n%s\n%s", before, after)
			}
		})
	}
}

// Extenders may take candidates away, change their victims, or fail.
func TestPreemptReview(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"), schedulertest.Priority(1)), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"), schedulertest.Priority(2)))
	for name, test := range map[string]struct {
		review  func([]plugins.Preemption) ([]plugins.Preemption, error)
		node    string
		message string
	}{
		"all stay": {func(all []plugins.Preemption) ([]plugins.Preemption, error) { return all, nil }, "a", "found a potential placement for pod on node a, preempting 1 victims"},
		"the best is taken away": {func(all []plugins.Preemption) ([]plugins.Preemption, error) {
			return slices.DeleteFunc(all, func(c plugins.Preemption) bool { return c.Node == "a" }), nil
		}, "b", "found a potential placement for pod on node b, preempting 1 victims"},
		"none is left": {func([]plugins.Preemption) ([]plugins.Preemption, error) { return nil, nil }, "", "no candidate node for preemption"},
		"a failure":    {func([]plugins.Preemption) ([]plugins.Preemption, error) { return nil, errors.New("out of order") }, "", "out of order"},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.Priority(9))), plugins.DefaultProfile())
			way, message, err := Preempt(d, nil, test.review)
			if message != test.message || (way == nil) != (test.node == "") || way != nil && way.Node != test.node || (err == nil) != (way != nil) || errors.Is(err, ErrPreemptionNotHelpful) {
				t.Errorf("%+v, %q, %v", way, message, err)
			}
		})
	}
}

// preemptModel decides about preemption by looking at objects, in the plainest way there is. It knows processors, memory, the number
// of pods, ports of the host, taints and enemies on the same node.
type preemptModel struct {
	nodes   []*corev1.Node
	pods    []*corev1.Pod // on nodes
	coming  []*corev1.Pod // nominated
	budgets []*policyv1.PodDisruptionBudget
}

func modelHates(a, b *corev1.Pod) bool {
	if a.Spec.Affinity == nil || a.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	for _, term := range a.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		matches := true
		for key, value := range term.LabelSelector.MatchLabels {
			matches = matches && b.Labels[key] == value
		}
		if matches {
			return true
		}
	}
	return false
}

// allows reports whether a pod may ever run on a node, whoever else does.
func (m *preemptModel) allows(node *corev1.Node, pod *corev1.Pod) bool {
	for _, taint := range node.Spec.Taints {
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == taint.Key && t.Operator == corev1.TolerationOpExists })
		if taint.Effect == corev1.TaintEffectNoSchedule && !tolerated {
			return false
		}
	}
	requests := pod.Spec.Containers[0].Resources.Requests
	return requests.Cpu().Cmp(*node.Status.Allocatable.Cpu()) <= 0 && requests.Memory().Cmp(*node.Status.Allocatable.Memory()) <= 0
}

func (m *preemptModel) fitsBeside(node *corev1.Node, pod *corev1.Pod, others []*corev1.Pod) bool {
	cpu, memory := resource.Quantity{}, resource.Quantity{}
	for _, p := range append(slices.Clone(others), pod) {
		cpu.Add(*p.Spec.Containers[0].Resources.Requests.Cpu())
		memory.Add(*p.Spec.Containers[0].Resources.Requests.Memory())
	}
	mine := pod.Spec.Containers[0].Resources.Requests
	if !mine.Cpu().IsZero() && cpu.Cmp(*node.Status.Allocatable.Cpu()) > 0 || !mine.Memory().IsZero() && memory.Cmp(*node.Status.Allocatable.Memory()) > 0 ||
		int64(len(others)+1) > node.Status.Allocatable.Pods().Value() {
		return false
	}
	// As long as nobody on any node, nor the pod itself, has an enemy, the enemies of those who come do not count.
	peace := pod.Spec.Affinity == nil && !slices.ContainsFunc(m.pods, func(p *corev1.Pod) bool { return p.Spec.Affinity != nil && modelHates(p, pod) })
	for _, p := range others {
		if !peace && (modelHates(pod, p) || modelHates(p, pod)) {
			return false
		}
		for _, a := range p.Spec.Containers[0].Ports {
			for _, b := range pod.Spec.Containers[0].Ports {
				if a.HostPort == b.HostPort && a.Protocol == b.Protocol {
					return false
				}
			}
		}
	}
	return true
}

// fits: with those who come and without them.
func (m *preemptModel) fits(node *corev1.Node, pod *corev1.Pod, others []*corev1.Pod) bool {
	with := slices.Clone(others)
	for _, c := range m.coming {
		if c.Status.NominatedNodeName == node.Name && snapshot.PriorityOf(c) >= snapshot.PriorityOf(pod) {
			with = append(with, c)
		}
	}
	return m.allows(node, pod) && m.fitsBeside(node, pod, with) && m.fitsBeside(node, pod, others)
}

func (m *preemptModel) on(node *corev1.Node) (all []*corev1.Pod) {
	for _, p := range m.pods {
		if p.Spec.NodeName == node.Name {
			all = append(all, p)
		}
	}
	return all
}

func withoutPods(all []*corev1.Pod, gone ...*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(all), func(p *corev1.Pod) bool { return slices.Contains(gone, p) })
}

// victims follows the book: all weaker ones go; then, first those whose going breaks a budget, then the others, each time the most
// important first, whoever can stay stays.
func (m *preemptModel) victims(node *corev1.Node, pod *corev1.Pod) (victims []*corev1.Pod, violations int, ok bool) {
	var weaker []*corev1.Pod
	for _, p := range m.on(node) {
		if snapshot.PriorityOf(p) < snapshot.PriorityOf(pod) {
			weaker = append(weaker, p)
		}
	}
	slices.SortStableFunc(weaker, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(snapshot.PriorityOf(b), snapshot.PriorityOf(a)), a.Status.StartTime.Compare(b.Status.StartTime.Time))
	})
	left := map[*policyv1.PodDisruptionBudget]int32{}
	for _, b := range m.budgets {
		left[b] = b.Status.DisruptionsAllowed
	}
	var protected, free []*corev1.Pod
	for _, p := range weaker {
		breaks := false
		for _, b := range m.budgets {
			if !breaks && p.Labels["color"] == b.Spec.Selector.MatchLabels["color"] {
				left[b]--
				breaks = left[b] < 0
			}
		}
		if breaks {
			protected = append(protected, p)
		} else {
			free = append(free, p)
		}
	}
	stay := withoutPods(m.on(node), weaker...)
	if len(weaker) == 0 || !m.fits(node, pod, stay) {
		return nil, 0, false
	}
	for i, p := range append(slices.Clone(protected), free...) {
		if m.fits(node, pod, append(slices.Clone(stay), p)) {
			stay = append(stay, p)
			continue
		}
		victims = append(victims, p)
		if i < len(protected) {
			violations++
		}
	}
	return victims, violations, true
}

// badness orders ways to preempt, the better first.
func badness(victims []*corev1.Pod, violations int) []int64 {
	highest, sum, first := int64(math.MinInt64), int64(0), int64(math.MaxInt64)
	for _, v := range victims {
		sum += int64(snapshot.PriorityOf(v)) + 1<<31
		switch p := int64(snapshot.PriorityOf(v)); {
		case p > highest:
			highest, first = p, v.Status.StartTime.Unix()
		case p == highest:
			first = min(first, v.Status.StartTime.Unix())
		}
	}
	return []int64{int64(violations), highest, sum, int64(len(victims)), -first}
}

func randomPreemptModel(seed uint64) (*preemptModel, *corev1.Pod) {
	random := rand.New(rand.NewPCG(seed, 3))
	oneIn := func(n int) bool { return random.IntN(n) == 0 }
	color := func() string { return []string{"green", "blue", "red"}[random.IntN(3)] }
	made := 0
	pod := func(most int32, options ...schedulertest.PodOption) *corev1.Pod {
		made++
		o := append(options, schedulertest.Labelled("color", color()), schedulertest.Priority(random.Int32N(most)), schedulertest.Started(random.IntN(5)))
		if !oneIn(4) {
			o = append(o, schedulertest.RequestingCPU([]string{"500m", "1", "2"}[random.IntN(3)]))
		}
		if oneIn(3) {
			o = append(o, schedulertest.RequestingMemory([]string{"1Gi", "8Gi", "16Gi"}[random.IntN(3)]))
		}
		if oneIn(8) {
			o = append(o, schedulertest.Port(80+random.Int32N(2), "", []corev1.Protocol{"TCP", "UDP"}[random.IntN(2)]))
		}
		if oneIn(8) {
			o = append(o, schedulertest.WithAntiAffinity(corev1.LabelHostname, "color", color()))
		}
		if oneIn(5) {
			o = append(o, schedulertest.Tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists}))
		}
		return schedulertest.TestPod(fmt.Sprint("p", made), o...)
	}
	m := &preemptModel{}
	for i := range 2 + random.IntN(4) {
		n := schedulertest.TestNode(fmt.Sprint("n", i), schedulertest.NodeHas(corev1.ResourceCPU, []string{"2", "3", "4"}[random.IntN(3)]), schedulertest.NodeHas(corev1.ResourcePods, []string{"3", "5", "9"}[random.IntN(3)]))
		if oneIn(6) {
			schedulertest.Taint("k", "", corev1.TaintEffectNoSchedule)(n)
		}
		m.nodes = append(m.nodes, n)
		for range random.IntN(9) {
			p := pod(4, schedulertest.OnNode(n.Name))
			if m.fits(n, p, m.on(n)) {
				m.pods = append(m.pods, p)
			}
		}
		if oneIn(4) {
			m.coming = append(m.coming, pod(6, schedulertest.NominatedTo(n.Name)))
		}
	}
	for _, c := range []string{"green", "blue"} {
		if oneIn(2) {
			m.budgets = append(m.budgets, schedulertest.BudgetFor(random.Int32N(3), "color", c))
		}
	}
	preemptor := pod(6)
	return m, preemptor
}

// TestPreemptEqualsModel preempts in random clusters beside the model, and looks at the outcome with brute force: the pod fits when
// its victims are gone, it fits with no one of them, nor any group of them, back, and no other node would have been hurt less.
func TestPreemptEqualsModel(t *testing.T) {
	needed, helped, broken := 0, 0, 0
	for seed := range uint64(1500) {
		m, pod := randomPreemptModel(seed)
		s := snapshottest.New(t, m.nodes, m.pods...)
		for _, p := range m.coming {
			s.Nominate(snapshottest.PodInfo(t, p), p.UID, p.Status.NominatedNodeName)
		}
		fits := slices.ContainsFunc(m.nodes, func(n *corev1.Node) bool { return m.fits(n, pod, m.on(n)) })
		d, err := Schedule(s, snapshottest.PodInfo(t, pod), worldProfile)
		if fits != (err == nil) {
			t.Fatalf("seed %d: the pod fits: %v; %v", seed, fits, err)
		}
		if fits {
			continue
		}
		needed++
		before := s.Dump()
		way, message, err := Preempt(d, schedulertest.BudgetsOf(m.budgets), nil)
		if after := s.Dump(); after != before {
			t.Fatalf("seed %d: looking has changed something:\n%s\n%s", seed, before, after)
		}
		var best []int64
		ways := map[string]string{}
		for _, n := range m.nodes {
			victims, violations, ok := m.victims(n, pod)
			if !m.allows(n, pod) || !ok {
				continue
			}
			if b := badness(victims, violations); best == nil || slices.Compare(b, best) < 0 {
				best = b
			}
			ways[n.Name] = victimNames(victims, violations)
		}
		if (way == nil) != (best == nil) || (way == nil) != errors.Is(err, ErrPreemptionNotHelpful) {
			t.Fatalf("seed %d: %q; the model knows %v", seed, message, ways)
		}
		if way == nil {
			continue
		}
		helped++
		broken += way.Violations
		if got := victimNames(way.Victims, way.Violations); got != ways[way.Node] {
			t.Fatalf("seed %d: %s go from %s, want %s", seed, got, way.Node, ways[way.Node])
		}
		if got := badness(way.Victims, way.Violations); slices.Compare(got, best) != 0 {
			t.Fatalf("seed %d: %s on %s costs %v, the best way %v: %v", seed, victimNames(way.Victims, way.Violations), way.Node, got, best, ways)
		}
		node := m.nodes[slices.IndexFunc(m.nodes, func(n *corev1.Node) bool { return n.Name == way.Node })]
		for back := range 1 << len(way.Victims) {
			var gone []*corev1.Pod
			for i, v := range way.Victims {
				if back&(1<<i) == 0 {
					gone = append(gone, v)
				}
			}
			if fits := m.fits(node, pod, withoutPods(m.on(node), gone...)); fits != (back == 0) {
				t.Fatalf("seed %d: with %s gone of %s the pod fits: %v", seed, victimNames(gone, 0), victimNames(way.Victims, 0), fits)
			}
		}
		for _, v := range way.Victims {
			if snapshot.PriorityOf(v) >= snapshot.PriorityOf(pod) || v.Spec.NodeName != way.Node {
				t.Fatalf("seed %d: victim %s of priority %d on %s", seed, v.Name, snapshot.PriorityOf(v), v.Spec.NodeName)
			}
		}
	}
	if needed < 250 || helped < 150 || broken < 10 {
		t.Errorf("%d clusters had no free resources, %d were helped, %d budgets broken: too few to tell anything", needed, helped, broken)
	}
}

func victimNames(pods []*corev1.Pod, violations int) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return fmt.Sprint(strings.Join(names, " "), " breaking ", violations)
}
