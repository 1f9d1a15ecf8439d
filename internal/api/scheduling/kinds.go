// Package scheduling has the row of PriorityClass, which says how much a pod matters, and the two classes that every
// cluster has from its first moment.
package scheduling

import "skiff/internal/kind"

// Kinds are the kinds of group scheduling.k8s.io.
func Kinds() []*kind.Kind {
	return []*kind.Kind{PriorityClass}
}
