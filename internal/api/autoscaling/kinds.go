// Package autoscaling has HorizontalPodAutoscaler: stored as autoscaling/v2, served as v2 and as v1. Annotations hold
// what v1 has no fields for.
package autoscaling

import "skiff/internal/kind"

// Kinds are the kinds of group autoscaling.
func Kinds() []*kind.Kind {
	return []*kind.Kind{HorizontalPodAutoscaler}
}
