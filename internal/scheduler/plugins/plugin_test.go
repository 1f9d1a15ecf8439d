package plugins

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// pluginRefusals asks one rule alone about all nodes that exist. Nodes it has nothing against are missing.
func pluginRefusals(t testing.TB, rule FilterPlugin, s *snapshot.Snapshot, pod *corev1.Pod) map[string]string {
	t.Helper()
	write := func(r *Refusal) string {
		if r.Err != nil {
			return "error: " + r.Err.Error()
		}
		if r.Plugin != rule.Name() {
			t.Errorf("%s refuses in the name of %s", rule.Name(), r.Plugin)
		}
		text := strings.Join(r.Reasons, ", ")
		if r.Unresolvable {
			text = schedulertest.UnresolvablePrefix + text
		}
		return text
	}
	f, all := rule.Filter(s, snapshottest.PodInfo(t, pod))
	refusals := map[string]string{}
	for i := range s.NodeInfos {
		if s.NodeInfos[i].Node == nil {
			continue
		}
		switch name := s.NodeInfos[i].Name; {
		case all != nil:
			refusals[name] = write(all)
		case f.LimitedToNames && !slices.Contains(f.NodeNames, name):
			refusals[name] = "not asked"
		case f.Check != nil:
			if r := f.Check(int32(i)); r != nil {
				refusals[name] = write(r)
			}
		}
	}
	return refusals
}

// pluginScores asks one rule alone for its scores of all nodes that exist; nil when it has nothing to say.
func pluginScores(t testing.TB, rule ScorePlugin, s *snapshot.Snapshot, pod *corev1.Pod) map[string]int64 {
	t.Helper()
	x := rule.Score(s, snapshottest.PodInfo(t, pod))
	if x.Score == nil {
		return nil
	}
	raw, largest := map[string]int64{}, int64(0)
	for i := range s.NodeInfos {
		if s.NodeInfos[i].Node != nil {
			raw[s.NodeInfos[i].Name] = x.Score(int32(i))
			largest = max(largest, raw[s.NodeInfos[i].Name])
		}
	}
	for name := range raw {
		raw[name] = x.Normalization.Normalize(raw[name], largest)
		if raw[name] < 0 || raw[name] > MaxScore {
			t.Errorf("%s gives %s %d", rule.Name(), name, raw[name])
		}
	}
	return raw
}

// pluginHelps asks as the queue does: whether a change may help a pod that one rule has refused.
func pluginHelps(t testing.TB, profile *Profile, rule string, s *snapshot.Snapshot, pod *corev1.Pod, event Event) bool {
	t.Helper()
	return profile.MayHelp(s, pod, []string{rule}, &event)
}

// ruleEvents are short names for the changes hints are asked about.
func ruleNodeCame(n *corev1.Node) Event { return Event{Resource: NodeResource, Action: Add, New: n} }
func ruleNodeWent(n *corev1.Node) Event { return Event{Resource: NodeResource, Action: Delete, Old: n} }
func ruleNodeIs(old, now *corev1.Node) Event {
	return Event{Resource: NodeResource, Action: NodeUpdateActions(old, now), Old: old, New: now}
}
func rulePodCame(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Add, New: p} }
func rulePodWent(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Delete, Old: p} }
func rulePodIs(old, now *corev1.Pod) Event {
	return Event{Resource: AssignedPod, Action: PodUpdateActions(old, now), Old: old, New: now}
}
func ruleItselfIs(old, now *corev1.Pod) Event {
	return Event{Resource: TargetPod, Action: PodUpdateActions(old, now), Old: old, New: now}
}

// ruleHint is a row: a pod one rule has refused, a change, and whether it may help.
type ruleHint struct {
	what  string
	pod   *corev1.Pod
	event Event
	helps bool
}

func checkHints(t *testing.T, profile *Profile, rule string, s *snapshot.Snapshot, rows []ruleHint) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			if got := pluginHelps(t, profile, rule, s, row.pod, row.event); got != row.helps {
				t.Errorf("helps is %t, want %t", got, row.helps)
			}
		})
	}
}

