package decision

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// sameTable compares a table that has followed with one made anew for the same pod. Refusals may have other numbers.
func sameTable(t *testing.T, s *snapshot.Snapshot, followed *table, p *snapshot.PodInfo) {
	t.Helper()
	fresh, refusal := memoOf(s).newTable(s, p, worldProfile)
	if refusal != nil {
		t.Fatal(refusal)
	}
	fresh.images = plugins.NewImageVersions(s, p)
	fresh.fill(s)
	if followed.feasible != fresh.feasible || len(followed.cells) != len(fresh.cells) || !slices.Equal(followed.weightedScores, fresh.weightedScores) {
		t.Fatalf("%d feasible of %d, base %v; want %d of %d, %v", followed.feasible, len(followed.cells), followed.weightedScores, fresh.feasible, len(fresh.cells), fresh.weightedScores)
	}
	reasons := func(x *table) (cells []string, refused map[string]int32) {
		refused = map[string]int32{}
		for i, c := range x.cells {
			r := x.refusals[c.refusal]
			text := fmt.Sprint(c.refusal == nodeAbsent, c.scores)
			if r != nil {
				text += fmt.Sprint(r.Plugin, r.Reasons, r.Unresolvable, x.pluginOrder[c.refusal])
			}
			cells = append(cells, text)
			if c.refusal != 0 {
				refused[text]++
			}
			_ = i
		}
		return cells, refused
	}
	got, counts := reasons(followed)
	want, _ := reasons(fresh)
	if !slices.Equal(got, want) {
		t.Fatalf("cells %v, want %v", got, want)
	}
	byCode := map[uint16]int32{}
	for _, c := range followed.cells {
		if c.refusal != 0 {
			byCode[c.refusal]++
		}
	}
	for code, n := range followed.refused {
		if byCode[uint16(code)] != n {
			t.Fatalf("refusal %v counted %d times, there are %d; %v", followed.refusals[code], n, byCode[uint16(code)], counts)
		}
	}
	for i := range followed.normalized {
		a, b := &followed.normalized[i], &fresh.normalized[i]
		if a.name != b.name || a.nonzero != b.nonzero || !slices.Equal(a.raw, b.raw) {
			t.Fatalf("%s: %v with %d, want %v with %d", a.name, a.raw, a.nonzero, b.raw, b.nonzero)
		}
	}
	if followed.tree.size > 0 {
		fresh.tree.grow(fresh, s)
		a, someA := followed.tree.best()
		b, someB := fresh.tree.best()
		if a != b && someA || someA != someB {
			t.Fatalf("the best is %d (%v), want %d (%v)", a, someA, b, someB)
		}
	}
}

// TestTablesFollow changes random clusters. Tables of several makes of pods, asked now and then, are as if made anew; and what a
// table was when it was asked can be told later.
func TestTablesFollow(t *testing.T) {
	makes := [][]schedulertest.PodOption{
		{},
		{schedulertest.RequestingCPU("1")},
		{schedulertest.RequestingCPU("500m"), schedulertest.RequestingMemory("8Gi"), schedulertest.Tolerating(corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpExists})},
		{schedulertest.Selecting("disk", "ssd"), schedulertest.Port(80, "", "TCP")},
		{schedulertest.Requesting("example.com/gpu", "1")},
		{func(p *corev1.Pod) { p.Spec.Containers[0].Image = "pause" }, schedulertest.RequestingCPU("2")},
	}
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			random := rand.New(rand.NewPCG(seed, 5))
			var infos []*snapshot.PodInfo
			for i, o := range makes {
				infos = append(infos, snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", i), o...)))
			}
			type moment struct {
				table    *table
				position uint64
				cells    []cell
			}
			var moments []moment
			running := map[types.UID]bool{}
			for range 400 {
				switch k := random.IntN(10); {
				case k < 2:
					n := w.RandomNode(fmt.Sprint("n", random.IntN(10)))
					w.snapshot.SetNode(n)
				case k == 2:
					w.snapshot.DeleteNode(fmt.Sprint("n", random.IntN(10)))
				case k < 6:
					p := w.RandomPod()
					schedulertest.OnNode(fmt.Sprint("n", random.IntN(10)))(p)
					running[p.UID] = true
					w.snapshot.SetPod(snapshottest.PodInfo(t, p))
				case k == 6:
					for uid := range running {
						delete(running, uid)
						w.snapshot.DeletePod(uid)
						break
					}
				default:
					info := infos[random.IntN(len(infos))]
					d, err := Schedule(w.snapshot, info, worldProfile)
					if d.Table == nil {
						continue // no nodes
					}
					if err != nil && !IsUnschedulable(err) {
						t.Fatal(err)
					}
					sameTable(t, w.snapshot, d.Table, info)
					moments = append(moments, moment{d.Table, d.position, slices.Clone(d.Table.cells)})
				}
			}
			told := 0
			for _, m := range moments {
				cells, ok := m.table.restore(m.position)
				if !ok {
					continue
				}
				told++
				if !reflect.DeepEqual(cells[:len(m.cells)], m.cells) {
					t.Fatalf("restored %v, was %v", cells, m.cells)
				}
				for _, c := range cells[len(m.cells):] {
					if c.refusal != nodeAbsent {
						t.Fatalf("a node that was not there is %v", c)
					}
				}
			}
			if len(memoOf(w.snapshot).tables) != len(makes) || told < 3 {
				t.Errorf("%d tables; %d of %d moments can be told", len(memoOf(w.snapshot).tables), told, len(moments))
			}
		})
	}
}

