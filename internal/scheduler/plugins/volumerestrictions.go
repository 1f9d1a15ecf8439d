package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

// volumeRestrictions filters nodes where another pod uses a disk or ReadWriteOncePod claim that cannot be shared.
type volumeRestrictions struct{}

func (volumeRestrictions) Name() string { return VolumeRestrictionsName }

var (
	diskConflictRefusal   = Refuse(VolumeRestrictionsName, false, "node(s) had no available disk")
	ReadWriteOncePodInUse = Refuse(VolumeRestrictionsName, false, "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
)

func (volumeRestrictions) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	if !p.HasVolumes {
		return Filter{}, nil
	}
	pod := p.Pod
	var disks []*corev1.Volume
	var oncePodClaims []string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if snapshot.NeedsDiskCheck(v) {
			disks = append(disks, v)
		}
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		claim := s.Volumes.Claim(pod.Namespace, name)
		if claim == nil {
			return Filter{}, Refuse(VolumeRestrictionsName, true, snapshot.ClaimNotFound(name).Error())
		}
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			oncePodClaims = append(oncePodClaims, pod.Namespace+"/"+name)
		}
	}
	inUse := func(key string) bool { return s.ClaimUsers[key] > 0 }
	if len(disks) == 0 && !slices.ContainsFunc(oncePodClaims, inUse) {
		return Filter{}, nil
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		for _, disk := range disks {
			if slices.ContainsFunc(s.NodeInfos[node].Pods, func(other *snapshot.PodEntry) bool { return diskConflict(disk, other.Info.Pod) }) {
				return diskConflictRefusal
			}
		}
		if slices.ContainsFunc(oncePodClaims, inUse) {
			return ReadWriteOncePodInUse
		}
		return nil
	}}, nil
}

// diskConflict reports whether a pod uses the same disk in a mode that cannot be shared.
func diskConflict(v *corev1.Volume, pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		o := &pod.Spec.Volumes[i]
		switch {
		case v.GCEPersistentDisk != nil && o.GCEPersistentDisk != nil:
			a, b := v.GCEPersistentDisk, o.GCEPersistentDisk
			if a.PDName == b.PDName && !(a.ReadOnly && b.ReadOnly) {
				return true
			}
		case v.AWSElasticBlockStore != nil && o.AWSElasticBlockStore != nil:
			if v.AWSElasticBlockStore.VolumeID == o.AWSElasticBlockStore.VolumeID {
				return true
			}
		case v.ISCSI != nil && o.ISCSI != nil:
			if v.ISCSI.IQN == o.ISCSI.IQN && !(v.ISCSI.ReadOnly && o.ISCSI.ReadOnly) {
				return true
			}
		case v.RBD != nil && o.RBD != nil:
			a, b := v.RBD, o.RBD
			shared := slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
			if shared && a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage && !(a.ReadOnly && b.ReadOnly) {
				return true
			}
		}
	}
	return false
}

func (volumeRestrictions) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *snapshot.Snapshot, pod *corev1.Pod, old, _ any) bool {
			deleted := asPod(old)
			if deleted.Namespace != pod.Namespace {
				return false
			}
			for i := range pod.Spec.Volumes {
				if v := &pod.Spec.Volumes[i]; snapshot.NeedsDiskCheck(v) && diskConflict(v, deleted) {
					return true
				}
			}
			return slices.ContainsFunc(deleted.Spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && referencesClaim(pod, v.PersistentVolumeClaim.ClaimName)
			})
		}},
		{Resource: NodeResource, Action: Add},
		{Resource: PersistentVolumeClaim, Action: Add, Helps: referencedClaimHint},
	}
}

// referencesClaim reports whether a pod uses a claim by name; claims of ephemeral volumes are ignored.
func referencesClaim(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
	})
}

// referencedClaimHint reports whether the pod uses the changed claim by name, for plugins that ignore ephemeral volumes.
func referencedClaimHint(_ *snapshot.Snapshot, pod *corev1.Pod, _, now any) bool {
	claim, _ := now.(*corev1.PersistentVolumeClaim)
	return claim != nil && claim.Namespace == pod.Namespace && referencesClaim(pod, claim.Name)
}

// claimHint reports whether the pod uses the changed claim.
func claimHint(_ *snapshot.Snapshot, pod *corev1.Pod, _, now any) bool {
	claim, _ := now.(*corev1.PersistentVolumeClaim)
	return snapshot.UsesClaim(pod, claim)
}
