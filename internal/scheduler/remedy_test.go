package scheduler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// changesFor are the changes told about a pod that fits nowhere, as lines.
func changesFor(t testing.TB, s *Snapshot, pod *corev1.Pod) (lines []string) {
	t.Helper()
	d, err := Schedule(s, infoOf(t, pod), DefaultProfile())
	if err == nil {
		t.Fatalf("the pod fits on %s", d.Node)
	}
	for _, c := range d.smallestChanges() {
		lines = append(lines, fmt.Sprintf("%s +%d: %s", c.Node, c.Others, strings.Join(c.Steps, "; ")))
	}
	return lines
}

func TestSmallestChanges(t *testing.T) {
	noSchedule, noExecute := corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute
	for _, test := range []struct {
		what    string
		nodes   []*corev1.Node
		running []*corev1.Pod
		pod     *corev1.Pod
		want    []string
	}{
		{
			what: "no node at all", pod: testPod("p"),
			want: []string{" +0: add a node"},
		},
		{
			what: "a cordoned node", nodes: []*corev1.Node{testNode("a", cordoned)}, pod: testPod("p"),
			want: []string{"a +0: uncordon the node"},
		},
		{
			what: "a taint, and the same on others", pod: testPod("p"),
			nodes: []*corev1.Node{testNode("b", taint("k", "v", noSchedule)), testNode("a", taint("k", "v", noSchedule)), testNode("c", taint("k", "w", noExecute))},
			want:  []string{"a +1: tolerate the taint k=v:NoSchedule, or remove it", "c +0: tolerate the taint k=w:NoExecute, or remove it"},
		},
		{
			what: "several taints are several steps", pod: testPod("p"),
			nodes: []*corev1.Node{testNode("a", taint("k", "v", noSchedule), taint("x", "", noSchedule))},
			want:  []string{"a +0: tolerate the taint k=v:NoSchedule, or remove it; tolerate the taint x:NoSchedule, or remove it"},
		},
		{
			what: "a taint that is only disliked is no obstacle", pod: testPod("p", asksCPU("5")),
			nodes: []*corev1.Node{testNode("a", taint("k", "v", corev1.TaintEffectPreferNoSchedule))},
			want:  []string{"a +0: request 1 less cpu, for the node has 4 in all"},
		},
		{
			what: "the node where least is missing", pod: testPod("p", asksCPU("2")),
			nodes:   []*corev1.Node{testNode("a"), testNode("b"), testNode("c")},
			running: []*corev1.Pod{testPod("x", on("a"), asksCPU("3500m")), testPod("y", on("b"), asksCPU("2500m")), testPod("z", on("c"), asksCPU("4"))},
			want:    []string{"b +2: request 500m less cpu, or free as much: 2500m of 4 are requested already"},
		},
		{
			what: "memory and CPU", pod: testPod("p", asksCPU("5"), asksMemory("33Gi")), nodes: []*corev1.Node{testNode("a")},
			want: []string{"a +0: request 1 less cpu, for the node has 4 in all; request 1Gi less memory, for the node has 32Gi in all"},
		},
		{
			what: "a resource the node does not have", pod: testPod("p", asks("example.com/gpu", "1")), nodes: []*corev1.Node{testNode("a")},
			want: []string{"a +0: do not request example.com/gpu, of which the node has none"},
		},
		{
			what: "a full node", pod: testPod("p"), nodes: []*corev1.Node{testNode("a", nodeHas(corev1.ResourcePods, "1"))}, running: []*corev1.Pod{testPod("x", on("a"))},
			want: []string{"a +0: remove a pod from the node, which can hold 1"},
		},
		{
			what: "a label of the selector", pod: testPod("p", selecting("disk", "ssd")), nodes: []*corev1.Node{testNode("a")},
			want: []string{"a +0: label the node disk=ssd, or relax the pod's node selector"},
		},
		{
			what: "the alternative that lacks least", nodes: []*corev1.Node{testNode("a", nodeLabel("x", "1"))},
			pod: testPod("p", requiresNodes(
				corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "y", Operator: corev1.NodeSelectorOpExists}, {Key: "z", Operator: corev1.NodeSelectorOpExists}}},
				expression("x", corev1.NodeSelectorOpIn, "2", "3"))),
			want: []string{"a +0: label the node x=2 or 3, or relax the pod's node selector"},
		},
		{
			what: "a label too many", pod: testPod("p", requiresNodes(expression("x", corev1.NodeSelectorOpDoesNotExist))), nodes: []*corev1.Node{testNode("a", nodeLabel("x", "1"))},
			want: []string{"a +0: remove the node's label x, or relax the pod's node selector"},
		},
		{
			what: "a label with too little", pod: testPod("p", requiresNodes(expression("x", corev1.NodeSelectorOpGt, "5"))), nodes: []*corev1.Node{testNode("a", nodeLabel("x", "1"))},
			want: []string{"a +0: label the node x with more than 5, or relax the pod's node selector"},
		},
		{
			what: "a label with too much", pod: testPod("p", requiresNodes(expression("x", corev1.NodeSelectorOpLt, "5"))), nodes: []*corev1.Node{testNode("a", nodeLabel("x", "9"))},
			want: []string{"a +0: label the node x with less than 5, or relax the pod's node selector"},
		},
		{
			what: "an affinity nothing can match", pod: testPod("p", requiresNodes(corev1.NodeSelectorTerm{})), nodes: []*corev1.Node{testNode("a")},
			want: []string{"a +0: change the pod's node affinity, which no node can match"},
		},
		{
			what: "a node that does not exist", pod: testPod("p", requiresNodes(named("b"))), nodes: []*corev1.Node{testNode("a")},
			want: []string{"a +0: change the names of nodes in the pod's node affinity"},
		},
		{
			what: "ports", pod: testPod("p", port(80, "", corev1.ProtocolTCP)), nodes: []*corev1.Node{testNode("a")}, running: []*corev1.Pod{testPod("x", on("a"), port(80, "", corev1.ProtocolTCP))},
			want: []string{"a +0: use other host ports, or free them on the node"},
		},
		{
			what: "affinity to nobody", pod: testPod("p", near(corev1.LabelHostname, "app", "db")), nodes: []*corev1.Node{testNode("a")},
			want: []string{"a +0: relax the pod affinity, or run a pod it asks for in the node's domain"},
		},
		{
			what: "anti-affinity of its own", pod: testPod("p", away(corev1.LabelHostname, "app", "db")), nodes: []*corev1.Node{testNode("a")}, running: []*corev1.Pod{testPod("x", on("a"), labelled("app", "db"))},
			want: []string{"a +0: relax the pod anti-affinity, or move the pods it forbids out of the node's domain"},
		},
		{
			what: "anti-affinity of others", pod: testPod("p", labelled("app", "db")), nodes: []*corev1.Node{testNode("a")}, running: []*corev1.Pod{testPod("x", on("a"), away(corev1.LabelHostname, "app", "db"))},
			want: []string{"a +0: move the pods whose anti-affinity forbids this one out of the node's domain"},
		},
		{
			what: "spreading", pod: testPod("p", labelled("app", "db"), spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app", "db")),
			nodes:   []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("2"), cordoned), testNode("c")},
			running: []*corev1.Pod{testPod("x", on("a"), labelled("app", "db"))},
			want: []string{
				"a +0: relax the topology spread constraints, or have fewer of the pods they count in the node's domain",
				"b +0: uncordon the node", "c +0: label the node with the topology keys of the pod's spread constraints",
			},
		},
		{
			what: "the fewest steps first", pod: testPod("p", asksCPU("5")),
			nodes: []*corev1.Node{testNode("a", cordoned), testNode("b", taint("k", "v", noSchedule), cordoned), testNode("c")},
			want: []string{
				"c +0: request 1 less cpu, for the node has 4 in all",
				"a +0: uncordon the node; request 1 less cpu, for the node has 4 in all",
				"b +0: uncordon the node; tolerate the taint k=v:NoSchedule, or remove it; request 1 less cpu, for the node has 4 in all",
			},
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := changesFor(t, cluster(t, test.nodes, test.running...), test.pod); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// A change that is told does help: whoever carries out all its steps finds the pod schedulable.
func TestChangesHelp(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 8))
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	told := 0
	for round := range 400 {
		var nodes []*corev1.Node
		for i := range 1 + random.IntN(5) {
			n := testNode(fmt.Sprint("n", i), nodeLabel("disk", pick("ssd", "hdd")))
			if random.IntN(2) == 0 {
				taint(pick("k", "l"), pick("v", ""), corev1.TaintEffectNoSchedule)(n)
			}
			n.Spec.Unschedulable = random.IntN(4) == 0
			nodes = append(nodes, n)
		}
		var running []*corev1.Pod
		for i := range random.IntN(8) {
			running = append(running, testPod(fmt.Sprint("r", i), on(nodes[random.IntN(len(nodes))].Name), asksCPU(pick("1", "2"))))
		}
		pod := testPod("p", asksCPU(pick("1", "3", "9")), asksMemory(pick("1Gi", "40Gi")))
		if random.IntN(2) == 0 {
			selecting(pick("disk", "zone"), pick("ssd", "x"))(pod)
		}
		s := cluster(t, nodes, running...)
		d, err := Schedule(s, infoOf(t, pod), DefaultProfile())
		if err == nil {
			continue
		}
		for _, change := range d.smallestChanges() {
			told++
			if err := carryOut(nodes, running, pod, change); err != nil {
				t.Fatalf("round %d: %+v: %v", round, change, err)
			}
		}
	}
	if told < 200 {
		t.Errorf("only %d changes were told", told)
	}
}

