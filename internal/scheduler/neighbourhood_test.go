package scheduler

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
)

func neighbourhoodOf(t testing.TB, s *Snapshot, pod *corev1.Pod, profile *Profile) *neighbourhood {
	t.Helper()
	n, err := s.neighbourhoodFor(infoOf(t, pod), profile)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A pod whose neighbours have no say takes the short way; nobody who has a say may be overlooked.
func TestNeighbourhoodQuiet(t *testing.T) {
	host, x := corev1.LabelHostname, labelled("app", "x")
	nodes := []*corev1.Node{testNode("a"), testNode("b")}
	unkeyed := []*corev1.Node{testNode("a", unlabelled(host)), testNode("b")}
	about := aboutPods(host, "app", "x")
	for _, test := range []struct {
		what    string
		nodes   []*corev1.Node
		running []*corev1.Pod
		pod     *corev1.Pod
		quiet   bool // nothing to filter by, nothing to score by
		alone   bool // affinity keeps it from nowhere
	}{
		{"no wishes on either side", nodes, podsOn("a", x), testPod("p", x), true, true},
		{"a hard constraint", nodes, nil, testPod("p", spread(host, 1, spreadHard, "app", "x")), false, true},
		{"a soft constraint", nodes, nil, testPod("p", spread(host, 1, spreadSoft, "app", "x")), false, true},
		{"it wants somebody near", nodes, nil, testPod("p", x, nearTerm(about)), false, false},
		{"it wants somebody away who is there", nodes, podsOn("a", x), testPod("p", awayTerm(about)), false, false},
		{"it wants somebody away who is not", nodes, nil, testPod("p", awayTerm(about)), true, false},
		{"it wants somebody away who is in no domain", unkeyed, podsOn("a", x), testPod("p", awayTerm(about)), true, false},
		{"somebody wants it away", nodes, podsOn("a", awayTerm(about)), testPod("p", x), false, false},
		{"somebody in no domain wants it away", unkeyed, podsOn("a", awayTerm(about)), testPod("p", x), false, true},
		{"somebody wants others away", nodes, podsOn("a", awayTerm(about)), testPod("p"), true, true},
		{"somebody wants it near", nodes, podsOn("a", nearTerm(about), x), testPod("p", x), false, true},
		{"it likes somebody who is there", nodes, podsOn("a", x), testPod("p", likesTerm(1, about)), false, true},
		{"it likes somebody who is not", nodes, nil, testPod("p", likesTerm(1, about)), true, true},
		{"it dislikes somebody who is there", nodes, podsOn("a", x), testPod("p", dislikesTerm(1, about)), false, true},
		{"somebody likes it", nodes, podsOn("a", likesTerm(1, about)), testPod("p", x), false, true},
		{"somebody dislikes it", nodes, podsOn("a", dislikesTerm(1, about)), testPod("p", x), false, true},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := cluster(t, test.nodes, test.running...)
			n := neighbourhoodOf(t, s, test.pod, DefaultProfile())
			if n.quiet() != test.quiet || n.alone() != test.alone {
				t.Errorf("quiet is %t, alone is %t, want %t, %t", n.quiet(), n.alone(), test.quiet, test.alone)
			}
			for _, p := range test.running {
				s.DeletePod(p.UID)
			}
			// What was learned of the pod stays; only who is there has changed.
			if again := neighbourhoodOf(t, s, test.pod, DefaultProfile()); again != n {
				t.Error("what was learned is learned again")
			}
			own := len(test.pod.Spec.TopologySpreadConstraints) > 0 || test.what == "it wants somebody near"
			if n.quiet() == own {
				t.Errorf("with nobody there, quiet is %t", n.quiet())
			}
		})
	}
}

