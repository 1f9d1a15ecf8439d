package scheduler

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	versionutil "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	featuretypes "k8s.io/component-helpers/nodedeclaredfeatures/types"

	"skiff/internal/version"
)

const (
	schedulingGatesName      = "SchedulingGates"
	nodeDeclaredFeaturesName = "NodeDeclaredFeatures"
)

// schedulingGates hold a pod back until somebody removes them. The queue asks; no node is looked at.
type schedulingGates struct{}

func (schedulingGates) Name() string { return schedulingGatesName }

func (schedulingGates) Hints() []Hint { return []Hint{{Resource: TargetPod, Action: UpdatePodGates}} }

// gateMessage says what a pod waits for; it is empty for a pod without gates.
func gateMessage(pod *corev1.Pod) string {
	if len(pod.Spec.SchedulingGates) == 0 {
		return ""
	}
	names := make([]string, len(pod.Spec.SchedulingGates))
	for i, gate := range pod.Spec.SchedulingGates {
		names[i] = gate.Name
	}
	return fmt.Sprintf("waiting for scheduling gates: [%s]", strings.Join(names, " "))
}

// nodeDeclaredFeatures keeps pods from nodes whose kubelet does not have a feature they need.
type nodeDeclaredFeatures struct{}

func (nodeDeclaredFeatures) Name() string { return nodeDeclaredFeaturesName }

var (
	refusedFeatures   = refuse(nodeDeclaredFeaturesName, true, "node(s) didn't match Pod's required features")
	kubernetesVersion = versionutil.MustParse(version.Kubernetes)
)

// neededFeatures are what a pod needs of a kubelet beyond what all have.
func neededFeatures(pod *corev1.Pod) (nodedeclaredfeatures.FeatureSet, error) {
	return nodedeclaredfeatures.DefaultFramework.InferForPodScheduling(&featuretypes.PodInfo{Spec: &pod.Spec}, kubernetesVersion)
}

func (nodeDeclaredFeatures) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	features := nodedeclaredfeatures.DefaultFramework
	needed, err := neededFeatures(p.Pod)
	if err != nil {
		return Filter{}, &Refusal{Rule: nodeDeclaredFeaturesName, Err: err}
	}
	if needed.IsEmpty() {
		return Filter{}, nil
	}
	// Pods of one make for the other rules may differ in the features they need.
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		match, err := features.MatchNode(needed, s.nodes[node].object)
		if err != nil {
			return &Refusal{Rule: nodeDeclaredFeaturesName, Err: err}
		}
		if !match.IsMatch {
			return refusedFeatures
		}
		return nil
	}}, nil
}

func (nodeDeclaredFeatures) Hints() []Hint {
	return []Hint{
		{Resource: NodeResource, Action: Add | UpdateNodeFeature, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			before := asNode(old)
			return before == nil || !slices.Equal(before.Status.DeclaredFeatures, asNode(now).Status.DeclaredFeatures)
		}},
		{Resource: TargetPod, Action: Update, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			before, errBefore := neededFeatures(asPod(old))
			after, errAfter := neededFeatures(asPod(now))
			return errBefore != nil || errAfter != nil || !after.Equal(before)
		}},
	}
}