// The winner of a tree is the one a look at all keys finds, the first among equals.
func TestTree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 1000} {
		s := snapshot.NewSnapshot()
		x := &table{cells: make([]cell, n), weightedScores: make([]int64, n)}
		s.LastPlacement = make([]uint32, n)
		for i := range n {
			x.weightedScores[i] = random.Int64N(5)
			if random.IntN(3) == 0 {
				x.cells[i].refusal = 2
			}
		}
		x.tree.grow(x, s)
		for range 200 {
			node := int32(random.IntN(n))
			x.weightedScores[node], x.cells[node].refusal = random.Int64N(5), 0
			s.LastPlacement[node] = random.Uint32N(3)
			if random.IntN(2) == 0 {
				x.cells[node].refusal = 2
			}
			x.tree.update(x, s, node)
			best, found := int32(0), false
			for i := range n {
				if x.cells[i].refusal == 0 && (!found || x.key(s, int32(i)) > x.key(s, best)) {
					best, found = int32(i), true
				}
			}
			if got, ok := x.tree.best(); ok != found || ok && got != best {
				t.Fatalf("%d nodes: the best is %d (%v), want %d (%v)", n, got, ok, best, found)
			}
		}
		for i := range n {
			x.tree.set(int32(i), refusedKey)
		}
		if _, ok := x.tree.best(); ok {
			t.Errorf("%d nodes: the best of none", n)
		}
	}
}

// The better score comes first; among equal scores the node that waited longest, one that never had a pod before all.
func TestOrderKey(t *testing.T) {
	ordered := []int64{refusedKey, orderKey(0, 1<<32-1), orderKey(0, 2), orderKey(0, 1), orderKey(0, 0), orderKey(1, 1<<32-1), orderKey(1, 0), orderKey(700, 5), orderKey(700, 4), orderKey(1<<30, 0)}
	if !slices.IsSorted(ordered) || len(slices.Compact(slices.Clone(ordered))) != len(ordered) {
		t.Errorf("keys %v", ordered)
	}
}

func TestTableCodes(t *testing.T) {
	x := &table{refusals: []*plugins.Refusal{nil, nil}, pluginOrder: []int{-1, -1}, refused: []int32{0, 0}}
	first := plugins.Refuse("A", false, "x", "y")
	code := x.code(first, 3)
	if code != 2 || x.pluginOrder[code] != 3 {
		t.Errorf("code %d, orders %v", code, x.pluginOrder)
	}
	for name, test := range map[string]struct {
		refusal *plugins.Refusal
		same    bool
	}{
		"the same":            {first, true},
		"an equal one":        {plugins.Refuse("A", false, "x", "y"), true},
		"another rule":        {plugins.Refuse("B", false, "x", "y"), false},
		"fewer reasons":       {plugins.Refuse("A", false, "x"), false},
		"in another order":    {plugins.Refuse("A", false, "y", "x"), false},
		"one that stays":      {plugins.Refuse("A", true, "x", "y"), false},
		"one that is a fault": {&plugins.Refusal{Plugin: "A", Reasons: []string{"x", "y"}, Err: ErrPreemptionNotHelpful}, false},
	} {
		if got := x.code(test.refusal, 3); (got == code) != test.same {
			t.Errorf("%s: code %d", name, got)
		}
	}
	if len(x.refusals) != len(x.pluginOrder) || len(x.refusals) != len(x.refused) || len(x.refusals) != 8 {
		t.Errorf("%d refusals, %d orders, %d counts", len(x.refusals), len(x.pluginOrder), len(x.refused))
	}
}

