package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func holds(cidrs ...string) change[*corev1.Node] {
	return func(n *corev1.Node) { n.Spec.PodCIDRs = cidrs }
}

func TestParsePodRanges(t *testing.T) {
	for _, test := range []struct {
		text         string
		bits4, bits6 int
		want         string // "" is an error
	}{
		{"10.0.0.0/16", 0, 0, "10.0.0.0/16→24"},
		{"10.0.0.0/16", 26, 0, "10.0.0.0/16→26"},
		{"10.0.0.0/16", 16, 0, "10.0.0.0/16→16"},
		{"10.0.0.0/16", 15, 0, ""},
		{"10.0.0.0/16", 32, 0, "10.0.0.0/16→32"},
		{"10.0.0.0/16", 33, 0, ""},
		{"10.1.2.3/16", 0, 0, "10.1.0.0/16→24"},
		{"10.0.0.0/24", 0, 0, "10.0.0.0/24→24"},
		{"10.0.0.0/25", 0, 0, ""},
		{"10.0.0.0/8", 25, 0, "10.0.0.0/8→25"}, // more than 16 bits are a matter of IPv6
		{"10.0.0.0/4", 0, 0, "0.0.0.0/4→24"},
		{"fd00::/48", 0, 0, "fd00::/48→64"},
		{"fd00::/48", 24, 0, "fd00::/48→64"}, // the other family's length
		{"fd00::/48", 0, 56, "fd00::/48→56"},
		{"fd00::/47", 0, 0, ""},
		{"fd00::/64", 0, 0, "fd00::/64→64"},
		{"fd00::/65", 0, 0, ""},
		{"fd00::/112", 0, 128, "fd00::/112→128"},
		{"fd00::/111", 0, 128, ""},
		{"fd00::/120", 0, 129, ""},
		{"10.0.0.0/16,fd00::/48", 0, 0, "10.0.0.0/16→24 fd00::/48→64"},
		{"fd00::/48,10.0.0.0/16", 25, 60, "fd00::/48→60 10.0.0.0/16→25"},
		{" 10.0.0.0/16 , fd00::/48 ", 0, 0, "10.0.0.0/16→24 fd00::/48→64"},
		{"10.0.0.0/16,10.1.0.0/16", 0, 0, ""},
		{"fd00::/48,fd01::/48", 0, 0, ""},
		{"10.0.0.0/16,fd00::/48,10.1.0.0/16", 0, 0, ""},
		{"10.0.0.0/16,", 0, 0, ""}, {"10.0.0.0", 0, 0, ""}, {"x", 0, 0, ""}, {"", 0, 0, ""},
	} {
		ranges, err := ParsePodRanges(test.text, test.bits4, test.bits6)
		var got []string
		for _, r := range ranges {
			got = append(got, fmt.Sprintf("%s→%d", r.Prefix, r.NodeBits))
		}
		if (err != nil) != (test.want == "") || strings.Join(got, " ") != test.want {
			t.Errorf("%q, %d, %d: %v, %v; want %s", test.text, test.bits4, test.bits6, got, err, test.want)
		}
	}
}

func TestPiecesOfARange(t *testing.T) {
	for _, test := range []struct {
		prefix string
		bits   int
		pieces uint64
		n      uint64
		want   string
	}{
		{"10.244.0.0/16", 24, 256, 0, "10.244.0.0/24"}, {"10.244.0.0/16", 24, 256, 1, "10.244.1.0/24"}, {"10.244.0.0/16", 24, 256, 255, "10.244.255.0/24"},
		{"10.0.0.0/8", 24, 65536, 65535, "10.255.255.0/24"}, {"10.0.0.0/8", 25, 131072, 131071, "10.255.255.128/25"},
		{"10.0.0.0/24", 24, 1, 0, "10.0.0.0/24"}, {"10.0.0.0/30", 32, 4, 3, "10.0.0.3/32"}, {"172.16.0.0/12", 20, 256, 17, "172.17.16.0/20"},
		{"fd00:10::/48", 64, 65536, 258, "fd00:10:0:102::/64"}, {"fd00::/56", 72, 65536, 0x1ff, "fd00:0:0:1:ff00::/72"},
		{"fd00::/60", 64, 16, 15, "fd00:0:0:f::/64"}, {"fd00::/112", 128, 65536, 65535, "fd00::ffff/128"}, {"fd00::/63", 65, 4, 3, "fd00:0:0:1:8000::/65"},
	} {
		r := PodRange{Prefix: netip.MustParsePrefix(test.prefix), NodeBits: test.bits}
		if got := r.subnet(test.n); got.String() != test.want || r.subnetCount() != test.pieces || r.subnetIndex(got.Addr()) != test.n {
			t.Errorf("%s of %d: piece %d of %d is %s, and that is number %d; want %s of %d", test.prefix, test.bits, test.n, r.subnetCount(), got, r.subnetIndex(got.Addr()), test.want, test.pieces)
		}
	}
}

