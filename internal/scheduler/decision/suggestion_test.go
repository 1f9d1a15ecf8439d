package decision

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// changesFor are the changes told about a pod that fits nowhere, as lines.
func changesFor(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod) (lines []string) {
	t.Helper()
	d, err := Schedule(s, snapshottest.PodInfo(t, pod), plugins.DefaultProfile())
	if err == nil {
		t.Fatalf("the pod fits on %s", d.Node)
	}
	for _, c := range d.Suggestions() {
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
			what: "no node at all", pod: schedulertest.TestPod("p"),
			want: []string{" +0: add a node"},
		},
		{
			what: "a cordoned node", nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned)}, pod: schedulertest.TestPod("p"),
			want: []string{"a +0: uncordon the node"},
		},
		{
			what: "a taint, and the same on others", pod: schedulertest.TestPod("p"),
			nodes: []*corev1.Node{schedulertest.TestNode("b", schedulertest.Taint("k", "v", noSchedule)), schedulertest.TestNode("a", schedulertest.Taint("k", "v", noSchedule)), schedulertest.TestNode("c", schedulertest.Taint("k", "w", noExecute))},
			want:  []string{"a +1: tolerate the taint k=v:NoSchedule, or remove it", "c +0: tolerate the taint k=w:NoExecute, or remove it"},
		},
		{
			what: "several taints are several steps", pod: schedulertest.TestPod("p"),
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Taint("k", "v", noSchedule), schedulertest.Taint("x", "", noSchedule))},
			want:  []string{"a +0: tolerate the taint k=v:NoSchedule, or remove it; tolerate the taint x:NoSchedule, or remove it"},
		},
		{
			what: "a taint that is only disliked is no obstacle", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("5")),
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Taint("k", "v", corev1.TaintEffectPreferNoSchedule))},
			want:  []string{"a +0: request 1 less cpu, for the node has 4 in all"},
		},
		{
			what: "the node where least is missing", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("2")),
			nodes:   []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3500m")), schedulertest.TestPod("y", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2500m")), schedulertest.TestPod("z", schedulertest.OnNode("c"), schedulertest.RequestingCPU("4"))},
			want:    []string{"b +2: request 500m less cpu, or free as much: 2500m of 4 are requested already"},
		},
		{
			what: "memory and CPU", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("5"), schedulertest.RequestingMemory("33Gi")), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: request 1 less cpu, for the node has 4 in all; request 1Gi less memory, for the node has 32Gi in all"},
		},
		{
			what: "a resource the node does not have", pod: schedulertest.TestPod("p", schedulertest.Requesting("example.com/gpu", "1")), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: do not request example.com/gpu, of which the node has none"},
		},
		{
			what: "a full node", pod: schedulertest.TestPod("p"), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "1"))}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"))},
			want: []string{"a +0: remove a pod from the node, which can hold 1"},
		},
		{
			what: "a node that is fuller than full", pod: schedulertest.TestPod("p"), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "1"))}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a")), schedulertest.TestPod("y", schedulertest.OnNode("a"))},
			want: []string{"a +0: remove 2 pods from the node, which can hold 1"},
		},
		{
			what: "a node that can hold none", pod: schedulertest.TestPod("p"), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "0"))},
			want: []string{"a +0: remove a pod from the node, which can hold 0"},
		},
		{
			what: "more is requested than there is", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("5"))},
			want: []string{"a +0: do not request cpu, or free as much: 5 of 4 are requested already"},
		},
		{
			what: "all there is, is requested", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))},
			want: []string{"a +0: do not request cpu, or free as much: 4 of 4 are requested already"},
		},
		{
			what: "every obstacle between pods", pod: schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.WithAffinity(corev1.LabelHostname, "app", "web"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "db")), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("app", "db"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "db"))},
			want: []string{"a +0: relax the pod affinity, or run a pod it asks for in the node's domain; relax the pod anti-affinity, or move the pods it forbids out of the node's domain; " +
				"move the pods whose anti-affinity forbids this one out of the node's domain"},
		},
		{
			what: "a label of the selector", pod: schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: label the node disk=ssd, or relax the pod's node selector"},
		},
		{
			what: "the alternative that lacks least", nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"))},
			pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(
				corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "y", Operator: corev1.NodeSelectorOpExists}, {Key: "z", Operator: corev1.NodeSelectorOpExists}}},
				schedulertest.Expression("x", corev1.NodeSelectorOpIn, "2", "3"))),
			want: []string{"a +0: label the node x=2 or 3, or relax the pod's node selector"},
		},
		{
			what: "a label too many", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", corev1.NodeSelectorOpDoesNotExist))), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"))},
			want: []string{"a +0: remove the node's label x, or relax the pod's node selector"},
		},
		{
			what: "a label with too little", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", corev1.NodeSelectorOpGt, "5"))), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"))},
			want: []string{"a +0: label the node x with more than 5, or relax the pod's node selector"},
		},
		{
			what: "a label with too much", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", corev1.NodeSelectorOpLt, "5"))), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "9"))},
			want: []string{"a +0: label the node x with less than 5, or relax the pod's node selector"},
		},
		{
			what: "two demands on one label", pod: schedulertest.TestPod("p", schedulertest.Selecting("x", "2"), schedulertest.RequiresNodes(schedulertest.Expression("x", corev1.NodeSelectorOpNotIn, "1"))), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"))},
			want: []string{"a +0: label the node x=2, or relax the pod's node selector"},
		},
		{
			what: "a label that must be there, and not be this", nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"))},
			pod:  schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "x", Operator: corev1.NodeSelectorOpExists}, {Key: "x", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"1"}}}})),
			want: []string{"a +0: label the node x with what the pod does not exclude, or relax the pod's node selector"},
		},
		{
			what: "a label between two numbers", nodes: []*corev1.Node{schedulertest.TestNode("a")},
			pod:  schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "x", Operator: corev1.NodeSelectorOpGt, Values: []string{"5"}}, {Key: "x", Operator: corev1.NodeSelectorOpLt, Values: []string{"7"}}}})),
			want: []string{"a +0: label the node x=6, or relax the pod's node selector"},
		},
		{
			what: "two labels that must not be", nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"))},
			pod:  schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "x", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"1"}}, {Key: "x", Operator: corev1.NodeSelectorOpDoesNotExist}}})),
			want: []string{"a +0: remove the node's label x, or relax the pod's node selector"},
		},
		{
			what: "demands nothing can meet", pod: schedulertest.TestPod("p", schedulertest.Selecting("x", "2"), schedulertest.RequiresNodes(schedulertest.Expression("x", corev1.NodeSelectorOpIn, "1"))), nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"))},
			want: []string{"a +0: change the pod's node affinity, which no node can match"},
		},
		{
			what: "a field no node has", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.uid", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}}}})), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: change the names of nodes in the pod's node affinity"},
		},
		{
			what: "a name that is excluded", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"a"}}}})), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: change the names of nodes in the pod's node affinity"},
		},
		{
			what: "an affinity nothing can match", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{})), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: change the pod's node affinity, which no node can match"},
		},
		{
			what: "a node that does not exist", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b"))), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: change the names of nodes in the pod's node affinity"},
		},
		{
			what: "ports", pod: schedulertest.TestPod("p", schedulertest.Port(80, "", corev1.ProtocolTCP)), nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Port(80, "", corev1.ProtocolTCP))},
			want: []string{"a +0: use other host ports, or free them on the node"},
		},
		{
			what: "affinity to nobody", pod: schedulertest.TestPod("p", schedulertest.WithAffinity(corev1.LabelHostname, "app", "db")), nodes: []*corev1.Node{schedulertest.TestNode("a")},
			want: []string{"a +0: relax the pod affinity, or run a pod it asks for in the node's domain"},
		},
		{
			what: "anti-affinity of its own", pod: schedulertest.TestPod("p", schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "db")), nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("app", "db"))},
			want: []string{"a +0: relax the pod anti-affinity, or move the pods it forbids out of the node's domain"},
		},
		{
			what: "anti-affinity of others", pod: schedulertest.TestPod("p", schedulertest.Labelled("app", "db")), nodes: []*corev1.Node{schedulertest.TestNode("a")}, running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "db"))},
			want: []string{"a +0: move the pods whose anti-affinity forbids this one out of the node's domain"},
		},
		{
			what: "spreading", pod: schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app=db")),
			nodes:   []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2"), schedulertest.Cordoned), schedulertest.TestNode("c")},
			running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("app", "db"))},
			want: []string{
				"a +0: relax the topology spread constraints, or have fewer of the pods they count in the node's domain",
				"b +0: uncordon the node", "c +0: label the node with the topology keys of the pod's spread constraints",
			},
		},
		{
			what: "the fewest steps first", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("5")),
			nodes: []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b", schedulertest.Taint("k", "v", noSchedule), schedulertest.Cordoned), schedulertest.TestNode("c")},
			want: []string{
				"c +0: request 1 less cpu, for the node has 4 in all",
				"a +0: uncordon the node; request 1 less cpu, for the node has 4 in all",
				"b +0: uncordon the node; tolerate the taint k=v:NoSchedule, or remove it; request 1 less cpu, for the node has 4 in all",
			},
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := changesFor(t, snapshottest.New(t, test.nodes, test.running...), test.pod); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// Pods of one make find the same obstacles on nodes of one make, in whatever order a selector is read.
func TestChangesOfOneKindAreTold(t *testing.T) {
	pod := schedulertest.TestPod("p")
	for i := range 6 {
		schedulertest.Selecting(fmt.Sprint("k", i), "v")(pod)
	}
	var nodes []*corev1.Node
	for i := range 20 {
		nodes = append(nodes, schedulertest.TestNode(fmt.Sprintf("n%02d", i)))
	}
	got := changesFor(t, snapshottest.New(t, nodes), pod)
	want := "n00 +19: "
	for i := range 6 {
		want += fmt.Sprintf("label the node k%d=v, or relax the pod's node selector; ", i)
	}
	if want = strings.TrimSuffix(want, "; "); !reflect.DeepEqual(got, []string{want}) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

// obstacles is a cluster in which a pod finds all kinds of them, by chance.
type obstacles struct {
	nodes   []*corev1.Node
	running []*corev1.Pod
	pod     *corev1.Pod
}

// randomObstacles keeps affinity to hosts and spreading to zones: labels that take one obstacle away do not put up another then.
func randomObstacles(random *rand.Rand) *obstacles {
	chance := func(n int) bool { return random.IntN(n) == 0 }
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	o := &obstacles{pod: schedulertest.TestPod("p", schedulertest.Labelled("app", pick("web", "db")), schedulertest.RequestingCPU(pick("1", "3", "9")), schedulertest.RequestingMemory(pick("1Gi", "40Gi")))}
	for i := range 1 + random.IntN(5) {
		n := schedulertest.TestNode(fmt.Sprint("n", i), schedulertest.NodeLabel("disk", pick("ssd", "hdd")), schedulertest.NodeHas(corev1.ResourcePods, pick("2", "110")))
		for _, key := range []string{"k", "l"} {
			if chance(3) {
				schedulertest.Taint(key, pick("v", ""), corev1.TaintEffect(pick(string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectNoExecute))))(n)
			}
		}
		if chance(2) {
			schedulertest.Zone(pick("1", "2"))(n)
		}
		if chance(2) {
			schedulertest.NodeLabel("size", pick("3", "7", "large"))(n)
		}
		if chance(2) {
			schedulertest.NodeHas("example.com/gpu", pick("0", "2"))(n)
		}
		n.Spec.Unschedulable = chance(4)
		o.nodes = append(o.nodes, n)
	}
	for i := range random.IntN(8) {
		p := schedulertest.TestPod(fmt.Sprint("r", i), schedulertest.OnNode(o.nodes[random.IntN(len(o.nodes))].Name), schedulertest.Labelled("app", pick("web", "db")), schedulertest.RequestingCPU(pick("1", "2")))
		if chance(3) {
			schedulertest.Port(80, "", corev1.ProtocolTCP)(p)
		}
		if chance(4) {
			schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", pick("web", "db"))(p)
		}
		o.running = append(o.running, p)
	}
	for _, option := range []schedulertest.PodOption{
		schedulertest.Selecting(pick("disk", "color"), pick("ssd", "red")), schedulertest.Port(80, "", corev1.ProtocolTCP), schedulertest.Requesting("example.com/gpu", pick("1", "3")), schedulertest.Tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists}),
		schedulertest.WithAffinity(corev1.LabelHostname, "app", pick("web", "db", "nobody")), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", pick("web", "db")),
		schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app=web"),
		schedulertest.RequiresNodes([]corev1.NodeSelectorTerm{
			schedulertest.Expression("disk", corev1.NodeSelectorOpNotIn, pick("ssd", "hdd")), schedulertest.Expression("size", corev1.NodeSelectorOpGt, "5"), schedulertest.Expression("size", corev1.NodeSelectorOpLt, "5"), schedulertest.Expression("size", corev1.NodeSelectorOpExists),
			schedulertest.Expression("size", corev1.NodeSelectorOpDoesNotExist), schedulertest.Named("n0"), schedulertest.Expression("color", corev1.NodeSelectorOpIn, "red", "blue"),
		}[random.IntN(7)]),
	} {
		if chance(4) {
			option(o.pod)
		}
	}
	return o
}

