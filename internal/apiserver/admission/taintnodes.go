package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// taintNodesByCondition taints every new node as not ready, so that no pod is scheduled to it before it is ready.
type taintNodesByCondition struct{}

func (taintNodesByCondition) Name() string { return "TaintNodesByCondition" }

func (taintNodesByCondition) Handles(a *Attributes) bool {
	return a.Operation == Create && a.isPlain(nodes)
}

func (taintNodesByCondition) Mutate(_ context.Context, a *Attributes) error {
	node, err := objectOf[*corev1.Node](a)
	if err != nil {
		return Forbidden(a, err)
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	for _, t := range node.Spec.Taints {
		if t.MatchTaint(&taint) {
			return nil
		}
	}
	node.Spec.Taints = append(node.Spec.Taints, taint)
	return nil
}
