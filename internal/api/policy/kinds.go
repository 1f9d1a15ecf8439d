// Package policy has the row of PodDisruptionBudget, which says how many pods may be taken away at once.
package policy

import "skiff/internal/kind"

// Kinds are the kinds of group policy.
func Kinds() []*kind.Kind {
	return []*kind.Kind{PodDisruptionBudget}
}
