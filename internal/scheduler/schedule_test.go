package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// saidOf writes out what was said of every node, by name.
func saidOf(d *Decision) string {
	verdicts, _ := d.Explain()
	var all []string
	for _, v := range verdicts {
		text := v.Node + ": fits"
		if v.Refusal != nil {
			text = v.Node + ": " + v.Refusal.Rule
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestSchedule(t *testing.T) {
	host, z := corev1.LabelHostname, corev1.LabelTopologyZone
	green := labelled("color", "green")
	two := []*corev1.Node{testNode("a"), testNode("b")}
	for name, test := range map[string]struct {
		nodes    []*corev1.Node
		running  []*corev1.Pod // nominated ones among them, without a node
		pod      *corev1.Pod
		node     string // the choice; "" if there is none
		feasible int
		said     string
		err      string
	}{
		"no nodes at all": {nil, nil, testPod("p"), "", 0, "", "no nodes available to schedule pods"},
		"only a node that pods speak of": {
			nil, []*corev1.Pod{testPod("x", on("ghost"))}, testPod("p"), "", 0, "", "no nodes available to schedule pods",
		},
		"one node":           {two[:1], nil, testPod("p"), "a", 1, "a: fits", ""},
		"the emptier node":   {two, []*corev1.Pod{testPod("x", on("a"), asksCPU("3"), asksMemory("20Gi"))}, testPod("p", asksCPU("1")), "b", 2, "a: fits, b: fits", ""},
		"a node is too full": {two, []*corev1.Pod{testPod("x", on("a"), asksCPU("4"))}, testPod("p", asksCPU("1")), "b", 1, "a: NodeResourcesFit, b: fits", ""},
		"all are": {
			two, []*corev1.Pod{testPod("x", on("a"), asksCPU("4")), testPod("y", on("b"), asksCPU("4"))}, testPod("p", asksCPU("1")), "", 0, "a: NodeResourcesFit, b: NodeResourcesFit",
			"0/2 nodes are available: 2 Insufficient cpu.",
		},
		"the first rule that refuses is named": {
			[]*corev1.Node{testNode("a", cordoned, taint("k", "v", corev1.TaintEffectNoSchedule), nodeHas(corev1.ResourceCPU, "0")), testNode("b", taint("k", "v", corev1.TaintEffectNoSchedule), nodeHas(corev1.ResourceCPU, "0")), testNode("c", nodeHas(corev1.ResourceCPU, "0"))},
			nil, testPod("p", selecting("disk", "ssd"), asksCPU("1")), "", 0, "a: NodeUnschedulable, b: TaintToleration, c: NodeAffinity",
			"0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.",
		},
		"a node's own refusal is named before that of its neighbours": {
			[]*corev1.Node{testNode("a", zone("1"), nodeHas(corev1.ResourceCPU, "1")), testNode("b", zone("1"))}, []*corev1.Pod{testPod("x", on("b"), green)},
			testPod("p", asksCPU("2"), away(z, "color", "green")), "", 0, "a: NodeResourcesFit, b: InterPodAffinity",
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod anti-affinity rules.",
		},
		"spreading is asked before affinity": {
			[]*corev1.Node{testNode("a", zone("1")), testNode("b", zone("2"))}, []*corev1.Pod{testPod("x", on("a"), green), testPod("y", on("a"), green), testPod("z", on("b"), labelled("color", "blue"))},
			testPod("p", green, spread(z, 1, corev1.DoNotSchedule, "color", "green"), away(z, "color", "green"), away(z, "color", "blue")), "", 0, "a: PodTopologySpread, b: InterPodAffinity",
			"0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 1 node(s) didn't match pod topology spread constraints.",
		},
		"a node of several reasons": {
			two[:1], nil, testPod("p", asksCPU("5"), asksMemory("50Gi")), "", 0, "a: NodeResourcesFit", "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
		},

		// Nominated pods.
		"the nominated node is taken though another is better": {
			two, []*corev1.Pod{testPod("x", on("a"), asksCPU("3"), asksMemory("20Gi"))}, testPod("p", asksCPU("1"), nominatedTo("a")), "a", 1, "a: fits, b: fits", "",
		},
		"a nominated node that is full is not": {two, []*corev1.Pod{testPod("x", on("a"), asksCPU("4"))}, testPod("p", asksCPU("1"), nominatedTo("a")), "b", 1, "a: NodeResourcesFit, b: fits", ""},
		"a nominated node that is gone is not": {two, nil, testPod("p", nominatedTo("z")), "a", 2, "a: fits, b: fits", ""},
		"a nominated node only pods speak of is not": {
			two, []*corev1.Pod{testPod("x", on("ghost"))}, testPod("p", nominatedTo("ghost")), "a", 2, "a: fits, b: fits", "",
		},
		"a nominated node that is not among the pod's own is not": {two, nil, testPod("p", requiresNodes(named("b")), nominatedTo("a")), "b", 1, "a: NodeAffinity, b: fits", ""},
		"a nominated node among the pod's own is": {
			append(two, testNode("c")), nil, testPod("p", requiresNodes(named("b"), named("c")), nominatedTo("c")), "c", 1, "a: NodeAffinity, b: NodeAffinity, c: fits", "",
		},
		"room kept for a more important pod": {two[:1], []*corev1.Pod{testPod("n", asksCPU("3"), priority(5), nominatedTo("a"))}, testPod("p", asksCPU("2")), "", 0, "a: NodeResourcesFit", "0/1 nodes are available: 1 Insufficient cpu."},
		"room kept for an equal":             {two[:1], []*corev1.Pod{testPod("n", asksCPU("3"), nominatedTo("a"))}, testPod("p", asksCPU("2")), "", 0, "a: NodeResourcesFit", "0/1 nodes are available: 1 Insufficient cpu."},
		"room is not kept for a less important pod": {
			two[:1], []*corev1.Pod{testPod("n", asksCPU("3"), nominatedTo("a"))}, testPod("p", asksCPU("2"), priority(1)), "a", 1, "a: fits", "",
		},
		"nor against the pod itself": {two[:1], []*corev1.Pod{testPod("p", asksCPU("3"), nominatedTo("a"))}, testPod("p", asksCPU("3"), nominatedTo("a")), "a", 1, "a: fits", ""},
		"room kept on one node leaves the other": {
			two, []*corev1.Pod{testPod("n", asksCPU("3"), nominatedTo("a"))}, testPod("p", asksCPU("2")), "b", 1, "a: NodeResourcesFit, b: fits", "",
		},
		"room kept on the nominated node of another": {
			two, []*corev1.Pod{testPod("n", asksCPU("3"), nominatedTo("a"))}, testPod("p", asksCPU("2"), nominatedTo("a")), "b", 1, "a: NodeResourcesFit, b: fits", "",
		},
		"the port of one who comes is taken": {
			two[:1], []*corev1.Pod{testPod("n", port(80, "", "TCP"), nominatedTo("a"))}, testPod("p", port(80, "", "TCP")), "", 0, "a: NodePorts", "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
		},
		"a friend who only comes is none": {
			two[:1], []*corev1.Pod{testPod("n", green, nominatedTo("a"))}, testPod("p", near(host, "color", "green")), "", 0, "a: InterPodAffinity", "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.",
		},
		"an enemy who only comes is one": {
			two, []*corev1.Pod{testPod("n", green, nominatedTo("a"))}, testPod("p", away(host, "color", "green")), "b", 1, "a: InterPodAffinity, b: fits", "",
		},
		"room kept counts for a pod of named nodes too": {
			two, []*corev1.Pod{testPod("n", asksCPU("3"), nominatedTo("a"))}, testPod("p", asksCPU("2"), requiresNodes(named("a"))), "", 0, "a: NodeResourcesFit, b: NodeAffinity",
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity].",
		},

		// Named nodes.
		"a pod of one node":            {two, nil, testPod("p", requiresNodes(named("b"))), "b", 1, "a: NodeAffinity, b: fits", ""},
		"a pod of a node that is gone": {two, nil, testPod("p", requiresNodes(named("z"))), "", 0, "a: NodeAffinity, b: NodeAffinity", "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
		"a pod of some nodes takes the emptier": {
			append(two, testNode("c")), []*corev1.Pod{testPod("x", on("a"), asksCPU("3"))}, testPod("p", asksCPU("1"), requiresNodes(named("a"), named("c"))), "c", 2, "a: fits, b: NodeAffinity, c: fits", "",
		},
		"a pod of some nodes heeds its neighbours": {
			append(two, testNode("c")), []*corev1.Pod{testPod("x", on("c"), green)}, testPod("p", away(host, "color", "green"), requiresNodes(named("a"), named("c"))), "a", 1, "a: fits, b: NodeAffinity, c: InterPodAffinity", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, test.nodes)
			for _, p := range test.running {
				info := infoOf(t, p)
				s.SetPod(info)
				s.Nominate(info, p.UID, p.Status.NominatedNodeName)
			}
			before := dumpOf(s)
			for range 2 { // deciding leaves no trace: the second decision is the first
				d, err := Schedule(s, infoOf(t, test.pod), worldProfile)
				text := ""
				if err != nil {
					text = err.Error()
				}
				if d.Node != test.node || d.Feasible != test.feasible || d.Nodes != len(test.nodes) || text != test.err || saidOf(d) != test.said {
					t.Errorf("%q of %d feasible of %d; %s; %s\nwant %q of %d; %s; %s", d.Node, d.Feasible, d.Nodes, saidOf(d), text, test.node, test.feasible, test.said, test.err)
				}
				if (test.err != "") != IsUnschedulable(err) {
					t.Errorf("error %v", err)
				}
			}
			// What pods want to know of each other is counted from the first question on.
			counted := func(dump string) string {
				return strings.Join(slices.DeleteFunc(strings.Split(dump, "\n"), func(line string) bool {
					return strings.HasPrefix(line, "counter") || strings.Contains(line, " labels=")
				}), "\n")
			}
			if after := dumpOf(s); counted(after) != counted(before) {
				t.Errorf("deciding has changed something:\n%s\n%s", before, after)
			}
		})
	}
}

// Among equals the node is taken that waited longest, so that pods go around.
func TestScheduleGoesAround(t *testing.T) {
	for name, o := range map[string][]podOption{
		"by tree":       {asksCPU("100m")},
		"by neighbours": {asksCPU("100m"), labelled("color", "green"), spread(corev1.LabelHostname, 5, corev1.ScheduleAnyway, "color", "green")},
		"among few":     {asksCPU("100m"), requiresNodes(named("node-00000"), named("node-00001"), named("node-00002"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, nodesNamed(3))
			var order []string
			for i := range 9 {
				info := infoOf(t, testPod(fmt.Sprint("p", i), o...))
				d, err := Schedule(s, info, worldProfile)
				if err != nil {
					t.Fatal(err)
				}
				s.Assume(info, d.Node)
				order = append(order, d.Node[len(d.Node)-1:])
			}
			if got := strings.Join(order, ""); got != "012012012" {
				t.Errorf("order %s", got)
			}
		})
	}
}

// TestScheduleRoadsMeet takes random decisions on all roads that lead there: the tree, the look at all nodes, and, told the names of all
// nodes, the look at few. They find the same nodes and the same winner.
func TestScheduleRoadsMeet(t *testing.T) {
	roads := map[string]int{}
	for seed := range uint64(25) {
		w := newWorld(t, 500+seed)
		for i := range 6 {
			n := w.randomNode(fmt.Sprint("n", i))
			w.nodes[n.Name] = n
			w.snapshot.SetNode(n)
		}
		for range 60 {
			pod := w.randomPod()
			if w.oneIn(8) {
				w.snapshot.Nominate(infoOf(t, pod), pod.UID, fmt.Sprint("n", w.random.IntN(6)))
				continue
			}
			info := infoOf(t, pod)
			d, err := Schedule(w.snapshot, info, worldProfile)
			if d.table == nil || d.limited != nil {
				continue
			}
			near, nearErr := w.snapshot.neighbourhoodFor(info, worldProfile)
			if nearErr != nil {
				t.Fatal(nearErr)
			}
			all := &Decision{Pod: info, Nodes: d.Nodes, snapshot: w.snapshot, profile: worldProfile, number: none, table: d.table, alone: d.alone}
			all.byNeighbours(near)
			few := &Decision{Pod: info, Nodes: d.Nodes, snapshot: w.snapshot, profile: worldProfile, number: none, table: &table{filters: d.table.filters, scorers: d.table.scorers, scales: d.table.scales, limited: true}, alone: d.alone}
			for i := range w.snapshot.nodes {
				if w.snapshot.nodes[i].object != nil {
					few.table.only = append(few.table.only, w.snapshot.nodes[i].name)
				}
			}
			few.amongFew(near)
			if near.quiet() && d.table.even() {
				roads["tree"]++
			} else {
				roads["neighbours"]++
			}
			for road, other := range map[string]*Decision{"neighbours": all, "few": few} {
				if other.Feasible != d.Feasible || other.number != d.number {
					t.Fatalf("seed %d, pod %s: by %s node %d of %d, want %d of %d", seed, pod.Name, road, other.number, other.Feasible, d.number, d.Feasible)
				}
				for node := range w.snapshot.nodes {
					a, b := d.refusalAt(int32(node)), other.refusalAt(int32(node))
					if w.snapshot.nodes[node].object != nil && (a == nil) != (b == nil) {
						t.Fatalf("seed %d, pod %s: by %s node %d is refused for %v, want %v", seed, pod.Name, road, node, b, a)
					}
				}
			}
			if err == nil {
				w.snapshot.Assume(info, d.Node)
			}
		}
	}
	if roads["tree"] < 100 || roads["neighbours"] < 100 {
		t.Errorf("roads taken: %v", roads)
	}
}

// preRule refuses all nodes at once, or fails to.
type preRule struct{ refusal *Refusal }

func (preRule) Name() string                                    { return "Pre" }
func (r preRule) Filter(*Snapshot, *PodInfo) (Filter, *Refusal) { return Filter{}, r.refusal }
func profileAfter(first FilterRule) *Profile {
	p := DefaultProfile()
	p.filters = append([]FilterRule{first}, p.filters...)
	p.spreadOrder++
	p.affinityOrder++
	return p
}

func TestScheduleWhenRulesCannotDecide(t *testing.T) {
	odd := errors.New("no idea")
	failsOn := func(name string, s *Snapshot) oddRule {
		return oddRule{func(node int32) *Refusal {
			if s.nodes[node].name == name {
				return &Refusal{Rule: "Odd", Err: odd}
			}
			return nil
		}}
	}
	for name, test := range map[string]struct {
		rule func(s *Snapshot) FilterRule
		pod  *corev1.Pod
		node string
		err  string
		fit  bool // the error tells of nodes, not of a fault
	}{
		"all nodes refused":                        {func(*Snapshot) FilterRule { return preRule{refuse("Pre", true, "not today", "nor tomorrow")} }, testPod("p"), "", "0/2 nodes are available: not today, nor tomorrow.", true},
		"a fault at once":                          {func(*Snapshot) FilterRule { return preRule{&Refusal{Rule: "Pre", Err: odd}} }, testPod("p"), "", `running PreFilter plugin "Pre": no idea`, false},
		"a fault on one node stops all":            {func(s *Snapshot) FilterRule { return failsOn("b", s) }, testPod("p"), "", `running "Odd" filter plugin: no idea`, false},
		"a fault on a node that is not asked":      {func(s *Snapshot) FilterRule { return failsOn("b", s) }, testPod("p", requiresNodes(named("a"))), "a", "", false},
		"a fault on a node that is":                {func(s *Snapshot) FilterRule { return failsOn("a", s) }, testPod("p", requiresNodes(named("a"))), "", `running "Odd" filter plugin: no idea`, false},
		"a fault where the nominated node is fine": {func(s *Snapshot) FilterRule { return failsOn("b", s) }, testPod("p", nominatedTo("a")), "a", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{testNode("a"), testNode("b")})
			d, err := Schedule(s, infoOf(t, test.pod), profileAfter(test.rule(s)))
			text := ""
			if err != nil {
				text = err.Error()
			}
			if d.Node != test.node || text != test.err || IsUnschedulable(err) != test.fit || !test.fit && err != nil && !errors.Is(err, odd) {
				t.Errorf("on %q, %v", d.Node, err)
			}
		})
	}
}

