package alignment

import "slices"

// Hint is a set of NUMA nodes from which a request for a resource can be satisfied. A preferred hint has as few NUMA nodes as the host allows.
type Hint struct {
	// Nodes is empty if the request can be satisfied from any NUMA node.
	Nodes     Mask
	Preferred bool
}

// Hints are the hints of one provider, by resource. A provider without hints, and a resource whose hints are nil, has no preference. An empty,
// non-nil list says that the request cannot be satisfied.
type Hints map[string][]Hint

// merge returns the best hint that all providers can satisfy, and whether the policy admits a pod with it.
func (p *Policy) merge(all []Hints) (Hint, bool) {
	if p.Name == None {
		return Hint{}, true
	}
	resources := byResource(all)
	if p.Name == SingleNUMANode {
		resources = singleNUMANode(resources)
	}
	best := p.best(resources)
	if p.Name == SingleNUMANode && best.Nodes == p.all {
		best.Nodes = 0
	}
	return best, p.Name == BestEffort || best.Preferred
}

// byResource returns the hints of each resource. One without preference has the hint that any NUMA node is preferred.
func byResource(all []Hints) [][]Hint {
	var resources [][]Hint
	for _, hints := range all {
		if len(hints) == 0 {
			resources = append(resources, []Hint{{Preferred: true}})
		}
		for _, list := range hints {
			switch {
			case list == nil:
				list = []Hint{{Preferred: true}}
			case len(list) == 0:
				list = []Hint{{Preferred: false}}
			}
			resources = append(resources, list)
		}
	}
	return resources
}

// singleNUMANode keeps the preferred hints with at most one NUMA node.
func singleNUMANode(resources [][]Hint) [][]Hint {
	kept := make([][]Hint, 0, len(resources))
	for _, list := range resources {
		kept = append(kept, slices.DeleteFunc(slices.Clone(list), func(h Hint) bool { return h.Nodes.Count() > 1 || !h.Preferred }))
	}
	return kept
}

// best returns the best of the hints that combine one hint of each resource. A combination has the NUMA nodes that all of its hints have, and
// is preferred if all of its hints are, and have the same NUMA nodes.
//
// The number of combinations is exponential in the number of resources, but there are only as many different results as there are masks,
// twice. So the resources are added one after the other to the set of results.
func (p *Policy) best(resources [][]Hint) Hint {
	results := map[Hint]bool{{Preferred: true}: true}
	for _, list := range resources {
		next := make(map[Hint]bool, len(results))
		for result := range results {
			for _, h := range list {
				if combined, ok := combine(result, h); ok {
					next[combined] = true
				}
			}
		}
		results = next
	}
	narrowest := widestMinimum(resources)
	best, found := Hint{Nodes: p.all}, false
	for result := range results {
		if result.Nodes == 0 {
			result.Nodes = p.all
		}
		if result.Nodes &= p.all; result.Nodes == 0 {
			continue
		}
		if !found || p.isBetter(result, best, narrowest) {
			best, found = result, true
		}
	}
	return best
}

// combine adds a hint to a combination. It returns false if they have no NUMA node in common.
func combine(result, h Hint) (Hint, bool) {
	combined := Hint{Nodes: result.Nodes, Preferred: result.Preferred && h.Preferred}
	switch {
	case h.Nodes == 0:
		return combined, true
	case result.Nodes == 0:
		combined.Nodes = h.Nodes
		return combined, true
	}
	combined.Nodes = result.Nodes & h.Nodes
	combined.Preferred = combined.Preferred && result.Nodes == h.Nodes
	return combined, combined.Nodes != 0
}

// widestMinimum returns the number of NUMA nodes that the resource which needs the most needs at least.
func widestMinimum(resources [][]Hint) int {
	widest := 0
	for _, list := range resources {
		least := 0
		for _, h := range list {
			if count := h.Nodes.Count(); count > 0 && (least == 0 || count < least) {
				least = count
			}
		}
		widest = max(widest, least)
	}
	return widest
}

// isBetter reports whether a hint is better than another. Preferred ones are; of these the narrower one is. Of two hints that are not
// preferred, the one with wanted NUMA nodes is better, then the one with the most of those with fewer, then the one with the fewest.
func (p *Policy) isBetter(h, other Hint, wanted int) bool {
	if h.Preferred != other.Preferred {
		return h.Preferred
	}
	if !h.Preferred {
		count, otherCount := h.Nodes.Count(), other.Nodes.Count()
		switch {
		case count == otherCount:
		case count <= wanted && otherCount <= wanted:
			return count > otherCount
		default:
			return count < otherCount
		}
	}
	return p.isTighter(h.Nodes, other.Nodes)
}

// isTighter reports whether a mask is narrower than another or, if the policy prefers the closest NUMA nodes, has as many with smaller distances.
func (p *Policy) isTighter(m, other Mask) bool {
	if p.Name != SingleNUMANode && p.Options.PreferClosestNUMANodes && m.Count() == other.Count() {
		if a, b := p.averageDistance(m), p.averageDistance(other); a != b {
			return a < b
		}
	}
	return CompareWidth(m, other) < 0
}

// averageDistance is the average of the distances between all NUMA nodes of a mask.
func (p *Policy) averageDistance(m Mask) float64 {
	nodes := m.Nodes()
	sum := 0.0
	for _, a := range nodes {
		for _, b := range nodes {
			if distances := p.distances[a]; b < len(distances) {
				sum += float64(distances[b])
			}
		}
	}
	return sum / float64(max(len(nodes)*len(nodes), 1))
}
