package decision

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// The words of a pod that fits nowhere are upstream's, down to order and punctuation.
func TestFitErrorInUpstreamsWords(t *testing.T) {
	for _, test := range []struct {
		rule string
		err  FitError
		want string
	}{
		{"nothing is known", FitError{Nodes: 3}, "0/3 nodes are available:"},
		{"one reason", FitError{Nodes: 1, Reasons: map[string]int{"Insufficient cpu": 1}}, "0/1 nodes are available: 1 Insufficient cpu."},
		{"reasons are in the order of their texts, numbers first", FitError{Nodes: 12, Reasons: map[string]int{"b": 2, "a": 10, "c": 2}}, "0/12 nodes are available: 10 a, 2 b, 2 c."},
		{"more reasons than nodes", FitError{Nodes: 1, Reasons: map[string]int{"x": 1, "y": 1}}, "0/1 nodes are available: 1 x, 1 y."},
		{"against all nodes at once", FitError{Nodes: 4, Refusal: plugins.Refuse("R", true, "no way")}, "0/4 nodes are available: no way."},
		{"against all, for several reasons", FitError{Nodes: 4, Refusal: plugins.Refuse("R", true, "no way", "never")}, "0/4 nodes are available: no way, never."},
		{"what preemption said", FitError{Nodes: 1, Reasons: map[string]int{"x": 1}, Preemption: "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."},
			"0/1 nodes are available: 1 x. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."},
		{"against all, and what preemption said", FitError{Nodes: 1, Refusal: plugins.Refuse("R", true, "no"), Preemption: "p."}, "0/1 nodes are available: no. p."},
		{"no node at all", FitError{}, "0/0 nodes are available:"},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("%s: %q, want %q", test.rule, got, test.want)
		}
	}
}

// failureOf schedules a pod that fits nowhere.
func failureOf(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *plugins.Profile) (*Decision, *FitError) {
	t.Helper()
	d, err := Schedule(s, snapshottest.PodInfo(t, pod), profile)
	var fit *FitError
	if !errors.As(err, &fit) || d.Node != "" || d.Feasible != 0 {
		t.Fatalf("the pod went to %q, %v", d.Node, err)
	}
	return d, fit
}

