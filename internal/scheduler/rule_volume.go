package scheduler

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

const (
	volumeRestrictionsName = "VolumeRestrictions"
	nodeVolumeLimitsName   = "NodeVolumeLimits"
	volumeBindingName      = "VolumeBinding"
	volumeZoneName         = "VolumeZone"
)

// volumeRestrictions keeps pods from nodes where another pod holds a disk they need for themselves.
type volumeRestrictions struct{}

func (volumeRestrictions) Name() string { return volumeRestrictionsName }

var (
	refusedDisk = refuse(volumeRestrictionsName, false, "node(s) had no available disk")
	refusedOnce = refuse(volumeRestrictionsName, false, "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
)

func needsDiskCheck(v *corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

func (volumeRestrictions) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if !p.hasVolumes {
		return Filter{}, nil
	}
	pod := p.Pod
	var disks []*corev1.Volume
	var alone []string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if needsDiskCheck(v) {
			disks = append(disks, v)
		}
		if v.PersistentVolumeClaim == nil {
			continue
		}
		name := v.PersistentVolumeClaim.ClaimName
		claim := s.volumes.claim(pod.Namespace, name)
		if claim == nil {
			return Filter{}, refuse(volumeRestrictionsName, true, claimNotFound(name).Error())
		}
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			alone = append(alone, pod.Namespace+"/"+name)
		}
	}
	inUse := func(key string) bool { return s.claimUsers[key] > 0 }
	if len(disks) == 0 && !slices.ContainsFunc(alone, inUse) {
		return Filter{}, nil
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		for _, disk := range disks {
			if slices.ContainsFunc(s.nodes[node].pods, func(other *podEntry) bool { return diskConflict(disk, other.info.Pod) }) {
				return refusedDisk
			}
		}
		if slices.ContainsFunc(alone, inUse) {
			return refusedOnce
		}
		return nil
	}}, nil
}

// diskConflict reports whether a pod holds a disk so that it cannot be attached again.
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

func (volumeRestrictions) Hints() []Hint {
	return []Hint{
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *Snapshot, pod *corev1.Pod, old, _ any) bool {
			gone := asPod(old)
			if gone.Namespace != pod.Namespace {
				return false
			}
			for i := range pod.Spec.Volumes {
				if v := &pod.Spec.Volumes[i]; needsDiskCheck(v) && diskConflict(v, gone) {
					return true
				}
			}
			return slices.ContainsFunc(gone.Spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && namesClaim(pod, v.PersistentVolumeClaim.ClaimName)
			})
		}},
		{Resource: NodeResource, Action: Add},
		{Resource: PersistentVolumeClaim, Action: Add, Helps: namedClaimHelps},
	}
}

// namesClaim reports whether a pod asks for a claim by its name, and not for one made for the pod.
func namesClaim(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
	})
}

// namedClaimHelps reports whether a claim that changed is one the pod names. Rules that pass over claims made for pods ask this.
func namedClaimHelps(_ *Snapshot, pod *corev1.Pod, _, now any) bool {
	claim, _ := now.(*corev1.PersistentVolumeClaim)
	return claim != nil && claim.Namespace == pod.Namespace && namesClaim(pod, claim.Name)
}

// claimHelps reports whether a claim that changed is one of the pod's.
func claimHelps(_ *Snapshot, pod *corev1.Pod, _, now any) bool {
	claim, _ := now.(*corev1.PersistentVolumeClaim)
	return usesClaim(pod, claim)
}

// nodeVolumeLimits keeps pods from nodes that cannot attach more volumes of a driver.
type nodeVolumeLimits struct{}

func (nodeVolumeLimits) Name() string { return nodeVolumeLimitsName }

var refusedCount = refuse(nodeVolumeLimitsName, false, "node(s) exceed max volume count")

