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
)

// counterOf is a counter of one term about pods with a label, in the domains of a key.
func counterOf(t testing.TB, s *Snapshot, key string, skipLeaving bool, eligibleKey string, eligible func(int32) bool) *counter {
	t.Helper()
	return s.counterFor([]term{termOfPod(t, "default", aboutPods(key, "app", "x"))}, s.column(key), skipLeaving, eligibleKey, eligible)
}

// counted writes a counter out: "1=2 2=0 total 2"; domains without a node that counts are missing.
func counted(c *counter) string {
	var parts []string
	for d, nodes := range c.domains {
		if nodes > 0 {
			pods := int32(0)
			if d < len(c.pods) {
				pods = c.pods[d]
			}
			parts = append(parts, fmt.Sprintf("%s=%d", c.column.values[d], pods))
		}
	}
	slices.Sort(parts)
	return strings.Join(append(parts, fmt.Sprint("total ", c.total)), " ")
}

func TestCounterFollows(t *testing.T) {
	x, y := labelled("app", "x"), labelled("app", "y")
	s := cluster(t, []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("2")), testNode("c")}, podsOn("a a b c", x)...)
	open := func(node int32) bool { return !s.closed[node] }
	all, staying, onOpen := counterOf(t, s, corev1.LabelTopologyZone, false, "", nil), counterOf(t, s, corev1.LabelTopologyZone, true, "", nil), counterOf(t, s, corev1.LabelTopologyZone, false, "open", open)
	one := testPod("one", on("b"), x)
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
		{"one has another label", set(testPod("one", on("b"), y)), "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one has the label again", set(testPod("one", on("b"), x)), "1=2 2=2 total 4", "1=2 2=2 total 4", "1=2 2=2 total 4"},
		{"one is on its way out", set(testPod("one", on("b"), x, isGoing)), "1=2 2=2 total 4", "1=2 2=1 total 3", "1=2 2=2 total 4"},
		{"one has ended", set(testPod("one", on("b"), x, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })), "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one of another namespace comes", set(testPod("other", on("b"), x, namespace("other"))), "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one is assumed", func() { s.Assume(infoOf(t, testPod("one", x)), "a") }, "1=3 2=1 total 4", "1=3 2=1 total 4", "1=3 2=1 total 4"},
		{"and confirmed", set(testPod("one", on("a"), x)), "1=3 2=1 total 4", "1=3 2=1 total 4", "1=3 2=1 total 4"},
		{"one turns out to be elsewhere", set(testPod("one", on("b"), x)), "1=2 2=2 total 4", "1=2 2=2 total 4", "1=2 2=2 total 4"},
		{"one is gone", func() { s.DeletePod("one") }, "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"one is assumed and forgotten", func() { s.Assume(infoOf(t, testPod("one", x)), "a"); s.Forget("one") }, "1=2 2=1 total 3", "1=2 2=1 total 3", "1=2 2=1 total 3"},
		{"a node moves", node(testNode("b", zone("1"))), "1=3 total 3", "1=3 total 3", "1=3 total 3"},
		{"a node joins", node(testNode("c", zone("3"))), "1=3 3=1 total 4", "1=3 3=1 total 4", "1=3 3=1 total 4"},
		{"a node is closed", node(testNode("c", zone("3"), cordoned)), "1=3 3=1 total 4", "1=3 3=1 total 4", "1=3 total 3"},
		{"a closed node gets a pod", set(testPod("one", on("c"), x)), "1=3 3=2 total 5", "1=3 3=2 total 5", "1=3 total 3"},
		{"a node is opened", node(testNode("c", zone("3"))), "1=3 3=2 total 5", "1=3 3=2 total 5", "1=3 3=2 total 5"},
		{"an empty node comes", node(testNode("d", zone("4"))), "1=3 3=2 4=0 total 5", "1=3 3=2 4=0 total 5", "1=3 3=2 4=0 total 5"},
		{"a closed node comes", node(testNode("e", zone("5"), cordoned)), "1=3 3=2 4=0 5=0 total 5", "1=3 3=2 4=0 5=0 total 5", "1=3 3=2 4=0 total 5"},
		{"a node leaves its zone", node(testNode("d")), "1=3 3=2 5=0 total 5", "1=3 3=2 5=0 total 5", "1=3 3=2 total 5"},
		{"a node goes, its pods stay behind", func() { s.DeleteNode("c") }, "1=3 5=0 total 3", "1=3 5=0 total 3", "1=3 total 3"},
		{"a pod comes to a node nobody knows", set(testPod("two", on("f"), x)), "1=3 5=0 total 3", "1=3 5=0 total 3", "1=3 total 3"},
		{"the node becomes known", node(testNode("f", zone("5"))), "1=3 5=1 total 4", "1=3 5=1 total 4", "1=3 5=1 total 4"},
		{"the node comes back, with its pods", node(testNode("c", zone("3"))), "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6"},
		{"a node has room", node(testNode("c", zone("3"), nodeHas(corev1.ResourceCPU, "9"))), "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6", "1=3 3=2 5=1 total 6"},
	} {
		step.do()
		if a, b, c := counted(all), counted(staying), counted(onOpen); a != step.all || b != step.staying || c != step.onOpen {
			t.Errorf("%s: %q, %q and %q, want %q, %q and %q", step.what, a, b, c, step.all, step.staying, step.onOpen)
		}
	}
}

