package plugins

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/scheduler/snapshot"
)

// volumeZone filters nodes outside the zones and regions in the labels of a pod's volumes.
type volumeZone struct{}

func (volumeZone) Name() string { return VolumeZoneName }

var zoneMismatch = Refuse(VolumeZoneName, true, "node(s) had no available volume zone")

// zoneLabels are the zone and region labels; the first two are the deprecated names of the others.
var zoneLabels = []string{corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

var newZoneLabel = map[string]string{
	corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

// zoneRequirement is a zone or region label of a volume and its allowed values.
type zoneRequirement struct {
	key    string
	values []string
}

func (d zoneRequirement) equal(other zoneRequirement) bool {
	return d.key == other.key && slices.Equal(d.values, other.values)
}

func (volumeZone) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	if !p.HasVolumes {
		return Filter{}, nil
	}
	var requirements []zoneRequirement
	for i := range p.Pod.Spec.Volumes {
		source := p.Pod.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		more, refusal := zoneRequirementsOf(s, p.Pod.Namespace, source.ClaimName)
		if refusal != nil {
			return Filter{}, refusal
		}
		requirements = append(requirements, more...)
	}
	if len(requirements) == 0 {
		return Filter{}, nil
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		set := s.NodeInfos[node].Node.Labels
		if !slices.ContainsFunc(zoneLabels, func(key string) bool { _, has := set[key]; return has }) {
			return nil
		}
		for _, d := range requirements {
			value, has := set[d.key]
			if !has {
				value, has = set[newZoneLabel[d.key]]
			}
			if !has || !slices.Contains(d.values, value) {
				return zoneMismatch
			}
		}
		return nil
	}}, nil
}

func zoneRequirementsOf(s *snapshot.Snapshot, namespace, claimName string) ([]zoneRequirement, *Refusal) {
	claim := s.Volumes.Claim(namespace, claimName)
	if claim == nil {
		return nil, Refuse(VolumeZoneName, true, snapshot.ClaimNotFound(claimName).Error())
	}
	if claim.Spec.VolumeName == "" {
		name := volume.GetPersistentVolumeClaimClass(claim)
		if name == "" {
			return nil, Refuse(VolumeZoneName, true, "PersistentVolumeClaim had no pv name and storageClass name")
		}
		class := s.Volumes.Classes[name]
		switch {
		case class == nil:
			return nil, Refuse(VolumeZoneName, true, apierrors.NewNotFound(storagev1.Resource("storageclass"), name).Error())
		case class.VolumeBindingMode == nil:
			return nil, Refuse(VolumeZoneName, true, fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", name))
		case *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
			return nil, nil
		}
		return nil, Refuse(VolumeZoneName, true, "PersistentVolume had no name")
	}
	pv := s.Volumes.Volume(claim.Spec.VolumeName)
	if pv == nil {
		return nil, Refuse(VolumeZoneName, true, apierrors.NewNotFound(corev1.Resource("persistentvolume"), claim.Spec.VolumeName).Error())
	}
	return volumeZoneRequirements(pv), nil
}

func volumeZoneRequirements(pv *corev1.PersistentVolume) (requirements []zoneRequirement) {
	for _, key := range zoneLabels {
		value, has := pv.Labels[key]
		if !has {
			continue
		}
		var values []string
		for _, zone := range strings.Split(value, "__") {
			values = append(values, strings.TrimSpace(zone))
		}
		slices.Sort(values)
		// A list with an empty element is ignored.
		if !slices.Contains(values, "") {
			requirements = append(requirements, zoneRequirement{key: key, values: slices.Compact(values)})
		}
	}
	return requirements
}

func (volumeZone) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: StorageClassResource, Action: Add, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, _, now any) bool {
			mode := now.(*storagev1.StorageClass).VolumeBindingMode
			return mode != nil && *mode == storagev1.VolumeBindingWaitForFirstConsumer
		}},
		{Resource: NodeResource, Action: Add | UpdateNodeLabel},
		{Resource: PersistentVolumeClaim, Action: Add | Update, Helps: referencedClaimHint},
		{Resource: PersistentVolumeResource, Action: Add | Update, Helps: func(_ *snapshot.Snapshot, _ *corev1.Pod, old, now any) bool {
			before, had := old.(*corev1.PersistentVolume)
			return !had || !slices.EqualFunc(volumeZoneRequirements(before), volumeZoneRequirements(now.(*corev1.PersistentVolume)), zoneRequirement.equal)
		}},
	}
}