func TestOccupiedPieces(t *testing.T) {
	for _, test := range []struct {
		what, cidr string
		bits       int
		takes      string
		want       []uint64
	}{
		{"one piece", "10.0.0.0/21", 24, "10.0.3.0/24", []uint64{3}},
		{"the first", "10.0.0.0/21", 24, "10.0.0.0/24", []uint64{0}},
		{"the last", "10.0.0.0/21", 24, "10.0.7.0/24", []uint64{7}},
		{"a part of a piece", "10.0.0.0/21", 24, "10.0.3.128/26", []uint64{3}},
		{"one address", "10.0.0.0/21", 24, "10.0.5.9/32", []uint64{5}},
		{"two pieces", "10.0.0.0/21", 24, "10.0.4.0/23", []uint64{4, 5}},
		{"the second half", "10.0.0.0/21", 24, "10.0.4.0/22", []uint64{4, 5, 6, 7}},
		{"everything", "10.0.0.0/22", 24, "10.0.0.0/22", []uint64{0, 1, 2, 3}},
		{"more than everything", "10.0.0.0/22", 24, "10.0.0.0/8", []uint64{0, 1, 2, 3}},
		{"outside", "10.0.0.0/22", 24, "10.0.4.0/24", nil},
		{"the other family", "10.0.0.0/22", 24, "fd00::/64", nil},
		{"IPv6, one piece", "fd00::/61", 64, "fd00:0:0:5::/64", []uint64{5}},
		{"IPv6, half", "fd00::/61", 64, "fd00:0:0:4::/62", []uint64{4, 5, 6, 7}},
		{"IPv6, more than everything", "fd00::/62", 64, "fd00::/16", []uint64{0, 1, 2, 3}},
		{"IPv6, outside", "fd00::/62", 64, "fd01::/64", nil},
	} {
		pool := newSubnetPool(PodRange{Prefix: netip.MustParsePrefix(test.cidr), NodeBits: test.bits})
		pool.occupy(netip.MustParsePrefix(test.takes))
		if got := slices.Sorted(maps.Keys(pool.users)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
		if pool.release(netip.MustParsePrefix(test.takes)); len(pool.users) > 0 {
			t.Errorf("%s: %v are in use after the release", test.what, pool.users)
		}
	}
}

// TestNextPiece: first those never used, then those free for the longest time.
func TestNextPiece(t *testing.T) {
	pool := newSubnetPool(PodRange{Prefix: netip.MustParsePrefix("10.0.0.0/22"), NodeBits: 24})
	take := func(want string) {
		t.Helper()
		got := pool.next()
		if pool.occupy(got); got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	release := func(text string) { pool.release(netip.MustParsePrefix(text)) }
	pool.occupy(netip.MustParsePrefix("10.0.1.0/24"))
	take("10.0.0.0/24")
	release("10.0.0.0/24")
	take("10.0.2.0/24")
	release("10.0.1.0/24")
	release("10.0.2.0/24")
	take("10.0.3.0/24")
	if pool.free() != 3 {
		t.Errorf("%d are free", pool.free())
	}
	take("10.0.0.0/24")
	pool.occupy(netip.MustParsePrefix("10.0.1.7/32")) // by hand, while it is queued
	take("10.0.2.0/24")
	if pool.free() != 0 {
		t.Errorf("%d are free", pool.free())
	}
	pool.occupy(netip.MustParsePrefix("10.0.1.0/24"))
	release("10.0.1.7/32")
	if pool.free() != 0 {
		t.Error("a subnet is free that one of two users released")
	}
	release("10.0.1.0/24")
	take("10.0.1.0/24")
}

func TestPodCIDRs(t *testing.T) {
	const noneLeft = `Normal CIDRNotAvailable "Node a status is now: CIDRNotAvailable"; again 30m0s`
	given := func(node string, cidrs ...string) string {
		return fmt.Sprintf(`patch Node %s {"metadata":{"uid":"uid-%s"},"spec":{"podCIDR":%q,"podCIDRs":["%s"]}} else Normal CIDRAssignmentFailed "Node %s status is now: CIDRAssignmentFailed"`,
			node, node, cidrs[0], strings.Join(cidrs, `","`), node)
	}
	const four, six, both = "10.0.0.0/22", "fd00::/62", "10.0.0.0/22,fd00::/62"
	all4 := holds("10.0.0.0/22")
	for _, test := range []struct {
		what   string
		ranges string
		nodes  []*corev1.Node
		taken  []netip.Prefix
		want   string
	}{
		{"no nodes", four, nil, nil, ""},
		{"one node", four, []*corev1.Node{aNode("a")}, nil, given("a", "10.0.0.0/24")},
		{"of IPv6", six, []*corev1.Node{aNode("a")}, nil, given("a", "fd00::/64")},
		{"of both families, in the order of the ranges", both, []*corev1.Node{aNode("a")}, nil, given("a", "10.0.0.0/24", "fd00::/64")},
		{"two nodes, by name", both, []*corev1.Node{aNode("b"), aNode("a")}, nil, given("a", "10.0.0.0/24", "fd00::/64") + "; " + given("b", "10.0.1.0/24", "fd00:0:0:1::/64")},
		{"who has one keeps it", four, []*corev1.Node{aNode("a", holds("10.0.0.0/24"))}, nil, ""},
		{"what others hold is not given", both, []*corev1.Node{aNode("a", holds("10.0.0.0/24", "fd00::/64")), aNode("b")}, nil, given("b", "10.0.1.0/24", "fd00:0:0:1::/64")},
		{"families need not be in step", both, []*corev1.Node{aNode("a", holds("10.0.0.0/24")), aNode("b")}, nil, given("b", "10.0.1.0/24", "fd00::/64")},
		{"what a node that goes holds is not given", four, []*corev1.Node{aNode("a", isDeleted, holds("10.0.0.0/24")), aNode("b")}, nil, given("b", "10.0.1.0/24")},
		{"a node that goes gets none", four, []*corev1.Node{aNode("a", isDeleted)}, nil, ""},
		{"a node that holds what is in no range", four, []*corev1.Node{aNode("a", holds("192.168.0.0/24")), aNode("b")}, nil, given("b", "10.0.0.0/24")},
		{"a node that holds nonsense", four, []*corev1.Node{aNode("a", holds("x")), aNode("b")}, nil, given("b", "10.0.0.0/24")},
		{"a range with host bits counts as its network", four, []*corev1.Node{aNode("a", holds("10.0.0.7/24")), aNode("b")}, nil, given("b", "10.0.1.0/24")},
		{"a node that holds two pieces", four, []*corev1.Node{aNode("a", holds("10.0.0.0/23")), aNode("b")}, nil, given("b", "10.0.2.0/24")},
		{"nor what is taken", both, []*corev1.Node{aNode("a")}, prefixes("10.0.0.0/23"), given("a", "10.0.2.0/24", "fd00::/64")},
		{"of both families", both, []*corev1.Node{aNode("a")}, prefixes("10.0.0.0/24", "fd00::/63"), given("a", "10.0.1.0/24", "fd00:0:0:2::/64")},
		{"none left: taken", four, []*corev1.Node{aNode("a")}, prefixes("10.0.0.0/8"), noneLeft},
		{"none left: held", four, []*corev1.Node{aNode("a"), aNode("b", all4)}, nil, noneLeft},
		{"none left of one family: nothing is given of the other", both, []*corev1.Node{aNode("a"), aNode("b", holds("10.0.0.0/24", "fd00::/62"))}, nil, noneLeft},
		{"the last one goes to the first", four, []*corev1.Node{aNode("a"), aNode("0"), aNode("b", holds("10.0.0.0/23")), aNode("c", holds("10.0.2.0/24"))}, nil, given("0", "10.0.3.0/24") + "; " + noneLeft},
	} {
		ranges, err := ParsePodRanges(test.ranges, 24, 64)
		if err != nil {
			t.Fatal(err)
		}
		c := newPodCIDRs(ranges, test.taken)
		for _, n := range test.nodes {
			c.observe(n)
		}
		var got []string
		for _, n := range slices.SortedFunc(slices.Values(test.nodes), func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) }) {
			if c.needsAllocation(n) {
				prefixes, _ := c.allocate(n)
				got = append(got, words(planAllocation(n, prefixes)))
			}
		}
		if strings.Join(got, "; ") != test.want {
			t.Errorf("%s: %s\nwant %s", test.what, strings.Join(got, "; "), test.want)
		}
	}
}

