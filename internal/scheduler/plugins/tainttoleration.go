package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

// taintToleration filters nodes with untolerated taints, and prefers nodes with fewer untolerated PreferNoSchedule taints.
type taintToleration struct{}

func (taintToleration) Name() string { return TaintTolerationName }

var untoleratedTaint = Refuse(TaintTolerationName, true, "node(s) had untolerated taint(s)")

func (taintToleration) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	t := &snapshot.TaintMatcher{Snapshot: s, Tolerations: p.Pod.Spec.Tolerations}
	return Filter{Check: func(node int32) *Refusal {
		if s.NodeTaintSets[node] != 0 && t.ResultFor(node).Untolerated != nil {
			return untoleratedTaint
		}
		return nil
	}}, nil
}

func (taintToleration) Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer {
	t := &snapshot.TaintMatcher{Snapshot: s, Tolerations: p.Pod.Spec.Tolerations}
	return Scorer{Normalization: LowerIsBetter, Score: func(node int32) int64 {
		if s.NodeTaintSets[node] == 0 {
			return 0
		}
		return t.ResultFor(node).PreferNoSchedule
	}}
}

func (taintToleration) Hints() []QueueingHint {
	refused := func(n *corev1.Node, pod *corev1.Pod) bool {
		return n == nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return snapshot.PreventsScheduling(&t) && !snapshot.Tolerates(pod.Spec.Tolerations, &t)
		})
	}
	return []QueueingHint{
		{Resource: NodeResource, Action: Add | UpdateNodeTaint, Helps: func(_ *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
			return refused(asNode(old), pod) && !refused(asNode(now), pod)
		}},
		{Resource: TargetPod, Action: UpdatePodToleration},
	}
}
