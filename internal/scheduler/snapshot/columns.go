package snapshot

import (
	"slices"
)

// NoValue is the value of a node that does not have the label.
const NoValue int32 = -1

// LabelColumn holds one label of all nodes. Values are numbers, so that rules compare and count instead of hashing strings.
type LabelColumn struct {
	Key     string
	Of      []int32 // by node: number of the value, or none
	Values  []string
	Numbers map[string]int32
	// Shared is set while a record holds of as well.
	Shared bool
}

// Share returns the column as it is now: it is copied before it changes.
func (c *LabelColumn) Share() []int32 {
	c.Shared = true
	return c.Of
}

func (c *LabelColumn) Set(node int32, value string, has bool) {
	for int(node) >= len(c.Of) {
		c.Of = append(c.Of, NoValue)
	}
	n := NoValue
	if has {
		known := false
		if n, known = c.Numbers[value]; !known {
			n = int32(len(c.Values))
			c.Numbers[value] = n
			c.Values = append(c.Values, value)
		}
	}
	if c.Of[node] == n {
		return
	}
	if c.Shared {
		c.Of, c.Shared = slices.Clone(c.Of), false
	}
	c.Of[node] = n
}

// LabelColumn returns the column of a label, filling it when it is asked for the first time.
func (s *Snapshot) LabelColumn(key string) *LabelColumn {
	if c := s.LabelColumns[key]; c != nil {
		return c
	}
	c := &LabelColumn{Key: key, Of: make([]int32, len(s.NodeInfos)), Numbers: map[string]int32{}}
	s.LabelColumns[key] = c
	for i := range s.NodeInfos {
		c.Of[i] = NoValue
		if node := s.NodeInfos[i].Node; node != nil {
			value, has := node.Labels[key]
			c.Set(int32(i), value, has)
		}
	}
	return c
}
