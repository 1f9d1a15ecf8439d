package client

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"skiff/internal/kind"
)

// selectorIndex indexes objects with a selector by a label that it requires.
const selectorIndex = "selector"

// Selectors finds the objects of type T whose selectors match the labels of another object.
type Selectors[T kind.Object] struct {
	informer Informer[T]
	selector func(obj T) (labels.Selector, error)
}

// SelectorsOf returns the Selectors of type T and adds an index to the shared informer. An object for which selector returns an error
// selects nothing.
func SelectorsOf[T kind.Object](informers *Informers, selector func(obj T) (labels.Selector, error)) (Selectors[T], error) {
	informer := InformerFor[T](informers)
	err := informer.EnsureIndex(selectorIndex, func(obj T) []string {
		labelSelector, err := selector(obj)
		if err != nil {
			return nil
		}
		if key, value, ok := RequiredLabel(labelSelector); ok {
			return []string{LabelIndexValue(obj.GetNamespace(), key, value)}
		}
		return []string{withoutRequiredLabel(obj.GetNamespace())}
	})
	if err != nil {
		return Selectors[T]{}, fmt.Errorf("index %T by selector: %w", *new(T), err)
	}
	return Selectors[T]{informer, selector}, nil
}

// withoutRequiredLabel is the value in the selector index of objects whose selectors require no particular label.
func withoutRequiredLabel(namespace string) string { return namespace + "/" }

// Matching returns the objects in the namespace of obj whose selectors match its labels.
func (s Selectors[T]) Matching(obj metav1.Object) (matching []T) {
	find := func(value string) {
		// The index exists: SelectorsOf made it.
		candidates, _ := s.informer.ByIndex(selectorIndex, value)
		for _, candidate := range candidates {
			if selector, err := s.selector(candidate); err == nil && selector.Matches(labels.Set(obj.GetLabels())) {
				matching = append(matching, candidate)
			}
		}
	}
	find(withoutRequiredLabel(obj.GetNamespace()))
	for key, value := range obj.GetLabels() {
		find(LabelIndexValue(obj.GetNamespace(), key, value))
	}
	return matching
}
