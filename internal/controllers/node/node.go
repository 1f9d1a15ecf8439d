// Package node contains the controllers of nodes: node lifecycle, taint-based eviction, the allocation of pod CIDRs, and the TTL
// controller.
package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// nodeCondition returns the condition of a type, or nil.
func nodeCondition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// readiness is the status of the Ready condition, "" when there is none.
func readiness(node *corev1.Node) corev1.ConditionStatus {
	if c := nodeCondition(node, corev1.NodeReady); c != nil {
		return c.Status
	}
	return ""
}

// setPodCondition returns the conditions with one replaced or added, and whether they changed. The transition time changes only
// with the status.
func setPodCondition(conditions []corev1.PodCondition, c corev1.PodCondition) ([]corev1.PodCondition, bool) {
	i := slices.IndexFunc(conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type })
	if i < 0 {
		return append(slices.Clone(conditions), c), true
	}
	old := conditions[i]
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
		return conditions, false
	}
	changed := slices.Clone(conditions)
	c.LastProbeTime = old.LastProbeTime
	changed[i] = c
	return changed, true
}
