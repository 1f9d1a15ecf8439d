package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/btree"
)

// check verifies the invariants of nodes and returns the entries in order.
func (n *node) check(t *testing.T, root bool) []*Entry {
	t.Helper()
	if n.width() > fanout || n.width() == 0 || (len(n.entries) > 0) == (len(n.children) > 0) {
		t.Fatalf("node with %d entries and %d children", len(n.entries), len(n.children))
	}
	entries := n.entries
	for i, child := range n.children {
		below := child.check(t, false)
		if i > 0 && entries[len(entries)-1].key >= child.low {
			t.Fatalf("child %d begins at %q, after %q", i, child.low, entries[len(entries)-1].key)
		}
		entries = append(entries, below...)
	}
	if root && len(n.children) == 1 {
		t.Fatal("the root has one child")
	}
	if n.size != len(entries) {
		t.Fatalf("size is %d, of %d entries", n.size, len(entries))
	}
	if entries[0].key < n.low {
		t.Fatalf("low is %q, first key is %q", n.low, entries[0].key)
	}
	return entries
}

// model is the expected content of a tree.
type model map[string]*Entry

func (m model) sorted() []*Entry {
	entries := make([]*Entry, 0, len(m))
	for _, entry := range m {
		entries = append(entries, entry)
	}
	slices.SortFunc(entries, func(a, b *Entry) int { return strings.Compare(a.key, b.key) })
	return entries
}

func (m model) compare(t *testing.T, tr tree) {
	t.Helper()
	want := m.sorted()
	if tr.root == nil {
		if len(want) > 0 {
			t.Fatalf("tree is empty, want %d entries", len(want))
		}
		return
	}
	if got := tr.root.check(t, true); !slices.Equal(got, want) {
		t.Fatalf("tree has %d entries that are not the %d of the model", len(got), len(want))
	}
}

func TestTreeAgainstModel(t *testing.T) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 0))
		tr, m := tree{}, model{}
		type kept struct {
			tree tree
			m    []*Entry
		}
		var snapshots []kept
		for step := range 300 {
			e := tr.edit()
			grow := step < 150 // then mostly deletions, until it is empty
			for range random.IntN(60) {
				key := fmt.Sprintf("/registry/%d/%d", random.IntN(5), random.IntN(1000))
				if grow == (random.IntN(10) > 0) {
					entry := &Entry{key: key}
					if old := e.set(entry); old != m[key] {
						t.Fatalf("set replaced %v, want %v", old, m[key])
					}
					m[key] = entry
				} else {
					for k := range m { // any one
						key = k
						break
					}
					if old := e.delete(key); old != m[key] {
						t.Fatalf("delete removed %v, want %v", old, m[key])
					}
					delete(m, key)
				}
			}
			tr = e.done()
			m.compare(t, tr)
			if step%20 == 0 {
				snapshots = append(snapshots, kept{tr, m.sorted()})
			}
		}
		for _, s := range snapshots {
			var got []*Entry
			s.tree.ascend("", func(e *Entry) bool { got = append(got, e); return true })
			if !slices.Equal(got, s.m) {
				t.Fatal("a tree changed after it was made")
			}
		}
	}
}

func TestTreeRanges(t *testing.T) {
	m := model{}
	for i := range 2000 {
		entry := &Entry{key: fmt.Sprintf("/registry/pods/ns%d/%04d", i%7, i)}
		m[entry.key] = entry
	}
	tr := newTree(m.sorted())
	m.compare(t, tr)
	for _, prefix := range []string{"", "/registry/", "/registry/pods/ns3/", "/registry/pods/ns", "/registry/pods/ns6/19", "/a", "/z", "\xff"} {
		for _, from := range []string{"", prefix + "0500", "/registry/pods/ns3/1", "/registry/pods/ns4", "/z"} {
			var want []*Entry
			for _, entry := range m.sorted() {
				if strings.HasPrefix(entry.key, prefix) && entry.key >= from {
					want = append(want, entry)
				}
			}
			s := Snapshot{tree: tr}
			var got []*Entry
			s.Ascend(prefix, from, func(e *Entry) bool { got = append(got, e); return true })
			if !slices.Equal(got, want) {
				t.Errorf("Ascend(%q, %q) yields %d, want %d", prefix, from, len(got), len(want))
			}
			if n := s.LenFrom(prefix, from); n != len(want) {
				t.Errorf("LenFrom(%q, %q) = %d, want %d", prefix, from, n, len(want))
			}
			if from == "" && s.Len(prefix) != len(want) {
				t.Errorf("Len(%q) = %d, want %d", prefix, s.Len(prefix), len(want))
			}
		}
	}
	n := 0
	Snapshot{tree: tr}.Ascend("", "", func(*Entry) bool { n++; return n < 10 })
	if n != 10 {
		t.Errorf("Ascend continued to %d after yield returned false at 10", n)
	}
}

func benchmarkKeys() []string {
	keys := make([]string, 10000)
	for i := range keys {
		keys[i] = fmt.Sprintf("/registry/pods/namespace-%d/deployment-%08x", i%50, rand.Uint32())
	}
	return keys
}

// One write into 10,000 entries plus a new snapshot of them, here and with github.com/google/btree.
func BenchmarkTreeSet(b *testing.B) {
	keys := benchmarkKeys()
	b.Run("tree", func(b *testing.B) {
		tr := tree{}
		for i := range keys {
			e := tr.edit()
			e.set(&Entry{key: keys[i]})
			tr = e.done()
		}
		b.ReportAllocs()
		for i := range b.N {
			e := tr.edit()
			e.set(&Entry{key: keys[i%len(keys)]})
			tr = e.done()
		}
	})
	b.Run("google", func(b *testing.B) {
		tr := btree.NewG(16, func(a, b *Entry) bool { return a.key < b.key })
		for i := range keys {
			tr.ReplaceOrInsert(&Entry{key: keys[i]})
		}
		b.ReportAllocs()
		for i := range b.N {
			tr.ReplaceOrInsert(&Entry{key: keys[i%len(keys)]})
			tr.Clone()
		}
	})
}

// Counting one namespace of 50, which a list needs for remainingItemCount: here, and with github.com/google/btree, which
// must iterate.
func BenchmarkTreeCount(b *testing.B) {
	keys := benchmarkKeys()
	const prefix = "/registry/pods/namespace-7/"
	b.Run("tree", func(b *testing.B) {
		e := tree{}.edit()
		for _, key := range keys {
			e.set(&Entry{key: key})
		}
		tr := e.done()
		for b.Loop() {
			if tr.count(prefix) != len(keys)/50 {
				b.Fatal("wrong count")
			}
		}
	})
	b.Run("google", func(b *testing.B) {
		tr := btree.NewG(16, func(a, b *Entry) bool { return a.key < b.key })
		for _, key := range keys {
			tr.ReplaceOrInsert(&Entry{key: key})
		}
		for b.Loop() {
			n := 0
			tr.AscendRange(&Entry{key: prefix}, &Entry{key: prefixEnd(prefix)}, func(*Entry) bool { n++; return true })
			if n != len(keys)/50 {
				b.Fatal("wrong count")
			}
		}
	})
}

func BenchmarkTreeGet(b *testing.B) {
	keys := benchmarkKeys()
	e := tree{}.edit()
	for _, key := range keys {
		e.set(&Entry{key: key})
	}
	tr := e.done()
	for i := range b.N {
		if tr.get(keys[i%len(keys)]) == nil {
			b.Fatal("lost")
		}
	}
}
