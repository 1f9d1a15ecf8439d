package decision

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// saidOf writes out what was said of every node, by name.
func saidOf(d *Decision) string {
	verdicts, _ := d.Explain()
	var all []string
	for _, v := range verdicts {
		text := v.Node + ": fits"
		if v.Refusal != nil {
			text = v.Node + ": " + v.Refusal.Plugin
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestSchedule(t *testing.T) {
	host, z := corev1.LabelHostname, corev1.LabelTopologyZone
	green := schedulertest.Labelled("color", "green")
	two := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
	for name, test := range map[string]struct {
		nodes    []*corev1.Node
		running  []*corev1.Pod // nominated ones among them, without a node
		pod      *corev1.Pod
		node     string // the choice; "" if there is none
		feasible int
		said     string
		err      string
	}{
		"no nodes at all": {nil, nil, schedulertest.TestPod("p"), "", 0, "", "no nodes available to schedule pods"},
		"only a node that pods speak of": {
			nil, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("ghost"))}, schedulertest.TestPod("p"), "", 0, "", "no nodes available to schedule pods",
		},
		"one node":           {two[:1], nil, schedulertest.TestPod("p"), "a", 1, "a: fits", ""},
		"the emptier node":   {two, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3"), schedulertest.RequestingMemory("20Gi"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), "b", 2, "a: fits, b: fits", ""},
		"a node is too full": {two, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), "b", 1, "a: NodeResourcesFit, b: fits", ""},
		"all are": {
			two, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4")), schedulertest.TestPod("y", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), "", 0, "a: NodeResourcesFit, b: NodeResourcesFit",
			"0/2 nodes are available: 2 Insufficient cpu.",
		},
		"the first rule that refuses is named": {
			[]*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned, schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule), schedulertest.NodeHas(corev1.ResourceCPU, "0")), schedulertest.TestNode("b", schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule), schedulertest.NodeHas(corev1.ResourceCPU, "0")), schedulertest.TestNode("c", schedulertest.NodeHas(corev1.ResourceCPU, "0"))},
			nil, schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd"), schedulertest.RequestingCPU("1")), "", 0, "a: NodeUnschedulable, b: TaintToleration, c: NodeAffinity",
			"0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.",
		},
		"a node's own refusal is named before that of its neighbours": {
			[]*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeHas(corev1.ResourceCPU, "1")), schedulertest.TestNode("b", schedulertest.Zone("1"))}, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("b"), green)},
			schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.WithAntiAffinity(z, "color", "green")), "", 0, "a: NodeResourcesFit, b: InterPodAffinity",
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod anti-affinity rules.",
		},
		"spreading is asked before affinity": {
			[]*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2"))}, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), green), schedulertest.TestPod("y", schedulertest.OnNode("a"), green), schedulertest.TestPod("z", schedulertest.OnNode("b"), schedulertest.Labelled("color", "blue"))},
			schedulertest.TestPod("p", green, schedulertest.Spread(z, 1, corev1.DoNotSchedule, "color=green"), schedulertest.WithAntiAffinity(z, "color", "green"), schedulertest.WithAntiAffinity(z, "color", "blue")), "", 0, "a: PodTopologySpread, b: InterPodAffinity",
			"0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 1 node(s) didn't match pod topology spread constraints.",
		},
		"a node of several reasons": {
			two[:1], nil, schedulertest.TestPod("p", schedulertest.RequestingCPU("5"), schedulertest.RequestingMemory("50Gi")), "", 0, "a: NodeResourcesFit", "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
		},

		// Nominated pods.
		"the nominated node is taken though another is better": {
			two, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3"), schedulertest.RequestingMemory("20Gi"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")), "a", 1, "a: fits, b: fits", "",
		},
		"a nominated node that is full is not": {two, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.NominatedTo("a")), "b", 1, "a: NodeResourcesFit, b: fits", ""},
		"a nominated node that is gone is not": {two, nil, schedulertest.TestPod("p", schedulertest.NominatedTo("z")), "a", 2, "a: fits, b: fits", ""},
		"a nominated node only pods speak of is not": {
			two, []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("ghost"))}, schedulertest.TestPod("p", schedulertest.NominatedTo("ghost")), "a", 2, "a: fits, b: fits", "",
		},
		"a nominated node that is not among the pod's own is not": {two, nil, schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b")), schedulertest.NominatedTo("a")), "b", 1, "a: NodeAffinity, b: fits", ""},
		"a nominated node among the pod's own is": {
			append(two, schedulertest.TestNode("c")), nil, schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b"), schedulertest.Named("c")), schedulertest.NominatedTo("c")), "c", 1, "a: NodeAffinity, b: NodeAffinity, c: fits", "",
		},
		"resources reserved for a pod of higher priority":   {two[:1], []*corev1.Pod{schedulertest.TestPod("n", schedulertest.RequestingCPU("3"), schedulertest.Priority(5), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), "", 0, "a: NodeResourcesFit", "0/1 nodes are available: 1 Insufficient cpu."},
		"resources reserved for a pod of the same priority": {two[:1], []*corev1.Pod{schedulertest.TestPod("n", schedulertest.RequestingCPU("3"), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), "", 0, "a: NodeResourcesFit", "0/1 nodes are available: 1 Insufficient cpu."},
		"resources are not reserved for a pod of lower priority": {
			two[:1], []*corev1.Pod{schedulertest.TestPod("n", schedulertest.RequestingCPU("3"), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.Priority(1)), "a", 1, "a: fits", "",
		},
		"nor against the pod itself": {two[:1], []*corev1.Pod{schedulertest.TestPod("p", schedulertest.RequestingCPU("3"), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("3"), schedulertest.NominatedTo("a")), "a", 1, "a: fits", ""},
		"resources reserved on one node leaves the other": {
			two, []*corev1.Pod{schedulertest.TestPod("n", schedulertest.RequestingCPU("3"), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), "b", 1, "a: NodeResourcesFit, b: fits", "",
		},
		"resources reserved on the nominated node of another": {
			two, []*corev1.Pod{schedulertest.TestPod("n", schedulertest.RequestingCPU("3"), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.NominatedTo("a")), "b", 1, "a: NodeResourcesFit, b: fits", "",
		},
		"the port of one who comes is taken": {
			two[:1], []*corev1.Pod{schedulertest.TestPod("n", schedulertest.Port(80, "", "TCP"), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.Port(80, "", "TCP")), "", 0, "a: NodePorts", "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
		},
		"a friend who only comes is none": {
			two[:1], []*corev1.Pod{schedulertest.TestPod("n", green, schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.WithAffinity(host, "color", "green")), "", 0, "a: InterPodAffinity", "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.",
		},
		"an enemy who only comes is one": {
			two, []*corev1.Pod{schedulertest.TestPod("n", green, schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "color", "green")), "b", 1, "a: InterPodAffinity, b: fits", "",
		},
		"resources reserved counts for a pod of named nodes too": {
			two, []*corev1.Pod{schedulertest.TestPod("n", schedulertest.RequestingCPU("3"), schedulertest.NominatedTo("a"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.RequiresNodes(schedulertest.Named("a"))), "", 0, "a: NodeResourcesFit, b: NodeAffinity",
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity].",
		},

		// Named nodes.
		"a pod of one node":            {two, nil, schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b"))), "b", 1, "a: NodeAffinity, b: fits", ""},
		"a pod of a node that is gone": {two, nil, schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("z"))), "", 0, "a: NodeAffinity, b: NodeAffinity", "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
		"a pod of some nodes takes the emptier": {
			append(two, schedulertest.TestNode("c")), []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.RequestingCPU("3"))}, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("c"))), "c", 2, "a: fits, b: NodeAffinity, c: fits", "",
		},
		"a pod of some nodes heeds its neighbours": {
			append(two, schedulertest.TestNode("c")), []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("c"), green)}, schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "color", "green"), schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("c"))), "a", 1, "a: fits, b: NodeAffinity, c: InterPodAffinity", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshottest.New(t, test.nodes)
			for _, p := range test.running {
				info := snapshottest.PodInfo(t, p)
				s.SetPod(info)
				s.Nominate(info, p.UID, p.Status.NominatedNodeName)
			}
			before := s.Dump()
			for range 2 { // deciding leaves no trace: the second decision is the first
				d, err := Schedule(s, snapshottest.PodInfo(t, test.pod), worldProfile)
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
			if after := s.Dump(); counted(after) != counted(before) {
				t.Errorf("deciding has changed something:\n%s\n%s", before, after)
			}
		})
	}
}

