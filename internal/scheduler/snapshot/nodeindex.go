package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// nodeIndex finds, among many items that are available on some nodes, those that may be on a node, by one label value that they require of it.
// A volume of each node in a cluster is then compared with one node, not with all.
type nodeIndex[T any] struct {
	items []T
	// everywhere are the items that require no particular value of a label, byLabel the others. Numbers are indexes into items.
	everywhere []int
	byLabel    map[nodeLabel][]int
	keys       map[string]bool // of byLabel
}

type nodeLabel struct{ key, value string }

// requirement is that a label has one of some values.
type requirement struct {
	key    string
	values []string
}

// addEverywhere adds an item that may be on any node.
func (x *nodeIndex[T]) addEverywhere(item T) {
	x.everywhere = append(x.everywhere, len(x.items))
	x.items = append(x.items, item)
}

// add adds an item that is only on nodes that meet one of the requirements.
func (x *nodeIndex[T]) add(item T, anyOf ...requirement) {
	if x.byLabel == nil {
		x.byLabel, x.keys = map[nodeLabel][]int{}, map[string]bool{}
	}
	for _, r := range anyOf {
		x.keys[r.key] = true
		for _, value := range r.values {
			label := nodeLabel{r.key, value}
			x.byLabel[label] = append(x.byLabel[label], len(x.items))
		}
	}
	x.items = append(x.items, item)
}

// on returns the items that may be on a node with the labels, in the order in which they were added.
func (x *nodeIndex[T]) on(set map[string]string) []T {
	numbers := slices.Clone(x.everywhere)
	for key := range x.keys {
		if value, has := set[key]; has {
			numbers = append(numbers, x.byLabel[nodeLabel{key, value}]...)
		}
	}
	slices.Sort(numbers)
	found := make([]T, 0, len(numbers))
	for _, n := range slices.Compact(numbers) {
		found = append(found, x.items[n])
	}
	return found
}

// requirementsOf returns for each term of a node affinity one of the requirements that nodes must meet, or false if a term has none that
// names values.
func requirementsOf(affinity *corev1.VolumeNodeAffinity) (anyOf []requirement, ok bool) {
	if affinity == nil || affinity.Required == nil {
		return nil, false
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		var rarest *requirement
		for _, e := range term.MatchExpressions {
			if e.Operator == corev1.NodeSelectorOpIn && (rarest == nil || len(e.Values) < len(rarest.values)) {
				rarest = &requirement{e.Key, e.Values}
			}
		}
		switch {
		case rarest != nil:
			anyOf = append(anyOf, *rarest)
		case len(term.MatchExpressions)+len(term.MatchFields) > 0: // an empty term matches no node
			return nil, false
		}
	}
	return anyOf, true
}

// requirementOf returns one of the requirements that nodes must meet for a selector to match, or false if none names values.
func requirementOf(selector labels.Selector) (rarest requirement, ok bool) {
	all, _ := selector.Requirements()
	for i := range all {
		switch all[i].Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := all[i].ValuesUnsorted(); !ok || len(values) < len(rarest.values) {
				rarest, ok = requirement{all[i].Key(), values}, true
			}
		}
	}
	return rarest, ok
}
