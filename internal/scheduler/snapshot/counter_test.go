package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/schedulertest"
)

// counterOf is a counter of one term about pods with a label, in the domains of a key.
func counterOf(t testing.TB, s *Snapshot, key string, skipLeaving bool, eligibleKey string, eligible func(int32) bool) *Counter {
	t.Helper()
	return counterWith(s, []Term{termOfPod(t, "default", schedulertest.PodTerm(key, "app", "x"))}, s.LabelColumn(key), skipLeaving, eligibleKey, eligible)
}

// counted writes a counter out: "1=2 2=0 total 2"; domains without a node that counts are missing.
func counted(c *Counter) string {
	var parts []string
	for d, nodes := range c.Domains {
		if nodes > 0 {
			pods := int32(0)
			if d < len(c.Pods) {
				pods = c.Pods[d]
			}
			parts = append(parts, fmt.Sprintf("%s=%d", c.Column.Values[d], pods))
		}
	}
	slices.Sort(parts)
	return strings.Join(append(parts, fmt.Sprint("total ", c.Total)), " ")
}

func TestCounterFollows(t *testing.T) {
	x, y := schedulertest.Labelled("app", "x"), schedulertest.Labelled("app", "y")
	s := cluster(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2")), schedulertest.TestNode("c")}, schedulertest.PodsOn("a a b c", x)...)
	open := func(node int32) bool { return !s.Unschedulable[node] }
	all, staying, onOpen := counterOf(t, s, corev1.LabelTopologyZone, false, "", nil), counterOf(t, s, corev1.LabelTopologyZone, true, "", nil), counterOf(t, s, corev1.LabelTopologyZone, false, "open", open)
	one := schedulertest.TestPod("one", schedulertest.OnNode("b"), x)
	set := func(p *corev1.Pod) func() { return func() { s.SetPod(infoOf(t, p)) } }
	node := func(n *corev1.Node) func() { return func() { s.SetNode(n) } }
	for _, step := range []struct {
		what                 string
		do                   func()
		all, staying, onOpen string
	}{
		{"as it is; who is in no domain does not count", func() {}, "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one comes", set(one), "1=2 2=2 total 4", "1=2 2=2 total 4", "1=2 2=2 total 4"},
		{"one is told again", set(one.DeepCopy()), "1=2 2=2 total 4", "1=2 2=2 total 4", "1=2 2=2 total 4"},
		{"one has another label", set(schedulertest.TestPod("one", schedulertest.OnNode("b"), y)), "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one has the label again", set(schedulertest.TestPod("one", schedulertest.OnNode("b"), x)), "1=2 2=2 total 4", "1=2 2=2 total 4", "1=2 2=2 total 4"},
		{"one is on its way out", set(schedulertest.TestPod("one", schedulertest.OnNode("b"), x, schedulertest.Terminating)), "1=2 2=2 total 4", "1=2 2=1 total 3", "1=2 2=2 total 4"},
		{"one has ended", set(schedulertest.TestPod("one", schedulertest.OnNode("b"), x, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })), "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one of another namespace comes", set(schedulertest.TestPod("other", schedulertest.OnNode("b"), x, schedulertest.Namespace("other"))), "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one is assumed", func() { s.Assume(infoOf(t, schedulertest.TestPod("one", x)), "a") }, "1=3 2=1 total 4", "1=3 2=1 total 4", "1=3 2=1 total 4"},
		{"and confirmed", set(schedulertest.TestPod("one", schedulertest.OnNode("a"), x)), "1=3 2=1 total 4", "1=3 2=1 total 4", "1=3 2=1 total 4"},
		{"one turns out to be elsewhere", set(schedulertest.TestPod("one", schedulertest.OnNode("b"), x)), "1=2 2=2 total 4", "1=2 2=2 total 4", "1=2 2=2 total 4"},
		{"one is gone", func() { s.DeletePod("one") }, "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one is assumed and forgotten", func() { s.Assume(infoOf(t, schedulertest.TestPod("one", x)), "a"); s.Forget("one") }, "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"a node moves", node(schedulertest.TestNode("b", schedulertest.Zone("1"))), "1=3 total 3", "1=3 total 3", "1=3 total 3"},
		{"a node joins", node(schedulertest.TestNode("c", schedulertest.Zone("3"))), "1=3 3=1 total 4", "1=3 3=1 total 4", "1=3 3=1 total 4"},
		{"a node is closed", node(schedulertest.TestNode("c", schedulertest.Zone("3"), schedulertest.Cordoned)), "1=3 3=1 total 4", "1=3 3=1 total 4", "1=3 total 3"},
		{"a closed node gets a pod", set(schedulertest.TestPod("one", schedulertest.OnNode("c"), x)), "1=3 3=2 total 5", "1=3 3=2 total 5", "1=3 total 3"},
		{"a node is opened", node(schedulertest.TestNode("c", schedulertest.Zone("3"))), "1=3 3=2 total 5", "1=3 3=2 total 5", "1=3 3=2 total 5"},
		{"an empty node comes", node(schedulertest.TestNode("d", schedulertest.Zone("4"))), "1=3 3=2 4=0 total 5", "1=3 3=2 4=0 total 5", "1=3 3=2 4=0 total 5"},
		{"a closed node comes", node(schedulertest.TestNode("e", schedulertest.Zone("5"), schedulertest.Cordoned)), "1=3 3=2 4=0 5=0 total 5", "1=3 3=2 4=0 5=0 total 5", "1=3 3=2 4=0 total 5"},
		{"a node leaves its zone", node(schedulertest.TestNode("d")), "1=3 3=2 5=0 total 5", "1=3 3=2 5=0 total 5", "1=3 3=2 total 5"},
		{"a node goes, its pods stay behind", func() { s.DeleteNode("c") }, "1=3 5=0 total 3", "1=3 5=0 total 3", "1=3 total 3"},
		{"a pod comes to a node nobody knows", set(schedulertest.TestPod("two", schedulertest.OnNode("f"), x)), "1=3 5=0 total 3", "1=3 5=0 total 3", "1=3 total 3"},
		{"the node becomes known", node(schedulertest.TestNode("f", schedulertest.Zone("5"))), "1=3 5=1 total 4", "1=3 5=1 total 4", "1=3 5=1 total 4"},
		{"the node comes back, with its pods", node(schedulertest.TestNode("c", schedulertest.Zone("3"))), "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6"},
		{"a node has more free resources", node(schedulertest.TestNode("c", schedulertest.Zone("3"), schedulertest.NodeHas(corev1.ResourceCPU, "9"))), "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6"},
	} {
		step.do()
		if a, b, c := counted(all), counted(staying), counted(onOpen); a != step.all || b != step.staying || c != step.onOpen {
			t.Errorf("%s: %q, %q and %q, want %q, %q and %q", step.what, a, b, c, step.all, step.staying, step.onOpen)
		}
	}
}

// One count serves all who ask for the same; whoever asks for something else has another.
func TestCountersAreShared(t *testing.T) {
	s := cluster(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("rack", "r"))}, schedulertest.PodsOn("a", schedulertest.Labelled("app", "x"))...)
	zones, racks := s.LabelColumn(corev1.LabelTopologyZone), s.LabelColumn("rack")
	x, y := termOfPod(t, "default", schedulertest.PodTerm("zone", "app", "x")), termOfPod(t, "default", schedulertest.PodTerm("zone", "app", "y"))
	otherKey := termOfPod(t, "default", schedulertest.PodTerm("host", "app", "x"))
	others := termOfPod(t, "other", schedulertest.PodTerm("zone", "app", "x"))
	yes := func(int32) bool { return true }
	first := counterWith(s, []Term{x}, zones, false, "", nil)
	for _, test := range []struct {
		what string
		ask  func() *Counter
		same bool
	}{
		{"the same", func() *Counter { return counterWith(s, []Term{x}, zones, false, "", nil) }, true},
		{"a term of another topology key about the same pods", func() *Counter { return counterWith(s, []Term{otherKey}, zones, false, "", nil) }, true},
		{"another column", func() *Counter { return counterWith(s, []Term{x}, racks, false, "", nil) }, false},
		{"other pods", func() *Counter { return counterWith(s, []Term{y}, zones, false, "", nil) }, false},
		{"another namespace", func() *Counter { return counterWith(s, []Term{others}, zones, false, "", nil) }, false},
		{"two terms", func() *Counter { return counterWith(s, []Term{x, y}, zones, false, "", nil) }, false},
		{"without those on their way out", func() *Counter { return counterWith(s, []Term{x}, zones, true, "", nil) }, false},
		{"on some nodes", func() *Counter { return counterWith(s, []Term{x}, zones, false, "some", yes) }, false},
		{"by node", func() *Counter { return counterWith(s, []Term{x}, s.HostColumn, false, "", nil) }, false},
	} {
		got := test.ask()
		if (got == first) != test.same {
			t.Errorf("%s: the same count is %t", test.what, got == first)
		}
		if test.ask() != got {
			t.Errorf("%s: counted twice", test.what)
		}
	}
	if len(s.Counters) != 8 {
		t.Errorf("%d counts, want 8", len(s.Counters))
	}
}