// One count serves all who ask for the same; whoever asks for something else has another.
func TestCountersAreShared(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a", zone("1"), nodeLabel("rack", "r"))}, podsOn("a", labelled("app", "x"))...)
	zones, racks := s.column(corev1.LabelTopologyZone), s.column("rack")
	x, y := termOfPod(t, "default", aboutPods("zone", "app", "x")), termOfPod(t, "default", aboutPods("zone", "app", "y"))
	otherKey := termOfPod(t, "default", aboutPods("host", "app", "x"))
	others := termOfPod(t, "other", aboutPods("zone", "app", "x"))
	yes := func(int32) bool { return true }
	first := s.counterFor([]term{x}, zones, false, "", nil)
	for _, test := range []struct {
		what string
		ask  func() *counter
		same bool
	}{
		{"the same", func() *counter { return s.counterFor([]term{x}, zones, false, "", nil) }, true},
		{"a term of another topology key about the same pods", func() *counter { return s.counterFor([]term{otherKey}, zones, false, "", nil) }, true},
		{"another column", func() *counter { return s.counterFor([]term{x}, racks, false, "", nil) }, false},
		{"other pods", func() *counter { return s.counterFor([]term{y}, zones, false, "", nil) }, false},
		{"another namespace", func() *counter { return s.counterFor([]term{others}, zones, false, "", nil) }, false},
		{"two terms", func() *counter { return s.counterFor([]term{x, y}, zones, false, "", nil) }, false},
		{"without those on their way out", func() *counter { return s.counterFor([]term{x}, zones, true, "", nil) }, false},
		{"on some nodes", func() *counter { return s.counterFor([]term{x}, zones, false, "some", yes) }, false},
		{"by node", func() *counter { return s.counterFor([]term{x}, s.identity, false, "", nil) }, false},
	} {
		got := test.ask()
		if (got == first) != test.same {
			t.Errorf("%s: the same count is %t", test.what, got == first)
		}
		if test.ask() != got {
			t.Errorf("%s: counted twice", test.what)
		}
	}
	if len(s.counters) != 8 {
		t.Errorf("%d counts, want 8", len(s.counters))
	}
}

