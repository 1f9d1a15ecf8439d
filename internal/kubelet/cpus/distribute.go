package cpus

import (
	"math"

	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/topology"
)

// distribution is how CPUs are taken from several NUMA nodes: each gives perNode of them, and those of the remainder a group of CPUs each, one after
// the other, until there are enough.
type distribution struct {
	nodes     []int
	perNode   int
	remainder []int
	// balance is the standard deviation of the numbers of CPUs that remain free; the lower, the better.
	balance  float64
	isInOne  bool // all NUMA nodes are in one socket
	possible bool
}

// distributor chooses a distribution of CPUs, which are taken in groups of a size, such as all CPUs of a core.
type distributor struct {
	host          *topology.Topology
	free          map[int]int // by NUMA node
	needed, group int
	alignBySocket bool
	sockets       map[int]map[int]bool // by NUMA node
}

// takeDistributed takes the same number of CPUs from as few NUMA nodes as have enough. If that is not possible, it takes them packed.
func takeDistributed(host *topology.Topology, free cpuset.CPUSet, needed int, o StaticOptions) (cpuset.CPUSet, error) {
	packed := o
	packed.PreferAlignByUncoreCache = false
	group := 1
	if o.FullPhysicalCPUs {
		group = host.CPUsPerCore()
	}
	t := newTaker(host, free, needed)
	switch {
	case needed < 1:
		return cpuset.New(), nil
	case group < 1 || needed%group != 0:
		return takePacked(host, free, needed, packed)
	case needed > len(t.free):
		return cpuset.New(), notEnough(needed, free)
	}
	d := &distributor{host: host, free: count(t.free, numaNode), needed: needed, group: group, alignBySocket: o.AlignBySocket, sockets: map[int]map[int]bool{}}
	for _, c := range host.CPUs {
		if d.sockets[c.NUMANode] == nil {
			d.sockets[c.NUMANode] = map[int]bool{}
		}
		d.sockets[c.NUMANode][c.Socket] = true
	}
	best := d.choose(t.sorted(t.nodes))
	if !best.possible {
		return takePacked(host, free, needed, packed)
	}
	takeFrom := func(node, number int) error {
		cpus, err := takePacked(host, cpuset.New(on(t.free, numaNode, node)...), number, packed)
		t.take(cpus.UnsortedList()...)
		return err
	}
	for _, node := range best.nodes {
		if err := takeFrom(node, best.perNode); err != nil {
			return cpuset.New(), err
		}
	}
	for t.needed > 0 {
		before := t.needed
		for _, node := range best.remainder {
			if t.needed > 0 && count(t.free, numaNode)[node] >= group {
				if err := takeFrom(node, group); err != nil {
					return cpuset.New(), err
				}
			}
		}
		if t.needed == before {
			return cpuset.New(), errAccounting
		}
	}
	return cpuset.New(t.taken...), nil
}

// choose returns the best distribution over as few NUMA nodes as possible.
func (d *distributor) choose(nodes []int) distribution {
	all := len(d.host.NUMANodesWithCPUs())
	groupsPerNode := ((len(d.host.CPUs)-1)/d.group)/all + 1
	groups := (d.needed-1)/d.group + 1
	for size := (groups-1)/groupsPerNode + 1; size <= min(groups, len(nodes)); size++ {
		best := distribution{}
		combinations(nodes, size, func(combination []int) bool {
			candidate := d.evaluate(combination)
			if candidate.possible && d.isBetter(candidate, best) {
				best = candidate
			}
			return !best.possible || best.balance != 0 || d.alignBySocket && !best.isInOne
		})
		if best.possible {
			return best
		}
	}
	return distribution{}
}

func (d *distributor) isBetter(candidate, best distribution) bool {
	if !best.possible {
		return true
	}
	if d.alignBySocket && candidate.isInOne != best.isInOne {
		return candidate.isInOne
	}
	return candidate.balance < best.balance
}

// combinations calls f with all combinations of a number of elements, until it returns false. f must not keep the slice.
func combinations(of []int, size int, f func([]int) bool) {
	chosen := make([]int, 0, size)
	var extend func(rest []int) bool
	extend = func(rest []int) bool {
		if len(chosen) == size {
			return f(chosen)
		}
		for i := 0; i <= len(rest)-(size-len(chosen)); i++ {
			chosen = append(chosen, rest[i])
			if !extend(rest[i+1:]) {
				return false
			}
			chosen = chosen[:len(chosen)-1]
		}
		return true
	}
	extend(of)
}

// evaluate returns the distribution over a combination of NUMA nodes.
func (d *distributor) evaluate(combination []int) distribution {
	result := distribution{perNode: d.needed / len(combination) / d.group * d.group}
	groups := 0
	for _, node := range combination {
		groups += d.free[node] / d.group
		if d.alignBySocket {
			result.perNode = min(result.perNode, d.free[node]/d.group*d.group)
		}
	}
	if groups*d.group < d.needed {
		return result
	}
	left := make(map[int]int, len(d.free))
	for node, number := range d.free {
		left[node] = number
	}
	var candidates []int
	for _, node := range combination {
		if d.free[node] < result.perNode {
			return result
		}
		if left[node] -= result.perNode; left[node] >= d.group {
			candidates = append(candidates, node)
		}
	}
	remainder := d.needed - result.perNode*len(combination)
	if remainder == 0 {
		result.possible, result.balance = true, standardDeviation(left)
	}
	for size := len(candidates); remainder > 0 && size > 0; size-- {
		combinations(candidates, size, func(subset []int) bool {
			if balance, ok := d.balanceAfter(left, subset, remainder); ok && (!result.possible || balance < result.balance) {
				result.possible, result.balance = true, balance
				result.remainder = append([]int(nil), subset...)
			}
			return true
		})
	}
	result.nodes, result.isInOne = append([]int(nil), combination...), d.areInOneSocket(combination)
	return result
}

// balanceAfter returns the balance after the remainder is taken from a subset of NUMA nodes, and whether these have enough groups.
func (d *distributor) balanceAfter(left map[int]int, subset []int, remainder int) (float64, bool) {
	after := make(map[int]int, len(left))
	for node, number := range left {
		after[node] = number
	}
	for remainder > 0 {
		before := remainder
		for _, node := range subset {
			if remainder > 0 && after[node] >= d.group {
				after[node] -= d.group
				remainder -= d.group
			}
		}
		if remainder == before {
			return 0, false
		}
	}
	return standardDeviation(after), true
}

func (d *distributor) areInOneSocket(nodes []int) bool {
	sockets := map[int]bool{}
	for _, node := range nodes {
		for s := range d.sockets[node] {
			sockets[s] = true
		}
	}
	return len(sockets) <= 1
}

// standardDeviation is rounded to three decimals, so that it does not depend on the order of the values.
func standardDeviation(values map[int]int) float64 {
	round := func(x float64) float64 { return math.Round(x*1000) / 1000 }
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	mean := round(sum / float64(len(values)))
	squares := 0.0
	for _, v := range values {
		squares += (float64(v) - mean) * (float64(v) - mean)
	}
	return round(math.Sqrt(squares / float64(len(values))))
}