func (nodeVolumeLimits) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if !mayAttach(p.Pod) {
		return Filter{}, nil
	}
	// A claim that is missing is for VolumeBinding to tell of; here it keeps the pod from each node by itself.
	wanted := s.wantedVolumes(p.Pod, false)
	moved := s.wantedVolumes(p.Pod, true)
	if wanted.refusal == nil && moved.refusal == nil && len(moved.volumes) == 0 {
		return Filter{}, nil
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		on := &moved
		if s.nodes[node].csi == nil {
			on = &wanted
		}
		if on.refusal != nil {
			return on.refusal
		}
		return s.checkLimits(node, on.volumes)
	}}, nil
}

// wantedVolumes are what a new pod needs attached, or why that cannot be told.
type wantedVolumes struct {
	volumes map[attachedVolume]bool
	refusal *Refusal
}

func (s *Snapshot) wantedVolumes(pod *corev1.Pod, moved bool) wantedVolumes {
	volumes, err := s.attachable(pod, true, moved)
	switch {
	case apierrors.IsNotFound(err):
		return wantedVolumes{refusal: refuse(nodeVolumeLimitsName, true, err.Error())}
	case err != nil:
		return wantedVolumes{refusal: &Refusal{Rule: nodeVolumeLimitsName, Err: err}}
	}
	return wantedVolumes{volumes: volumes}
}

// mayAttach reports whether a pod has volumes that a driver may have to attach.
func mayAttach(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || movedInline(&v)
	})
}

// attachedVolume is a volume of a driver.
type attachedVolume struct{ driver, handle string }

// attachable are the volumes a pod needs attached. Claims of pods that run already may be gone; those of a new pod must be there.
// Volumes of built-in kinds count where drivers have moved in: on nodes that tell of their drivers.
func (s *Snapshot) attachable(pod *corev1.Pod, isNew, moved bool) (map[attachedVolume]bool, error) {
	all := map[attachedVolume]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(pod, v)
		case moved && movedInline(v):
			a, err := inlineVolume(v, pod.Namespace)
			if err != nil {
				return nil, err
			}
			all[a] = true
			continue
		default:
			continue
		}
		claim := s.volumes.claim(pod.Namespace, name)
		if claim == nil {
			if isNew {
				return nil, fmt.Errorf("looking up PVC %s/%s: %w", pod.Namespace, name, claimNotFound(name))
			}
			continue
		}
		if v.Ephemeral != nil {
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return nil, err
			}
		}
		if a, ok := s.attachedVolume(claim, moved); ok {
			all[a] = true
		}
	}
	return all, nil
}

func (s *Snapshot) attachedVolume(claim *corev1.PersistentVolumeClaim, moved bool) (attachedVolume, bool) {
	if pv := s.volumes.volume(claim.Spec.VolumeName); pv != nil {
		switch {
		case pv.Spec.CSI != nil:
			return attachedVolume{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle}, pv.Spec.CSI.Driver != "" && pv.Spec.CSI.VolumeHandle != ""
		case moved:
			return movedVolume(pv)
		}
		return attachedVolume{}, false
	}
	// The volume is still to be made: it will be a new one of the class's driver.
	class := s.volumes.classes[volume.GetPersistentVolumeClaimClass(claim)]
	if class == nil || class.Provisioner == "" {
		return attachedVolume{}, false
	}
	driver, counts := movedProvisioner(class.Provisioner)
	if !counts || driver != class.Provisioner && !moved {
		return attachedVolume{}, false
	}
	return attachedVolume{driver, "\x00" + keyOf(claim)}, true
}

