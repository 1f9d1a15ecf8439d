package decision

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func topologyOf(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *plugins.Profile) *topology {
	t.Helper()
	n, err := TopologyFor(s, snapshottest.PodInfo(t, pod), profile)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Topology is inactive exactly when no constraint or term, of the pod or of pods on nodes, can filter or score a node.
func TestTopologyInactive(t *testing.T) {
	host, x := corev1.LabelHostname, schedulertest.Labelled("app", "x")
	nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
	unkeyed := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Unlabelled(host)), schedulertest.TestNode("b")}
	about := schedulertest.PodTerm(host, "app", "x")
	for _, test := range []struct {
		what           string
		nodes          []*corev1.Node
		running        []*corev1.Pod
		pod            *corev1.Pod
		inactive       bool // nothing to filter by, nothing to score by
		filtersNothing bool // affinity rejects no node
	}{
		{"no constraints and no terms", nodes, schedulertest.PodsOn("a", x), schedulertest.TestPod("p", x), true, true},
		{"a hard constraint", nodes, nil, schedulertest.TestPod("p", schedulertest.Spread(host, 1, schedulertest.SpreadHard, "app=x")), false, true},
		{"a soft constraint", nodes, nil, schedulertest.TestPod("p", schedulertest.Spread(host, 1, schedulertest.SpreadSoft, "app=x")), false, true},
		{"required affinity", nodes, nil, schedulertest.TestPod("p", x, schedulertest.RequiredAffinity(about)), false, false},
		{"required anti-affinity to a running pod", nodes, schedulertest.PodsOn("a", x), schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(about)), false, false},
		{"required anti-affinity, no such pod", nodes, nil, schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(about)), true, false},
		{"required anti-affinity to a pod in no domain", unkeyed, schedulertest.PodsOn("a", x), schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(about)), true, false},
		{"anti-affinity of a running pod", nodes, schedulertest.PodsOn("a", schedulertest.RequiredAntiAffinity(about)), schedulertest.TestPod("p", x), false, false},
		{"anti-affinity of a running pod in no domain", unkeyed, schedulertest.PodsOn("a", schedulertest.RequiredAntiAffinity(about)), schedulertest.TestPod("p", x), false, true},
		{"anti-affinity of a running pod to other pods", nodes, schedulertest.PodsOn("a", schedulertest.RequiredAntiAffinity(about)), schedulertest.TestPod("p"), true, true},
		{"required affinity of a running pod", nodes, schedulertest.PodsOn("a", schedulertest.RequiredAffinity(about), x), schedulertest.TestPod("p", x), false, true},
		{"preferred affinity to a running pod", nodes, schedulertest.PodsOn("a", x), schedulertest.TestPod("p", schedulertest.PreferredAffinity(1, about)), false, true},
		{"preferred affinity, no such pod", nodes, nil, schedulertest.TestPod("p", schedulertest.PreferredAffinity(1, about)), true, true},
		{"preferred anti-affinity to a running pod", nodes, schedulertest.PodsOn("a", x), schedulertest.TestPod("p", schedulertest.PreferredAntiAffinity(1, about)), false, true},
		{"preferred affinity of a running pod", nodes, schedulertest.PodsOn("a", schedulertest.PreferredAffinity(1, about)), schedulertest.TestPod("p", x), false, true},
		{"preferred anti-affinity of a running pod", nodes, schedulertest.PodsOn("a", schedulertest.PreferredAntiAffinity(1, about)), schedulertest.TestPod("p", x), false, true},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshottest.New(t, test.nodes, test.running...)
			n := topologyOf(t, s, test.pod, plugins.DefaultProfile())
			if n.inactive() != test.inactive || n.Affinity.FiltersNothing() != test.filtersNothing {
				t.Errorf("inactive is %t, filtersNothing is %t, want %t, %t", n.inactive(), n.Affinity.FiltersNothing(), test.inactive, test.filtersNothing)
			}
			for _, p := range test.running {
				s.DeletePod(p.UID)
			}
			// The cached state stays valid: only the counts have changed.
			if again := topologyOf(t, s, test.pod, plugins.DefaultProfile()); again != n {
				t.Error("the state was computed again")
			}
			own := len(test.pod.Spec.TopologySpreadConstraints) > 0 || test.what == "required affinity"
			if n.inactive() == own {
				t.Errorf("without running pods, inactive is %t", n.inactive())
			}
		})
	}
}