// Plugins may make a refusal for every node. Those that say the same have one code, and with more than there are codes for, every node keeps one of
// its plugin, with an error if it has one.
func TestTableCodesOfManyNodes(t *testing.T) {
	x := &table{refusals: []*plugins.Refusal{nil, nil}, pluginOrder: []int{-1, -1}, refused: []int32{0, 0}}
	x.code(plugins.Refuse("A", false, "x"), 0)
	for range 1000 {
		x.code(&plugins.Refusal{Plugin: "A", Err: errors.New("failed to find storage class")}, 0)
	}
	if len(x.refusals) != 4 {
		t.Errorf("%d refusals", len(x.refusals)-2)
	}
	for i := range 1<<16 + 100 {
		r := &plugins.Refusal{Plugin: "A", Err: fmt.Errorf("node %d", i)}
		if i%2 == 1 {
			r = plugins.Refuse("B", false, fmt.Sprint(i))
		}
		if got := x.refusals[x.code(r, 0)]; got == nil || got.Plugin != r.Plugin || (got.Err != nil) != (r.Err != nil) {
			t.Fatalf("refusal %d of %s is taken for %v", i, r.Plugin, got)
		}
	}
}

// Tables are kept by make of pod, the ones used last, and their owner is told of the others.
func TestTablesKept(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
	log := &Log{}
	SetOptions(s, Options{Log: log})
	droppedRecords := func() (all []string) {
		for i := range log.ring {
			if d := log.ring[i].Decision; d != nil && d.RecordDropped {
				all = append(all, d.Pod.Pod.Name)
			}
		}
		return all
	}
	makeOf := func(i int) *snapshot.PodInfo {
		return snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", i), schedulertest.RequestingCPU(fmt.Sprint(i+1, "m"))))
	}
	tables := map[int]*table{}
	for i := range maxTables {
		tables[i], _ = tableFor(s, makeOf(i), worldProfile)
		log.Remember(&Decision{Pod: makeOf(i), Snapshot: s, Table: tables[i]}, nil, time.Time{})
	}
	if again, _ := tableFor(s, makeOf(0), worldProfile); again != tables[0] || len(droppedRecords()) != 0 {
		t.Error("a table is not used again")
	}
	for i := range 3 {
		tables[maxTables+i], _ = tableFor(s, makeOf(maxTables+i), worldProfile)
	}
	// 0 was used after 1, 2 and 3.
	if want, got := []string{"p1", "p2", "p3"}, droppedRecords(); !slices.Equal(got, want) || len(memoOf(s).tables) != maxTables {
		t.Errorf("%d tables, dropped the records of %v, want %v", len(memoOf(s).tables), got, want)
	}
}