func (s *Snapshot) checkLimits(node int32, wanted map[attachedVolume]bool) *Refusal {
	csi := s.nodes[node].csi
	for v := range wanted {
		driver := s.volumes.drivers[v.driver]
		if driver == nil || driver.Spec.PreventPodSchedulingIfMissing == nil || !*driver.Spec.PreventPodSchedulingIfMissing {
			continue
		}
		if csi == nil || !slices.ContainsFunc(csi.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == v.driver }) {
			return refuse(nodeVolumeLimitsName, false, v.driver+" CSI driver is not installed on the node")
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
	attached := map[attachedVolume]bool{}
	for _, p := range s.nodes[node].pods {
		if !p.info.hasVolumes {
			continue
		}
		volumes, err := s.attachable(p.info.Pod, false, true)
		if err != nil {
			return &Refusal{Rule: nodeVolumeLimitsName, Err: err}
		}
		for v := range volumes {
			attached[v] = true
		}
	}
	count, more := map[string]int{}, map[string]bool{}
	for v := range attached {
		count[v.driver]++
	}
	for v := range wanted {
		if !attached[v] {
			count[v.driver]++
			more[v.driver] = true
		}
	}
	// What is attached for no pod of the node counts, even if this pod is to use it: it may be on its way out.
	for v := range s.volumes.attachedAt(s.nodes[node].name) {
		if !attached[v] {
			count[v.driver]++
		}
	}
	for driver := range more {
		if limit, limited := limits[driver]; limited && count[driver] > limit {
			return refusedCount
		}
	}
	return nil
}

// attachedAt are the volumes of drivers that are attached to a node.
func (v *volumeObjects) attachedAt(node string) map[attachedVolume]bool {
	all := map[attachedVolume]bool{}
	for _, a := range v.attachedTo[node] {
		if a.Spec.Attacher == "" || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if pv := v.volume(*a.Spec.Source.PersistentVolumeName); pv != nil && pv.Spec.CSI != nil {
			all[attachedVolume{a.Spec.Attacher, pv.Spec.CSI.VolumeHandle}] = true
		}
	}
	return all
}

func (nodeVolumeLimits) Hints() []Hint {
	return []Hint{
		{Resource: CSINodeResource, Action: Add},
		{Resource: CSINodeResource, Action: Update, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			was := map[string]int32{}
			count := func(d storagev1.CSINodeDriver) int32 {
				if d.Allocatable == nil || d.Allocatable.Count == nil {
					return 0
				}
				return *d.Allocatable.Count
			}
			for _, d := range old.(*storagev1.CSINode).Spec.Drivers {
				was[d.Name] = count(d)
			}
			return slices.ContainsFunc(now.(*storagev1.CSINode).Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
				before, had := was[d.Name]
				return !had || count(d) > before
			})
		}},
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *Snapshot, _ *corev1.Pod, old, _ any) bool { return mayAttach(asPod(old)) }},
		{Resource: PersistentVolumeClaim, Action: Add, Helps: claimHelps},
		{Resource: VolumeAttachmentResource, Action: Delete, Helps: detachHelps},
	}
}

// detachHelps reports whether a volume that was detached makes room for one of the pod's.
func detachHelps(_ *Snapshot, pod *corev1.Pod, old, _ any) bool {
	gone, _ := old.(*storagev1.VolumeAttachment)
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
		if gone == nil || !movedInline(&v) {
			return false
		}
		a, err := inlineVolume(&v, pod.Namespace)
		return err != nil || a.driver == gone.Spec.Attacher
	})
}

// volumeBinding keeps pods from nodes their volumes cannot reach, and chooses volumes for claims that wait for a pod.
type volumeBinding struct {
	timeoutSeconds int64
	shape          []configv1.UtilizationShapePoint
}

func newVolumeBinding(args *configv1.VolumeBindingArgs) Rule {
	r := &volumeBinding{timeoutSeconds: 600, shape: args.Shape}
	if args.BindTimeoutSeconds != nil {
		r.timeoutSeconds = *args.BindTimeoutSeconds
	}
	if len(r.shape) == 0 {
		r.shape = []configv1.UtilizationShapePoint{{Utilization: 0, Score: maxCustomScore}, {Utilization: 100, Score: 0}}
	}
	return r
}

func (*volumeBinding) Name() string { return volumeBindingName }

func (r *volumeBinding) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if !p.hasVolumes {
		return Filter{}, nil
	}
	has, err := s.volumes.checkClaims(p.Pod)
	if err != nil {
		return Filter{}, refuse(volumeBindingName, true, err.Error())
	}
	if !has {
		return Filter{}, nil
	}
	claims, err := s.volumes.claimsOf(p.Pod)
	if err != nil {
		return Filter{}, &Refusal{Rule: volumeBindingName, Err: err}
	}
	if claims.immediate {
		return Filter{}, refuse(volumeBindingName, true, "pod has unbound immediate PersistentVolumeClaims")
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		_, reasons, err := s.volumes.plan(claims, s.nodes[node].object, s.nodes[node].csi)
		if err != nil {
			return &Refusal{Rule: volumeBindingName, Err: err}
		}
		if len(reasons) > 0 {
			return refuse(volumeBindingName, true, reasons...)
		}
		return nil
	}}, nil
}

