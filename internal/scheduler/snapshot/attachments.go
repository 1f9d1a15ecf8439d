package snapshot

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
)

// AttachedVolume identifies a volume by its CSI driver and the driver's volume handle.
type AttachedVolume struct{ Driver, Handle string }

// AttachableVolumes returns the volumes a pod needs attached. A missing claim is an error for a new pod; for a running pod it is skipped.
// In-tree volumes are included when migrated is set: on nodes that have a CSINode.
func (s *Snapshot) AttachableVolumes(pod *corev1.Pod, isNew, migrated bool) (map[AttachedVolume]bool, error) {
	all := map[AttachedVolume]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(pod, v)
		case migrated && IsMigratedInline(v):
			a, err := MigratedInlineVolume(v, pod.Namespace)
			if err != nil {
				return nil, err
			}
			all[a] = true
			continue
		default:
			continue
		}
		claim := s.Volumes.Claim(pod.Namespace, name)
		if claim == nil {
			if isNew {
				return nil, fmt.Errorf("looking up PVC %s/%s: %w", pod.Namespace, name, ClaimNotFound(name))
			}
			continue
		}
		if v.Ephemeral != nil {
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return nil, err
			}
		}
		if a, ok := s.volumeOfClaim(claim, migrated); ok {
			all[a] = true
		}
	}
	return all, nil
}

func (s *Snapshot) volumeOfClaim(claim *corev1.PersistentVolumeClaim, migrated bool) (AttachedVolume, bool) {
	if pv := s.Volumes.Volume(claim.Spec.VolumeName); pv != nil {
		switch {
		case pv.Spec.CSI != nil:
			return AttachedVolume{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle}, pv.Spec.CSI.Driver != "" && pv.Spec.CSI.VolumeHandle != ""
		case migrated:
			return MigratedVolume(pv)
		}
		return AttachedVolume{}, false
	}
	// The volume is not provisioned yet: it will be a new one of the class's driver.
	class := s.Volumes.Classes[volume.GetPersistentVolumeClaimClass(claim)]
	if class == nil || class.Provisioner == "" {
		return AttachedVolume{}, false
	}
	driver, counts := MigratedProvisioner(class.Provisioner)
	if !counts || driver != class.Provisioner && !migrated {
		return AttachedVolume{}, false
	}
	return AttachedVolume{driver, "\x00" + ObjectKey(claim)}, true
}

// AttachedAt returns the CSI volumes that VolumeAttachments attach to a node.
func (v *volumeObjects) AttachedAt(node string) map[AttachedVolume]bool {
	all := map[AttachedVolume]bool{}
	for _, a := range v.attachedTo[node] {
		if a.Spec.Attacher == "" || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if pv := v.Volume(*a.Spec.Source.PersistentVolumeName); pv != nil && pv.Spec.CSI != nil {
			all[AttachedVolume{a.Spec.Attacher, pv.Spec.CSI.VolumeHandle}] = true
		}
	}
	return all
}