// carryOut does what steps say about a node, to a copy.
func (o *obstacles) carryOut(t testing.TB, node string, steps []string) *obstacles {
	t.Helper()
	done := &obstacles{pod: o.pod.DeepCopy(), running: slices.Clone(o.running)}
	var n *corev1.Node
	for _, other := range o.nodes {
		if other.Name == node {
			other = other.DeepCopy()
			n = other
		}
		done.nodes = append(done.nodes, other)
	}
	requests := done.pod.Spec.Containers[0].Resources.Requests
	for _, step := range steps {
		what, _, _ := strings.Cut(step, ", or ")
		what, _, _ = strings.Cut(what, ", for ")
		var amount, name string
		switch {
		case what == "uncordon the node":
			n.Spec.Unschedulable = false
		case strings.HasPrefix(what, "tolerate the taint "):
			key, _, _ := strings.Cut(strings.TrimPrefix(what, "tolerate the taint "), ":")
			key, _, _ = strings.Cut(key, "=")
			schedulertest.Tolerating(corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})(done.pod)
		case what == "label the node with the topology keys of the pod's spread constraints":
			schedulertest.Zone("of its own")(n)
		case strings.HasPrefix(what, "remove the node's label "):
			delete(n.Labels, strings.TrimPrefix(what, "remove the node's label "))
		case strings.HasPrefix(what, "label the node "):
			label := strings.TrimPrefix(what, "label the node ")
			if key, limit, than := strings.Cut(label, " with more than "); than {
				n.Labels[key] = limit + "0"
			} else if key, _, than := strings.Cut(label, " with less than "); than {
				n.Labels[key] = "0"
			} else {
				key, value, _ := strings.Cut(label, "=")
				n.Labels[key], _, _ = strings.Cut(value, " or ")
			}
		case strings.HasPrefix(what, "change the "):
			if done.pod.Spec.Affinity.NodeAffinity = nil; strings.HasSuffix(what, "which no node can match") {
				done.pod.Spec.NodeSelector = nil
			}
		case what == "use other host ports":
			done.pod.Spec.Containers[0].Ports = nil
		case strings.HasPrefix(what, "relax the topology spread constraints"):
			done.pod.Spec.TopologySpreadConstraints = nil
		case what == "relax the pod affinity":
			done.pod.Spec.Affinity.PodAffinity = nil
		case what == "relax the pod anti-affinity":
			done.pod.Spec.Affinity.PodAntiAffinity = nil
		case strings.HasPrefix(what, "move the pods whose anti-affinity forbids this one"):
			// They are made peaceful instead: if they went, more resources would be free than are requested.
			for i, p := range done.running {
				done.running[i] = p.DeepCopy()
				done.running[i].Spec.Affinity = nil
			}
		case strings.HasPrefix(what, "remove ") && strings.Contains(what, " from the node"):
			// Allocatable pods are raised instead: removing pods would free more than is requested.
			more := int64(1)
			_, _ = fmt.Sscanf(what, "remove %d pods", &more)
			held := n.Status.Allocatable[corev1.ResourcePods]
			held.Add(*resource.NewQuantity(more, resource.DecimalSI))
			n.Status.Allocatable[corev1.ResourcePods] = held
		case strings.HasPrefix(what, "do not request "):
			name, _, _ = strings.Cut(strings.TrimPrefix(what, "do not request "), ",")
			delete(requests, corev1.ResourceName(name))
		default:
			if _, err := fmt.Sscanf(what, "request %s less %s", &amount, &name); err != nil {
				t.Fatalf("nobody understands %q", step)
			}
			asked := requests[corev1.ResourceName(name)]
			asked.Sub(resource.MustParse(amount))
			requests[corev1.ResourceName(name)] = asked
		}
	}
	return done
}