func mustRule[R Plugin](t testing.TB, name, arguments string) R {
	t.Helper()
	maker := Registry[slices.IndexFunc(Registry, func(m Factory) bool { return m.Name == name })]
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
	for i, rule := range p.Filters {
		switch {
		case rule != nil:
			filters = append(filters, rule.Name())
		case i == p.SpreadOrder:
			filters = append(filters, PodTopologySpreadName)
		case i == p.AffinityOrder:
			filters = append(filters, InterPodAffinityName)
		}
	}
	for _, x := range p.Scorers {
		scorers = append(scorers, x.Plugin.Name())
		if want := max(weights[x.Plugin.Name()], 1); x.Weight != want {
			t.Errorf("%s weighs %d, want %d", x.Plugin.Name(), x.Weight, want)
		}
	}
	if p.SpreadWeight != 2 || p.AffinityWeight != 2 {
		t.Errorf("spreading weighs %d, affinity %d, want 2 and 2", p.SpreadWeight, p.AffinityWeight)
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
	for name := range p.Hints {
		if i := slices.IndexFunc(Registry, func(m Factory) bool { return m.Name == name }); i < 0 {
			t.Errorf("hints of %s, which is no rule", name)
		}
	}
}

func TestScaled(t *testing.T) {
	for _, test := range []struct {
		what         string
		scale        Normalization
		raw, largest int64
		want         int64
	}{
		{"scores stay", NotNormalized, 37, 100, 37},
		{"scores stay without a largest", NotNormalized, 37, 0, 37},
		{"the largest is best", HigherIsBetter, 7, 7, 100},
		{"half of the largest", HigherIsBetter, 7, 14, 50},
		{"a third is rounded down", HigherIsBetter, 1, 3, 33},
		{"two thirds are rounded down", HigherIsBetter, 2, 3, 66},
		{"nothing is worst", HigherIsBetter, 0, 3, 0},
		{"one of very many", HigherIsBetter, 1, 101, 0},
		{"all but one of very many", HigherIsBetter, 100, 101, 99},
		{"nobody has any: none is better", HigherIsBetter, 0, 0, 0},
		{"the largest is worst", LowerIsBetter, 7, 7, 0},
		{"half of the largest, turned round", LowerIsBetter, 7, 14, 50},
		{"a third is rounded down before it is turned round", LowerIsBetter, 1, 3, 67},
		{"two thirds are rounded down before they are turned round", LowerIsBetter, 2, 3, 34},
		{"nothing is best", LowerIsBetter, 0, 3, 100},
		{"one of very many, turned round", LowerIsBetter, 1, 101, 100},
		{"nobody has any: all are best", LowerIsBetter, 0, 0, 100},
	} {
		if got := test.scale.Normalize(test.raw, test.largest); got != test.want {
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
			for _, scale := range []Normalization{HigherIsBetter, LowerIsBetter} {
				if got := scale.Normalize(a, largest); got < 0 || got > MaxScore {
					t.Fatalf("scale %d of %v: %d becomes %d", scale, raw, a, got)
				}
			}
			for _, b := range raw[i:] {
				if a <= b && (HigherIsBetter.Normalize(a, largest) > HigherIsBetter.Normalize(b, largest) || LowerIsBetter.Normalize(a, largest) < LowerIsBetter.Normalize(b, largest)) {
					t.Fatalf("of %v, %d and %d change places", raw, a, b)
				}
			}
		}
		if largest > 0 && (HigherIsBetter.Normalize(largest, largest) != MaxScore || LowerIsBetter.Normalize(largest, largest) != 0) {
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
		{"waiting", schedulertest.TestPod("p"), false}, {"on a node", schedulertest.TestPod("p", schedulertest.OnNode("n")), true},
		{"nominated to one", schedulertest.TestPod("p", schedulertest.NominatedTo("n")), true}, {"both", schedulertest.TestPod("p", schedulertest.OnNode("n"), schedulertest.NominatedTo("m")), true},
	} {
		if got := occupiesNode(test.pod); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

// What rules of one's own are shown of the cluster.
func TestRulesSeeNodesAndPods(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("1", schedulertest.OnNode("a")), schedulertest.TestPod("2", schedulertest.OnNode("b")), schedulertest.TestPod("3", schedulertest.OnNode("a")))
	names := func(node string) (names []string) {
		for _, p := range s.PodsOn(s.NodeNumbers[node]) {
			names = append(names, p.Name)
		}
		slices.Sort(names)
		return names
	}
	if got := s.Node(s.NodeNumbers["b"]).Name; got != "b" {
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
	hints := DefaultProfile().Hints
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
