// Package scheduling has PriorityClass, and the two priority classes that every cluster has.
package scheduling

import "skiff/internal/kind"

// Kinds are the kinds of group scheduling.k8s.io.
func Kinds() []*kind.Kind {
	return []*kind.Kind{PriorityClass}
}
