// Package policy has PodDisruptionBudget.
package policy

import "skiff/internal/kind"

// Kinds are the kinds of group policy.
func Kinds() []*kind.Kind {
	return []*kind.Kind{PodDisruptionBudget}
}