// However a decision is made - by a table, by neighbours, among few, against all - it tells the same of every node: the reasons, how
// often, and the rules whose changes may help.
func TestRefusalsAreCounted(t *testing.T) {
	noSchedule := corev1.TaintEffectNoSchedule
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b", schedulertest.Taint("k", "v", noSchedule)), schedulertest.TestNode("c"), schedulertest.TestNode("d", schedulertest.Zone("1")), schedulertest.TestNode("e", schedulertest.Zone("1"), schedulertest.NodeHas(corev1.ResourcePods, "0"))}
	for _, test := range []struct {
		rule    string
		pod     *corev1.Pod
		running []*corev1.Pod
		reasons map[string]int
		rules   []string
		message string
	}{
		{rule: "by the table", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("9")),
			reasons: map[string]int{"node(s) were unschedulable": 1, "node(s) had untolerated taint(s)": 1, "Insufficient cpu": 3, "Too many pods": 1}, rules: []string{plugins.NodeResourcesFitName, plugins.NodeUnschedulableName, plugins.TaintTolerationName},
			message: "0/5 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 3 Insufficient cpu."},
		{rule: "several resources", pod: schedulertest.TestPod("p", schedulertest.RequestingCPU("9"), schedulertest.RequestingMemory("900Gi"), schedulertest.Tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})),
			reasons: map[string]int{"Insufficient cpu": 5, "Insufficient memory": 5, "Too many pods": 1}, rules: []string{plugins.NodeResourcesFitName},
			message: "0/5 nodes are available: 1 Too many pods, 5 Insufficient cpu, 5 Insufficient memory."},
		{rule: "by neighbours", pod: schedulertest.TestPod("p", schedulertest.WithAffinity(corev1.LabelTopologyZone, "app", "db")),
			reasons: map[string]int{"node(s) were unschedulable": 1, "node(s) had untolerated taint(s)": 1, "node(s) didn't match pod affinity rules": 2, "Too many pods": 1},
			rules:   []string{plugins.InterPodAffinityName, plugins.NodeResourcesFitName, plugins.NodeUnschedulableName, plugins.TaintTolerationName},
			message: "0/5 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 node(s) didn't match pod affinity rules."},
		{rule: "by spreading", pod: schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app=db")), running: []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("c"), schedulertest.Labelled("app", "db"), schedulertest.RequestingCPU("4"))},
			reasons: nil},
		{rule: "among few", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b"), schedulertest.Named("nobody"))),
			reasons: map[string]int{"node(s) were unschedulable": 1, "node(s) had untolerated taint(s)": 1, "node(s) didn't satisfy plugin(s) [NodeAffinity]": 3},
			rules:   []string{plugins.NodeAffinityName, plugins.NodeUnschedulableName, plugins.TaintTolerationName},
			message: "0/5 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 3 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
		{rule: "a node that does not exist", pod: schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("nobody"))), reasons: map[string]int{"node(s) didn't satisfy plugin(s) [NodeAffinity]": 5}, rules: []string{plugins.NodeAffinityName},
			message: "0/5 nodes are available: 5 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
	} {
		t.Run(test.rule, func(t *testing.T) {
			if test.reasons == nil {
				d, err := Schedule(snapshottest.New(t, nodes, test.running...), snapshottest.PodInfo(t, test.pod), plugins.DefaultProfile())
				if err != nil || d.Node != "d" || d.Feasible != 1 || d.Nodes != 5 {
					t.Errorf("went to %q, %d of %d, %v", d.Node, d.Feasible, d.Nodes, err)
				}
				return
			}
			d, fit := failureOf(t, snapshottest.New(t, nodes, test.running...), test.pod, plugins.DefaultProfile())
			if !reflect.DeepEqual(fit.Reasons, test.reasons) || !slices.Equal(fit.Plugins, test.rules) || fit.Nodes != 5 {
				t.Errorf("reasons %v by %v, want %v by %v", fit.Reasons, fit.Plugins, test.reasons, test.rules)
			}
			if fit.Error() != test.message {
				t.Errorf("%s\nwant %s", fit, test.message)
			}
			// The verdicts say the same, node by node.
			told := map[string]int{}
			verdicts, current := d.Explain()
			for _, v := range verdicts {
				if v.Refusal == nil || len(v.Scores) > 0 || v.Total != 0 {
					t.Fatalf("%+v", v)
				}
				for _, reason := range v.Refusal.Reasons {
					told[reason]++
				}
			}
			if !current || !maps.Equal(told, test.reasons) || len(verdicts) != 5 {
				t.Errorf("the verdicts tell %v, current %t", told, current)
			}
		})
	}
}

func TestNoNodes(t *testing.T) {
	d, err := Schedule(snapshottest.New(t, nil), snapshottest.PodInfo(t, schedulertest.TestPod("p")), plugins.DefaultProfile())
	if !errors.Is(err, ErrNoNodes) || err.Error() != "no nodes available to schedule pods" || !IsUnschedulable(err) || d.Nodes != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if verdicts, current := d.Explain(); len(verdicts) != 0 || !current {
		t.Errorf("%v, %t", verdicts, current)
	}
	if changes := d.Suggestions(); len(changes) != 1 || changes[0].Node != "" || changes[0].Steps[0] != "add a node" {
		t.Errorf("%+v", changes)
	}
}

// Verdicts come in an order a reader can follow: the winner, the others by score and name, the refused by name.
func TestVerdictsInOrder(t *testing.T) {
	nodes := []*corev1.Node{
		schedulertest.TestNode("z", schedulertest.Cordoned), schedulertest.TestNode("small", schedulertest.NodeHas(corev1.ResourceCPU, "2")), schedulertest.TestNode("b"), schedulertest.TestNode("a"), schedulertest.TestNode("large", schedulertest.NodeHas(corev1.ResourceCPU, "64"), schedulertest.NodeHas(corev1.ResourceMemory, "512Gi")), schedulertest.TestNode("y", schedulertest.Cordoned),
	}
	const want = "large a b small y z"
	// Equal nodes are told by name, in whatever order they came.
	for _, order := range [][]*corev1.Node{nodes, append(slices.Clone(nodes[:2]), nodes[3], nodes[2], nodes[4], nodes[5])} {
		s := snapshottest.New(t, order)
		d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("1Gi"))), plugins.DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		verdicts, _ := d.Explain()
		var names []string
		for j, v := range verdicts {
			names = append(names, v.Node)
			sum := int64(0)
			for _, score := range v.Scores {
				sum += score
			}
			if sum != v.Total {
				t.Errorf("%s: the scores %v make %d, not %d", v.Node, v.Scores, sum, v.Total)
			}
			if j > 0 && j < d.Feasible && v.Total > verdicts[j-1].Total {
				t.Errorf("%s with %d comes after %s with %d", v.Node, v.Total, verdicts[j-1].Node, verdicts[j-1].Total)
			}
		}
		if got := strings.Join(names, " "); got != want || d.Feasible != 4 {
			t.Errorf("%s, want %s; %d could take it", got, want, d.Feasible)
		}
	}
}