// refusal is what keeps the pod from a node.
func (o *obstacles) refusal(t testing.TB, node string) *plugins.Refusal {
	t.Helper()
	d, _ := Schedule(snapshottest.New(t, o.nodes, o.running...), snapshottest.PodInfo(t, o.pod), plugins.DefaultProfile())
	verdicts, _ := d.Explain()
	i := slices.IndexFunc(verdicts, func(v Verdict) bool { return v.Node == node })
	return verdicts[i].Refusal
}

// A change that is told does help: whoever carries out all its steps finds that the node can take the pod. And nothing less does: whoever
// leaves out a step, or asks for one unit more than they are told to, finds that it cannot.
func TestChangesHelpAndNothingLessDoes(t *testing.T) {
	const seed = 58
	random := rand.New(rand.NewPCG(seed, seed))
	told, kinds := 0, map[string]int{}
	for round := range 600 {
		o := randomObstacles(random)
		d, err := Schedule(snapshottest.New(t, o.nodes, o.running...), snapshottest.PodInfo(t, o.pod), plugins.DefaultProfile())
		if err == nil {
			continue
		}
		for i, change := range d.Suggestions() {
			told++
			if len(o.pod.Spec.TopologySpreadConstraints) > 0 && slices.ContainsFunc(o.running, func(p *corev1.Pod) bool { return p.Spec.NodeName == change.Node && p.Labels["app"] == "web" }) {
				continue // when it is labelled, the pods it already has begin to count
			}
			describe := func() string {
				return fmt.Sprintf("seed %d, round %d, change %d: %+v\npod %+v", seed, round, i, change, o.pod.Spec)
			}
			if r := o.carryOut(t, change.Node, change.Steps).refusal(t, change.Node); r != nil {
				t.Fatalf("%s\ndoes not help: %+v", describe(), r)
			}
			for left := range change.Steps {
				kinds[strings.Join(strings.Fields(change.Steps[left])[:2], " ")]++
				fewer := slices.Delete(slices.Clone(change.Steps), left, left+1)
				if r := o.carryOut(t, change.Node, fewer).refusal(t, change.Node); r == nil {
					t.Fatalf("%s\nhelps without %q", describe(), change.Steps[left])
				}
				less, asked := change.Steps[left], strings.HasPrefix(change.Steps[left], "request ")
				if !asked {
					continue
				}
				fields := strings.Fields(less)
				amount := resource.MustParse(fields[1])
				unit := int64(1)
				if strings.HasPrefix(fields[3], "cpu") {
					amount.Sub(resource.MustParse("1m"))
				} else {
					amount.Sub(*resource.NewQuantity(unit, resource.DecimalSI))
				}
				almost := slices.Clone(change.Steps)
				almost[left] = strings.Replace(less, fields[1], amount.String(), 1)
				if r := o.carryOut(t, change.Node, almost).refusal(t, change.Node); r == nil {
					t.Fatalf("%s\nhelps with one unit more", describe())
				}
			}
		}
	}
	if told < 500 || len(kinds) < 14 {
		t.Errorf("only %d changes of the kinds %v were told", told, kinds)
	}
}