// Extension points that a profile disables are not evaluated.
func TestTopologyOfProfiles(t *testing.T) {
	host, x := corev1.LabelHostname, schedulertest.Labelled("app", "x")
	off := func(change func(*configv1.Plugins)) *plugins.Profile {
		file := &configv1.Plugins{}
		change(file)
		profile, err := plugins.NewProfile(&configv1.KubeSchedulerProfile{SchedulerName: ptr.To("own"), Plugins: file})
		if err != nil {
			t.Fatal(err)
		}
		return profile
	}
	without := func(names ...string) (set configv1.PluginSet) {
		for _, name := range names {
			set.Disabled = append(set.Disabled, configv1.Plugin{Name: name})
		}
		return set
	}
	pod := schedulertest.TestPod("p", x, schedulertest.Spread(host, 1, schedulertest.SpreadHard, "app=x"), schedulertest.Spread(host, 1, schedulertest.SpreadSoft, "app=x"), schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "app", "y")), schedulertest.PreferredAffinity(1, schedulertest.PodTerm(host, "app", "z")))
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c"), schedulertest.TestNode("d")}, slices.Concat(schedulertest.PodsOn("a", x), schedulertest.PodsOn("b", schedulertest.Labelled("app", "y")), schedulertest.PodsOn("c", schedulertest.Labelled("app", "z")), schedulertest.PodsOn("d", schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "app", "x"))))...)
	for _, test := range []struct {
		what    string
		profile *plugins.Profile
		refused string
		scores  string
	}{
		{"all", plugins.DefaultProfile(), "a:skewed b:away d:unwelcome", "InterPodAffinity PodTopologySpread"},
		{"spreading does not filter", off(func(p *configv1.Plugins) { p.Filter = without(plugins.PodTopologySpreadName) }), "b:away d:unwelcome", "InterPodAffinity PodTopologySpread"},
		{"spreading does not score", off(func(p *configv1.Plugins) { p.Score = without(plugins.PodTopologySpreadName) }), "a:skewed b:away d:unwelcome", "InterPodAffinity"},
		{"no spreading", off(func(p *configv1.Plugins) { p.MultiPoint = without(plugins.PodTopologySpreadName) }), "b:away d:unwelcome", "InterPodAffinity"},
		{"affinity does not filter", off(func(p *configv1.Plugins) { p.Filter = without(plugins.InterPodAffinityName) }), "a:skewed", "InterPodAffinity PodTopologySpread"},
		{"affinity does not score", off(func(p *configv1.Plugins) { p.Score = without(plugins.InterPodAffinityName) }), "a:skewed b:away d:unwelcome", "PodTopologySpread"},
		{"no affinity", off(func(p *configv1.Plugins) { p.MultiPoint = without(plugins.InterPodAffinityName) }), "a:skewed", "PodTopologySpread"},
		{"neither", off(func(p *configv1.Plugins) {
			p.MultiPoint = without(plugins.InterPodAffinityName, plugins.PodTopologySpreadName)
		}), "", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := s
			if test.profile.Name == "own" { // several profiles of one name do not meet in one scheduler
				s = snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c"), schedulertest.TestNode("d")}, slices.Concat(schedulertest.PodsOn("a", x), schedulertest.PodsOn("b", schedulertest.Labelled("app", "y")), schedulertest.PodsOn("c", schedulertest.Labelled("app", "z")), schedulertest.PodsOn("d", schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "app", "x"))))...)
			}
			d, err := Schedule(s, snapshottest.PodInfo(t, pod), test.profile)
			if err != nil {
				t.Fatal(err)
			}
			var refused, scores []string
			verdicts, _ := d.Explain()
			for _, v := range verdicts {
				if v.Refusal != nil {
					short := map[string]string{schedulertest.SkewReason: "skewed", schedulertest.PodAntiAffinityReason: "away", schedulertest.ExistingAntiAffinityReason: "unwelcome"}[v.Refusal.Reasons[0]]
					refused = append(refused, v.Node+":"+short)
				} else if v.Node == "c" {
					for _, name := range []string{plugins.InterPodAffinityName, plugins.PodTopologySpreadName} {
						if _, said := v.Scores[name]; said {
							scores = append(scores, name)
						}
					}
				}
			}
			slices.Sort(refused)
			if got := strings.Join(refused, " "); got != test.refused {
				t.Errorf("refused %q, want %q", got, test.refused)
			}
			if got := strings.Join(scores, " "); got != test.scores {
				t.Errorf("scored by %q, want %q", got, test.scores)
			}
		})
	}
	// Two profiles of one scheduler have their own views of one pod.
	mild := off(func(p *configv1.Plugins) {
		p.Filter = without(plugins.PodTopologySpreadName, plugins.InterPodAffinityName)
	})
	for range 2 {
		if strict, lax := len(refusalsOf(t, s, pod, plugins.DefaultProfile())), len(refusalsOf(t, s, pod, mild)); strict != 3 || lax != 0 {
			t.Errorf("refused %d and %d, want 3 and 0", strict, lax)
		}
	}
}