// The winner is told first even where others score the same.
func TestTheWinnerComesFirst(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")})
	seen := map[string]bool{}
	for i := range 6 {
		info := snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", i)))
		d, err := Schedule(s, info, plugins.DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		if verdicts, _ := d.Explain(); verdicts[0].Node != d.Node {
			t.Errorf("%s won, and %s is told first", d.Node, verdicts[0].Node)
		}
		seen[d.Node] = true
		s.Assume(info, d.Node)
	}
	if len(seen) != 3 {
		t.Errorf("only %v ever won", seen)
	}
}

// However the cluster changes afterwards, a decision tells what it saw: nodes that come, go, change their labels and take other pods.
func TestDecisionsTellWhatTheySaw(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2")), schedulertest.TestNode("c"), schedulertest.TestNode("d", schedulertest.Cordoned)}
	running := []*corev1.Pod{schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("app", "web"), schedulertest.RequestingCPU("1")), schedulertest.TestPod("y", schedulertest.OnNode("b"), schedulertest.Labelled("app", "db"))}
	for _, pod := range []*corev1.Pod{
		schedulertest.TestPod("plain", schedulertest.RequestingCPU("1")),
		schedulertest.TestPod("zonal", schedulertest.Labelled("app", "web"), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.ScheduleAnyway, "app=web")),
		schedulertest.TestPod("hosted", schedulertest.Labelled("app", "web"), schedulertest.Spread(corev1.LabelHostname, 1, corev1.ScheduleAnyway, "app=web"), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.ScheduleAnyway, "app=web")),
		schedulertest.TestPod("friendly", schedulertest.WithPreferredAffinity(10, corev1.LabelTopologyZone, "app", "web")), schedulertest.TestPod("tied", schedulertest.WithAffinity(corev1.LabelHostname, "app", "db")), schedulertest.TestPod("shy", schedulertest.WithAntiAffinity(corev1.LabelTopologyZone, "app", "web")),
		schedulertest.TestPod("few", schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("c"))), schedulertest.TestPod("both", schedulertest.WithPreferredAffinity(10, corev1.LabelHostname, "app", "db"), schedulertest.Labelled("app", "web"), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.ScheduleAnyway, "app=web")),
	} {
		t.Run(pod.Name, func(t *testing.T) {
			s := snapshottest.New(t, nodes, running...)
			d, err := Schedule(s, snapshottest.PodInfo(t, pod), plugins.DefaultProfile())
			if err != nil {
				t.Fatal(err)
			}
			before, _ := d.Explain()
			s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("late", schedulertest.OnNode("b"), schedulertest.RequestingCPU("3"), schedulertest.Labelled("app", "web"))))
			s.SetNode(schedulertest.TestNode("c", schedulertest.Zone("1")))
			s.SetNode(schedulertest.TestNode("a", schedulertest.Zone("2")))
			s.SetNode(schedulertest.TestNode("e", schedulertest.Zone("3")))
			s.SetNode(schedulertest.TestNode("d"))
			again, err := Schedule(s, snapshottest.PodInfo(t, pod), plugins.DefaultProfile())
			if err != nil {
				t.Fatal(err)
			}
			after, current := d.Explain()
			if now, _ := again.Explain(); len(now) != 5 {
				t.Errorf("%d nodes are told of now", len(now))
			}
			if pod.Name == "few" {
				return // of nodes it did not look at, it tells what is said now
			}
			if current && !reflect.DeepEqual(before, after) {
				t.Errorf("told\n%+v\nand then\n%+v", before, after)
			}
		})
	}
}

