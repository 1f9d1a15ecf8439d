package match

import (
	"strings"

	"skiff/internal/apiserver/admission"
)

// Index finds the webhooks or policies whose rules can match a write, by operation and name of the resource. Group, version and subresource
// are left to Match: an equivalent resource can have others.
type Index[T any] struct {
	byResource map[indexKey][]T
	// others are those for resources that no rule names, by operation.
	others map[admission.Operation][]T
}

type indexKey struct {
	operation admission.Operation
	resource  string
}

var operations = []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect}

// NewIndex makes an index of items in their order.
func NewIndex[T any](items []T, matcher func(T) *Matcher) *Index[T] {
	named := map[string]bool{}
	for _, item := range items {
		for _, rule := range matcher(item).rules {
			for _, text := range rule.Resources {
				if name, _, _ := strings.Cut(text, "/"); name != "*" {
					named[name] = true
				}
			}
		}
	}
	index := &Index[T]{byResource: map[indexKey][]T{}, others: map[admission.Operation][]T{}}
	for _, item := range items {
		for _, operation := range operations {
			names, all := matcher(item).resources(operation)
			if all {
				index.others[operation] = append(index.others[operation], item)
				names = named
			}
			for name := range names {
				key := indexKey{operation, name}
				index.byResource[key] = append(index.byResource[key], item)
			}
		}
	}
	return index
}

// resources are the names of the resources for which a rule has the operation. all: a rule is for all resources.
func (m *Matcher) resources(operation admission.Operation) (names map[string]bool, all bool) {
	if len(m.rules) == 0 {
		return nil, m.allWithoutRules
	}
	names = map[string]bool{}
	for i := range m.rules {
		if !matchesOperation(m.rules[i].Operations, operation) {
			continue
		}
		for _, text := range m.rules[i].Resources {
			name, _, _ := strings.Cut(text, "/")
			if name == "*" {
				return nil, true
			}
			names[name] = true
		}
	}
	return names, false
}

// Candidates are the items whose rules can match the write, in order.
func (x *Index[T]) Candidates(a *admission.Attributes) []T {
	if items, ok := x.byResource[indexKey{a.Operation, a.Resource.Resource}]; ok {
		return items
	}
	return x.others[a.Operation]
}
