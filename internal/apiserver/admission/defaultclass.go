package admission

import (
	"cmp"
	"slices"

	"skiff/internal/kind"
)

// newestDefault is the default class: the newest of several, then the first by name.
func newestDefault[T kind.Object](classes []T, isDefault func(annotations map[string]string) bool) (found T, ok bool) {
	defaults := slices.DeleteFunc(slices.Clone(classes), func(class T) bool { return !isDefault(class.GetAnnotations()) })
	if len(defaults) == 0 {
		return found, false
	}
	return slices.MinFunc(defaults, func(a, b T) int {
		return cmp.Or(b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
	}), true
}
