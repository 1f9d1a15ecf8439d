package snapshot

import (
	"slices"
)

// NoValue is the value of a node that does not have the label.
const NoValue int32 = -1

// LabelColumn holds one label of all nodes. Values are numbered, so that plugins compare integers instead of hashing strings.
type LabelColumn struct {
	Key          string
	ValueOf      []int32 // by node: number of the value, or NoValue
	Values       []string
	ValueNumbers map[string]int32
	// Shared is set when a decision record refers to ValueOf too: it is then copied before the next write.
	Shared bool
}

// Share returns the values as they are now; later writes go to a copy.
func (c *LabelColumn) Share() []int32 {
	c.Shared = true
	return c.ValueOf
}

// Set stores a node's value, or NoValue if the node does not have the label.
func (c *LabelColumn) Set(node int32, value string, has bool) {
	for int(node) >= len(c.ValueOf) {
		c.ValueOf = append(c.ValueOf, NoValue)
	}
	n := NoValue
	if has {
		known := false
		if n, known = c.ValueNumbers[value]; !known {
			n = int32(len(c.Values))
			c.ValueNumbers[value] = n
			c.Values = append(c.Values, value)
		}
	}
	if c.ValueOf[node] == n {
		return
	}
	if c.Shared {
		c.ValueOf, c.Shared = slices.Clone(c.ValueOf), false
	}
	c.ValueOf[node] = n
}

// LabelColumn returns the column of a label, filling it on first use.
func (s *Snapshot) LabelColumn(key string) *LabelColumn {
	if c := s.LabelColumns[key]; c != nil {
		return c
	}
	c := &LabelColumn{Key: key, ValueOf: make([]int32, len(s.NodeInfos)), ValueNumbers: map[string]int32{}}
	s.LabelColumns[key] = c
	for i := range s.NodeInfos {
		c.ValueOf[i] = NoValue
		if node := s.NodeInfos[i].Node; node != nil {
			value, has := node.Labels[key]
			c.Set(int32(i), value, has)
		}
	}
	return c
}
