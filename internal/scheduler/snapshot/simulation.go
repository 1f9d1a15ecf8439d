package snapshot

import (
	"slices"
)

// Simulation adds and removes pods hypothetically. Its changes are undone when Simulate returns.
type Simulation struct {
	snapshot       *Snapshot
	added, removed []*PodEntry
	// placements are the last placements of the nodes touched, before the simulation.
	placements []nodePlacement
}

type nodePlacement struct {
	node int32
	last uint32
}

// Simulate calls move, which may add and remove pods. All changes are undone when Simulate returns, even if move panics. They are not
// logged in Changes and do not count as placements.
func (s *Snapshot) Simulate(move func(*Simulation)) {
	sim := &Simulation{snapshot: s}
	placements, simulating := s.Placements, s.simulating
	s.simulating = true
	defer func() {
		for _, p := range slices.Backward(sim.added) {
			s.RemovePod(p)
		}
		for _, p := range slices.Backward(sim.removed) {
			s.AddPod(p)
		}
		for _, n := range sim.placements {
			s.LastPlacement[n.node] = n.last
		}
		s.Placements, s.simulating = placements, simulating
	}()
	move(sim)
}

// Add puts a pod on its node.
func (x *Simulation) Add(p *PodEntry) {
	x.touch(p.Node)
	if i := slices.Index(x.removed, p); i >= 0 {
		x.removed = slices.Delete(x.removed, i, i+1)
	} else {
		x.added = append(x.added, p)
	}
	x.snapshot.AddPod(p)
}

// Remove takes a pod off its node.
func (x *Simulation) Remove(p *PodEntry) {
	x.touch(p.Node)
	if i := slices.Index(x.added, p); i >= 0 {
		x.added = slices.Delete(x.added, i, i+1)
	} else {
		x.removed = append(x.removed, p)
	}
	x.snapshot.RemovePod(p)
}

func (x *Simulation) touch(node int32) {
	if !slices.ContainsFunc(x.placements, func(n nodePlacement) bool { return n.node == node }) {
		x.placements = append(x.placements, nodePlacement{node, x.snapshot.LastPlacement[node]})
	}
}