// The changes told first have the fewest steps that any node needs.
func TestTheFewestStepsComeFirst(t *testing.T) {
	const seed = 59
	random := rand.New(rand.NewPCG(seed, seed))
	for round := range 600 {
		o := randomObstacles(random)
		d, err := Schedule(snapshottest.New(t, o.nodes, o.running...), snapshottest.PodInfo(t, o.pod), plugins.DefaultProfile())
		if err == nil {
			continue
		}
		changes := d.Suggestions()
		if len(changes) == 0 || len(changes) > maxSuggestions {
			t.Fatalf("seed %d, round %d: %d changes", seed, round, len(changes))
		}
		covered := 0
		for i, change := range changes {
			covered += 1 + change.Others
			if i > 0 && len(change.Steps) < len(changes[i-1].Steps) {
				t.Fatalf("seed %d, round %d: %+v comes before %+v", seed, round, changes[i-1], change)
			}
		}
		// Alone in its cluster, no node needs fewer steps than the first that is told, but for what the others have to do with it.
		if o.pod.Spec.Affinity == nil && len(o.pod.Spec.TopologySpreadConstraints) == 0 && !slices.ContainsFunc(o.running, func(p *corev1.Pod) bool { return p.Spec.Affinity != nil }) {
			for _, n := range o.nodes {
				single, err := Schedule(snapshottest.New(t, []*corev1.Node{n}, slices.DeleteFunc(slices.Clone(o.running), func(p *corev1.Pod) bool { return p.Spec.NodeName != n.Name })...), snapshottest.PodInfo(t, o.pod), plugins.DefaultProfile())
				if err == nil {
					continue
				}
				if own := single.Suggestions(); len(own[0].Steps) < len(changes[0].Steps) {
					t.Fatalf("seed %d, round %d: %s needs only %v, told was %v", seed, round, n.Name, own[0].Steps, changes[0].Steps)
				}
			}
		}
		if len(changes) < maxSuggestions && covered != len(o.nodes) {
			t.Fatalf("seed %d, round %d: the changes are for %d nodes of %d: %+v", seed, round, covered, len(o.nodes), changes)
		}
	}
}