// Room is kept while a pod is on its way: not before, not twice once it is there, and not after it has gone elsewhere.
func TestRoomIsKeptForAWhile(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("b")}, testPod("x", on("b"), asksCPU("1"), asksMemory("20Gi")))
	coming, pod := infoOf(t, testPod("n", asksCPU("2"))), infoOf(t, testPod("p", asksCPU("3")))
	expect := func(when, node string, feasible int) {
		t.Helper()
		if d, err := Schedule(s, pod, worldProfile); err != nil || d.Node != node || d.Feasible != feasible {
			t.Errorf("%s: %q of %d, %v; want %q of %d", when, d.Node, d.Feasible, err, node, feasible)
		}
	}
	expect("before", "a", 2)
	s.Nominate(coming, coming.Pod.UID, "a")
	expect("on its way", "b", 1)
	s.Nominate(coming, coming.Pod.UID, "")
	expect("no more on its way", "a", 2)
	s.Nominate(coming, coming.Pod.UID, "a")
	expect("on its way again", "b", 1)
	s.Assume(coming, "b") // a keeps nothing for it, and b holds it once
	if d, err := Schedule(s, pod, worldProfile); err != nil || d.Node != "a" || saidOf(d) != "a: fits, b: NodeResourcesFit" {
		t.Errorf("elsewhere: %q, %s, %v", d.Node, saidOf(d), err)
	}
}