// Among equals the node is taken that waited longest, so that pods go around.
func TestScheduleGoesAround(t *testing.T) {
	for name, o := range map[string][]schedulertest.PodOption{
		"by tree":       {schedulertest.RequestingCPU("100m")},
		"by neighbours": {schedulertest.RequestingCPU("100m"), schedulertest.Labelled("color", "green"), schedulertest.Spread(corev1.LabelHostname, 5, corev1.ScheduleAnyway, "color=green")},
		"among named":   {schedulertest.RequestingCPU("100m"), schedulertest.RequiresNodes(schedulertest.Named("node-00000"), schedulertest.Named("node-00001"), schedulertest.Named("node-00002"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshottest.New(t, schedulertest.TestNodes(3))
			var order []string
			for i := range 9 {
				info := snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", i), o...))
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

// TestSchedulePathsAgree makes random decisions in all three ways: by the tree, by scoring all nodes, and among named nodes when all nodes
// are named. All must find the same feasible nodes and choose the same one.
func TestSchedulePathsAgree(t *testing.T) {
	paths := map[string]int{}
	for seed := range uint64(25) {
		w := newWorld(t, 500+seed)
		for i := range 6 {
			n := w.RandomNode(fmt.Sprint("n", i))
			w.nodes[n.Name] = n
			w.snapshot.SetNode(n)
		}
		for range 60 {
			pod := w.RandomPod()
			if w.OneIn(8) {
				w.snapshot.Nominate(snapshottest.PodInfo(t, pod), pod.UID, fmt.Sprint("n", w.Random.IntN(6)))
				continue
			}
			info := snapshottest.PodInfo(t, pod)
			d, err := Schedule(w.snapshot, info, worldProfile)
			if d.Table == nil || d.Limited != nil {
				continue
			}
			topo, topoErr := TopologyFor(w.snapshot, info, worldProfile)
			if topoErr != nil {
				t.Fatal(topoErr)
			}
			all := &Decision{Pod: info, Nodes: d.Nodes, Snapshot: w.snapshot, Profile: worldProfile, NodeNumber: snapshot.NoValue, Table: d.Table, SkipAffinity: d.SkipAffinity}
			all.byAllNodes(topo)
			named := &Decision{Pod: info, Nodes: d.Nodes, Snapshot: w.snapshot, Profile: worldProfile, NodeNumber: snapshot.NoValue, Table: &table{filters: d.Table.filters, scorers: d.Table.scorers, normalized: d.Table.normalized, limitedToNames: true}, SkipAffinity: d.SkipAffinity}
			for i := range w.snapshot.NodeInfos {
				if w.snapshot.NodeInfos[i].Node != nil {
					named.Table.nodeNames = append(named.Table.nodeNames, w.snapshot.NodeInfos[i].Name)
				}
			}
			named.amongNamedNodes(topo)
			if topo.inactive() && d.Table.normalizedScoresEqual() {
				paths["tree"]++
			} else {
				paths["all nodes"]++
			}
			for path, other := range map[string]*Decision{"all nodes": all, "named": named} {
				if other.Feasible != d.Feasible || other.NodeNumber != d.NodeNumber {
					t.Fatalf("seed %d, pod %s: by %s node %d of %d, want %d of %d", seed, pod.Name, path, other.NodeNumber, other.Feasible, d.NodeNumber, d.Feasible)
				}
				for node := range w.snapshot.NodeInfos {
					a, b := d.refusalAt(int32(node)), other.refusalAt(int32(node))
					if w.snapshot.NodeInfos[node].Node != nil && (a == nil) != (b == nil) {
						t.Fatalf("seed %d, pod %s: by %s node %d is refused for %v, want %v", seed, pod.Name, path, node, b, a)
					}
				}
			}
			if err == nil {
				w.snapshot.Assume(info, d.Node)
			}
		}
	}
	if paths["tree"] < 100 || paths["all nodes"] < 100 {
		t.Errorf("paths taken: %v", paths)
	}
}

// preFilterPlugin refuses all nodes at once, or fails to.
type preFilterPlugin struct{ refusal *plugins.Refusal }

func (preFilterPlugin) Name() string { return "Pre" }
func (r preFilterPlugin) Filter(*snapshot.Snapshot, *snapshot.PodInfo) (plugins.Filter, *plugins.Refusal) {
	return plugins.Filter{}, r.refusal
}
func profileAfter(first plugins.FilterPlugin) *plugins.Profile {
	p := plugins.DefaultProfile()
	p.Filters = append([]plugins.FilterPlugin{first}, p.Filters...)
	p.SpreadOrder++
	p.AffinityOrder++
	return p
}

func TestScheduleWhenRulesCannotDecide(t *testing.T) {
	odd := errors.New("no idea")
	failsOn := func(name string, s *snapshot.Snapshot) oddPlugin {
		return oddPlugin{func(node int32) *plugins.Refusal {
			if s.NodeInfos[node].Name == name {
				return &plugins.Refusal{Plugin: "Odd", Err: odd}
			}
			return nil
		}}
	}
	for name, test := range map[string]struct {
		rule func(s *snapshot.Snapshot) plugins.FilterPlugin
		pod  *corev1.Pod
		node string
		err  string
		fit  bool // the error tells of nodes, not of a fault
	}{
		"all nodes refused": {func(*snapshot.Snapshot) plugins.FilterPlugin {
			return preFilterPlugin{plugins.Refuse("Pre", true, "not today", "nor tomorrow")}
		}, schedulertest.TestPod("p"), "", "0/2 nodes are available: not today, nor tomorrow.", true},
		"a fault at once": {func(*snapshot.Snapshot) plugins.FilterPlugin {
			return preFilterPlugin{&plugins.Refusal{Plugin: "Pre", Err: odd}}
		}, schedulertest.TestPod("p"), "", `running PreFilter plugin "Pre": no idea`, false},
		"a fault on one node stops all":            {func(s *snapshot.Snapshot) plugins.FilterPlugin { return failsOn("b", s) }, schedulertest.TestPod("p"), "", `running "Odd" filter plugin: no idea`, false},
		"a fault on a node that is not asked":      {func(s *snapshot.Snapshot) plugins.FilterPlugin { return failsOn("b", s) }, schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"))), "a", "", false},
		"a fault on a node that is":                {func(s *snapshot.Snapshot) plugins.FilterPlugin { return failsOn("a", s) }, schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"))), "", `running "Odd" filter plugin: no idea`, false},
		"a fault where the nominated node is fine": {func(s *snapshot.Snapshot) plugins.FilterPlugin { return failsOn("b", s) }, schedulertest.TestPod("p", schedulertest.NominatedTo("a")), "a", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")})
			d, err := Schedule(s, snapshottest.PodInfo(t, test.pod), profileAfter(test.rule(s)))
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
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("x", schedulertest.OnNode("b"), schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("20Gi")))
	coming, pod := snapshottest.PodInfo(t, schedulertest.TestPod("n", schedulertest.RequestingCPU("2"))), snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("3")))
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