// TestRandomPodCIDRs: nodes come and go; nothing's range meets another's or one that is taken, ranges never change, a node goes without
// only when all are in use, and it gets one as soon as one is released.
func TestRandomPodCIDRs(t *testing.T) {
	const seed = 3
	random := rand.New(rand.NewPCG(seed, 0))
	ranges, err := ParsePodRanges("10.0.0.0/20,fd00::/60", 24, 64)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 200 {
		reserved := prefixes(fmt.Sprintf("10.0.%d.0/24", random.IntN(16)), fmt.Sprintf("fd00:0:0:%x::/64", random.IntN(16)))
		c := newPodCIDRs(ranges, reserved)
		nodes := map[string]*corev1.Node{}
		made := 0
		for step := range 40 {
			var queue []string
			for range random.IntN(3) {
				made++
				name := fmt.Sprint("n", made)
				nodes[name] = aNode(name)
				c.observe(nodes[name])
				queue = append(queue, name)
			}
			if names := slices.Sorted(maps.Keys(nodes)); len(names) > 0 && random.IntN(3) > 0 {
				name := names[random.IntN(len(names))]
				delete(nodes, name)
				queue = append(queue, c.forget(name)...)
			}
			if random.IntN(10) == 0 { // the manager starts anew
				c = newPodCIDRs(ranges, reserved)
				for _, n := range nodes {
					c.observe(n)
				}
				queue = slices.Sorted(maps.Keys(nodes))
			}
			for ; len(queue) > 0; queue = queue[1:] {
				n := nodes[queue[0]]
				if n == nil || !c.needsAllocation(n) {
					queue = append(queue, c.nextWaiting()...)
					continue
				}
				allocated, _ := c.allocate(n)
				var cidrs []string
				for _, prefix := range allocated {
					cidrs = append(cidrs, prefix.String())
				}
				nodes[n.Name] = aNode(n.Name, holds(cidrs...))
				c.observe(nodes[n.Name])
			}
			inUse := map[string]string{reserved[0].String(): "taken", reserved[1].String(): "taken"}
			without := 0
			for _, n := range nodes {
				if len(n.Spec.PodCIDRs) == 0 {
					without++
				}
				for i, cidr := range n.Spec.PodCIDRs {
					if by, ok := inUse[cidr]; ok {
						t.Fatalf("seed %d, round %d, step %d: %s of %s is of %s", seed, round, step, cidr, n.Name, by)
					}
					if inUse[cidr] = n.Name; !ranges[i].Prefix.Contains(netip.MustParsePrefix(cidr).Addr()) {
						t.Fatalf("seed %d, round %d, step %d: %s is not in %s", seed, round, step, cidr, ranges[i].Prefix)
					}
				}
			}
			if want := max(0, len(nodes)-15); without != want || c.waiting.Len() != want || len(c.waitingByName) != want || len(c.held) != len(nodes) {
				t.Fatalf("seed %d, round %d, step %d: %d of %d nodes are without, %d wait, %d are tracked", seed, round, step, without, len(nodes), c.waiting.Len(), len(c.held))
			}
		}
	}
}