// What a profile does not want to hear is not said.
func TestNeighbourhoodOfProfiles(t *testing.T) {
	host, x := corev1.LabelHostname, labelled("app", "x")
	off := func(change func(*configv1.Plugins)) *Profile {
		plugins := &configv1.Plugins{}
		change(plugins)
		profile, err := newProfile(&configv1.KubeSchedulerProfile{SchedulerName: ptr.To("own"), Plugins: plugins})
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
	pod := testPod("p", x, spread(host, 1, spreadHard, "app", "x"), spread(host, 1, spreadSoft, "app", "x"), awayTerm(aboutPods(host, "app", "y")), likesTerm(1, aboutPods(host, "app", "z")))
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("b"), testNode("c"), testNode("d")}, slices.Concat(podsOn("a", x), podsOn("b", labelled("app", "y")), podsOn("c", labelled("app", "z")), podsOn("d", awayTerm(aboutPods(host, "app", "x"))))...)
	for _, test := range []struct {
		what    string
		profile *Profile
		refused string
		scores  string
	}{
		{"all", DefaultProfile(), "a:skewed b:away d:unwelcome", "InterPodAffinity PodTopologySpread"},
		{"spreading does not filter", off(func(p *configv1.Plugins) { p.Filter = without(podTopologySpreadName) }), "b:away d:unwelcome", "InterPodAffinity PodTopologySpread"},
		{"spreading does not score", off(func(p *configv1.Plugins) { p.Score = without(podTopologySpreadName) }), "a:skewed b:away d:unwelcome", "InterPodAffinity"},
		{"no spreading", off(func(p *configv1.Plugins) { p.MultiPoint = without(podTopologySpreadName) }), "b:away d:unwelcome", "InterPodAffinity"},
		{"affinity does not filter", off(func(p *configv1.Plugins) { p.Filter = without(interPodAffinityName) }), "a:skewed", "InterPodAffinity PodTopologySpread"},
		{"affinity does not score", off(func(p *configv1.Plugins) { p.Score = without(interPodAffinityName) }), "a:skewed b:away d:unwelcome", "PodTopologySpread"},
		{"no affinity", off(func(p *configv1.Plugins) { p.MultiPoint = without(interPodAffinityName) }), "a:skewed", "PodTopologySpread"},
		{"neither", off(func(p *configv1.Plugins) { p.MultiPoint = without(interPodAffinityName, podTopologySpreadName) }), "", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := s
			if test.profile.Name == "own" { // several profiles of one name do not meet in one scheduler
				s = cluster(t, []*corev1.Node{testNode("a"), testNode("b"), testNode("c"), testNode("d")}, slices.Concat(podsOn("a", x), podsOn("b", labelled("app", "y")), podsOn("c", labelled("app", "z")), podsOn("d", awayTerm(aboutPods(host, "app", "x"))))...)
			}
			d, err := Schedule(s, infoOf(t, pod), test.profile)
			if err != nil {
				t.Fatal(err)
			}
			var refused, scores []string
			verdicts, _ := d.Explain()
			for _, v := range verdicts {
				if v.Refusal != nil {
					short := map[string]string{skewReason: "skewed", awayReason: "away", unwelcomeReason: "unwelcome"}[v.Refusal.Reasons[0]]
					refused = append(refused, v.Node+":"+short)
				} else if v.Node == "c" {
					for _, name := range []string{interPodAffinityName, podTopologySpreadName} {
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
	mild := off(func(p *configv1.Plugins) { p.Filter = without(podTopologySpreadName, interPodAffinityName) })
	for range 2 {
		if strict, lax := len(refusalsOf(t, s, pod, DefaultProfile())), len(refusalsOf(t, s, pod, mild)); strict != 3 || lax != 0 {
			t.Errorf("refused %d and %d, want 3 and 0", strict, lax)
		}
	}
}

// What is learned of pods is bounded, and forgotten when terms, namespaces or owners change.
func TestNeighbourhoodsAreKeptAndForgotten(t *testing.T) {
	profile := DefaultProfile()
	s := cluster(t, []*corev1.Node{testNode("a")})
	first := neighbourhoodOf(t, s, testPod("p", labelled("app", "x")), profile)
	for _, test := range []struct {
		what string
		do   func()
		kept bool
	}{
		{"a pod came", func() { s.SetPod(infoOf(t, testPod("1", on("a"), labelled("app", "x")))) }, true},
		{"a pod with a new term came", func() { s.SetPod(infoOf(t, testPod("2", on("a"), away(corev1.LabelHostname, "app", "x")))) }, false},
		{"another pod with the term came", func() { s.SetPod(infoOf(t, testPod("3", on("a"), away(corev1.LabelHostname, "app", "x")))) }, true},
		{"both went", func() { s.DeletePod("2"); s.DeletePod("3") }, true},
		{"a node came", func() { s.SetNode(testNode("b", zone("1"))) }, true},
		{"a namespace came", func() { s.SetNamespace(affinityNamespace("default", nil)) }, false},
		{"a namespace was told again", func() { s.SetNamespace(affinityNamespace("default", nil)) }, true},
		{"a service came", func() { s.SetService(spreadService("web", map[string]string{"app": "x"})) }, false},
		{"a pod with a new term is nominated", func() {
			p := testPod("4", away(corev1.LabelHostname, "app", "y"))
			s.Nominate(infoOf(t, p), p.UID, "a")
		}, false},
	} {
		test.do()
		now := neighbourhoodOf(t, s, testPod("p", labelled("app", "x")), profile)
		if kept := now == first; kept != test.kept {
			t.Errorf("%s: what was learned is kept: %t", test.what, kept)
		}
		first = now
	}
	if other := neighbourhoodOf(t, s, testPod("q", labelled("app", "x")), profile); other != first {
		t.Error("two pods of one make are learned twice")
	}
	for i := range maxNeighbourhoods + 5 {
		neighbourhoodOf(t, s, testPod("p", labelled("i", fmt.Sprint(i))), profile)
	}
	if got := len(s.neighbourhoods); got > maxNeighbourhoods {
		t.Errorf("%d are kept", got)
	}
}

// A constraint that cannot be read keeps the pod from being scheduled at all.
func TestNeighbourhoodThatCannotBeRead(t *testing.T) {
	odd := spreadSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Odd"}}})
	for _, when := range []corev1.UnsatisfiableConstraintAction{spreadHard, spreadSoft} {
		_, err := Schedule(cluster(t, []*corev1.Node{testNode("a")}), infoOf(t, testPod("p", spread("zone", 1, when, "", "", odd))), DefaultProfile())
		if err == nil || IsUnschedulable(err) || !strings.Contains(err.Error(), "Odd") {
			t.Errorf("%s: %v", when, err)
		}
	}
}

// Asking all nodes at once and asking each of them say the same, in the same words.
func TestAllNodesEqualEachNode(t *testing.T) {
	profile := DefaultProfile()
	codes := map[uint8]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 91))
		nodes := nodesNamed(8, func(int) nodeOption {
			set := randomLabels(r, []string{corev1.LabelTopologyZone, "rack"}, "1", "2", "3")
			return func(n *corev1.Node) { maps.Copy(n.Labels, set) }
		})
		s := cluster(t, nodes)
		key := func() string { return oneOf(r, corev1.LabelTopologyZone, "rack", corev1.LabelHostname) }
		value := func() string { return oneOf(r, "x", "y") }
		for i := range 12 {
			p := testPod(fmt.Sprint(i), on(oneOf(r, nodes...).Name), labelled("app", value()))
			if chance(r, 4) {
				away(key(), "app", value())(p)
			}
			s.SetPod(infoOf(t, p))
		}
		pod := testPod("p", labelled("app", value()))
		for range 1 + r.IntN(3) {
			switch r.IntN(4) {
			case 0:
				near(key(), "app", value())(pod)
			case 1:
				away(key(), "app", value())(pod)
			default:
				spread(key(), int32(1+r.IntN(2)), spreadHard, "app", value())(pod)
			}
		}
		n := neighbourhoodOf(t, s, pod, profile)
		d, err := Schedule(s, infoOf(t, pod), profile)
		if err != nil && !IsUnschedulable(err) {
			t.Fatal(err)
		}
		verdicts, _ := d.Explain()
		for _, v := range verdicts {
			node := s.nodeNumber[v.Node]
			code := n.check(node, true, true)
			codes[code]++
			if v.Refusal != besideRefusals[code] {
				t.Fatalf("seed %d: %s is refused with %v alone, with %v among all", seed, v.Node, besideRefusals[code], v.Refusal)
			}
			if spreadOnly, affinityOnly := n.check(node, true, false), n.check(node, false, true); spreadOnly > skewed || affinityOnly != 0 && affinityOnly < noAffinity || max(spreadOnly, affinityOnly) == 0 && code != 0 {
				t.Fatalf("seed %d: %s: spreading says %d, affinity %d, both %d", seed, v.Node, spreadOnly, affinityOnly, code)
			}
		}
	}
	for code := range uint8(len(besideRefusals)) {
		if codes[code] < 5 {
			t.Errorf("refusal %d was met %d times only", code, codes[code])
		}
	}
}

// The refusals of neighbours by code: who says it, in which words, and whether moving pods away may change it.
func TestNeighbourRefusals(t *testing.T) {
	for code, want := range map[uint8]struct{ rule, text string }{
		missingLabel: {podTopologySpreadName, keyReason}, skewed: {podTopologySpreadName, skewReason}, noAffinity: {interPodAffinityName, nearReason},
		antiAffinity: {interPodAffinityName, awayReason}, unwelcome: {interPodAffinityName, unwelcomeReason},
	} {
		r := besideRefusals[code]
		text := strings.Join(r.Reasons, ", ")
		if r.Unresolvable {
			text = lasting + text
		}
		if r.Rule != want.rule || text != want.text {
			t.Errorf("code %d: %s says %q, want %s, %q", code, r.Rule, text, want.rule, want.text)
		}
	}
	if besideRefusals[0] != nil || len(besideRefusals) != 6 {
		t.Errorf("refusals %v", besideRefusals)
	}
}

// The arithmetic of one constraint at one node, at its limits.
func TestSpreadLimitCheck(t *testing.T) {
	column := &labelColumn{of: []int32{0, 1, none, 2}, values: []string{"1", "2", "3"}}
	for _, test := range []struct {
		what          string
		pods          []int32
		self, maxSkew int32
		fewest        int32
		node          int32
		want          uint8
	}{
		{"room", []int32{1, 0}, 1, 2, 0, 0, 0}, {"just room", []int32{1, 0}, 1, 2, 0, 0, 0}, {"none", []int32{2, 0}, 1, 2, 0, 0, skewed}, {"room for who does not count", []int32{2, 0}, 0, 2, 0, 0, 0},
		{"none for who does not count", []int32{3, 0}, 0, 2, 0, 0, skewed}, {"the fewest counts", []int32{5, 4}, 1, 2, 4, 0, 0}, {"the domain with fewest", []int32{5, 4}, 1, 1, 4, 1, 0},
		{"no domain", []int32{5, 4}, 1, 9, 4, 2, missingLabel}, {"a domain nobody ever came to", []int32{5, 4}, 1, 1, 0, 3, 0},
		{"very large numbers", []int32{1<<31 - 1}, 1, 1<<31 - 1, 0, 0, skewed}, {"the largest skew", []int32{1<<31 - 2}, 1, 1<<31 - 1, 0, 0, 0},
	} {
		l := spreadLimit{counter: &counter{column: column, pods: test.pods}, maxSkew: test.maxSkew, self: test.self}
		if got := l.check(test.node, test.fewest); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}