// Topology states are bounded in number, and invalidated when terms, namespaces or owners change.
func TestTopologyIsCachedAndInvalidated(t *testing.T) {
	profile := plugins.DefaultProfile()
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
	first := topologyOf(t, s, schedulertest.TestPod("p", schedulertest.Labelled("app", "x")), profile)
	for _, test := range []struct {
		what string
		do   func()
		kept bool
	}{
		{"a pod came", func() {
			s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Labelled("app", "x"))))
		}, true},
		{"a pod with a new term came", func() {
			s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "x"))))
		}, false},
		{"another pod with the term came", func() {
			s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("3", schedulertest.OnNode("a"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "x"))))
		}, true},
		{"both went", func() { s.DeletePod("2"); s.DeletePod("3") }, true},
		{"a node came", func() { s.SetNode(schedulertest.TestNode("b", schedulertest.Zone("1"))) }, true},
		{"a namespace came", func() { s.SetNamespace(schedulertest.AffinityNamespace("default", nil)) }, false},
		{"a namespace was told again", func() { s.SetNamespace(schedulertest.AffinityNamespace("default", nil)) }, true},
		{"a service came", func() { s.SetService(schedulertest.SpreadService("web", map[string]string{"app": "x"})) }, false},
		{"a pod with a new term is nominated", func() {
			p := schedulertest.TestPod("4", schedulertest.WithAntiAffinity(corev1.LabelHostname, "app", "y"))
			s.Nominate(snapshottest.PodInfo(t, p), p.UID, "a")
		}, false},
	} {
		test.do()
		now := topologyOf(t, s, schedulertest.TestPod("p", schedulertest.Labelled("app", "x")), profile)
		if kept := now == first; kept != test.kept {
			t.Errorf("%s: what was learned is kept: %t", test.what, kept)
		}
		first = now
	}
	if other := topologyOf(t, s, schedulertest.TestPod("q", schedulertest.Labelled("app", "x")), profile); other != first {
		t.Error("two pods of one make are learned twice")
	}
	for i := range maxTopologies + 5 {
		topologyOf(t, s, schedulertest.TestPod("p", schedulertest.Labelled("i", fmt.Sprint(i))), profile)
	}
	if got := len(memoOf(s).topologies); got > maxTopologies {
		t.Errorf("%d are kept", got)
	}
}

// A constraint with an invalid selector fails scheduling.
func TestTopologyWithInvalidSelector(t *testing.T) {
	odd := schedulertest.SpreadSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Odd"}}})
	for _, when := range []corev1.UnsatisfiableConstraintAction{schedulertest.SpreadHard, schedulertest.SpreadSoft} {
		_, err := Schedule(snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")}), snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.Spread("zone", 1, when, "=", odd))), plugins.DefaultProfile())
		if err == nil || IsUnschedulable(err) || !strings.Contains(err.Error(), "Odd") {
			t.Errorf("%s: %v", when, err)
		}
	}
}

// Asking all nodes at once and asking each of them say the same, in the same words.
func TestAllNodesEqualEachNode(t *testing.T) {
	profile := plugins.DefaultProfile()
	codes := map[uint8]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 91))
		nodes := schedulertest.TestNodes(8, func(int) schedulertest.NodeOption {
			set := schedulertest.RandomLabels(r, []string{corev1.LabelTopologyZone, "rack"}, "1", "2", "3")
			return func(n *corev1.Node) { maps.Copy(n.Labels, set) }
		})
		s := snapshottest.New(t, nodes)
		key := func() string { return schedulertest.OneOf(r, corev1.LabelTopologyZone, "rack", corev1.LabelHostname) }
		value := func() string { return schedulertest.OneOf(r, "x", "y") }
		for i := range 12 {
			p := schedulertest.TestPod(fmt.Sprint(i), schedulertest.OnNode(schedulertest.OneOf(r, nodes...).Name), schedulertest.Labelled("app", value()))
			if schedulertest.OneIn(r, 4) {
				schedulertest.WithAntiAffinity(key(), "app", value())(p)
			}
			s.SetPod(snapshottest.PodInfo(t, p))
		}
		pod := schedulertest.TestPod("p", schedulertest.Labelled("app", value()))
		for range 1 + r.IntN(3) {
			switch r.IntN(4) {
			case 0:
				schedulertest.WithAffinity(key(), "app", value())(pod)
			case 1:
				schedulertest.WithAntiAffinity(key(), "app", value())(pod)
			default:
				schedulertest.Spread(key(), int32(1+r.IntN(2)), schedulertest.SpreadHard, "app="+value())(pod)
			}
		}
		n := topologyOf(t, s, pod, profile)
		d, err := Schedule(s, snapshottest.PodInfo(t, pod), profile)
		if err != nil && !IsUnschedulable(err) {
			t.Fatal(err)
		}
		verdicts, _ := d.Explain()
		for _, v := range verdicts {
			node := s.NodeNumbers[v.Node]
			code := n.check(node, true, true)
			codes[code]++
			if v.Refusal != plugins.TopologyRefusals[code] {
				t.Fatalf("seed %d: %s is refused with %v alone, with %v among all", seed, v.Node, plugins.TopologyRefusals[code], v.Refusal)
			}
			if spreadOnly, affinityOnly := n.check(node, true, false), n.check(node, false, true); spreadOnly > plugins.SpreadSkewExceeded || affinityOnly != 0 && affinityOnly < plugins.AffinityMismatch || max(spreadOnly, affinityOnly) == 0 && code != 0 {
				t.Fatalf("seed %d: %s: spreading says %d, affinity %d, both %d", seed, v.Node, spreadOnly, affinityOnly, code)
			}
		}
	}
	for code := range uint8(len(plugins.TopologyRefusals)) {
		if codes[code] < 5 {
			t.Errorf("refusal %d was met %d times only", code, codes[code])
		}
	}
}

