package memory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/topology"
)

// Block is an amount of memory, or of huge pages, from a set of NUMA nodes.
type Block struct {
	NUMANodes []int               `json:"numaAffinity"`
	Type      corev1.ResourceName `json:"type"`
	Size      uint64              `json:"size"`
}

// memoryTable is the memory of one type of one NUMA node, in bytes.
type memoryTable struct {
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// nodeState is the state of one NUMA node.
type nodeState struct {
	// NumberOfAssignments is the number of blocks from this NUMA node.
	NumberOfAssignments int                                  `json:"numberOfAssignments"`
	MemoryMap           map[corev1.ResourceName]*memoryTable `json:"memoryMap"`
	// Cells are the NUMA nodes that this one is in a group with, including itself. A NUMA node has either blocks of its own or those of one group.
	Cells []int `json:"cells"`
}

// hostState is the state of all NUMA nodes, by ID.
type hostState map[int]*nodeState

// assignments are the blocks of containers, by pod and container.
type assignments map[string]map[string][]Block

// requests are amounts in bytes by type.
type requests map[corev1.ResourceName]uint64

// sorted returns the types in order.
func (r requests) sorted() []corev1.ResourceName { return slices.Sorted(maps.Keys(r)) }

func isMemory(name corev1.ResourceName) bool {
	return name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// newHostState is the state of a host without assignments. reserved is the memory that is reserved for the system, by NUMA node.
func newHostState(nodes []topology.NUMANode, reserved map[int]requests) (hostState, error) {
	s := hostState{}
	for _, node := range nodes {
		state := &nodeState{MemoryMap: map[corev1.ResourceName]*memoryTable{}, Cells: []int{node.ID}}
		inHugePages := uint64(0)
		add := func(name corev1.ResourceName, total, used uint64) error {
			held := reserved[node.ID][name]
			if held+used > total {
				return fmt.Errorf("[memorymanager] NUMA node %d has %d bytes of %s, less than the %d that are reserved and the %d of huge pages", node.ID, total, name, held, used)
			}
			allocatable := total - held - used
			state.MemoryMap[name] = &memoryTable{Total: total, SystemReserved: held, Allocatable: allocatable, Free: allocatable}
			return nil
		}
		for _, pages := range node.HugePages {
			size := resource.NewQuantity(int64(pages.PageSize), resource.BinarySI)
			if err := add(corev1.ResourceName(corev1.ResourceHugePagesPrefix+size.String()), pages.PageSize*pages.Count, 0); err != nil {
				return nil, err
			}
			inHugePages += pages.PageSize * pages.Count
		}
		if err := add(corev1.ResourceMemory, node.Memory, inHugePages); err != nil {
			return nil, err
		}
		s[node.ID] = state
	}
	return s, nil
}

// free is the free memory of a type of some NUMA nodes, allocatable that which is not reserved for the system.
func (s hostState) free(nodes []int, name corev1.ResourceName) (free, allocatable uint64) {
	for _, node := range nodes {
		if t := s[node].MemoryMap[name]; t != nil {
			free += t.Free
			allocatable += t.Allocatable
		}
	}
	return free, allocatable
}

// assign records a block, of which size is not reused. It is taken from the first NUMA nodes that have some free.
func (s hostState) assign(b Block, size uint64) {
	for _, node := range b.NUMANodes {
		state := s[node]
		state.NumberOfAssignments++
		state.Cells = slices.Clone(b.NUMANodes)
		if t := state.MemoryMap[b.Type]; t != nil {
			taken := min(t.Free, size)
			t.Free -= taken
			t.Reserved += taken
			size -= taken
		}
	}
}

// release records that blocks are free again.
func (s hostState) release(blocks []Block) {
	for _, b := range blocks {
		size := b.Size
		for _, node := range b.NUMANodes {
			state := s[node]
			if state == nil {
				continue
			}
			if state.NumberOfAssignments--; state.NumberOfAssignments == 0 {
				state.Cells = []int{node}
			}
			if t := state.MemoryMap[b.Type]; t != nil {
				freed := min(t.Reserved, size)
				t.Free += freed
				t.Reserved -= freed
				size -= freed
			}
		}
	}
}

// canGroup reports whether memory may be taken from NUMA nodes together: none of them has blocks of its own, or of another group.
func (s hostState) canGroup(nodes []int) bool {
	if len(nodes) == 1 {
		return true
	}
	for _, node := range nodes {
		if state := s[node]; state.NumberOfAssignments > 0 && (len(state.Cells) == 1 || !equalSets(state.Cells, nodes)) {
			return false
		}
	}
	return true
}

func equalSets(a, b []int) bool { return alignment.NewMask(a...) == alignment.NewMask(b...) }

// hints returns from which NUMA nodes all types of a request can be taken. The hints of all types are the same. reusable is the memory of init
// containers that can be reused, by NUMA nodes.
func (s hostState) hints(r requests, reusable map[alignment.Mask]requests) []alignment.Hint {
	nodes := slices.Sorted(maps.Keys(s))
	least := len(nodes)
	var hints []alignment.Hint
	for mask := range alignment.Subsets(nodes) {
		members := mask.Nodes()
		fits, isFree := true, true
		for name, size := range r {
			free, allocatable := s.free(members, name)
			fits = fits && allocatable >= size
			isFree = isFree && free+reusable[mask][name] >= size
		}
		if !fits {
			continue
		}
		least = min(least, len(members))
		inGroup := len(members) == 1 && len(s[members[0]].Cells) > 1
		if isFree && !inGroup && s.canGroup(members) {
			hints = append(hints, alignment.Hint{Nodes: mask})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Count() == least
	}
	return hints
}

// best returns the preferred hint with the fewest NUMA nodes, else the one with the fewest.
func best(hints []alignment.Hint) alignment.Hint {
	return slices.MinFunc(hints, func(a, b alignment.Hint) int {
		if a.Preferred != b.Preferred {
			if a.Preferred {
				return -1
			}
			return 1
		}
		return alignment.CompareWidth(a.Nodes, b.Nodes)
	})
}

// satisfies reports whether NUMA nodes have enough free memory.
func (s hostState) satisfies(nodes alignment.Mask, r requests) bool {
	for name, size := range r {
		if free, _ := s.free(nodes.Nodes(), name); free < size {
			return false
		}
	}
	return true
}

// check returns an error unless the state is that of a host with these assignments. initial is the state without any. In which order containers
// were assigned decides what is free on each NUMA node, and to which group a node counts that is in several. So sums over all nodes that groups
// connect are compared, and a node may count to any of its groups.
func (s hostState) check(initial hostState, all assignments) error {
	numbers := map[int]int{}
	var groups []alignment.Mask
	var blocks []Block
	for uid, containers := range all {
		for name, assigned := range containers {
			for _, b := range assigned {
				for _, node := range b.NUMANodes {
					switch {
					case initial[node] == nil:
						return fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses the NUMA that does not exist", uid, name)
					case initial[node].MemoryMap[b.Type] == nil:
						return fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses memory resource that does not exist", uid, name)
					}
					numbers[node]++
				}
				if group := alignment.NewMask(b.NUMANodes...); !slices.Contains(groups, group) {
					groups = append(groups, group)
				}
				blocks = append(blocks, b)
			}
		}
	}
	if len(s) != len(initial) {
		return errOtherState
	}
	for id, node := range s {
		first := initial[id]
		if first == nil || node.NumberOfAssignments != numbers[id] || len(node.MemoryMap) != len(first.MemoryMap) {
			return errOtherState
		}
		own := alignment.NewMask(id)
		if cells := alignment.NewMask(node.Cells...); numbers[id] == 0 && cells != own || numbers[id] > 0 && (cells&own == 0 || !slices.Contains(groups, cells)) {
			return errOtherState
		}
		nodes := connected(groups, own)
		for name, t := range node.MemoryMap {
			u := first.MemoryMap[name]
			if u == nil || t.Total != u.Total || t.SystemReserved != u.SystemReserved || t.Allocatable != u.Allocatable {
				return errOtherState
			}
			want := initial.sums(nodes.Nodes(), name)
			for _, b := range blocks {
				if b.Type == name && alignment.NewMask(b.NUMANodes...)&nodes != 0 {
					want.Free -= b.Size
					want.Reserved += b.Size
				}
			}
			if s.sums(nodes.Nodes(), name) != want {
				return errOtherState
			}
		}
	}
	return nil
}

// connected returns the NUMA nodes that are in groups with the given ones, or with those, and so on.
func connected(groups []alignment.Mask, nodes alignment.Mask) alignment.Mask {
	for {
		more := nodes
		for _, group := range groups {
			if group&more != 0 {
				more |= group
			}
		}
		if more == nodes {
			return nodes
		}
		nodes = more
	}
}

// sums are the sums of a type of memory over NUMA nodes.
func (s hostState) sums(nodes []int, name corev1.ResourceName) (sum memoryTable) {
	for _, node := range nodes {
		if state := s[node]; state != nil && state.MemoryMap[name] != nil {
			sum.Free += state.MemoryMap[name].Free
			sum.Reserved += state.MemoryMap[name].Reserved
		}
	}
	return sum
}

// blocks returns the blocks of a container; nil if it has none.
func (a assignments) blocks(uid types.UID, name string) []Block { return a[string(uid)][name] }

func (a assignments) set(uid types.UID, name string, blocks []Block) {
	if a[string(uid)] == nil {
		a[string(uid)] = map[string][]Block{}
	}
	a[string(uid)][name] = blocks
}
