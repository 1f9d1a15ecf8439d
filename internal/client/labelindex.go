package client

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// labelIndex indexes objects by namespace and label.
const labelIndex = "label"

// EnsureLabelIndex lets List with a selector read only objects with a label that the selector requires, instead of all objects of the
// namespace, or of a cluster-scoped type. Call it before Run.
func (i Informer[T]) EnsureLabelIndex() error {
	return i.EnsureIndex(labelIndex, func(obj T) []string {
		values := make([]string, 0, len(obj.GetLabels()))
		for key, value := range obj.GetLabels() {
			values = append(values, LabelIndexValue(obj.GetNamespace(), key, value))
		}
		return values
	})
}

// LabelIndexValue is the value of a label in a namespace as indexes have it.
func LabelIndexValue(namespace, key, value string) string { return namespace + "/" + key + "=" + value }

// RequiredLabel returns a label that every object has that the selector matches, or false if there is none. Of several, it returns the
// one with the longest value, which is usually the one that fewest objects have.
func RequiredLabel(selector labels.Selector) (key, value string, ok bool) {
	if selector == nil {
		return "", "", false
	}
	requirements, _ := selector.Requirements()
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
		default:
			continue
		}
		if values := r.ValuesUnsorted(); len(values) == 1 && (!ok || len(values[0]) > len(value)) {
			key, value, ok = r.Key(), values[0], true
		}
	}
	return key, value, ok
}