// The refusals of neighbours by code: who says it, in which words, and whether moving pods away may change it.
func TestNeighbourRefusals(t *testing.T) {
	for code, want := range map[uint8]struct{ rule, text string }{
		plugins.SpreadLabelMissing: {plugins.PodTopologySpreadName, schedulertest.KeyReason}, plugins.SpreadSkewExceeded: {plugins.PodTopologySpreadName, schedulertest.SkewReason}, plugins.AffinityMismatch: {plugins.InterPodAffinityName, schedulertest.PodAffinityReason},
		plugins.AntiAffinityMismatch: {plugins.InterPodAffinityName, schedulertest.PodAntiAffinityReason}, plugins.ExistingAntiAffinityMismatch: {plugins.InterPodAffinityName, schedulertest.ExistingAntiAffinityReason},
	} {
		r := plugins.TopologyRefusals[code]
		text := strings.Join(r.Reasons, ", ")
		if r.Unresolvable {
			text = schedulertest.UnresolvablePrefix + text
		}
		if r.Plugin != want.rule || text != want.text {
			t.Errorf("code %d: %s says %q, want %s, %q", code, r.Plugin, text, want.rule, want.text)
		}
	}
	if plugins.TopologyRefusals[0] != nil || len(plugins.TopologyRefusals) != 6 {
		t.Errorf("refusals %v", plugins.TopologyRefusals)
	}
}

// The arithmetic of one constraint at one node, at its limits.
func TestSpreadLimitCheck(t *testing.T) {
	column := &snapshot.LabelColumn{ValueOf: []int32{0, 1, snapshot.NoValue, 2}, Values: []string{"1", "2", "3"}}
	for _, test := range []struct {
		what          string
		pods          []int32
		self, maxSkew int32
		fewest        int32
		node          int32
		want          uint8
	}{
		{"below the maximal skew", []int32{1, 0}, 1, 2, 0, 0, 0}, {"at the maximal skew", []int32{1, 0}, 1, 2, 0, 0, 0}, {"none", []int32{2, 0}, 1, 2, 0, 0, plugins.SpreadSkewExceeded}, {"a pod that is not counted", []int32{2, 0}, 0, 2, 0, 0, 0},
		{"none for who does not count", []int32{3, 0}, 0, 2, 0, 0, plugins.SpreadSkewExceeded}, {"the fewest counts", []int32{5, 4}, 1, 2, 4, 0, 0}, {"the domain with fewest", []int32{5, 4}, 1, 1, 4, 1, 0},
		{"no domain", []int32{5, 4}, 1, 9, 4, 2, plugins.SpreadLabelMissing}, {"a domain nobody ever came to", []int32{5, 4}, 1, 1, 0, 3, 0},
		{"very large numbers", []int32{1<<31 - 1}, 1, 1<<31 - 1, 0, 0, plugins.SpreadSkewExceeded}, {"the largest skew", []int32{1<<31 - 2}, 1, 1<<31 - 1, 0, 0, 0},
	} {
		l := plugins.RequiredSpread{Counter: &snapshot.Counter{Column: column, Pods: test.pods}, MaxSkew: test.maxSkew, SelfMatch: test.self}
		if got := l.Check(test.node, test.fewest); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}