// Pods of one make share a table; whatever makes a difference to a node alone keeps pods apart.
func TestTablesShared(t *testing.T) {
	base := []schedulertest.PodOption{schedulertest.RequestingCPU("1"), schedulertest.Labelled("color", "green")}
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
	first, _ := tableFor(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", base...)), worldProfile)
	for name, test := range map[string]struct {
		change schedulertest.PodOption
		same   bool
	}{
		"its name":         {func(p *corev1.Pod) { p.Name, p.UID = "q", "q" }, true},
		"its namespace":    {schedulertest.Namespace("other"), true},
		"its labels":       {schedulertest.Labelled("color", "red"), true},
		"its priority":     {schedulertest.Priority(5), true},
		"its affinity":     {schedulertest.WithAntiAffinity(corev1.LabelHostname, "color", "green"), true},
		"its processor":    {schedulertest.RequestingCPU("2"), false},
		"its memory":       {schedulertest.RequestingMemory("1Gi"), false},
		"its tolerations":  {schedulertest.ToleratesAll, false},
		"its selector":     {schedulertest.Selecting("a", "b"), false},
		"its ports":        {schedulertest.Port(80, "", "TCP"), false},
		"its nodes":        {schedulertest.RequiresNodes(schedulertest.Expression("disk", corev1.NodeSelectorOpExists)), false},
		"its image":        {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other:1" }, false},
		"something of its": {schedulertest.Requesting("example.com/gpu", "1"), false},
	} {
		if got, _ := tableFor(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", append(slices.Clone(base), test.change)...)), worldProfile); (got == first) != test.same {
			t.Errorf("%s: shared is %v", name, got == first)
		}
	}
	// What the make does not cover, and what names its nodes, has no table to share.
	before := len(memoOf(s).tables)
	for name, o := range map[string]schedulertest.PodOption{"volumes": schedulertest.UsingClaim("c"), "named nodes": schedulertest.RequiresNodes(schedulertest.Named("a"))} {
		_, _ = tableFor(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", o)), worldProfile)
		if len(memoOf(s).tables) != before {
			t.Errorf("%s: a table is kept", name)
		}
	}
	other := plugins.DefaultProfile()
	other.Name = "other"
	if got, _ := tableFor(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", base...)), other); got == first {
		t.Error("two profiles share a table")
	}
}

// A table that cannot follow is filled anew: the log does not reach back, more has changed than there are nodes, images have moved.
func TestTablesFilledAnew(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *snapshot.Snapshot)
		filled bool
	}{
		"nothing": {func(*snapshot.Snapshot) {}, false},
		"a pod": {func(s *snapshot.Snapshot) {
			s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("x", schedulertest.OnNode("node-00001"), schedulertest.RequestingCPU("1"))))
		}, false},
		"as many changes as nodes": {func(s *snapshot.Snapshot) {
			for range 4 {
				s.Changed(0)
			}
		}, false},
		"one more": {func(s *snapshot.Snapshot) {
			for range 5 {
				s.Changed(0)
			}
		}, true},
		"many, of which the log knows the last": {func(s *snapshot.Snapshot) {
			for range 3 * snapshot.MaxChanges {
				s.Changed(1)
			}
		}, true},
		"the pod's image on another node": {func(s *snapshot.Snapshot) {
			s.SetNode(schedulertest.TestNode("node-00002", schedulertest.NodeImage("pause:latest", 50<<20)))
		}, true},
		"another image": {func(s *snapshot.Snapshot) {
			s.SetNode(schedulertest.TestNode("node-00002", schedulertest.NodeImage("other:1", 50<<20)))
		}, false},
		"a node more, among which the image is worth less": {func(s *snapshot.Snapshot) { s.SetNode(schedulertest.TestNode("e")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshottest.New(t, append(schedulertest.TestNodes(3), schedulertest.TestNode("d", schedulertest.NodeImage("pause:latest", 900<<20))))
			info := snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("1")))
			x, _ := tableFor(s, info, worldProfile)
			before := x.historyStart
			test.change(s)
			if again, _ := tableFor(s, info, worldProfile); again != x {
				t.Fatal("another table")
			}
			if filled := x.historyStart != before && len(x.history) == 0; filled != test.filled {
				t.Errorf("filled anew: %v", filled)
			}
			sameTable(t, s, x, info)
		})
	}
}

// What a table was can be told for so many changes, and no longer.
func TestTableHistory(t *testing.T) {
	s := snapshottest.New(t, schedulertest.TestNodes(2))
	info := snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("1")))
	x, _ := tableFor(s, info, worldProfile)
	if _, ok := x.restore(x.position() + 1); ok {
		t.Error("the future is told")
	}
	first := x.position()
	was := slices.Clone(x.cells)
	flip := func(i int) {
		n := schedulertest.TestNode("node-00000")
		if i%2 == 0 {
			schedulertest.Cordoned(n)
		}
		s.SetNode(n)
		x.sync(s)
	}
	for i := range 2*maxHistory - 1 {
		flip(i)
	}
	if got, ok := x.restore(first); !ok || !slices.Equal(got, was) {
		t.Errorf("restored %v, %v", got, ok)
	}
	for i := range 10 {
		flip(i + 1)
	}
	if _, ok := x.restore(first); ok || len(x.history) > 2*maxHistory {
		t.Errorf("what was long ago is told, from %d changes", len(x.history))
	}
	if got, ok := x.restore(x.position() - maxHistory/2); !ok || len(got) != 2 {
		t.Error("what was a while ago is not told")
	}
	// A cell that comes out as it was is no change.
	before := x.position()
	s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("q", schedulertest.OnNode("node-00001"))))
	s.DeletePod("q")
	x.sync(s)
	if x.position() != before {
		t.Errorf("%d changes more", x.position()-before)
	}
}
