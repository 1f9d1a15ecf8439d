package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

func TestZoneOfANode(t *testing.T) {
	const region, zone, oldRegion, oldZone = corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelFailureDomainBetaZone
	for _, test := range []struct {
		what   string
		labels map[string]string
		want   string
	}{
		{"none", nil, ""},
		{"empty", map[string]string{region: "", zone: ""}, ""},
		{"both", map[string]string{region: "r", zone: "z"}, "r:\x00:z"},
		{"zone only", map[string]string{zone: "z"}, ":\x00:z"},
		{"region only", map[string]string{region: "r"}, "r:\x00:"},
		{"older labels", map[string]string{oldRegion: "r", oldZone: "z"}, "r:\x00:z"},
		{"the older ones stand alone if they are there", map[string]string{region: "r", zone: "z", oldRegion: "q", oldZone: "y"}, "q:\x00:y"},
	} {
		if got := zoneOf(aNode("n", func(n *corev1.Node) { n.Labels = test.labels })); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

func TestExcludedNodes(t *testing.T) {
	for value, want := range map[string]bool{"": true, "false": true, "true": true} {
		if got := isExcluded(aNode("n", labelled("node.kubernetes.io/exclude-disruption", value))); got != want {
			t.Errorf("label %q: %v", value, got)
		}
	}
	if isExcluded(aNode("n", labelled("node.kubernetes.io/exclude-from-external-load-balancers", ""))) || isExcluded(&corev1.Node{}) {
		t.Error("another label, or none, excludes")
	}
}

func TestZoneStates(t *testing.T) {
	for _, test := range []struct {
		ready, lost int
		threshold   float64
		want        zoneState
	}{
		{0, 0, 0.55, zoneNormal}, {3, 0, 0.55, zoneNormal}, {1, 0, 0.55, zoneNormal},
		{0, 1, 0.55, zoneFull}, {0, 2, 0.55, zoneFull}, {0, 5, 0.55, zoneFull},
		{1, 1, 0.55, zoneNormal}, {1, 2, 0.55, zoneNormal}, {1, 3, 0.55, zonePartial}, // up to two lost ones are no disruption
		{2, 3, 0.55, zonePartial}, {3, 3, 0.55, zoneNormal}, {10, 3, 0.55, zoneNormal},
		{9, 11, 0.55, zonePartial}, {10, 10, 0.55, zoneNormal}, {91, 109, 0.55, zoneNormal}, {90, 110, 0.55, zonePartial}, // exactly the share is a disruption
		{7, 3, 0.3, zonePartial}, {3, 7, 0.7, zonePartial}, {4, 6, 0.6, zonePartial}, {4, 6, 0.61, zoneNormal},
		{9, 3, 0, zonePartial}, {9, 2, 0, zoneNormal}, {1, 9, 1, zoneNormal}, {0, 9, 1, zoneFull},
	} {
		if got := computeZoneState(test.ready, test.lost, test.threshold); got != test.want {
			t.Errorf("%d ready, %d lost, threshold %v: %v, want %v", test.ready, test.lost, test.threshold, got, test.want)
		}
	}
}

func TestZoneRates(t *testing.T) {
	settings := LifecycleSettings{EvictionRate: 0.1, SecondaryRate: 0.01, LargeZone: 50, UnhealthyZone: 0.55}
	for _, test := range []struct {
		state zoneState
		size  int
		want  rate.Limit
	}{
		{zoneNormal, 1, 0.1}, {zoneNormal, 5000, 0.1}, {zoneFull, 1, 0.1}, {zoneFull, 5000, 0.1},
		{zonePartial, 3, 0}, {zonePartial, 49, 0}, {zonePartial, 50, 0}, {zonePartial, 51, 0.01}, {zonePartial, 5000, 0.01},
	} {
		if got := newZones(settings).limit(&zone{state: test.state, size: test.size}); got != test.want {
			t.Errorf("state %d, %d nodes: %v, want %v", test.state, test.size, got, test.want)
		}
	}
}

// seen lets zones observe that these are the nodes of the cluster. It reports whether a state changed.
func seen(z *zones, at time.Time, nodes ...*corev1.Node) bool {
	current := map[string]bool{}
	for _, node := range nodes {
		current[node.Name] = true
		z.observe(node)
	}
	for name := range maps.Clone(z.members) {
		if !current[name] {
			z.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	changes := z.update(at)
	return changes.all || len(changes.zones) > 0
}

// some returns nodes of a zone, so many ready and so many lost.
func some(zone string, ready, lost int) (nodes []*corev1.Node) {
	for i := range ready + lost {
		state := isReady
		switch {
		case i >= ready && i%3 == 0:
			state = isNotReady
		case i >= ready && i%3 == 1:
			state = isUnknown
		case i >= ready:
			state = func(*corev1.Node) {} // one that never spoke is lost, too
		}
		nodes = append(nodes, aNode(fmt.Sprint(zone, i), state, inZone(zone)))
	}
	return nodes
}

func TestZonesLimitHowFastPodsGo(t *testing.T) {
	key := func(zone string) string { return zoneOf(aNode("", inZone(zone))) }
	both := func(a, b []*corev1.Node) []*corev1.Node { return append(append([]*corev1.Node{}, a...), b...) }
	type view struct {
		nodes   []*corev1.Node
		changed bool
		a, b    evictionMode
		rateA   rate.Limit
	}
	for _, test := range []struct {
		what  string
		views []view
	}{
		{"one zone of two is lost: its pods go, by turns", []view{
			{both(some("a", 3, 0), some("b", 3, 0)), true, evictRateLimited, evictRateLimited, 0.1},
			{both(some("a", 3, 0), some("b", 3, 0)), false, evictRateLimited, evictRateLimited, 0.1},
			{both(some("a", 0, 3), some("b", 3, 0)), true, evictRateLimited, evictRateLimited, 0.1},
		}},
		{"all zones are lost: nothing is done", []view{
			{both(some("a", 0, 3), some("b", 0, 3)), true, evictStopped, evictStopped, 0.1},
			{both(some("a", 0, 3), some("b", 0, 3)), false, evictStopped, evictStopped, 0.1},
			{both(some("a", 0, 3), some("b", 1, 2)), true, evictRateLimited, evictRateLimited, 0.1},
			{both(some("a", 0, 4), some("b", 0, 3)), true, evictStopped, evictStopped, 0.1},
		}},
		{"a zone alone", []view{{some("a", 0, 1), true, evictStopped, evictStopped, 0.1}, {some("a", 1, 0), true, evictRateLimited, evictNone, 0.1}}},
		{"a small disrupted zone: nobody goes", []view{
			{both(some("a", 2, 3), some("b", 3, 0)), true, evictNone, evictRateLimited, 0},
			{both(some("a", 3, 2), some("b", 3, 0)), true, evictRateLimited, evictRateLimited, 0.1},
		}},
		{"a large disrupted zone: slowly", []view{
			{both(some("a", 20, 30), some("b", 3, 0)), true, evictNone, evictRateLimited, 0},
			{both(some("a", 20, 31), some("b", 3, 0)), false, evictRateLimited, evictRateLimited, 0.01},
			{both(some("a", 0, 51), some("b", 3, 0)), true, evictRateLimited, evictRateLimited, 0.1},
		}},
		{"a zone goes and comes", []view{
			{both(some("a", 2, 3), some("b", 3, 0)), true, evictNone, evictRateLimited, 0},
			{some("b", 3, 0), false, evictNone, evictRateLimited, -1},
			{both(some("a", 3, 0), some("b", 3, 0)), true, evictRateLimited, evictRateLimited, 0.1},
		}},
		{"no nodes at all", []view{{nil, false, evictNone, evictNone, -1}}},
	} {
		z := newZones(DefaultLifecycle)
		for i, v := range test.views {
			changed := seen(z, now, v.nodes...)
			limit := rate.Limit(-1)
			if z.byName[key("a")] != nil {
				limit = z.byName[key("a")].limiter.Limit()
			}
			if a, b := z.evictionMode(key("a")), z.evictionMode(key("b")); changed != v.changed || a != v.a || b != v.b || limit != v.rateA {
				t.Errorf("%s, view %d: changed %v, a %d at %v, b %d; want %+v", test.what, i, changed, a, limit, b, v)
			}
		}
	}
}

func TestExcludedNodesDoNotCount(t *testing.T) {
	without := labelled("node.kubernetes.io/exclude-disruption", "")
	z := newZones(DefaultLifecycle)
	seen(z, now, aNode("a", isReady, without), aNode("b", isUnknown))
	if z.evictionMode("") != evictStopped {
		t.Error("the only node that answers is excluded: it does not count")
	}
	seen(z, now, aNode("a", isReady), aNode("b", isUnknown, without), aNode("c", isUnknown, without), aNode("d", isUnknown, without))
	if z.evictionMode("") != evictRateLimited || z.byName[""].size != 1 {
		t.Errorf("lost nodes that are excluded do not disturb a zone: %d nodes", z.byName[""].size)
	}
}

func TestRateLimits(t *testing.T) {
	z := newZones(DefaultLifecycle)
	a := some("a", 2, 2)
	seen(z, now, a...)
	zone := zoneOf(a[0])
	for _, test := range []struct {
		second int
		want   bool
	}{{0, true}, {0, false}, {9, false}, {10, true}, {19, false}, {20, true}, {60, true}, {61, false}, {70, true}} {
		if got := z.tryAcquire(zone, now.Add(time.Duration(test.second)*time.Second)); got != test.want {
			t.Errorf("second %d: %v", test.second, got)
		}
	}
	if z.tryAcquire("nowhere", now) {
		t.Error("a zone nobody knows has a turn")
	}
	for limit, want := range map[rate.Limit]time.Duration{0: 5 * time.Second, 0.01: 5 * time.Second, 0.1: 5 * time.Second, 0.5: 2 * time.Second, 1: time.Second, 100: 100 * time.Millisecond} {
		z.byName[zone].limiter.SetLimit(limit)
		if got := z.retryDelay(zone); got != want {
			t.Errorf("at a rate of %v the next question is in %s, want %s", limit, got, want)
		}
	}
	if got := z.retryDelay("nowhere"); got != 5*time.Second {
		t.Errorf("a zone nobody knows waits %s", got)
	}
}

func TestResumedIsWhenSomeoneAnswersAgain(t *testing.T) {
	z := newZones(DefaultLifecycle)
	at := func(minute int) time.Time { return now.Add(time.Duration(minute) * time.Minute) }
	for _, test := range []struct {
		minute      int
		ready, lost int
		want        time.Time
	}{{1, 2, 0, time.Time{}}, {2, 0, 2, time.Time{}}, {3, 0, 2, time.Time{}}, {4, 1, 1, at(4)}, {5, 2, 0, at(4)}, {6, 0, 2, at(4)}, {7, 1, 1, at(7)}} {
		seen(z, at(test.minute), some("a", test.ready, test.lost)...)
		if got := z.recoveredAt(); !got.Equal(test.want) {
			t.Errorf("minute %d: %v, want %v", test.minute, got, test.want)
		}
	}
}

// TestOnlyChangedZonesAreComputed: a change of a node affects the nodes of its own zone, unless the state of the whole cluster changes.
func TestOnlyChangedZonesAreComputed(t *testing.T) {
	z := newZones(DefaultLifecycle)
	seen(z, now, slices.Concat(some("a", 2, 0), some("b", 2, 0))...)
	for _, test := range []struct {
		what  string
		nodes []*corev1.Node
		dirty int
		want  zoneChanges
	}{
		{"nothing", slices.Concat(some("a", 2, 0), some("b", 2, 0)), 0, zoneChanges{}},
		{"another heartbeat", some("a", 2, 0), 0, zoneChanges{}},
		{"a node more", some("a", 3, 0), 1, zoneChanges{}},
		{"one zone is lost", some("a", 0, 3), 1, zoneChanges{zones: []string{zoneOf(aNode("", inZone("a")))}}},
		{"so is the other", some("b", 0, 2), 1, zoneChanges{zones: []string{zoneOf(aNode("", inZone("b")))}, all: true}},
		{"both are", slices.Concat(some("a", 0, 3), some("b", 0, 2)), 0, zoneChanges{}},
	} {
		for _, node := range test.nodes {
			z.observe(node)
		}
		dirty := len(z.dirty)
		if got := z.update(now); dirty != test.dirty || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %d zones computed, %+v changed; want %d, %+v", test.what, dirty, got, test.dirty, test.want)
		}
	}
}

// TestRandomZones compares with a model that counts zone by zone.
func TestRandomZones(t *testing.T) {
	const seed = 11
	random := rand.New(rand.NewPCG(seed, 0))
	z := newZones(DefaultLifecycle)
	for round := range 2000 {
		var nodes []*corev1.Node
		type count struct{ ready, all int }
		counts := map[string]count{}
		for _, name := range []string{"a", "b", "c"}[:random.IntN(4)] {
			c := count{ready: random.IntN(4)}
			c.all = c.ready + random.IntN(5)*random.IntN(2)*(1+14*random.IntN(2))
			if c.all > 0 {
				counts[zoneOf(aNode("", inZone(name)))] = c
			}
			nodes = append(nodes, some(name, c.ready, c.all-c.ready)...)
		}
		random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		seen(z, now, nodes...)
		stopped := len(counts) > 0
		for _, c := range counts {
			stopped = stopped && c.ready == 0
		}
		if len(z.byName) != len(counts) {
			t.Fatalf("seed %d, round %d: %d zones, want %d", seed, round, len(z.byName), len(counts))
		}
		for name, c := range counts {
			lost := c.all - c.ready
			want := evictRateLimited
			switch {
			case stopped:
				want = evictStopped
			case c.ready > 0 && lost >= 3 && 100*lost >= 55*c.all && c.all <= 50:
				want = evictNone
			}
			if got := z.evictionMode(name); got != want {
				t.Fatalf("seed %d, round %d: zone %q of %+v: %d, want %d", seed, round, name, c, got, want)
			}
		}
	}
}

// TestNodesAreLostOneByOne: of three silent nodes of a zone one more is driven off every ten seconds.
func TestNodesAreLostOneByOne(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Lifecycle(DefaultLifecycle))()
		newNodes(w, "a", "b", "c", "d", "e", "f", "g")
		lost := []string{"a", "b", "c"}
		keepAlive(w, 4, "d", "e", "f", "g")
		driven := func() (n int) {
			for _, name := range lost {
				if taintsOf(w, name) == "unreachable:NoExecute unreachable:NoSchedule" {
					n++
				}
			}
			return n
		}
		// They were heard at second 0 and are silent from second 50 on; it is second 41.
		for _, want := range []int{1, 2, 3, 3} {
			w.Pass(10 * time.Second)
			for _, name := range []string{"d", "e", "f", "g"} {
				heartbeat(w, name)
			}
			if want > 1 {
				w.Pass(4 * time.Second) // a node that waits asks every five seconds
			}
			if got := driven(); got != want {
				t.Errorf("%d nodes are driven off, want %d", got, want)
			}
		}
	})
}