func TestFewest(t *testing.T) {
	for _, test := range []struct {
		what          string
		pods, domains []int32
		fewest        int32
		found         int
	}{
		{"no domains", nil, nil, 1<<31 - 1, 0},
		{"one domain nobody is in", nil, []int32{1}, 0, 1},
		{"one domain", []int32{4}, []int32{2}, 4, 1},
		{"the last has fewest", []int32{4, 3, 2}, []int32{1, 1, 1}, 2, 3},
		{"the first has fewest", []int32{1, 3, 2}, []int32{1, 1, 1}, 1, 3},
		{"a domain without nodes does not count", []int32{0, 3, 2}, []int32{0, 1, 1}, 2, 2},
		{"a domain nobody ever came to", []int32{4, 3}, []int32{1, 1, 1}, 0, 3},
		{"a domain without nodes nobody ever came to", []int32{4, 3}, []int32{1, 1, 0}, 3, 2},
		{"all domains lost their nodes", []int32{4, 3}, []int32{0, 0}, 1<<31 - 1, 0},
	} {
		c := &counter{pods: test.pods, domains: test.domains}
		if fewest, found := c.fewest(); fewest != test.fewest || found != test.found {
			t.Errorf("%s: %d in %d, want %d in %d", test.what, fewest, found, test.fewest, test.found)
		}
	}
	for _, test := range []struct {
		what       string
		minDomains int
		want       int32
	}{{"enough domains", 2, 3}, {"more than enough", 1, 3}, {"too few", 3, 0}} {
		l := spreadLimit{counter: &counter{pods: []int32{4, 3}, domains: []int32{1, 1}}, minDomains: test.minDomains}
		if got := l.fewest(); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}

// Counts are dropped, those unused longest first, and made again when they are asked for; nothing points at those dropped.
func TestDropCounters(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a", zone("1"))})
	for i := range 6 {
		s.SetPod(infoOf(t, testPod(fmt.Sprint(i), on("a"), labelled("k", fmt.Sprint(i)))))
	}
	ask := func(i int) *counter {
		return s.counterFor([]term{termOfPod(t, "default", aboutPods("z", "k", fmt.Sprint(i)))}, s.column(corev1.LabelTopologyZone), false, "", nil)
	}
	for i := range 6 {
		ask(i)
	}
	ask(0) // the oldest is asked for again
	s.neighbourhoods["x"] = &neighbourhood{}
	s.dropCounters()
	var kept []string
	for _, c := range s.counters {
		kept = append(kept, c.terms[0].key)
	}
	slices.Sort(kept)
	if want := []string{"default|!|k=0", "default|!|k=4", "default|!|k=5"}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	if len(s.neighbourhoods) > 0 {
		t.Error("neighbourhoods point at counts that are dropped")
	}
	for uid, p := range s.pods {
		for _, c := range p.counted {
			if s.counters[c.key] != c {
				t.Errorf("pod %s is counted by a count that is dropped", uid)
			}
		}
	}
	s.DeletePod("1")
	s.SetPod(infoOf(t, testPod("new", on("a"), labelled("k", "2"))))
	for i, want := range []string{"1=1 total 1", "1=0 total 0", "1=2 total 2", "1=1 total 1", "1=1 total 1", "1=1 total 1"} {
		if got := counted(ask(i)); got != want {
			t.Errorf("count %d: %q, want %q", i, got, want)
		}
	}
}

// There are never more counts than the bound.
func TestCountersAreBounded(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a", zone("1"))}, podsOn("a", labelled("app", "x"))...)
	column := s.column(corev1.LabelTopologyZone)
	for i := range maxCounters + 10 {
		s.counterFor([]term{termOfPod(t, "default", aboutPods("z", "k", fmt.Sprint(i)))}, column, false, "", nil)
		if len(s.counters) > maxCounters {
			t.Fatalf("%d counts", len(s.counters))
		}
	}
	if got := len(s.counters); got < maxCounters/2 {
		t.Errorf("only %d counts are left", got)
	}
}

func TestCountAtANode(t *testing.T) {
	column := &labelColumn{of: []int32{0, 1, none, 2}}
	for node, want := range map[int32]struct {
		pods int32
		has  bool
	}{0: {5, true}, 1: {7, true}, 2: {0, false}, 3: {0, true}} {
		if pods, has := at([]int32{5, 7}, column, node); pods != want.pods || has != want.has {
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
func held(s *Snapshot, kind holderKind, column string) map[string]string {
	all := map[string]string{}
	for key, h := range s.holders {
		if key.kind != kind || h.column.key != column {
			continue
		}
		var parts []string
		for d, n := range h.pods {
			if n != 0 {
				parts = append(parts, fmt.Sprintf("%s=%d", h.column.values[d], n))
			}
		}
		slices.Sort(parts)
		if h.total != 0 {
			all[fmt.Sprintf("%s*%d", key.term, key.weight)] = strings.Join(append(parts, fmt.Sprint("total ", h.total)), " ")
		}
	}
	return all
}

func TestHoldersFollow(t *testing.T) {
	zoneKey := corev1.LabelTopologyZone
	db := aboutPods(zoneKey, "app", "db")
	s := cluster(t, []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("2")), testNode("c")})
	const key = "default|!|app=db*0"
	for _, step := range []struct {
		what string
		do   func()
		kind holderKind
		want map[string]string
	}{
		{"nobody", func() {}, holdsAntiAffinity, map[string]string{}},
		{"two want none of them", func() {
			for _, p := range podsOn("a a", awayTerm(db)) {
				s.SetPod(infoOf(t, p))
			}
		}, holdsAntiAffinity, map[string]string{key: "1=2 total 2"}},
		{"one wants them near", func() { s.SetPod(infoOf(t, testPod("near", on("b"), nearTerm(db)))) }, holdsAffinity, map[string]string{key: "2=1 total 1"}},
		{"that is another matter", func() {}, holdsAntiAffinity, map[string]string{key: "1=2 total 2"}},
		{"one likes them, by weight", func() { s.SetPod(infoOf(t, testPod("likes", on("b"), likesTerm(3, db), likesTerm(5, db)))) }, holdsPreferredAffinity, map[string]string{"default|!|app=db*3": "2=1 total 1", "default|!|app=db*5": "2=1 total 1"}},
		{"one dislikes them", func() { s.SetPod(infoOf(t, testPod("dislikes", on("a"), dislikesTerm(3, db)))) }, holdsPreferredAntiAffinity, map[string]string{"default|!|app=db*3": "1=1 total 1"}},
		{"one in no domain wants none of them", func() { s.SetPod(infoOf(t, testPod("nowhere", on("c"), awayTerm(db)))) }, holdsAntiAffinity, map[string]string{key: "1=2 total 3"}},
		{"its node joins", func() { s.SetNode(testNode("c", zone("3"))) }, holdsAntiAffinity, map[string]string{key: "1=2 3=1 total 3"}},
		{"its node moves", func() { s.SetNode(testNode("c", zone("1"))) }, holdsAntiAffinity, map[string]string{key: "1=3 total 3"}},
		{"its node is gone", func() { s.DeleteNode("c") }, holdsAntiAffinity, map[string]string{key: "1=2 total 3"}},
		{"it is gone", func() { s.DeletePod("nowhere") }, holdsAntiAffinity, map[string]string{key: "1=2 total 2"}},
		{"one with the term twice", func() { s.SetPod(infoOf(t, testPod("twice", on("b"), awayTerm(db), awayTerm(db)))) }, holdsAntiAffinity, map[string]string{key: "1=2 2=2 total 4"}},
		{"it is gone, with both", func() { s.DeletePod("twice") }, holdsAntiAffinity, map[string]string{key: "1=2 total 2"}},
		{"one is nominated: that is no place yet", func() {
			p := testPod("soon", awayTerm(db))
			s.Nominate(infoOf(t, p), p.UID, "b")
		}, holdsAntiAffinity, map[string]string{key: "1=2 total 2"}},
		{"who likes them is gone", func() { s.DeletePod("likes") }, holdsPreferredAffinity, map[string]string{}},
	} {
		step.do()
		if got := held(s, step.kind, zoneKey); !maps.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}

// Terms nobody carries any more are forgotten once there are many, and those somebody carries never.
func TestDropHolders(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a")})
	for i := range 40 {
		s.SetPod(infoOf(t, testPod(fmt.Sprint(i), on("a"), away(corev1.LabelHostname, "k", fmt.Sprint(i)))))
	}
	for i := range 39 {
		s.DeletePod(testPod(fmt.Sprint(i)).UID)
	}
	s.dropHolders()
	if got := len(s.holders); got != 40 {
		t.Errorf("%d terms are known while there are few, want 40", got)
	}
	s.holdersKept = 40
	version := s.neighbourVersion
	s.dropHolders()
	if got := len(s.holders); got != 1 || s.neighbourVersion == version || s.holdersKept != 1026 {
		t.Errorf("%d terms are left, version %d after %d, %d are kept", got, s.neighbourVersion, version, s.holdersKept)
	}
	for i, want := range map[int]int{39: 1, 38: 0} {
		if got := refusalsOf(t, s, testPod("p", labelled("k", fmt.Sprint(i))), DefaultProfile()); len(got) != want {
			t.Errorf("label %d: refused %v, want %d", i, got, want)
		}
	}
	s.SetPod(infoOf(t, testPod("38", on("a"), away(corev1.LabelHostname, "k", "38"))))
	if got := refusalsOf(t, s, testPod("p", labelled("k", "38")), DefaultProfile()); len(got) != 1 {
		t.Errorf("a term that was forgotten and has come back: %v", got)
	}
}

// Whatever happens, counts are what counting anew gives.
func TestCountersEqualCounting(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 81))
		s := NewSnapshot()
		nodes, pods := map[string]*corev1.Node{}, map[string]*corev1.Pod{}
		terms := []term{termOfPod(t, "default", aboutPods("z", "app", "x")), termOfPod(t, "default", aboutPods("z", "", "", withSelector(&metav1.LabelSelector{}))),
			termOfPod(t, "default", aboutPods("z", "app", "x", ofNamespaces("default", "other"))), termOfPod(t, "default", aboutPods("z", "", "", ofNamespacesLike(&metav1.LabelSelector{}), withSelector(termRequirement("app", metav1.LabelSelectorOpExists))))}
		ssd := func(node int32) bool { return s.nodes[node].object.Labels["disk"] == "ssd" }
		for step := range 250 {
			name := fmt.Sprint("n", r.IntN(6))
			switch r.IntN(10) {
			case 0, 1:
				nodes[name] = testNode(name, func(n *corev1.Node) {
					maps.Copy(n.Labels, randomLabels(r, []string{"z", "disk"}, "ssd", "1", "2"))
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
				p := testPod(fmt.Sprint("p", r.IntN(12)), on(name), namespace(oneOf(r, "default", "other")), func(p *corev1.Pod) {
					p.Labels = randomLabels(r, []string{"app"}, "x", "y")
					if chance(r, 4) {
						isGoing(p)
					}
				})
				if old := pods[p.Name]; old != nil && old.Namespace != p.Namespace {
					continue // a pod does not change its namespace
				}
				pods[p.Name] = p
				s.SetPod(infoOf(t, p))
			}
			i, skip, some := r.IntN(len(terms)), chance(r, 2), chance(r, 2)
			var c *counter
			if some {
				c = s.counterFor(terms[i:i+1], s.column("z"), skip, "ssd", ssd)
			} else {
				c = s.counterFor(terms[i:i+1], s.column("z"), skip, "", nil)
			}
			want, total := map[string]int{}, 0
			for _, n := range nodes {
				value, has := n.Labels["z"]
				if !has || some && n.Labels["disk"] != "ssd" {
					continue
				}
				want[value] += 0
				for _, p := range pods {
					if p.Spec.NodeName == n.Name && s.matches(&terms[i], p) && !(skip && p.DeletionTimestamp != nil) {
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