// Score prefers nodes where the volumes fit most closely, or have most room, as the shape says.
func (r *volumeBinding) Score(s *Snapshot, p *PodInfo) Scorer {
	if len(claimNames(p.Pod)) == 0 {
		return Scorer{}
	}
	claims, err := s.volumes.claimsOf(p.Pod)
	if err != nil || len(claims.waiting) == 0 {
		return Scorer{}
	}
	return Scorer{Volatile: true, Of: func(node int32) int64 {
		plan, _, err := s.volumes.plan(claims, s.nodes[node].object, s.nodes[node].csi)
		if err != nil {
			return 0
		}
		return r.planScore(&plan)
	}}
}

func (r *volumeBinding) planScore(plan *volumePlan) int64 {
	type use struct{ asked, capacity int64 }
	classes := map[string]*use{}
	of := func(class string) *use {
		if classes[class] == nil {
			classes[class] = &use{}
		}
		return classes[class]
	}
	for _, b := range plan.bindings {
		u := of(volume.GetPersistentVolumeClass(b.volume))
		u.asked += b.claim.Spec.Resources.Requests.Storage().Value()
		u.capacity += b.volume.Spec.Capacity.Storage().Value()
	}
	if len(plan.bindings) == 0 {
		for _, p := range plan.provisions {
			if p.capacity == nil || p.capacity.Capacity == nil {
				continue
			}
			u := of(volume.GetPersistentVolumeClaimClass(p.claim))
			u.capacity = p.capacity.Capacity.Value()
			u.asked += p.claim.Spec.Resources.Requests.Storage().Value()
		}
	}
	if len(classes) == 0 {
		return 0
	}
	var sum int64
	for _, u := range classes {
		utilization := int64(100)
		if u.capacity > 0 && u.asked <= u.capacity {
			utilization = u.asked * 100 / u.capacity
		}
		sum += brokenLine(r.shape, utilization)
	}
	return int64(math.Round(float64(sum) / float64(len(classes))))
}

func (r *volumeBinding) Hints() []Hint {
	return []Hint{
		{Resource: StorageClassResource, Action: Add | Update, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			before, had := old.(*storagev1.StorageClass)
			return !had || !equality.Semantic.DeepEqual(before.AllowedTopologies, now.(*storagev1.StorageClass).AllowedTopologies)
		}},
		{Resource: PersistentVolumeClaim, Action: Add | Update, Helps: claimHelps},
		{Resource: PersistentVolumeResource, Action: Add | Update},
		{Resource: NodeResource, Action: Add | UpdateNodeLabel},
		{Resource: CSINodeResource, Action: Add | Update, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			before, had := old.(*storagev1.CSINode)
			return !had || movedOn(before) != movedOn(now.(*storagev1.CSINode))
		}},
		{Resource: CSIStorageCapacityResource, Action: Add | Update, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			limit := func(c *storagev1.CSIStorageCapacity) int64 {
				if c.MaximumVolumeSize != nil {
					return c.MaximumVolumeSize.Value()
				}
				if c.Capacity != nil {
					return c.Capacity.Value()
				}
				return -1
			}
			before, had := old.(*storagev1.CSIStorageCapacity)
			return !had || limit(now.(*storagev1.CSIStorageCapacity)) > limit(before)
		}},
		{Resource: CSIDriverResource, Action: Update, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			return tracksCapacity(old.(*storagev1.CSIDriver)) && !tracksCapacity(now.(*storagev1.CSIDriver))
		}},
	}
}

// volumeZone keeps pods to the zones their volumes are in, for volumes that say so by label.
type volumeZone struct{}