// demand is what one expression of a selector asks of the label x.
func demand(operator corev1.NodeSelectorOperator, values ...string) *snapshot.Requirement {
	return &snapshot.Requirement{Column: &snapshot.LabelColumn{Key: "x"}, Operator: operator, Values: values}
}

// Several demands on one label are met by one label, if any meets them all.
func TestRemedyTogether(t *testing.T) {
	const in, notIn, exists, absent, gt, lt = corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt
	const remove, other, impossible = "remove the node's label x", "label the node x with what the pod does not exclude", "change the pod's node affinity, which no node can match"
	for _, test := range []struct {
		rule    string
		demands []*snapshot.Requirement
		want    string
	}{
		{"values both lists have", []*snapshot.Requirement{demand(in, "a", "b", "c"), demand(in, "c", "d", "b")}, "label the node x=b or c"},
		{"a value that is listed twice is told once", []*snapshot.Requirement{demand(in, "a", "a"), demand(in, "a")}, "label the node x=a"},
		{"lists that have nothing in common", []*snapshot.Requirement{demand(in, "a"), demand(in, "b")}, impossible},
		{"values that are not excluded", []*snapshot.Requirement{demand(in, "a", "b"), demand(notIn, "a")}, "label the node x=b"},
		{"all values are excluded", []*snapshot.Requirement{demand(in, "a", "b"), demand(notIn, "a", "b")}, impossible},
		{"a listed value is there", []*snapshot.Requirement{demand(exists), demand(in, "a")}, "label the node x=a"},
		{"a listed value cannot be absent", []*snapshot.Requirement{demand(in, "a"), demand(absent)}, impossible},
		{"there and absent", []*snapshot.Requirement{demand(exists), demand(absent)}, impossible},
		{"there, twice", []*snapshot.Requirement{demand(exists), demand(exists)}, other},
		{"there, but not these", []*snapshot.Requirement{demand(notIn, "a"), demand(exists), demand(notIn, "b")}, other},
		{"excluded twice", []*snapshot.Requirement{demand(notIn, "a"), demand(notIn, "b")}, remove},
		{"absent, and excluded", []*snapshot.Requirement{demand(absent), demand(notIn, "b")}, remove},
		{"absent, twice", []*snapshot.Requirement{demand(absent), demand(absent)}, remove},
		{"the numbers at both ends", []*snapshot.Requirement{demand(gt, "5"), demand(lt, "9")}, "label the node x=6 or 8"},
		{"one number between", []*snapshot.Requirement{demand(lt, "7"), demand(gt, "5")}, "label the node x=6"},
		{"no number between", []*snapshot.Requirement{demand(gt, "5"), demand(lt, "6")}, impossible},
		{"the same limit", []*snapshot.Requirement{demand(gt, "5"), demand(lt, "5")}, impossible},
		{"the larger of two limits below", []*snapshot.Requirement{demand(gt, "5"), demand(gt, "9")}, "label the node x=10"},
		{"the smaller of two limits above", []*snapshot.Requirement{demand(lt, "5"), demand(lt, "9")}, "label the node x=4"},
		{"the number next to the limit is excluded", []*snapshot.Requirement{demand(gt, "5"), demand(notIn, "6")}, "label the node x=7"},
		{"two numbers above the limit are excluded", []*snapshot.Requirement{demand(notIn, "6"), demand(gt, "5"), demand(notIn, "7")}, "label the node x=8"},
		{"the number below the limit is excluded", []*snapshot.Requirement{demand(lt, "5"), demand(notIn, "4")}, "label the node x=3"},
		{"only the middle is left", []*snapshot.Requirement{demand(gt, "5"), demand(lt, "9"), demand(notIn, "6", "8")}, "label the node x=7"},
		{"all between are excluded", []*snapshot.Requirement{demand(gt, "5"), demand(lt, "8"), demand(notIn, "6", "7")}, impossible},
		{"a limit and a list", []*snapshot.Requirement{demand(gt, "5"), demand(in, "4", "60", "x")}, "label the node x=60"},
		{"a limit, and there", []*snapshot.Requirement{demand(exists), demand(lt, "1")}, "label the node x=0"},
		{"a number cannot be absent", []*snapshot.Requirement{demand(gt, "5"), demand(absent)}, impossible},
		{"labels are not negative", []*snapshot.Requirement{demand(gt, "-5"), demand(lt, "0")}, impossible},
		{"nothing is below zero", []*snapshot.Requirement{demand(lt, "0"), demand(exists)}, impossible},
		{"a negative limit is below all", []*snapshot.Requirement{demand(gt, "-5"), demand(notIn, "0")}, "label the node x=1"},
		{"zero is the first number", []*snapshot.Requirement{demand(gt, "-1"), demand(lt, "1")}, "label the node x=0"},
		{"nothing is above the largest number", []*snapshot.Requirement{demand(gt, "9223372036854775807"), demand(exists)}, impossible},
		{"the largest number", []*snapshot.Requirement{demand(gt, "9223372036854775806"), demand(exists)}, "label the node x=9223372036854775807"},
		{"nothing is below the smallest", []*snapshot.Requirement{demand(lt, "-9223372036854775808"), demand(exists)}, impossible},
	} {
		want := step{kind: test.want, text: test.want + ", or relax the pod's node selector"}
		if test.want == impossible {
			want = step{kind: "affinity", text: impossible, size: hardSize}
		}
		backward := slices.Clone(test.demands)
		slices.Reverse(backward)
		for _, order := range [][]*snapshot.Requirement{test.demands, backward} {
			if got := changeLabelForAll("x", order); got != want {
				t.Errorf("%s, %v: %+v, want %+v", test.rule, order, got, want)
			}
		}
	}
}

