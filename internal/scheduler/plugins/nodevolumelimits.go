package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/scheduler/snapshot"
)

// nodeVolumeLimits filters nodes that have reached the attach limit of a CSI driver.
type nodeVolumeLimits struct{}

func (nodeVolumeLimits) Name() string { return NodeVolumeLimitsName }

var maxVolumeCountExceeded = Refuse(NodeVolumeLimitsName, false, "node(s) exceed max volume count")

func (nodeVolumeLimits) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	if !hasAttachableVolumes(p.Pod) {
		return Filter{}, nil
	}
	// VolumeBinding rejects all nodes for a missing claim; here it is a refusal of each node.
	wanted := wantedVolumesOf(s, p.Pod, false)
	migrated := wantedVolumesOf(s, p.Pod, true)
	if wanted.refusal == nil && migrated.refusal == nil && len(migrated.volumes) == 0 {
		return Filter{}, nil
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		onNode := &migrated
		if s.NodeInfos[node].CSINode == nil {
			onNode = &wanted
		}
		if onNode.refusal != nil {
			return onNode.refusal
		}
		return checkLimits(s, node, onNode.volumes)
	}}, nil
}

// wantedVolumes are the volumes a new pod needs attached, or the refusal if they cannot be determined.
type wantedVolumes struct {
	volumes map[snapshot.AttachedVolume]bool
	refusal *Refusal
}

func wantedVolumesOf(s *snapshot.Snapshot, pod *corev1.Pod, migrated bool) wantedVolumes {
	volumes, err := s.AttachableVolumes(pod, true, migrated)
	switch {
	case apierrors.IsNotFound(err):
		return wantedVolumes{refusal: Refuse(NodeVolumeLimitsName, true, err.Error())}
	case err != nil:
		return wantedVolumes{refusal: &Refusal{Plugin: NodeVolumeLimitsName, Err: err}}
	}
	return wantedVolumes{volumes: volumes}
}

// hasAttachableVolumes reports whether a pod has volumes that a CSI driver may have to attach.
func hasAttachableVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || snapshot.IsMigratedInline(&v)
	})
}

func checkLimits(s *snapshot.Snapshot, node int32, wanted map[snapshot.AttachedVolume]bool) *Refusal {
	csi := s.NodeInfos[node].CSINode
	for v := range wanted {
		driver := s.Volumes.Drivers[v.Driver]
		if driver == nil || driver.Spec.PreventPodSchedulingIfMissing == nil || !*driver.Spec.PreventPodSchedulingIfMissing {
			continue
		}
		if csi == nil || !slices.ContainsFunc(csi.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == v.Driver }) {
			return Refuse(NodeVolumeLimitsName, false, v.Driver+" CSI driver is not installed on the node")
		}
	}
	if csi == nil {
		return nil
	}
	limits := map[string]int{}
	for _, d := range csi.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = int(*d.Allocatable.Count)
		}
	}
	if len(limits) == 0 {
		return nil
	}
	attached := map[snapshot.AttachedVolume]bool{}
	for _, p := range s.NodeInfos[node].Pods {
		if !p.Info.HasVolumes {
			continue
		}
		volumes, err := s.AttachableVolumes(p.Info.Pod, false, true)
		if err != nil {
			return &Refusal{Plugin: NodeVolumeLimitsName, Err: err}
		}
		for v := range volumes {
			attached[v] = true
		}
	}
	count, added := map[string]int{}, map[string]bool{}
	for v := range attached {
		count[v.Driver]++
	}
	for v := range wanted {
		if !attached[v] {
			count[v.Driver]++
			added[v.Driver] = true
		}
	}
	// Volumes that are attached but used by no pod of the node count too, even if this pod would use them: they may be detaching.
	for v := range s.Volumes.AttachedAt(s.NodeInfos[node].Name) {
		if !attached[v] {
			count[v.Driver]++
		}
	}
	for driver := range added {
		if limit, limited := limits[driver]; limited && count[driver] > limit {
			return maxVolumeCountExceeded
		}
	}
	return nil
}

func (nodeVolumeLimits) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: CSINodeResource, Action: Add},
		{Resource: CSINodeResource, Action: Update, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			limits := map[string]int32{}
			count := func(d storagev1.CSINodeDriver) int32 {
				if d.Allocatable == nil || d.Allocatable.Count == nil {
					return 0
				}
				return *d.Allocatable.Count
			}
			for _, d := range old.(*storagev1.CSINode).Spec.Drivers {
				limits[d.Name] = count(d)
			}
			return slices.ContainsFunc(now.(*storagev1.CSINode).Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
				before, had := limits[d.Name]
				return !had || count(d) > before
			})
		}},
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, _ any) bool { return hasAttachableVolumes(asPod(old)) }},
		{Resource: PersistentVolumeClaim, Action: Add, Helps: claimHint},
		{Resource: VolumeAttachmentResource, Action: Delete, Helps: detachHint},
	}
}

// detachHint reports whether a deleted VolumeAttachment may let one of the pod's volumes be attached.
func detachHint(_ *snapshot.Snapshot, pod *corev1.Pod, old, _ any) bool {
	detached, _ := old.(*storagev1.VolumeAttachment)
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
		if detached == nil || !snapshot.IsMigratedInline(&v) {
			return false
		}
		a, err := snapshot.MigratedInlineVolume(&v, pod.Namespace)
		return err != nil || a.Driver == detached.Spec.Attacher
	})
}
