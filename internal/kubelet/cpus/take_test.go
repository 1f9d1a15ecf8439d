package cpus

import (
	"fmt"
	"testing"

	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/topology"
)

// host makes a topology of sockets, each with NUMA nodes, each with cores, each with threads. The threads of a core are adjacent.
func host(sockets, nodesPerSocket, coresPerNode, threads int) *topology.Topology {
	cpus, nodes := map[int]topology.CPU{}, []topology.NUMANode{}
	id := 0
	for s := range sockets {
		for n := range nodesPerSocket {
			node := s*nodesPerSocket + n
			nodes = append(nodes, topology.NUMANode{ID: node})
			for range coresPerNode {
				core := id
				for range threads {
					// Two cores share an uncore cache.
					cpus[id] = topology.CPU{NUMANode: node, Socket: s, Core: core, UncoreCache: core / threads / 2}
					id++
				}
			}
		}
	}
	return topology.New(cpus, nodes)
}

func parse(t *testing.T, text string) cpuset.CPUSet {
	t.Helper()
	set, err := cpuset.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestTake(t *testing.T) {
	for _, row := range []struct {
		name    string
		host    *topology.Topology
		free    string
		number  int
		options StaticOptions
		want    string
	}{
		{name: "none", host: host(1, 1, 4, 2), free: "0-7", want: ""},
		{name: "a thread of a core that is not whole", host: host(1, 1, 4, 2), free: "0-2,4-7", number: 1, want: "2"},
		{name: "a whole core", host: host(1, 1, 4, 2), free: "1-7", number: 2, want: "2-3"},
		{name: "a whole core and a thread", host: host(1, 1, 4, 2), free: "1-7", number: 3, want: "1-3"},
		{name: "a whole socket", host: host(2, 1, 2, 2), free: "1-7", number: 4, want: "4-7"},
		{name: "the socket with fewer free CPUs", host: host(2, 1, 2, 2), free: "0-6", number: 2, want: "4-5"},
		{name: "a whole NUMA node of a socket", host: host(2, 2, 2, 1), free: "1-7", number: 2, want: "2-3"},
		{name: "NUMA nodes of several sockets", host: host(4, 1, 2, 1), free: "0-7", number: 5, want: "0-4"},
		{name: "from different cores", host: host(1, 1, 4, 2), free: "0-7", number: 3, options: StaticOptions{DistributeAcrossCores: true}, want: "0-2"},
		{name: "an uncore cache", host: host(1, 1, 6, 2), free: "1-11", number: 4, options: StaticOptions{PreferAlignByUncoreCache: true}, want: "4-7"},
		{name: "part of an uncore cache", host: host(1, 1, 6, 2), free: "1-11", number: 3, options: StaticOptions{PreferAlignByUncoreCache: true}, want: "1-3"},
		{name: "without regard to uncore caches", host: host(1, 1, 6, 2), free: "2-11", number: 4, want: "2-5"},
		{name: "distributed", host: host(2, 1, 4, 1), free: "0-7", number: 6, options: StaticOptions{DistributeAcrossNUMA: true}, want: "0-2,4-6"},
		{name: "distributed with a remainder", host: host(2, 1, 4, 1), free: "0-7", number: 5, options: StaticOptions{DistributeAcrossNUMA: true}, want: "0-2,4-5"},
		{name: "distributed in whole cores", host: host(2, 1, 4, 2), free: "0-15", number: 10, options: StaticOptions{DistributeAcrossNUMA: true, FullPhysicalCPUs: true}, want: "0-5,8-11"},
		{name: "distributed to the NUMA node with more free CPUs", host: host(2, 1, 4, 1), free: "1-7", number: 2, options: StaticOptions{DistributeAcrossNUMA: true}, want: "4-5"},
		{name: "not distributed because one suffices", host: host(2, 1, 4, 1), free: "0-7", number: 4, options: StaticOptions{DistributeAcrossNUMA: true}, want: "0-3"},
		{
			name: "distributed over one socket", host: host(2, 2, 2, 1), free: "0-7", number: 3,
			options: StaticOptions{DistributeAcrossNUMA: true, AlignBySocket: true}, want: "0-2",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := &static{StaticOptions: row.options, host: row.host}
			got, err := p.take(parse(t, row.free), row.number)
			if err != nil || got.String() != row.want {
				t.Errorf("took %q, error %v, want %q", got, err, row.want)
			}
		})
	}
	p := &static{host: host(1, 1, 2, 1)}
	if _, err := p.take(cpuset.New(0), 2); err == nil || err.Error() != "not enough cpus available to satisfy request: requested=2, available=1" {
		t.Errorf("error %v", err)
	}
}

// TestTakeAny takes every number of CPUs from every kind of host with every option: always as many as requested, and only free ones.
func TestTakeAny(t *testing.T) {
	hosts := []*topology.Topology{host(1, 1, 4, 1), host(1, 1, 4, 2), host(2, 1, 3, 2), host(2, 2, 2, 2), host(4, 1, 2, 2), hybrid()}
	options := []StaticOptions{
		{}, {FullPhysicalCPUs: true}, {DistributeAcrossNUMA: true}, {DistributeAcrossNUMA: true, FullPhysicalCPUs: true}, {DistributeAcrossNUMA: true, AlignBySocket: true},
		{DistributeAcrossNUMA: true, AlignBySocket: true, FullPhysicalCPUs: true}, {DistributeAcrossCores: true}, {PreferAlignByUncoreCache: true},
	}
	for h, host := range hosts {
		for o, option := range options {
			p := &static{StaticOptions: option, host: host}
			for _, free := range []cpuset.CPUSet{host.AllCPUs(), host.AllCPUs().Difference(cpuset.New(0)), host.AllCPUs().Difference(cpuset.New(1, 2, 5))} {
				for number := range free.Size() + 1 {
					got, err := p.take(free, number)
					if err != nil || got.Size() != number || !got.IsSubsetOf(free) {
						t.Errorf("host %d, options %d: took %q for %d of %q, error %v", h, o, got, number, free, err)
					}
				}
			}
		}
	}
}

// hybrid is a host with two cores of two threads and four of one.
func hybrid() *topology.Topology {
	cpus := map[int]topology.CPU{0: {Core: 0}, 1: {Core: 0}, 2: {Core: 2}, 3: {Core: 2}}
	for id := 4; id < 8; id++ {
		cpus[id] = topology.CPU{Core: id}
	}
	return topology.New(cpus, []topology.NUMANode{{}})
}

func TestCombinations(t *testing.T) {
	var all []string
	combinations([]int{1, 2, 3, 4}, 3, func(c []int) bool {
		all = append(all, fmt.Sprint(c))
		return len(all) < 3
	})
	if got := fmt.Sprint(all); got != "[[1 2 3] [1 2 4] [1 3 4]]" {
		t.Errorf("combinations %s", got)
	}
}