// Whatever is demanded of a label, what is told helps, and nothing helps where nothing is told.
func TestRemedyTogetherHelps(t *testing.T) {
	const seed, unheard = 71, "unheard-of"
	random := rand.New(rand.NewPCG(seed, seed))
	operators := []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt}
	values := []string{"0", "1", "2", "3", "4", "5", "6", "7", "a"}
	told := map[string]int{}
	for round := range 20000 {
		var demands []*snapshot.Requirement
		for range 2 + random.IntN(3) {
			r := demand(operators[random.IntN(len(operators))])
			switch r.Operator {
			case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
				r.Values = []string{fmt.Sprint(random.IntN(8) - 1)}
			case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
				for range 1 + random.IntN(3) {
					r.Values = append(r.Values, values[random.IntN(len(values))])
				}
			}
			demands = append(demands, r)
		}
		helps := func(value string) bool {
			return !slices.ContainsFunc(demands, func(r *snapshot.Requirement) bool { return !r.MatchesValue(value) })
		}
		absentHelps := !slices.ContainsFunc(demands, func(r *snapshot.Requirement) bool {
			return r.Operator != corev1.NodeSelectorOpNotIn && r.Operator != corev1.NodeSelectorOpDoesNotExist
		})
		st := changeLabelForAll("x", demands)
		right := false
		switch list, labels := strings.CutPrefix(st.kind, "label the node x="); {
		case labels:
			told["label"]++
			right = !slices.ContainsFunc(strings.Split(list, " or "), func(value string) bool { return !helps(value) })
		case strings.HasPrefix(st.kind, "remove "):
			told["remove"]++
			right = absentHelps
		case st.kind == "affinity":
			told["impossible"]++
			right = !absentHelps && !helps(unheard) && !slices.ContainsFunc(append([]string{"8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18"}, values...), helps)
		default:
			told["other"]++
			right = helps(unheard)
		}
		if !right {
			t.Fatalf("seed %d, round %d: %v: %s", seed, round, demands, st.text)
		}
	}
	if len(told) != 4 {
		t.Errorf("only %v were told", told)
	}
}