// TestExhaustedPodCIDRs: nodes without a pod CIDR are reported once, however often they send heartbeats, and get one when one is released.
func TestExhaustedPodCIDRs(t *testing.T) {
	world.In(t, func(w *world.World) {
		ranges, err := ParsePodRanges("10.0.0.0/22", 24, 0)
		if err != nil {
			t.Fatal(err)
		}
		var faults world.Faults
		w.Manage(&faults, PodCIDR(ranges, nil))
		const nodes = 12
		for i := range nodes {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
			w.Pass(time.Second)
		}
		for range 100 {
			for i := range nodes {
				world.EditStatus(w, "", fmt.Sprint("n", i), func(n *corev1.Node) {
					n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
				})
			}
			w.Pass(time.Second)
		}
		for _, e := range world.List[*corev1.Event](w) {
			if e.Count > 1 || e.Reason != "CIDRNotAvailable" {
				t.Errorf("%d events %s about %s", e.Count, e.Reason, e.InvolvedObject.Name)
			}
		}
		if writes, _ := faults.Writes(); len(writes) != 4 || len(world.List[*corev1.Event](w)) != nodes-4 {
			t.Errorf("%d writes and %d events", len(writes), len(world.List[*corev1.Event](w)))
		}
		w.Remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}) // waits itself
		w.Remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		w.Pass(time.Second)
		if n := world.Get[*corev1.Node](w, "", "n5"); n.Spec.PodCIDR != "10.0.1.0/24" {
			t.Errorf("the node that waited longest has %q", n.Spec.PodCIDR)
		}
		if writes, _ := faults.Writes(); len(writes) != 5 {
			t.Errorf("%d writes", len(writes))
		}
	})
}

