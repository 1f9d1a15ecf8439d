package cpus

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/topology"
)

// level is a level of the topology: it returns the ID of what a CPU is on.
type level func(topology.CPU) int

func numaNode(c topology.CPU) int    { return c.NUMANode }
func socket(c topology.CPU) int      { return c.Socket }
func core(c topology.CPU) int        { return c.Core }
func uncoreCache(c topology.CPU) int { return c.UncoreCache }

// taker takes CPUs from a set of free ones.
type taker struct {
	host   *topology.Topology
	free   map[int]topology.CPU
	needed int
	taken  []int
	// nodes and sockets are the levels down to NUMA nodes and to sockets. One of them contains the other.
	nodes, sockets []level
}

func newTaker(host *topology.Topology, free cpuset.CPUSet, needed int) *taker {
	t := &taker{host: host, free: map[int]topology.CPU{}, needed: needed, nodes: []level{socket, numaNode}, sockets: []level{socket}}
	if host.Sockets >= len(host.NUMANodesWithCPUs()) {
		t.nodes, t.sockets = []level{numaNode}, []level{numaNode, socket}
	}
	for _, id := range free.UnsortedList() {
		if c, ok := host.CPUs[id]; ok {
			t.free[id] = c
		}
	}
	return t
}

// cores are the levels down to cores.
func (t *taker) cores() []level {
	if len(t.nodes) > len(t.sockets) {
		return []level{socket, numaNode, core}
	}
	return []level{numaNode, socket, core}
}

// sorted returns the IDs of what the free CPUs are on at the last of the levels. What has fewer free CPUs comes first, then what has the lower
// ID; what is on the same NUMA node, socket and so on is adjacent.
func (t *taker) sorted(levels []level) []int {
	counts := make([]map[int]int, len(levels))
	for i, l := range levels {
		counts[i] = count(t.free, l)
	}
	cpus := make([]int, 0, len(t.free))
	for id := range t.free {
		cpus = append(cpus, id)
	}
	slices.SortFunc(cpus, func(a, b int) int {
		for i, l := range levels {
			x, y := l(t.free[a]), l(t.free[b])
			if order := cmp.Or(cmp.Compare(counts[i][x], counts[i][y]), cmp.Compare(x, y)); order != 0 {
				return order
			}
		}
		return cmp.Compare(a, b)
	})
	last := levels[len(levels)-1]
	ids := make([]int, 0, len(cpus))
	for _, id := range cpus {
		ids = append(ids, last(t.free[id]))
	}
	return slices.Compact(ids)
}

// sortedCPUs returns the free CPUs in the order of the levels; those that are on the same, by ID.
func (t *taker) sortedCPUs(levels []level) []int {
	position := map[int]int{}
	for i, id := range t.sorted(levels) {
		position[id] = i
	}
	last := levels[len(levels)-1]
	cpus := make([]int, 0, len(t.free))
	for id := range t.free {
		cpus = append(cpus, id)
	}
	slices.SortFunc(cpus, func(a, b int) int {
		return cmp.Or(cmp.Compare(position[last(t.free[a])], position[last(t.free[b])]), cmp.Compare(a, b))
	})
	return cpus
}

// count counts CPUs by what they are on.
func count(cpus map[int]topology.CPU, l level) map[int]int {
	counts := map[int]int{}
	for _, c := range cpus {
		counts[l(c)]++
	}
	return counts
}

// on returns the CPUs of a set that are on one of the IDs, sorted.
func on(cpus map[int]topology.CPU, l level, ids ...int) []int {
	wanted := make(map[int]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	var found []int
	for id, c := range cpus {
		if wanted[l(c)] {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

func (t *taker) take(cpus ...int) {
	for _, id := range cpus {
		delete(t.free, id)
	}
	t.taken = append(t.taken, cpus...)
	t.needed -= len(cpus)
}

// takeWhole takes whole NUMA nodes, sockets, uncore caches or cores as long as at least as many CPUs are needed. size is the number of free
// CPUs that make one of them free.
func (t *taker) takeWhole(levels []level, size func(id int) int) {
	last := levels[len(levels)-1]
	free := count(t.free, last)
	for _, id := range t.sorted(levels) {
		if all := free[id]; all == size(id) && t.needed >= all && all > 0 {
			t.take(on(t.free, last, id)...)
		}
	}
}

// takePacked takes CPUs from as few NUMA nodes, sockets, uncore caches and cores as possible: whole ones first, and then what fits into those with
// the fewest free CPUs.
func takePacked(host *topology.Topology, free cpuset.CPUSet, needed int, o StaticOptions) (cpuset.CPUSet, error) {
	t := newTaker(host, free, needed)
	if needed < 1 {
		return cpuset.New(), nil
	}
	if needed > len(t.free) {
		return cpuset.New(), notEnough(needed, free)
	}
	t.takeWholeNodesAndSockets()
	if o.PreferAlignByUncoreCache {
		t.takeFromUncoreCaches()
	}
	order := t.sockets
	if !o.DistributeAcrossCores {
		order = t.cores()
		t.takeWhole(order, func(int) int { return host.CPUsPerCore() })
	}
	if t.needed > 0 {
		t.take(t.sortedCPUs(order)[:t.needed]...)
	}
	return cpuset.New(t.taken...), nil
}

// takeWholeNodesAndSockets takes whole NUMA nodes and sockets, the larger ones first.
func (t *taker) takeWholeNodesAndSockets() {
	sizes := count(t.host.CPUs, numaNode)
	takeNodes := func() { t.takeWhole(t.nodes, func(id int) int { return sizes[id] }) }
	takeSockets := func() { t.takeWhole(t.sockets, func(int) int { return t.host.CPUsPerSocket() }) }
	if len(t.nodes) > len(t.sockets) {
		takeSockets()
		takeNodes()
		return
	}
	takeNodes()
	takeSockets()
}

func notEnough(needed int, free cpuset.CPUSet) error {
	return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", needed, free.Size())
}

// takeFromUncoreCaches takes whole uncore caches, and then what is still needed from one of them, if one has as many free CPUs.
func (t *taker) takeFromUncoreCaches() {
	levels := append(slices.Clone(t.nodes), uncoreCache)
	sizes := count(t.host.CPUs, uncoreCache)
	for _, id := range t.sorted(levels) {
		if t.needed >= t.host.CPUsPerUncoreCache() {
			t.takeWhole(levels, func(id int) int { return sizes[id] })
		}
		if t.needed < 1 {
			return
		}
		if t.takePartOfUncoreCache(id); t.needed < 1 {
			return
		}
	}
}

// takePartOfUncoreCache takes all CPUs that are still needed from the first cores of an uncore cache, or none.
func (t *taker) takePartOfUncoreCache(id int) {
	perCore := t.host.CPUsPerCore()
	if perCore == 0 {
		return
	}
	cores := map[int]bool{}
	var order []int
	for _, c := range t.free {
		if c.UncoreCache == id && !cores[c.Core] {
			cores[c.Core] = true
			order = append(order, c.Core)
		}
	}
	slices.Sort(order)
	cpus := on(t.free, core, order[:min(len(order), (t.needed+perCore-1)/perCore)]...)
	if t.needed%2 != 0 && perCore > 1 && len(cpus) > t.needed {
		cpus = cpus[:len(cpus)-1] // of the last core one CPU is needed
	}
	if len(cpus) == t.needed {
		t.take(cpus...)
	}
}

// errAccounting is a bug: a combination of NUMA nodes was chosen that does not have the CPUs.
var errAccounting = errors.New("accounting error, not enough CPUs allocated")