// Changes are ordered by steps, then by size, then by name: the order has no ties and no circles.
func TestOrderOfChanges(t *testing.T) {
	change := func(node string, size float64, steps int) *candidateSuggestion {
		return &candidateSuggestion{node: node, size: size, steps: make([]step, steps)}
	}
	ordered := []*candidateSuggestion{
		change("z", hardSize, 1), change("a", 0, 2), change("b", 0, 2), change("a", 0.25, 2), change("c", 0.25, 2), change("a", 1, 2), change("a", hardSize, 2), change("a", 0, 3), change("b", 0, 3),
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if a.before(b) != (i < j) {
				t.Errorf("%+v before %+v: %t", a, b, a.before(b))
			}
		}
	}
}

// Amounts are written as users write them: CPUs in thousandths, memory and storage in powers of two, everything else in tens.
func TestQuantity(t *testing.T) {
	for _, test := range []struct {
		resource int
		amount   int64
		want     string
	}{
		{snapshot.ResourceCPU, 0, "0"}, {snapshot.ResourceCPU, 1, "1m"}, {snapshot.ResourceCPU, 999, "999m"}, {snapshot.ResourceCPU, 1000, "1"}, {snapshot.ResourceCPU, 1500, "1500m"}, {snapshot.ResourceCPU, 64000, "64"},
		{snapshot.ResourceMemory, 0, "0"}, {snapshot.ResourceMemory, 1, "1"}, {snapshot.ResourceMemory, 1023, "1023"}, {snapshot.ResourceMemory, 1024, "1Ki"}, {snapshot.ResourceMemory, 3 << 29, "1536Mi"}, {snapshot.ResourceMemory, 1 << 30, "1Gi"}, {snapshot.ResourceMemory, 1000000, "1000000"},
		{snapshot.ResourceEphemeralStorage, 1 << 40, "1Ti"}, {snapshot.ResourceEphemeralStorage, 5 << 20, "5Mi"}, {snapshot.ResourcePods, 1000, "1k"}, {snapshot.ResourcePods, 1024, "1024"}, {snapshot.ResourcePods, 7, "7"},
	} {
		if got := quantity(plugins.ResourceRequest{Resource: test.resource}, test.amount); got != test.want {
			t.Errorf("%d of resource %d: %s, want %s", test.amount, test.resource, got, test.want)
		}
	}
}

