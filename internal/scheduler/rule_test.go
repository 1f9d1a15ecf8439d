package scheduler

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// lasting stands before a refusal that no pod's leaving can change.
const lasting = "! "

// ruleRefusals asks one rule alone about all nodes that exist. Nodes it has nothing against are missing.
func ruleRefusals(t testing.TB, rule FilterRule, s *Snapshot, pod *corev1.Pod) map[string]string {
	t.Helper()
	write := func(r *Refusal) string {
		if r.Err != nil {
			return "error: " + r.Err.Error()
		}
		if r.Rule != rule.Name() {
			t.Errorf("%s refuses in the name of %s", rule.Name(), r.Rule)
		}
		text := strings.Join(r.Reasons, ", ")
		if r.Unresolvable {
			text = lasting + text
		}
		return text
	}
	f, all := rule.Filter(s, infoOf(t, pod))
	refusals := map[string]string{}
	for i := range s.nodes {
		if s.nodes[i].object == nil {
			continue
		}
		switch name := s.nodes[i].name; {
		case all != nil:
			refusals[name] = write(all)
		case f.Limited && !slices.Contains(f.Only, name):
			refusals[name] = "not asked"
		case f.Check != nil:
			if r := f.Check(int32(i)); r != nil {
				refusals[name] = write(r)
			}
		}
	}
	return refusals
}

// ruleScores asks one rule alone for its scores of all nodes that exist; nil when it has nothing to say.
func ruleScores(t testing.TB, rule ScoreRule, s *Snapshot, pod *corev1.Pod) map[string]int64 {
	t.Helper()
	x := rule.Score(s, infoOf(t, pod))
	if x.Of == nil {
		return nil
	}
	raw, largest := map[string]int64{}, int64(0)
	for i := range s.nodes {
		if s.nodes[i].object != nil {
			raw[s.nodes[i].name] = x.Of(int32(i))
			largest = max(largest, raw[s.nodes[i].name])
		}
	}
	for name := range raw {
		raw[name] = x.Scale.scaled(raw[name], largest)
		if raw[name] < 0 || raw[name] > MaxScore {
			t.Errorf("%s gives %s %d", rule.Name(), name, raw[name])
		}
	}
	return raw
}

// ruleHelps asks as the queue does: whether a change may help a pod that one rule has refused.
func ruleHelps(t testing.TB, profile *Profile, rule string, s *Snapshot, pod *corev1.Pod, event Event) bool {
	t.Helper()
	q := NewQueue(map[string]*Profile{profile.Name: profile}, 0, 0)
	return q.helps(s, &queued{info: infoOf(t, pod), rules: []string{rule}}, &event)
}

// ruleEvents are short names for the changes hints are asked about.
func ruleNodeCame(n *corev1.Node) Event { return Event{Resource: NodeResource, Action: Add, New: n} }
func ruleNodeWent(n *corev1.Node) Event { return Event{Resource: NodeResource, Action: Delete, Old: n} }
func ruleNodeIs(old, now *corev1.Node) Event {
	return Event{Resource: NodeResource, Action: nodeChanges(old, now), Old: old, New: now}
}
func rulePodCame(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Add, New: p} }
func rulePodWent(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Delete, Old: p} }
func rulePodIs(old, now *corev1.Pod) Event {
	return Event{Resource: AssignedPod, Action: podChanges(old, now), Old: old, New: now}
}
func ruleItselfIs(old, now *corev1.Pod) Event {
	return Event{Resource: TargetPod, Action: podChanges(old, now), Old: old, New: now}
}

// ruleHint is a row: a pod one rule has refused, a change, and whether it may help.
type ruleHint struct {
	what  string
	pod   *corev1.Pod
	event Event
	helps bool
}

func checkHints(t *testing.T, profile *Profile, rule string, s *Snapshot, rows []ruleHint) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			if got := ruleHelps(t, profile, rule, s, row.pod, row.event); got != row.helps {
				t.Errorf("helps is %t, want %t", got, row.helps)
			}
		})
	}
}

// oneOf, someOf and chance draw from a random source, for models.
func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func someOf[T any](r *rand.Rand, most int, draw func() T) (drawn []T) {
	for range r.IntN(most + 1) {
		drawn = append(drawn, draw())
	}
	return drawn
}

