package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

// nodeUnschedulable filters nodes with spec.unschedulable, unless the pod tolerates the taint.
type nodeUnschedulable struct{}

func (nodeUnschedulable) Name() string { return NodeUnschedulableName }

var (
	nodeIsUnschedulable = Refuse(NodeUnschedulableName, true, "node(s) were unschedulable")
	taintUnschedulable  = &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
)

func (nodeUnschedulable) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	if snapshot.Tolerates(p.Pod.Spec.Tolerations, taintUnschedulable) {
		return Filter{}, nil
	}
	return Filter{Check: func(node int32) *Refusal {
		if s.Unschedulable[node] {
			return nodeIsUnschedulable
		}
		return nil
	}}, nil
}

func (nodeUnschedulable) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: NodeResource, Action: Add | UpdateNodeTaint, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			before := asNode(old)
			return (before == nil || before.Spec.Unschedulable) && !asNode(now).Spec.Unschedulable
		}},
		{Resource: TargetPod, Action: UpdatePodToleration, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, _, now any) bool {
			return snapshot.Tolerates(asPod(now).Spec.Tolerations, taintUnschedulable)
		}},
	}
}
