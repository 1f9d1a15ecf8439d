// Package autoscaling has the row of HorizontalPodAutoscaler: stored as autoscaling/v2, served as v2 and as v1. What
// v1 has no words for travels in annotations.
package autoscaling

import "skiff/internal/kind"

// Kinds are the kinds of group autoscaling.
func Kinds() []*kind.Kind {
	return []*kind.Kind{HorizontalPodAutoscaler}
}
