package snapshot

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
)

// A fork is equal to its original, and neither sees what happens to the other afterwards.
func TestFork(t *testing.T) {
	for seed := range uint64(5) {
		random := schedulertest.NewRandomObjects(seed)
		s := NewSnapshot()
		for i := range 8 {
			s.SetNode(random.RandomNode(fmt.Sprint("n", i)))
		}
		for i := range 40 {
			p := random.RandomPod()
			p.Spec.NodeName = fmt.Sprint("n", i%9) // one node does not exist
			s.SetPod(infoOf(t, p))
		}
		for i := range 3 {
			s.Assume(infoOf(t, random.RandomPod()), fmt.Sprint("n", i))
			p := random.RandomPod()
			s.Nominate(infoOf(t, p), p.UID, fmt.Sprint("n", i))
		}
		s.SetObject(schedulertest.StorageClaim("c"))
		s.SetNamespace(&corev1.Namespace{})
		s.DeleteNode("n3")
		before := s.Dump()
		fork := s.Fork().Snapshot()
		// Counters and columns are made when they are needed; with the same ones both say the same.
		if again := s.Dump(); again != before {
			t.Fatalf("seed %d: forking changed the original from\n%s\nto\n%s", seed, before, again)
		}
		probe(t, s)
		probe(t, fork)
		if got, want := fork.Dump(), s.Dump(); got != want {
			t.Fatalf("seed %d: the fork is\n%s\nthe original\n%s", seed, got, want)
		}
		before = s.Dump()
		for _, p := range fork.PodEntries {
			fork.RemovePod(p)
		}
		fork.SetNode(random.RandomNode("n1"))
		fork.DeleteNode("n2")
		fork.DeleteObject(schedulertest.StorageClaim("c"))
		fork.Assume(infoOf(t, random.RandomPod()), "n0")
		if after := s.Dump(); after != before {
			t.Fatalf("seed %d: changes of the fork changed the original from\n%s\nto\n%s", seed, before, after)
		}
		probe(t, fork)
		before = fork.Dump()
		for _, p := range s.PodEntries {
			s.RemovePod(p)
		}
		s.SetNode(random.RandomNode("n5"))
		if after := fork.Dump(); after != before {
			t.Fatalf("seed %d: changes of the original changed the fork from\n%s\nto\n%s", seed, before, after)
		}
	}
}

// A simulation is undone whatever happens in it.
func TestSimulateUndoesOnPanic(t *testing.T) {
	s := cluster(t, []*corev1.Node{schedulertest.TestNode("a")}, schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1")), schedulertest.TestPod("q", schedulertest.OnNode("a")))
	before, placement := s.Dump(), s.LastPlacement[0]
	func() {
		defer func() { _ = recover() }()
		s.Simulate(func(sim *Simulation) {
			p, q := s.PodEntries["p"], s.PodEntries["q"]
			sim.Remove(p)
			sim.Remove(q)
			sim.Add(q)
			sim.Add(&PodEntry{Info: infoOf(t, schedulertest.TestPod("new")), Node: 0})
			panic("a plugin")
		})
	}()
	if after := s.Dump(); after != before || s.LastPlacement[0] != placement || s.simulating {
		t.Errorf("after the panic\n%s\nwant\n%s", after, before)
	}
}

// BenchmarkFork measures what a query costs: the first step with the scheduler's lock held, and the second without.
func BenchmarkFork(b *testing.B) {
	const nodes, pods = 5000, 50000
	s := cluster(b, schedulertest.BenchNodes(nodes))
	for i := range pods {
		s.Assume(infoOf(b, schedulertest.BenchLoads[i%len(schedulertest.BenchLoads)].Pod(i)), fmt.Sprintf("node-%05d", i%nodes))
	}
	b.Run("locked", func(b *testing.B) {
		for range b.N {
			s.Fork()
		}
	})
	b.Run("whole", func(b *testing.B) {
		for range b.N {
			s.Fork().Snapshot()
		}
	})
}