// A column that a record has borrowed is left to it.
func TestLentColumns(t *testing.T) {
	c := &snapshot.LabelColumn{ValueNumbers: map[string]int32{}}
	c.Set(0, "x", true)
	c.Set(1, "y", true)
	lent := c.Share()
	before := slices.Clone(lent)
	c.Set(0, "x", true)
	if &lent[0] != &c.ValueOf[0] {
		t.Error("a value that stays the same costs a copy")
	}
	c.Set(0, "y", true)
	c.Set(1, "", false)
	c.Set(2, "x", true)
	if !slices.Equal(lent, before) || !slices.Equal(c.ValueOf, []int32{1, snapshot.NoValue, 0}) {
		t.Errorf("the record has %v, the column %v", lent, c.ValueOf)
	}
	again := c.Share()
	c.Set(2, "z", true)
	if !slices.Equal(again, []int32{1, snapshot.NoValue, 0}) || c.ValueOf[2] != 2 || c.Shared {
		t.Errorf("the second record has %v, the column %v", again, c.ValueOf)
	}
}

// Without a record decisions are the same, and nothing is there to be told.
func TestWithoutARecord(t *testing.T) {
	for _, load := range schedulertest.BenchLoads {
		kept, bare := snapshottest.New(t, schedulertest.BenchNodes(30)), snapshottest.New(t, schedulertest.BenchNodes(30))
		SetOptions(bare, Options{NoRecord: true})
		for i := range 40 {
			info := snapshottest.PodInfo(t, load.Pod(i))
			d, err := Schedule(kept, info, plugins.DefaultProfile())
			other, otherErr := Schedule(bare, info, plugins.DefaultProfile())
			if d.Node != other.Node || d.Feasible != other.Feasible || fmt.Sprint(err) != fmt.Sprint(otherErr) {
				t.Fatalf("%s: with the record %q of %d, %v; without %q of %d, %v", load.Name, d.Node, d.Feasible, err, other.Node, other.Feasible, otherErr)
			}
			if err != nil {
				break
			}
			if !other.RecordDropped || other.topology != nil || d.RecordDropped {
				t.Fatalf("%s: a record was kept, or not", load.Name)
			}
			kept.Assume(info, d.Node)
			bare.Assume(info, other.Node)
		}
	}
}

// Scores say by how much: upstream's numbers for a cluster one can reckon by hand.
func TestScoresByHand(t *testing.T) {
	nodes := []*corev1.Node{
		schedulertest.TestNode("empty"), schedulertest.TestNode("half"), schedulertest.TestNode("disliked", schedulertest.Taint("k", "v", corev1.TaintEffectPreferNoSchedule)), schedulertest.TestNode("preferred", schedulertest.NodeLabel("disk", "ssd")),
	}
	running := schedulertest.TestPod("r", schedulertest.OnNode("half"), schedulertest.RequestingCPU("2"), schedulertest.RequestingMemory("16Gi"))
	pod := schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("8Gi"), func(p *corev1.Pod) {
		schedulertest.AffinityOf(p).NodeAffinity = &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 4, Preference: schedulertest.Expression("disk", corev1.NodeSelectorOpIn, "ssd")}}}
	})
	d, err := Schedule(snapshottest.New(t, nodes, running), snapshottest.PodInfo(t, pod), plugins.DefaultProfile())
	if err != nil || d.Node != "preferred" {
		t.Fatalf("went to %q, %v", d.Node, err)
	}
	verdicts, _ := d.Explain()
	for _, v := range verdicts {
		// A quarter of everything is asked for: 75 are left of an empty node, 25 of the half full one.
		want := map[string]int64{plugins.NodeResourcesFitName: 75, plugins.TaintTolerationName: 300, plugins.NodeAffinityName: 0}
		switch v.Node {
		case "half":
			want[plugins.NodeResourcesFitName] = 25
		case "disliked":
			want[plugins.TaintTolerationName] = 0
		case "preferred":
			want[plugins.NodeAffinityName] = 200
		}
		for rule, score := range want {
			if v.Scores[rule] != score {
				t.Errorf("%s: %s gives %d, want %d", v.Node, rule, v.Scores[rule], score)
			}
		}
	}
}