func (volumeZone) Name() string { return volumeZoneName }

var refusedZone = refuse(volumeZoneName, true, "node(s) had no available volume zone")

// zoneLabels are the labels that speak of zones and regions; the first two are old names of the others.
var zoneLabels = []string{corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

var newZoneLabel = map[string]string{
	corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

// zoneDemand is where a volume can be used.
type zoneDemand struct {
	key    string
	values []string
}

func (d zoneDemand) equal(other zoneDemand) bool {
	return d.key == other.key && slices.Equal(d.values, other.values)
}

func (volumeZone) Filter(s *Snapshot, p *PodInfo) (Filter, *Refusal) {
	if !p.hasVolumes {
		return Filter{}, nil
	}
	var demands []zoneDemand
	for i := range p.Pod.Spec.Volumes {
		source := p.Pod.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		more, refusal := zoneDemands(s, p.Pod.Namespace, source.ClaimName)
		if refusal != nil {
			return Filter{}, refusal
		}
		demands = append(demands, more...)
	}
	if len(demands) == 0 {
		return Filter{}, nil
	}
	return Filter{Volatile: true, Check: func(node int32) *Refusal {
		set := s.nodes[node].object.Labels
		if !slices.ContainsFunc(zoneLabels, func(key string) bool { _, has := set[key]; return has }) {
			return nil
		}
		for _, d := range demands {
			value, has := set[d.key]
			if !has {
				value, has = set[newZoneLabel[d.key]]
			}
			if !has || !slices.Contains(d.values, value) {
				return refusedZone
			}
		}
		return nil
	}}, nil
}

func zoneDemands(s *Snapshot, namespace, claimName string) ([]zoneDemand, *Refusal) {
	claim := s.volumes.claim(namespace, claimName)
	if claim == nil {
		return nil, refuse(volumeZoneName, true, claimNotFound(claimName).Error())
	}
	if claim.Spec.VolumeName == "" {
		name := volume.GetPersistentVolumeClaimClass(claim)
		if name == "" {
			return nil, refuse(volumeZoneName, true, "PersistentVolumeClaim had no pv name and storageClass name")
		}
		class := s.volumes.classes[name]
		switch {
		case class == nil:
			return nil, refuse(volumeZoneName, true, apierrors.NewNotFound(storagev1.Resource("storageclass"), name).Error())
		case class.VolumeBindingMode == nil:
			return nil, refuse(volumeZoneName, true, fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", name))
		case *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
			return nil, nil
		}
		return nil, refuse(volumeZoneName, true, "PersistentVolume had no name")
	}
	pv := s.volumes.volume(claim.Spec.VolumeName)
	if pv == nil {
		return nil, refuse(volumeZoneName, true, apierrors.NewNotFound(corev1.Resource("persistentvolume"), claim.Spec.VolumeName).Error())
	}
	return demandsOf(pv), nil
}

func demandsOf(pv *corev1.PersistentVolume) (demands []zoneDemand) {
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
		// A list with a hole in it is no list.
		if !slices.Contains(values, "") {
			demands = append(demands, zoneDemand{key: key, values: slices.Compact(values)})
		}
	}
	return demands
}

func (volumeZone) Hints() []Hint {
	return []Hint{
		{Resource: StorageClassResource, Action: Add, Helps: func(_ *Snapshot, _ *corev1.Pod, _, now any) bool {
			mode := now.(*storagev1.StorageClass).VolumeBindingMode
			return mode != nil && *mode == storagev1.VolumeBindingWaitForFirstConsumer
		}},
		{Resource: NodeResource, Action: Add | UpdateNodeLabel},
		{Resource: PersistentVolumeClaim, Action: Add | Update, Helps: namedClaimHelps},
		{Resource: PersistentVolumeResource, Action: Add | Update, Helps: func(_ *Snapshot, _ *corev1.Pod, old, now any) bool {
			before, had := old.(*corev1.PersistentVolume)
			return !had || !slices.EqualFunc(demandsOf(before), demandsOf(now.(*corev1.PersistentVolume)), zoneDemand.equal)
		}},
	}
}
