package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/nodedeclaredfeatures"

	"skiff/internal/scheduler/snapshot"
)

// nodeDeclaredFeatures filters nodes whose kubelet does not declare a feature that the pod needs.
type nodeDeclaredFeatures struct{}

func (nodeDeclaredFeatures) Name() string { return NodeDeclaredFeaturesName }

var featuresMissing = Refuse(NodeDeclaredFeaturesName, true, "node(s) didn't match Pod's required features")

func (nodeDeclaredFeatures) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	features := nodedeclaredfeatures.DefaultFramework
	needed, err := snapshot.RequiredFeatures(p.Pod)
	if err != nil {
		return Filter{}, &Refusal{Plugin: NodeDeclaredFeaturesName, Err: err}
	}
	if needed.IsEmpty() {
		return Filter{}, nil
	}
	// Pods with the same PodInfo.LocalKey may need different features.
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		match, err := features.MatchNode(needed, s.NodeInfos[node].Node)
		if err != nil {
			return &Refusal{Plugin: NodeDeclaredFeaturesName, Err: err}
		}
		if !match.IsMatch {
			return featuresMissing
		}
		return nil
	}}, nil
}

func (nodeDeclaredFeatures) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: NodeResource, Action: Add | UpdateNodeFeature, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			before := asNode(old)
			return before == nil || !slices.Equal(before.Status.DeclaredFeatures, asNode(now).Status.DeclaredFeatures)
		}},
		{Resource: TargetPod, Action: Update, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			before, errBefore := snapshot.RequiredFeatures(asPod(old))
			after, errAfter := snapshot.RequiredFeatures(asPod(now))
			return errBefore != nil || errAfter != nil || !after.Equal(before)
		}},
	}
}