// Scores about neighbours are kept by node, or by domain with a last value for the nodes of none.
func TestBesideScores(t *testing.T) {
	for _, test := range []struct {
		rule   string
		scores plugins.ScoreRecord
		want   []int64 // by node
	}{
		{"by node", plugins.ScoreRecord{Values: []uint8{0, 100, 7}}, []int64{0, 100, 7}},
		{"by domain", plugins.ScoreRecord{Values: []uint8{10, 20, 99}, DomainOf: []int32{1, 0, 1}}, []int64{20, 10, 20}},
		{"nodes of no domain have the last value", plugins.ScoreRecord{Values: []uint8{10, 20, 99}, DomainOf: []int32{snapshot.NoValue, 1, snapshot.NoValue}}, []int64{99, 20, 99}},
		{"no node is of a domain", plugins.ScoreRecord{Values: []uint8{5}, DomainOf: []int32{snapshot.NoValue, snapshot.NoValue}}, []int64{5, 5}},
		{"the largest number a record can hold", plugins.ScoreRecord{Values: []uint8{255}}, []int64{255}},
	} {
		for node, want := range test.want {
			if got := test.scores.ScoreOf(int32(node)); got != want {
				t.Errorf("%s: node %d has %d, want %d", test.rule, node, got, want)
			}
		}
	}
}

// A reason that no node has any more is not counted, though the table remembers it.
func TestReasonsOfNoNodeAreNotTold(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b", schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule))})
	for _, step := range []struct {
		node *corev1.Node
		want string
	}{
		{nil, "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable."},
		{schedulertest.TestNode("a"), "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."},
		{schedulertest.TestNode("b"), "0/2 nodes are available: 2 Insufficient cpu."},
		{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "0")), "0/2 nodes are available: 1 Too many pods, 2 Insufficient cpu."},
		{schedulertest.TestNode("b", schedulertest.Cordoned), "0/2 nodes are available: 1 Insufficient cpu, 1 Too many pods, 1 node(s) were unschedulable."},
	} {
		if step.node != nil {
			s.SetNode(step.node)
		}
		d, fit := failureOf(t, s, schedulertest.TestPod("p", schedulertest.RequestingCPU("9")), plugins.DefaultProfile())
		if fit.Error() != step.want {
			t.Errorf("%s\nwant %s", fit, step.want)
		}
		rules := map[string]bool{}
		for _, v := range must(d.Explain()) {
			rules[v.Refusal.Plugin] = true
		}
		if want := slices.Sorted(maps.Keys(rules)); !slices.Equal(fit.Plugins, want) {
			t.Errorf("refused by %v, want %v", fit.Plugins, want)
		}
	}
}

// must are the verdicts of a decision whose record is there.
func must(verdicts []Verdict, current bool) []Verdict {
	if !current {
		panic("the decision's record is gone")
	}
	return verdicts
}

// Nodes that have come since are not told of, nodes that have gone neither, and those that stay keep what was said.
func TestVerdictsAfterNodesComeAndGo(t *testing.T) {
	for _, test := range []struct {
		rule string
		pod  *corev1.Pod
		do   func(*snapshot.Snapshot)
		want string
	}{
		{"nothing happens", schedulertest.TestPod("p"), func(*snapshot.Snapshot) {}, "a b -c"},
		{"a node comes", schedulertest.TestPod("p"), func(s *snapshot.Snapshot) { s.SetNode(schedulertest.TestNode("d")) }, "a b -c"},
		{"two nodes come", schedulertest.TestPod("p"), func(s *snapshot.Snapshot) {
			s.SetNode(schedulertest.TestNode("0"))
			s.SetNode(schedulertest.TestNode("z", schedulertest.Cordoned))
		}, "a b -c"},
		{"a refused node goes", schedulertest.TestPod("p"), func(s *snapshot.Snapshot) { s.DeleteNode("c") }, "a b"},
		{"a node that could take it goes", schedulertest.TestPod("p"), func(s *snapshot.Snapshot) { s.DeleteNode("b") }, "a -c"},
		{"one goes and another comes in its place", schedulertest.TestPod("p"), func(s *snapshot.Snapshot) { s.DeleteNode("c"); s.SetNode(schedulertest.TestNode("e")) }, "a b"},
		{"a node is uncordoned", schedulertest.TestPod("p"), func(s *snapshot.Snapshot) { s.SetNode(schedulertest.TestNode("c")) }, "a b -c"},
		{"a node comes to one with neighbours", schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.Spread(corev1.LabelHostname, 1, corev1.ScheduleAnyway, "app=x")), func(s *snapshot.Snapshot) { s.SetNode(schedulertest.TestNode("d")) }, "a b -c"},
	} {
		s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "3")), schedulertest.TestNode("c", schedulertest.Cordoned)}, schedulertest.TestPod("r", schedulertest.OnNode("b"), schedulertest.RequestingCPU("2"), schedulertest.RequestingMemory("16Gi")))
		d, err := Schedule(s, snapshottest.PodInfo(t, test.pod), plugins.DefaultProfile())
		if err != nil || d.Node != "a" {
			t.Fatalf("%s: %q, %v", test.rule, d.Node, err)
		}
		test.do(s)
		verdicts, _ := d.Explain()
		var told []string
		for _, v := range verdicts {
			name := v.Node
			if v.Refusal != nil {
				name = "-" + name
			}
			told = append(told, name)
		}
		if got := strings.Join(told, " "); got != test.want {
			t.Errorf("%s: told of %s, want %s", test.rule, got, test.want)
		}
	}
}