func TestPodCIDRWithoutRangesIsOff(t *testing.T) {
	off := PodCIDR(nil, nil)
	if !off.DisabledByDefault || PodCIDR([]PodRange{{Prefix: netip.MustParsePrefix("10.0.0.0/16"), NodeBits: 24}}, nil).DisabledByDefault {
		t.Error("it is on without ranges, or off with one")
	}
	if _, err := off.New(&controller.Setup{}); err == nil {
		t.Error("it starts without ranges")
	}
}

// TestPodCIDRsInAWorld: both families, until nothing is left; a node that goes makes room; a manager that starts anew gives nothing twice.
func TestPodCIDRsInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		ranges, err := ParsePodRanges("10.0.0.0/22,fd00::/62", 24, 64)
		if err != nil {
			t.Fatal(err)
		}
		allocator := PodCIDR(ranges, prefixes("10.0.0.0/24"))
		cidrs := func() map[string]string {
			w.Pass(time.Second)
			all := map[string]string{}
			for _, n := range world.List[*corev1.Node](w) {
				all[n.Name] = strings.Join(n.Spec.PodCIDRs, " ")
				if n.Spec.PodCIDR != "" && !strings.HasPrefix(all[n.Name], n.Spec.PodCIDR) {
					t.Errorf("%s has %s and %s", n.Name, n.Spec.PodCIDR, all[n.Name])
				}
			}
			return all
		}
		node := func(name string) *corev1.Node {
			made := world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			w.Pass(time.Second)
			return made
		}
		expect := func(what string, want map[string]string) {
			t.Helper()
			if got := cidrs(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v\nwant %v", what, got, want)
			}
		}
		stop := w.Run(allocator)
		a := node("a")
		node("b")
		expect("two nodes", map[string]string{"a": "10.0.1.0/24 fd00::/64", "b": "10.0.2.0/24 fd00:0:0:1::/64"})
		stop()
		node("c")
		stop = w.Run(allocator)
		expect("anew", map[string]string{"a": "10.0.1.0/24 fd00::/64", "b": "10.0.2.0/24 fd00:0:0:1::/64", "c": "10.0.3.0/24 fd00:0:0:2::/64"})
		node("d")
		expect("full", map[string]string{"a": "10.0.1.0/24 fd00::/64", "b": "10.0.2.0/24 fd00:0:0:1::/64", "c": "10.0.3.0/24 fd00:0:0:2::/64", "d": ""})
		if told := w.Events("d"); !slices.Contains(told, "CIDRNotAvailable: Node d status is now: CIDRNotAvailable") {
			t.Errorf("told %q", told)
		}
		w.Remove(a)
		expect("room", map[string]string{"b": "10.0.2.0/24 fd00:0:0:1::/64", "c": "10.0.3.0/24 fd00:0:0:2::/64", "d": "10.0.1.0/24 fd00:0:0:3::/64"})
		stop()
		w.AssertSettled(allocator)
	})
}