// randomLabels draws a value for some of the keys.
func randomLabels(r *rand.Rand, keys []string, values ...string) labels.Set {
	set := labels.Set{}
	for _, key := range keys {
		if !chance(r, 3) {
			set[key] = oneOf(r, values...)
		}
	}
	return set
}

func mustRule[R Rule](t testing.TB, name, arguments string) R {
	t.Helper()
	maker := Rules[slices.IndexFunc(Rules, func(m RuleMaker) bool { return m.Name == name })]
	rule, err := maker.Make([]byte(arguments))
	if err != nil {
		t.Fatal(err)
	}
	return rule.(R)
}

// Upstream's plugins in upstream's order, with the weights its default profile gives them.
func TestRulesAreUpstreams(t *testing.T) {
	weights := map[string]int64{"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2, "DynamicResources": 2}
	var filters, scorers []string
	p := DefaultProfile()
	for i, rule := range p.filters {
		switch {
		case rule != nil:
			filters = append(filters, rule.Name())
		case i == p.spreadOrder:
			filters = append(filters, podTopologySpreadName)
		case i == p.affinityOrder:
			filters = append(filters, interPodAffinityName)
		}
	}
	for _, x := range p.scorers {
		scorers = append(scorers, x.rule.Name())
		if want := max(weights[x.rule.Name()], 1); x.weight != want {
			t.Errorf("%s weighs %d, want %d", x.rule.Name(), x.weight, want)
		}
	}
	if p.spreadWeight != 2 || p.affinityWeight != 2 {
		t.Errorf("spreading weighs %d, affinity %d, want 2 and 2", p.spreadWeight, p.affinityWeight)
	}
	wantFilters := []string{"NodeName", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions",
		"NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity", "DynamicResources", "NodeDeclaredFeatures"}
	if !slices.Equal(filters, wantFilters) {
		t.Errorf("filters %v, want %v", filters, wantFilters)
	}
	slices.Sort(scorers)
	wantScorers := []string{"DynamicResources", "ImageLocality", "NodeAffinity", "NodeResourcesBalancedAllocation", "NodeResourcesFit", "TaintToleration", "VolumeBinding"}
	if !slices.Equal(scorers, wantScorers) {
		t.Errorf("scorers %v, want %v", scorers, wantScorers)
	}
	for name := range p.hints {
		if i := slices.IndexFunc(Rules, func(m RuleMaker) bool { return m.Name == name }); i < 0 {
			t.Errorf("hints of %s, which is no rule", name)
		}
	}
}

func TestScaled(t *testing.T) {
	for _, test := range []struct {
		what         string
		scale        Scale
		raw, largest int64
		want         int64
	}{
		{"scores stay", AsIs, 37, 100, 37},
		{"scores stay without a largest", AsIs, 37, 0, 37},
		{"the largest is best", MostIsBest, 7, 7, 100},
		{"half of the largest", MostIsBest, 7, 14, 50},
		{"a third is rounded down", MostIsBest, 1, 3, 33},
		{"two thirds are rounded down", MostIsBest, 2, 3, 66},
		{"nothing is worst", MostIsBest, 0, 3, 0},
		{"one of very many", MostIsBest, 1, 101, 0},
		{"all but one of very many", MostIsBest, 100, 101, 99},
		{"nobody has any: none is better", MostIsBest, 0, 0, 0},
		{"the largest is worst", LeastIsBest, 7, 7, 0},
		{"half of the largest, turned round", LeastIsBest, 7, 14, 50},
		{"a third is rounded down before it is turned round", LeastIsBest, 1, 3, 67},
		{"two thirds are rounded down before they are turned round", LeastIsBest, 2, 3, 34},
		{"nothing is best", LeastIsBest, 0, 3, 100},
		{"one of very many, turned round", LeastIsBest, 1, 101, 100},
		{"nobody has any: all are best", LeastIsBest, 0, 0, 100},
	} {
		if got := test.scale.scaled(test.raw, test.largest); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}

// Scales keep the order of nodes, end at both ends of the range, and never leave it.
func TestScaledKeepsOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		raw := make([]int64, 2+r.IntN(9))
		for i := range raw {
			raw[i] = r.Int64N(1 + r.Int64N(400))
		}
		largest := slices.Max(raw)
		for i, a := range raw {
			for _, scale := range []Scale{MostIsBest, LeastIsBest} {
				if got := scale.scaled(a, largest); got < 0 || got > MaxScore {
					t.Fatalf("scale %d of %v: %d becomes %d", scale, raw, a, got)
				}
			}
			for _, b := range raw[i:] {
				if a <= b && (MostIsBest.scaled(a, largest) > MostIsBest.scaled(b, largest) || LeastIsBest.scaled(a, largest) < LeastIsBest.scaled(b, largest)) {
					t.Fatalf("of %v, %d and %d change places", raw, a, b)
				}
			}
		}
		if largest > 0 && (MostIsBest.scaled(largest, largest) != MaxScore || LeastIsBest.scaled(largest, largest) != 0) {
			t.Fatalf("the largest of %v is not at the end", raw)
		}
	}
}