// carryOut does what a change says, to copies, and schedules the pod on the node.
func carryOut(nodes []*corev1.Node, running []*corev1.Pod, pod *corev1.Pod, change Change) error {
	pod = pod.DeepCopy()
	s := NewSnapshot()
	for _, n := range nodes {
		if n.Name != change.Node {
			continue
		}
		n = n.DeepCopy()
		for _, step := range change.Steps {
			var amount, name, rest string
			switch {
			case step == "uncordon the node":
				n.Spec.Unschedulable = false
			case strings.HasPrefix(step, "tolerate the taint "):
				key, _, _ := strings.Cut(strings.TrimPrefix(step, "tolerate the taint "), ":")
				key, _, _ = strings.Cut(key, "=")
				tolerating(corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})(pod)
			case strings.HasPrefix(step, "label the node "):
				label, _, _ := strings.Cut(strings.TrimPrefix(step, "label the node "), ",")
				key, value, _ := strings.Cut(label, "=")
				n.Labels[key] = value
			default:
				if _, err := fmt.Sscanf(strings.ReplaceAll(step, ",", " ,"), "request %s less %s %s", &amount, &name, &rest); err != nil {
					return fmt.Errorf("nobody understands %q", step)
				}
				requests := pod.Spec.Containers[0].Resources.Requests
				asked := requests[corev1.ResourceName(name)]
				asked.Sub(resource.MustParse(amount))
				requests[corev1.ResourceName(name)] = asked
			}
		}
		s.SetNode(n)
	}
	for _, p := range running {
		info, err := NewPodInfo(p)
		if err != nil {
			return err
		}
		s.SetPod(info)
	}
	info, err := NewPodInfo(pod)
	if err != nil {
		return err
	}
	d, err := Schedule(s, info, DefaultProfile())
	if err == nil && d.Node != change.Node {
		err = errors.New("the pod went elsewhere")
	}
	return err
}