// The winner comes first among equals wherever it stands, in the order of names or of arrival.
func TestTheWinnerComesFirstInAnyOrder(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		s := snapshot.NewSnapshot()
		for _, i := range order {
			s.SetNode(schedulertest.TestNode(names[i]))
		}
		for _, winner := range names {
			d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p")), plugins.DefaultProfile())
			if err != nil {
				t.Fatal(err)
			}
			d.Node = winner
			want := append([]string{winner}, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == winner })...)
			var got []string
			for _, v := range must(d.Explain()) {
				got = append(got, v.Node)
			}
			if !slices.Equal(got, want) {
				t.Errorf("nodes came as %v, %s won: told %v, want %v", order, winner, got, want)
			}
		}
	}
}

// Whatever the cluster, what a decision tells agrees with itself: the winner is the best of those that could take the pod, scores make
// the total, and the message counts the refusals node by node.
func TestDecisionsAgreeWithThemselves(t *testing.T) {
	const seed = 83
	w := newWorld(t, seed)
	placed, failed := 0, 0
	for round := range 1500 {
		w.step()
		d, err := Schedule(w.snapshot, snapshottest.PodInfo(t, w.RandomPod()), plugins.DefaultProfile())
		reasons, rules, feasible := map[string]int{}, map[string]bool{}, 0
		verdicts := must(d.Explain())
		for _, v := range verdicts {
			if v.Refusal != nil {
				rules[v.Refusal.Plugin] = true
				for _, reason := range v.Refusal.Reasons {
					reasons[reason]++
				}
				if len(v.Scores) > 0 || v.Total != 0 {
					t.Fatalf("seed %d, round %d: %+v is refused and scored", seed, round, v)
				}
				continue
			}
			feasible++
			sum := int64(0)
			for _, score := range v.Scores {
				sum += score
			}
			if sum != v.Total || v.Total > verdicts[0].Total {
				t.Fatalf("seed %d, round %d: %+v, the best has %d", seed, round, v, verdicts[0].Total)
			}
		}
		if len(verdicts) != d.Nodes || feasible != d.Feasible || d.Nodes != len(w.nodes) {
			t.Fatalf("seed %d, round %d: %d verdicts, %d could take it; the decision says %d of %d, there are %d", seed, round, len(verdicts), feasible, d.Feasible, d.Nodes, len(w.nodes))
		}
		var fit *FitError
		switch {
		case err == nil:
			placed++
			if verdicts[0].Node != d.Node || verdicts[0].Refusal != nil {
				t.Fatalf("seed %d, round %d: %s won, %+v is told first", seed, round, d.Node, verdicts[0])
			}
		case errors.As(err, &fit):
			failed++
			if !maps.Equal(fit.Reasons, reasons) || !slices.Equal(fit.Plugins, slices.Sorted(maps.Keys(rules))) || fit.Nodes != d.Nodes || feasible != 0 {
				t.Fatalf("seed %d, round %d: the message says %v by %v, the verdicts %v by %v", seed, round, fit.Reasons, fit.Plugins, reasons, rules)
			}
		case !errors.Is(err, ErrNoNodes):
			t.Fatal(err)
		}
	}
	if placed < 300 || failed < 50 {
		t.Errorf("%d found a place and %d did not: too few to tell", placed, failed)
	}
}