// Counts are dropped, those unused longest first, and made again when they are asked for; nothing points at those dropped.
func TestDropCounters(t *testing.T) {
	s := cluster(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"))})
	for i := range 6 {
		s.SetPod(infoOf(t, schedulertest.TestPod(fmt.Sprint(i), schedulertest.OnNode("a"), schedulertest.Labelled("k", fmt.Sprint(i)))))
	}
	ask := func(i int) *Counter {
		return counterWith(s, []Term{termOfPod(t, "default", schedulertest.PodTerm("z", "k", fmt.Sprint(i)))}, s.LabelColumn(corev1.LabelTopologyZone), false, "", nil)
	}
	for i := range 6 {
		ask(i)
	}
	ask(0) // the oldest is asked for again
	version := s.TopologyVersion
	s.dropCounters()
	var kept []string
	for _, c := range s.Counters {
		kept = append(kept, c.terms[0].key)
	}
	slices.Sort(kept)
	if want := []string{"default|!|k=0", "default|!|k=4", "default|!|k=5"}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	if s.TopologyVersion == version {
		t.Error("topology states that point at dropped counters are still valid")
	}
	for uid, p := range s.PodEntries {
		for _, c := range p.counters {
			if s.Counters[c.key] != c {
				t.Errorf("pod %s is counted by a count that is dropped", uid)
			}
		}
	}
	s.DeletePod("1")
	s.SetPod(infoOf(t, schedulertest.TestPod("new", schedulertest.OnNode("a"), schedulertest.Labelled("k", "2"))))
	for i, want := range []string{"1=1 total 1", "1=0 total 0", "1=2 total 2", "1=1 total 1", "1=1 total 1", "1=1 total 1"} {
		if got := counted(ask(i)); got != want {
			t.Errorf("count %d: %q, want %q", i, got, want)
		}
	}
}

// There are never more counts than the bound.
func TestCountersAreBounded(t *testing.T) {
	s := cluster(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1"))}, schedulertest.PodsOn("a", schedulertest.Labelled("app", "x"))...)
	column := s.LabelColumn(corev1.LabelTopologyZone)
	for i := range MaxCounters + 10 {
		counterWith(s, []Term{termOfPod(t, "default", schedulertest.PodTerm("z", "k", fmt.Sprint(i)))}, column, false, "", nil)
		if len(s.Counters) > MaxCounters {
			t.Fatalf("%d counts", len(s.Counters))
		}
	}
	if got := len(s.Counters); got < MaxCounters/2 {
		t.Errorf("only %d counts are left", got)
	}
}

func TestCountAtANode(t *testing.T) {
	column := &LabelColumn{ValueOf: []int32{0, 1, NoValue, 2}}
	for node, want := range map[int32]struct {
		pods int32
		has  bool
	}{0: {5, true}, 1: {7, true}, 2: {0, false}, 3: {0, true}} {
		if pods, has := PodsInDomain([]int32{5, 7}, column, node); pods != want.pods || has != want.has {
			t.Errorf("node %d: %d, %t", node, pods, has)
		}
	}
	for _, test := range []struct {
		given  []int32
		domain int32
		want   []int32
	}{{nil, 0, []int32{0}}, {nil, 2, []int32{0, 0, 0}}, {[]int32{4}, 0, []int32{4}}, {[]int32{4}, 1, []int32{4, 0}}} {
		if got := grow(slices.Clone(test.given), test.domain); !slices.Equal(got, test.want) {
			t.Errorf("grow(%v, %d) is %v", test.given, test.domain, got)
		}
	}
}

// held writes out whom the pods of a domain do not want, and the like.
func held(s *Snapshot, kind termKind, column string) map[string]string {
	all := map[string]string{}
	for key, h := range s.ExistingTerms {
		if key.Kind != kind || h.Column.Key != column {
			continue
		}
		var parts []string
		for d, n := range h.Pods {
			if n != 0 {
				parts = append(parts, fmt.Sprintf("%s=%d", h.Column.Values[d], n))
			}
		}
		slices.Sort(parts)
		if h.Total != 0 {
			all[fmt.Sprintf("%s*%d", key.term, key.Weight)] = strings.Join(append(parts, fmt.Sprint("total ", h.Total)), " ")
		}
	}
	return all
}

func TestHoldersFollow(t *testing.T) {
	zoneKey := corev1.LabelTopologyZone
	db := schedulertest.PodTerm(zoneKey, "app", "db")
	s := cluster(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2")), schedulertest.TestNode("c")})
	const key = "default|!|app=db*0"
	for _, step := range []struct {
		what string
		do   func()
		kind termKind
		want map[string]string
	}{
		{"nobody", func() {}, RequiredAntiAffinityTerm, map[string]string{}},
		{"two want none of them", func() {
			for _, p := range schedulertest.PodsOn("a a", schedulertest.RequiredAntiAffinity(db)) {
				s.SetPod(infoOf(t, p))
			}
		}, RequiredAntiAffinityTerm, map[string]string{key: "1=2 total 2"}},
		{"one wants them near", func() {
			s.SetPod(infoOf(t, schedulertest.TestPod("near", schedulertest.OnNode("b"), schedulertest.RequiredAffinity(db))))
		}, RequiredAffinityTerm, map[string]string{key: "2=1 total 1"}},
		{"that is another matter", func() {}, RequiredAntiAffinityTerm, map[string]string{key: "1=2 total 2"}},
		{"one likes them, by weight", func() {
			s.SetPod(infoOf(t, schedulertest.TestPod("likes", schedulertest.OnNode("b"), schedulertest.PreferredAffinity(3, db), schedulertest.PreferredAffinity(5, db))))
		}, PreferredAffinityTerm, map[string]string{"default|!|app=db*3": "2=1 total 1", "default|!|app=db*5": "2=1 total 1"}},
		{"one dislikes them", func() {
			s.SetPod(infoOf(t, schedulertest.TestPod("dislikes", schedulertest.OnNode("a"), schedulertest.PreferredAntiAffinity(3, db))))
		}, PreferredAntiAffinityTerm, map[string]string{"default|!|app=db*3": "1=1 total 1"}},
		{"one in no domain wants none of them", func() {
			s.SetPod(infoOf(t, schedulertest.TestPod("nowhere", schedulertest.OnNode("c"), schedulertest.RequiredAntiAffinity(db))))
		}, RequiredAntiAffinityTerm, map[string]string{key: "1=2 total 3"}},
		{"its node joins", func() { s.SetNode(schedulertest.TestNode("c", schedulertest.Zone("3"))) }, RequiredAntiAffinityTerm, map[string]string{key: "1=2 3=1 total 3"}},
		{"its node moves", func() { s.SetNode(schedulertest.TestNode("c", schedulertest.Zone("1"))) }, RequiredAntiAffinityTerm, map[string]string{key: "1=3 total 3"}},
		{"its node is gone", func() { s.DeleteNode("c") }, RequiredAntiAffinityTerm, map[string]string{key: "1=2 total 3"}},
		{"it is gone", func() { s.DeletePod("nowhere") }, RequiredAntiAffinityTerm, map[string]string{key: "1=2 total 2"}},
		{"one with the term twice", func() {
			s.SetPod(infoOf(t, schedulertest.TestPod("twice", schedulertest.OnNode("b"), schedulertest.RequiredAntiAffinity(db), schedulertest.RequiredAntiAffinity(db))))
		}, RequiredAntiAffinityTerm, map[string]string{key: "1=2 2=2 total 4"}},
		{"it is gone, with both", func() { s.DeletePod("twice") }, RequiredAntiAffinityTerm, map[string]string{key: "1=2 total 2"}},
		{"one is nominated: that is no place yet", func() {
			p := schedulertest.TestPod("soon", schedulertest.RequiredAntiAffinity(db))
			s.Nominate(infoOf(t, p), p.UID, "b")
		}, RequiredAntiAffinityTerm, map[string]string{key: "1=2 total 2"}},
		{"who likes them is gone", func() { s.DeletePod("likes") }, PreferredAffinityTerm, map[string]string{}},
	} {
		step.do()
		if got := held(s, step.kind, zoneKey); !maps.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}

// Whatever happens, counts are what counting anew gives.
func TestCountersEqualCounting(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 81))
		s := NewSnapshot()
		nodes, pods := map[string]*corev1.Node{}, map[string]*corev1.Pod{}
		terms := []Term{termOfPod(t, "default", schedulertest.PodTerm("z", "app", "x")), termOfPod(t, "default", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(&metav1.LabelSelector{}))),
			termOfPod(t, "default", schedulertest.PodTerm("z", "app", "x", schedulertest.OfNamespaces("default", "other"))), termOfPod(t, "default", schedulertest.PodTerm("z", "", "", schedulertest.OfNamespacesLike(&metav1.LabelSelector{}), schedulertest.WithSelector(termRequirement("app", metav1.LabelSelectorOpExists))))}
		ssd := func(node int32) bool { return s.NodeInfos[node].Node.Labels["disk"] == "ssd" }
		for step := range 250 {
			name := fmt.Sprint("n", r.IntN(6))
			switch r.IntN(10) {
			case 0, 1:
				nodes[name] = schedulertest.TestNode(name, func(n *corev1.Node) {
					maps.Copy(n.Labels, schedulertest.RandomLabels(r, []string{"z", "disk"}, "ssd", "1", "2"))
				})
				s.SetNode(nodes[name])
			case 2:
				delete(nodes, name)
				s.DeleteNode(name)
			case 3, 4:
				for uid, p := range pods {
					delete(pods, uid)
					s.DeletePod(p.UID)
					break
				}
			default:
				p := schedulertest.TestPod(fmt.Sprint("p", r.IntN(12)), schedulertest.OnNode(name), schedulertest.Namespace(schedulertest.OneOf(r, "default", "other")), func(p *corev1.Pod) {
					p.Labels = schedulertest.RandomLabels(r, []string{"app"}, "x", "y")
					if schedulertest.OneIn(r, 4) {
						schedulertest.Terminating(p)
					}
				})
				if old := pods[p.Name]; old != nil && old.Namespace != p.Namespace {
					continue // a pod does not change its namespace
				}
				pods[p.Name] = p
				s.SetPod(infoOf(t, p))
			}
			i, skip, some := r.IntN(len(terms)), schedulertest.OneIn(r, 2), schedulertest.OneIn(r, 2)
			var c *Counter
			if some {
				c = counterWith(s, terms[i:i+1], s.LabelColumn("z"), skip, "ssd", ssd)
			} else {
				c = counterWith(s, terms[i:i+1], s.LabelColumn("z"), skip, "", nil)
			}
			want, total := map[string]int{}, 0
			for _, n := range nodes {
				value, has := n.Labels["z"]
				if !has || some && n.Labels["disk"] != "ssd" {
					continue
				}
				want[value] += 0
				for _, p := range pods {
					if p.Spec.NodeName == n.Name && s.Matches(&terms[i], p) && !(skip && p.DeletionTimestamp != nil) {
						want[value]++
						total++
					}
				}
			}
			var parts []string
			for value, n := range want {
				parts = append(parts, fmt.Sprintf("%s=%d", value, n))
			}
			slices.Sort(parts)
			if got, want := counted(c), strings.Join(append(parts, fmt.Sprint("total ", total)), " "); got != want {
				t.Fatalf("seed %d, step %d: term %s, leaving out %t, some nodes %t: %q, want %q", seed, step, terms[i].key, skip, some, got, want)
			}
		}
	}
}

func counterWith(s *Snapshot, terms []Term, column *LabelColumn, skipTerminating bool, eligibleKey string, eligible func(int32) bool) *Counter {
	return s.CounterFor(CounterSpec{Terms: terms, Column: column, SkipTerminating: skipTerminating, EligibleKey: eligibleKey, Eligible: eligible})
}