func TestHasPlace(t *testing.T) {
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want bool
	}{
		{"waiting", testPod("p"), false}, {"on a node", testPod("p", on("n")), true},
		{"nominated to one", testPod("p", nominatedTo("n")), true}, {"both", testPod("p", on("n"), nominatedTo("m")), true},
	} {
		if got := hasPlace(test.pod); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

// What rules of one's own are shown of the cluster.
func TestRulesSeeNodesAndPods(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("b")}, testPod("1", on("a")), testPod("2", on("b")), testPod("3", on("a")))
	names := func(node string) (names []string) {
		for _, p := range s.PodsOn(s.nodeNumber[node]) {
			names = append(names, p.Name)
		}
		slices.Sort(names)
		return names
	}
	if got := s.Node(s.nodeNumber["b"]).Name; got != "b" {
		t.Errorf("node %s", got)
	}
	if a, b := names("a"), names("b"); !slices.Equal(a, []string{"1", "3"}) || !slices.Equal(b, []string{"2"}) {
		t.Errorf("pods on a %v, on b %v", a, b)
	}
	s.DeletePod("1")
	if a := names("a"); !slices.Equal(a, []string{"3"}) {
		t.Errorf("pods on a %v", a)
	}
}

// The changes each rule wants to hear of are those upstream's plugins register for.
func TestHintsNameUpstreamsChanges(t *testing.T) {
	type on struct {
		resource Resource
		action   Action
	}
	want := map[string][]on{
		"NodeName":          {{NodeResource, Add}},
		"NodeUnschedulable": {{NodeResource, Add | UpdateNodeTaint}, {TargetPod, UpdatePodToleration}},
		"TaintToleration":   {{NodeResource, Add | UpdateNodeTaint}, {TargetPod, UpdatePodToleration}},
		"NodeAffinity":      {{NodeResource, Add | UpdateNodeLabel}},
		"NodePorts":         {{AssignedPod, Delete}, {NodeResource, Add}},
		"SchedulingGates":   {{TargetPod, UpdatePodGates}},
		"NodeResourcesFit": {{AssignedPod, Delete}, {AssignedPod, UpdatePodScaleDown}, {TargetPod, UpdatePodScaleDown},
			{NodeResource, Add | UpdateNodeAllocatable}, {DeviceClassResource, Add | Update}},
		"PodTopologySpread": {{AssignedPod, Add | UpdatePodLabel | Delete}, {TargetPod, UpdatePodToleration | UpdatePodLabel},
			{NodeResource, Add | Delete | UpdateNodeLabel | UpdateNodeTaint}},
		"InterPodAffinity":     {{AssignedPod, Add | UpdatePodLabel | Delete}, {TargetPod, UpdatePodLabel}, {NodeResource, Add | UpdateNodeLabel}},
		"NodeDeclaredFeatures": {{NodeResource, Add | UpdateNodeFeature}, {TargetPod, Update}},
	}
	hints := DefaultProfile().hints
	for rule, changes := range want {
		var got []on
		for _, h := range hints[rule] {
			got = append(got, on{h.Resource, h.Action})
		}
		if !slices.Equal(got, changes) {
			t.Errorf("%s: hints on %v, want %v", rule, got, changes)
		}
	}
	for _, silent := range []string{"NodeResourcesBalancedAllocation", "ImageLocality"} {
		if hints[silent] != nil {
			t.Errorf("%s refuses nobody and yet gives hints", silent)
		}
	}
}
