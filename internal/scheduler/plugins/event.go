package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"skiff/internal/scheduler/snapshot"
)

// Resource is a kind of object whose events may make a pod schedulable.
type Resource string

// The resources of queueing hints. AssignedPod is a pod on a node; TargetPod is the unschedulable pod itself.
const (
	AssignedPod                Resource = "AssignedPod"
	TargetPod                  Resource = "TargetPod"
	NodeResource               Resource = "Node"
	PersistentVolumeResource   Resource = "PersistentVolume"
	PersistentVolumeClaim      Resource = "PersistentVolumeClaim"
	StorageClassResource       Resource = "StorageClass"
	CSINodeResource            Resource = "CSINode"
	CSIDriverResource          Resource = "CSIDriver"
	CSIStorageCapacityResource Resource = "CSIStorageCapacity"
	VolumeAttachmentResource   Resource = "VolumeAttachment"
	ResourceClaimResource      Resource = "ResourceClaim"
	ResourceSliceResource      Resource = "ResourceSlice"
	DeviceClassResource        Resource = "DeviceClass"
	DeviceTaintRuleResource    Resource = "DeviceTaintRule"
)

// Action is a set of event types.
type Action uint32

// The event types. Update is any update.
const (
	Add Action = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabel
	UpdateNodeTaint
	UpdateNodeFeature
	UpdateNodeCondition
	UpdateNodeAnnotation
	UpdatePodLabel
	UpdatePodScaleDown
	UpdatePodToleration
	UpdatePodGates
	UpdatePodClaims
	UpdateOther

	Update = UpdateNodeAllocatable | UpdateNodeLabel | UpdateNodeTaint | UpdateNodeFeature | UpdateNodeCondition | UpdateNodeAnnotation |
		UpdatePodLabel | UpdatePodScaleDown | UpdatePodToleration | UpdatePodGates | UpdatePodClaims | UpdateOther
)

// Event is a change in the cluster.
type Event struct {
	Resource Resource
	Action   Action
	Old, New any
}

// Label is the event's label in metrics, as in upstream.
func (e *Event) Label() string {
	names := map[Action]string{
		Add: "Add", Delete: "Delete", UpdateNodeAllocatable: "UpdateNodeAllocatable", UpdateNodeLabel: "UpdateNodeLabel", UpdateNodeTaint: "UpdateNodeTaint",
		UpdateNodeFeature: "UpdateNodeDeclaredFeature", UpdateNodeCondition: "UpdateNodeCondition", UpdateNodeAnnotation: "UpdateNodeAnnotation", UpdatePodLabel: "UpdatePodLabel", UpdatePodScaleDown: "UpdatePodScaleDown",
		UpdatePodToleration: "UpdatePodToleration", UpdatePodGates: "UpdatePodSchedulingGatesEliminated", UpdatePodClaims: "UpdatePodGeneratedResourceClaim",
	}
	if name := names[e.Action]; name != "" {
		return string(e.Resource) + name
	}
	return string(e.Resource) + "Update"
}

// Split returns one event for each action of an event.
func (e Event) Split() []Event {
	var all []Event
	for rest := e.Action; rest != 0; rest &= rest - 1 {
		part := e
		part.Action = rest & -rest
		all = append(all, part)
	}
	return all
}

// asPod returns nil if an event does not have the object.
func asPod(object any) *corev1.Pod {
	pod, _ := object.(*corev1.Pod)
	return pod
}

func asNode(object any) *corev1.Node {
	node, _ := object.(*corev1.Node)
	return node
}

// NodeUpdateActions returns the actions of a node's update. 0 means that no hint depends on it.
func NodeUpdateActions(old, now *corev1.Node) (a Action) {
	if !equality.Semantic.DeepEqual(old.Status.Allocatable, now.Status.Allocatable) {
		a |= UpdateNodeAllocatable
	}
	if !snapshot.SameLabels(old.Labels, now.Labels) {
		a |= UpdateNodeLabel
	}
	if !slices.EqualFunc(old.Spec.Taints, now.Spec.Taints, snapshot.SameTaint) || old.Spec.Unschedulable && !now.Spec.Unschedulable {
		a |= UpdateNodeTaint
	}
	if !slices.Equal(old.Status.DeclaredFeatures, now.Status.DeclaredFeatures) {
		a |= UpdateNodeFeature
	}
	if !sameConditions(old.Status.Conditions, now.Status.Conditions) {
		a |= UpdateNodeCondition
	}
	if !snapshot.SameLabels(old.Annotations, now.Annotations) {
		a |= UpdateNodeAnnotation
	}
	return a
}

// sameConditions compares the type and status of conditions.
func sameConditions(a, b []corev1.NodeCondition) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(c corev1.NodeCondition) bool {
		return !slices.ContainsFunc(b, func(d corev1.NodeCondition) bool { return c.Type == d.Type && c.Status == d.Status })
	})
}

func amountOf(all []snapshot.Amount, name corev1.ResourceName) int64 {
	if i := slices.IndexFunc(all, func(a snapshot.Amount) bool { return a.Resource == name }); i >= 0 {
		return all[i].Value
	}
	return 0
}

// PodUpdateActions returns the actions of a pod's update.
func PodUpdateActions(old, now *corev1.Pod) (a Action) {
	if !snapshot.SameLabels(old.Labels, now.Labels) {
		a |= UpdatePodLabel
	}
	if len(old.Spec.Tolerations) != len(now.Spec.Tolerations) {
		a |= UpdatePodToleration
	}
	if len(old.Spec.SchedulingGates) > 0 && len(now.Spec.SchedulingGates) == 0 {
		a |= UpdatePodGates
	}
	if !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, now.Status.ResourceClaimStatuses) ||
		!equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, now.Status.ExtendedResourceClaimStatus) {
		a |= UpdatePodClaims
	}
	before, after := snapshot.PodRequests(old, old.Spec.NodeName != ""), snapshot.PodRequests(now, now.Spec.NodeName != "")
	if before.MilliCPU > after.MilliCPU || before.Memory > after.Memory || before.Storage > after.Storage ||
		slices.ContainsFunc(before.Extended, func(b snapshot.Amount) bool { return b.Value > amountOf(after.Extended, b.Resource) }) {
		a |= UpdatePodScaleDown
	}
	if a == 0 {
		a = UpdateOther
	}
	return a
}

// occupiesNode reports whether a pod is on a node or nominated to one.
func occupiesNode(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != ""
}
