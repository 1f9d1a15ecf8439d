package alignment

import (
	"cmp"
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// maxNUMANodes is the number of NUMA nodes that a Mask can hold.
const maxNUMANodes = 64

// Mask is a set of NUMA nodes, a bit for each ID. The empty mask means that a hint has no affinity to NUMA nodes.
type Mask uint64

// NewMask makes a mask of NUMA nodes. IDs of 64 and above are left out.
func NewMask(nodes ...int) Mask {
	m := Mask(0)
	for _, node := range nodes {
		if node >= 0 && node < maxNUMANodes {
			m |= 1 << node
		}
	}
	return m
}

// Has reports whether a NUMA node is in the mask.
func (m Mask) Has(node int) bool { return m&NewMask(node) != 0 }

// Count is the number of NUMA nodes in the mask.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// Nodes are the IDs of the NUMA nodes in the mask, sorted.
func (m Mask) Nodes() []int {
	nodes := make([]int, 0, m.Count())
	for rest := uint64(m); rest != 0; rest &= rest - 1 {
		nodes = append(nodes, bits.TrailingZeros64(rest))
	}
	return nodes
}

// String formats the mask as the kernel formats lists of NUMA nodes, such as "0,1".
func (m Mask) String() string {
	texts := []string{}
	for _, node := range m.Nodes() {
		texts = append(texts, strconv.Itoa(node))
	}
	return strings.Join(texts, ",")
}

// CompareWidth orders masks: those with fewer NUMA nodes first, of those with as many the ones with lower NUMA nodes.
func CompareWidth(a, b Mask) int { return cmp.Or(cmp.Compare(a.Count(), b.Count()), cmp.Compare(a, b)) }

// Subsets yields all masks of at least one of the NUMA nodes, those with fewer NUMA nodes first. There are 2^len(nodes)-1, which
// the maximum number of NUMA nodes of a Policy bounds.
func Subsets(nodes []int) iter.Seq[Mask] {
	return func(yield func(Mask) bool) {
		var extend func(mask Mask, rest []int, size int) bool
		extend = func(mask Mask, rest []int, size int) bool {
			if size == 0 {
				return yield(mask)
			}
			for i, node := range rest {
				if !extend(mask|NewMask(node), rest[i+1:], size-1) {
					return false
				}
			}
			return true
		}
		for size := 1; size <= len(nodes); size++ {
			if !extend(0, nodes, size) {
				return
			}
		}
	}
}