// What is missing, at the limits: exactly enough is no obstacle, and which of pod, neighbours and node is too large is told apart.
func TestMissingResources(t *testing.T) {
	const gpu = "example.com/gpu"
	for _, test := range []struct {
		rule    string
		node    []schedulertest.NodeOption
		running []schedulertest.PodOption // of a pod on the node, if any
		pod     []schedulertest.PodOption
		want    string
		size    float64
	}{
		{"exactly what is left", nil, []schedulertest.PodOption{schedulertest.RequestingCPU("3")}, []schedulertest.PodOption{schedulertest.RequestingCPU("1")}, "", 0},
		{"a thousandth more than is left", nil, []schedulertest.PodOption{schedulertest.RequestingCPU("3")}, []schedulertest.PodOption{schedulertest.RequestingCPU("1001m")}, "request 1m less cpu, or free as much: 3 of 4 are requested already", 1.0 / 1001},
		{"exactly what the node has, and some of it is taken", nil, []schedulertest.PodOption{schedulertest.RequestingCPU("1")}, []schedulertest.PodOption{schedulertest.RequestingCPU("4")}, "request 1 less cpu, or free as much: 1 of 4 are requested already", 0.25},
		{"a thousandth more than the node has", nil, nil, []schedulertest.PodOption{schedulertest.RequestingCPU("4001m")}, "request 1m less cpu, for the node has 4 in all", 1.0 / 4001},
		{"more than the node has, and some of it is taken", nil, []schedulertest.PodOption{schedulertest.RequestingCPU("1")}, []schedulertest.PodOption{schedulertest.RequestingCPU("5")}, "request 2 less cpu, for the node has 4 in all", 0.4},
		{"everything is taken", nil, []schedulertest.PodOption{schedulertest.RequestingCPU("4")}, []schedulertest.PodOption{schedulertest.RequestingCPU("1")}, "do not request cpu, or free as much: 4 of 4 are requested already", 1},
		{"all but a thousandth is taken", nil, []schedulertest.PodOption{schedulertest.RequestingCPU("3999m")}, []schedulertest.PodOption{schedulertest.RequestingCPU("1")}, "request 999m less cpu, or free as much: 3999m of 4 are requested already", 0.999},
		{"memory", nil, []schedulertest.PodOption{schedulertest.RequestingMemory("31Gi")}, []schedulertest.PodOption{schedulertest.RequestingMemory("2Gi")}, "request 1Gi less memory, or free as much: 31Gi of 32Gi are requested already", 0.5},
		{"storage", nil, nil, []schedulertest.PodOption{schedulertest.Requesting(corev1.ResourceEphemeralStorage, "101Gi")}, "request 1Gi less ephemeral-storage, for the node has 100Gi in all", 1.0 / 101},
		{"something the node does not have", nil, nil, []schedulertest.PodOption{schedulertest.Requesting(gpu, "2")}, "do not request example.com/gpu, of which the node has none", 1},
		{"something the node has none of", []schedulertest.NodeOption{schedulertest.NodeHas(gpu, "0")}, nil, []schedulertest.PodOption{schedulertest.Requesting(gpu, "1")}, "do not request example.com/gpu, of which the node has none", 1},
		{"something the node has too little of", []schedulertest.NodeOption{schedulertest.NodeHas(gpu, "1")}, nil, []schedulertest.PodOption{schedulertest.Requesting(gpu, "4")}, "request 3 less example.com/gpu, for the node has 1 in all", 0.75},
		{"none of what the node does not have", nil, nil, []schedulertest.PodOption{schedulertest.Requesting(gpu, "0")}, "", 0},
		{"nothing, where more is taken than there is", nil, []schedulertest.PodOption{schedulertest.RequestingCPU("9")}, nil, "", 0},
		{"one pod too many", []schedulertest.NodeOption{schedulertest.NodeHas(corev1.ResourcePods, "1")}, []schedulertest.PodOption{}, nil, "remove a pod from the node, which can hold 1", 1},
		{"one more pod is allocatable", []schedulertest.NodeOption{schedulertest.NodeHas(corev1.ResourcePods, "2")}, []schedulertest.PodOption{}, nil, "", 0},
		{"everything at once", []schedulertest.NodeOption{schedulertest.NodeHas(corev1.ResourcePods, "0")}, []schedulertest.PodOption{schedulertest.RequestingCPU("4")}, []schedulertest.PodOption{schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("64Gi"), schedulertest.Requesting(gpu, "1")},
			"remove 2 pods from the node, which can hold 0; do not request cpu, or free as much: 4 of 4 are requested already; request 32Gi less memory, for the node has 32Gi in all; do not request example.com/gpu, of which the node has none", 4.5},
	} {
		var running []*corev1.Pod
		if test.running != nil {
			running = append(running, schedulertest.TestPod("r", append(test.running, schedulertest.OnNode("a"))...))
		}
		d := &Decision{Snapshot: snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", test.node...)}, running...), Pod: snapshottest.PodInfo(t, schedulertest.TestPod("p", test.pod...))}
		var texts []string
		size := 0.0
		for _, st := range d.missingResources(0) {
			texts, size = append(texts, st.text), size+st.size
		}
		if got := strings.Join(texts, "; "); got != test.want || math.Abs(size-test.size) > 1e-9 {
			t.Errorf("%s: %q of size %g, want %q of size %g", test.rule, got, size, test.want, test.size)
		}
	}
}

// Steps past taints are those that keep the pod away and that it does not tolerate, in the node's order.
func TestTolerateAll(t *testing.T) {
	const prefer, schedule, execute = corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute
	of := func(key, value string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: value, Effect: effect}
	}
	all := []corev1.Taint{of("a", "1", schedule), of("b", "", execute), of("c", "3", prefer), of("a", "1", execute)}
	for _, test := range []struct {
		rule        string
		tolerations []corev1.Toleration
		want        []string
	}{
		{"nothing is tolerated", nil, []string{"a=1:NoSchedule", "b:NoExecute", "a=1:NoExecute"}},
		{"a key, whatever the effect", []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}, []string{"b:NoExecute"}},
		{"a key and one effect", []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists, Effect: execute}}, []string{"a=1:NoSchedule", "b:NoExecute"}},
		{"a value", []corev1.Toleration{{Key: "a", Value: "1", Effect: schedule}}, []string{"b:NoExecute", "a=1:NoExecute"}},
		{"another value", []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpEqual, Value: "2"}}, []string{"a=1:NoSchedule", "b:NoExecute", "a=1:NoExecute"}},
		{"an effect, whatever the key", []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: schedule}}, []string{"b:NoExecute", "a=1:NoExecute"}},
		{"for a while is enough", []corev1.Toleration{{Key: "b", Operator: corev1.TolerationOpExists, Effect: execute, TolerationSeconds: new(int64)}}, []string{"a=1:NoSchedule", "a=1:NoExecute"}},
		{"everything", []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, nil},
		{"several together", []corev1.Toleration{{Key: "b"}, {Key: "a", Value: "1"}}, nil},
	} {
		var want []step
		for _, text := range test.want {
			text = "tolerate the taint " + text + ", or remove it"
			want = append(want, step{kind: text, text: text})
		}
		if got := tolerateAll(all, test.tolerations); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", test.rule, got, want)
		}
	}
}
