package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// volumeObjects holds the storage objects: claims, volumes, classes, drivers, capacities and attachments. AssumedClaims and AssumedVolumes
// override the watched objects until the watch delivers newer versions; they are exported for tests.
type volumeObjects struct {
	Claims     map[string]*corev1.PersistentVolumeClaim // by namespace/name
	Volumes    map[string]*corev1.PersistentVolume
	Classes    map[string]*storagev1.StorageClass
	Drivers    map[string]*storagev1.CSIDriver
	capacities map[string]*storagev1.CSIStorageCapacity // by namespace/name
	// capacityIndex has the capacities by class. It is made on first use after a change.
	capacityIndex  map[string]*nodeIndex[reachableCapacity]
	attachments    map[string]*storagev1.VolumeAttachment
	attachedTo     map[string]map[string]*storagev1.VolumeAttachment // by node, name
	AssumedClaims  map[string]*corev1.PersistentVolumeClaim
	AssumedVolumes map[string]*corev1.PersistentVolume
}

func newVolumeObjects() volumeObjects {
	return volumeObjects{
		Claims: map[string]*corev1.PersistentVolumeClaim{}, Volumes: map[string]*corev1.PersistentVolume{},
		Classes: map[string]*storagev1.StorageClass{}, Drivers: map[string]*storagev1.CSIDriver{},
		capacities: map[string]*storagev1.CSIStorageCapacity{}, attachments: map[string]*storagev1.VolumeAttachment{},
		attachedTo:    map[string]map[string]*storagev1.VolumeAttachment{},
		AssumedClaims: map[string]*corev1.PersistentVolumeClaim{}, AssumedVolumes: map[string]*corev1.PersistentVolume{},
	}
}

// ObjectKey returns namespace/name.
func ObjectKey(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// SetObject adds or updates an object of the storage or resource API. Other kinds are ignored.
func (s *Snapshot) SetObject(object metav1.Object) {
	v := &s.Volumes
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		v.Claims[ObjectKey(o)] = o
		if assumed := v.AssumedClaims[ObjectKey(o)]; assumed != nil && IsNewer(o, assumed) {
			delete(v.AssumedClaims, ObjectKey(o))
		}
	case *corev1.PersistentVolume:
		v.Volumes[o.Name] = o
		if assumed := v.AssumedVolumes[o.Name]; assumed != nil && IsNewer(o, assumed) {
			delete(v.AssumedVolumes, o.Name)
		}
	case *storagev1.StorageClass:
		v.Classes[o.Name] = o
	case *storagev1.CSIDriver:
		v.Drivers[o.Name] = o
	case *storagev1.CSIStorageCapacity:
		v.capacities[ObjectKey(o)] = o
		v.capacityIndex = nil
	case *storagev1.VolumeAttachment:
		s.DeleteObject(o)
		v.attachments[o.Name] = o
		if v.attachedTo[o.Spec.NodeName] == nil {
			v.attachedTo[o.Spec.NodeName] = map[string]*storagev1.VolumeAttachment{}
		}
		v.attachedTo[o.Spec.NodeName][o.Name] = o
	case *storagev1.CSINode:
		s.NodeInfos[s.nodeNumberFor(o.Name)].CSINode = o
	default:
		s.Devices.SetObject(object)
	}
}

// DeleteObject removes an object of the storage or resource API.
func (s *Snapshot) DeleteObject(object metav1.Object) {
	v := &s.Volumes
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		delete(v.Claims, ObjectKey(o))
		delete(v.AssumedClaims, ObjectKey(o))
	case *corev1.PersistentVolume:
		delete(v.Volumes, o.Name)
		delete(v.AssumedVolumes, o.Name)
	case *storagev1.StorageClass:
		delete(v.Classes, o.Name)
	case *storagev1.CSIDriver:
		delete(v.Drivers, o.Name)
	case *storagev1.CSIStorageCapacity:
		delete(v.capacities, ObjectKey(o))
		v.capacityIndex = nil
	case *storagev1.VolumeAttachment:
		if old := v.attachments[o.Name]; old != nil {
			delete(v.attachments, o.Name)
			delete(v.attachedTo[old.Spec.NodeName], o.Name)
			if len(v.attachedTo[old.Spec.NodeName]) == 0 {
				delete(v.attachedTo, old.Spec.NodeName)
			}
		}
	case *storagev1.CSINode:
		if n, ok := s.NodeNumbers[o.Name]; ok {
			s.NodeInfos[n].CSINode = nil
			s.releaseNumber(n)
		}
	default:
		s.Devices.DeleteObject(object)
	}
}

// IsNewer reports whether an object is newer than the one an assumed object was derived from.
func IsNewer(now, assumed metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(now.GetResourceVersion(), assumed.GetResourceVersion())
	return err != nil || order > 0
}

// Claim returns a claim, the assumed version if there is one.
func (v *volumeObjects) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	key := namespace + "/" + name
	if assumed := v.AssumedClaims[key]; assumed != nil {
		return assumed
	}
	return v.Claims[key]
}

// Volume returns a volume, the assumed version if there is one.
func (v *volumeObjects) Volume(name string) *corev1.PersistentVolume {
	if assumed := v.AssumedVolumes[name]; assumed != nil {
		return assumed
	}
	return v.Volumes[name]
}

// ClaimNames returns the names of the claims a pod uses, those of ephemeral volumes included.
func ClaimNames(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		} else if v.Ephemeral != nil {
			names = append(names, ephemeral.VolumeClaimName(pod, v))
		}
	}
	return names
}

// UsesClaim reports whether a pod uses a claim.
func UsesClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && claim.Namespace == pod.Namespace && slices.Contains(ClaimNames(pod), claim.Name)
}

// ClaimNotFound has the text of the API server's NotFound error.
func ClaimNotFound(name string) error {
	return apierrors.NewNotFound(corev1.Resource("persistentvolumeclaim"), name)
}

// podClaims are a pod's claims, by binding state.
type podClaims struct {
	bound []*corev1.PersistentVolumeClaim
	// DelayBinding claims have volumeBindingMode WaitForFirstConsumer.
	DelayBinding []*corev1.PersistentVolumeClaim
	// UnboundImmediate is set if a claim with volumeBindingMode Immediate is not bound.
	UnboundImmediate bool
	volumesByClass   map[string]*nodeIndex[*corev1.PersistentVolume]
}

// FullyBound reports whether the binding of a claim is complete.
func FullyBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

// CheckPodClaims fails if a claim of the pod is missing, lost or being deleted. has is set if the pod uses claims.
func (v *volumeObjects) CheckPodClaims(pod *corev1.Pod) (has bool, err error) {
	for i := range pod.Spec.Volumes {
		source := &pod.Spec.Volumes[i]
		var name string
		switch {
		case source.PersistentVolumeClaim != nil:
			name = source.PersistentVolumeClaim.ClaimName
		case source.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(pod, source)
		default:
			continue
		}
		has = true
		claim := v.Claim(pod.Namespace, name)
		switch {
		case claim == nil && source.Ephemeral != nil:
			return has, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case claim == nil:
			return has, ClaimNotFound(name)
		case claim.Status.Phase == corev1.ClaimLost:
			return has, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim.Name, claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return has, fmt.Errorf("persistentvolumeclaim %q is being deleted", claim.Name)
		}
		if source.Ephemeral != nil {
			if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
				return has, err
			}
		}
	}
	return has, nil
}

// PodVolumeClaims returns a pod's claims by binding state.
func (v *volumeObjects) PodVolumeClaims(pod *corev1.Pod) (*podClaims, error) {
	p := &podClaims{volumesByClass: map[string]*nodeIndex[*corev1.PersistentVolume]{}}
	for _, name := range ClaimNames(pod) {
		claim := v.Claim(pod.Namespace, name)
		if claim == nil {
			return nil, fmt.Errorf("error getting PVC %q: %w", pod.Namespace+"/"+name, ClaimNotFound(name))
		}
		if FullyBound(claim) {
			p.bound = append(p.bound, claim)
			continue
		}
		class := volume.GetPersistentVolumeClaimClass(claim)
		waits, err := v.waitsForConsumer(class)
		if err != nil {
			return nil, err
		}
		if !waits || claim.Spec.VolumeName != "" {
			p.UnboundImmediate = true
			continue
		}
		p.DelayBinding = append(p.DelayBinding, claim)
	}
	for _, claim := range p.DelayBinding {
		if class := volume.GetPersistentVolumeClaimClass(claim); p.volumesByClass[class] == nil {
			p.volumesByClass[class] = v.volumesFor(class, p.DelayBinding)
		}
	}
	return p, nil
}

func (v *volumeObjects) waitsForConsumer(className string) (bool, error) {
	class := v.Classes[className]
	if className == "" || class == nil {
		return false, nil
	}
	if class.VolumeBindingMode == nil {
		return false, fmt.Errorf("VolumeBindingMode not set for StorageClass %q", className)
	}
	return *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer, nil
}

// volumesFor returns the volumes of a class that claims can be bound to, by name: those that are free, and those that were bound to one of the
// claims beforehand, which decide about every node.
func (v *volumeObjects) volumesFor(class string, claims []*corev1.PersistentVolumeClaim) *nodeIndex[*corev1.PersistentVolume] {
	var all []*corev1.PersistentVolume
	for name := range v.Volumes {
		if pv := v.Volume(name); volume.GetPersistentVolumeClass(pv) == class {
			all = append(all, pv)
		}
	}
	slices.SortFunc(all, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	index := &nodeIndex[*corev1.PersistentVolume]{}
	for _, pv := range all {
		anyOf, limited := requirementsOf(pv.Spec.NodeAffinity)
		switch {
		case pv.Spec.ClaimRef != nil:
			if slices.ContainsFunc(claims, func(c *corev1.PersistentVolumeClaim) bool { return volume.IsVolumeBoundToClaim(pv, c) }) {
				index.addEverywhere(pv)
			}
		case limited:
			index.add(pv, anyOf...)
		default:
			index.addEverywhere(pv)
		}
	}
	return index
}

// PodVolumes are the bindings and provisionings that a pod's claims need on a node.
type PodVolumes struct {
	StaticBindings    []StaticBinding
	DynamicProvisions []DynamicProvision
}

// StaticBinding binds a claim to an existing volume.
type StaticBinding struct {
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
}

// DynamicProvision provisions a new volume for a claim.
type DynamicProvision struct {
	Claim    *corev1.PersistentVolumeClaim
	Capacity *storagev1.CSIStorageCapacity // nil when the driver does not publish any
}

func (p *PodVolumes) Empty() bool { return len(p.StaticBindings)+len(p.DynamicProvisions) == 0 }

const (
	ReasonBindConflict   = "node(s) didn't find available persistent volumes to bind"
	ReasonNodeConflict   = "node(s) didn't match PersistentVolume's node affinity"
	ReasonNotEnoughSpace = "node(s) did not have enough free storage"
	ReasonVolumeMissing  = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// FindPodVolumes finds bindings and provisionings for a pod's claims on a node, or the reasons why there are none.
func (v *volumeObjects) FindPodVolumes(claims *podClaims, node *corev1.Node, csi *storagev1.CSINode) (plan PodVolumes, reasons []string, err error) {
	missing := false
	defer func() {
		if missing && err == nil {
			reasons = append(reasons, ReasonVolumeMissing)
		}
	}()
	for _, claim := range claims.bound {
		pv := v.Volume(claim.Spec.VolumeName)
		if missing = pv == nil; missing {
			break
		}
		if pv, err = TranslateForNode(pv, csi); err != nil {
			return plan, nil, err
		}
		if volume.CheckNodeAffinity(pv, node.Labels) != nil {
			reasons = append(reasons, ReasonNodeConflict)
			break
		}
	}
	var toMatch, toProvision []*corev1.PersistentVolumeClaim
	for _, claim := range claims.DelayBinding {
		if selected, has := claim.Annotations[volume.AnnSelectedNode]; has {
			if selected != node.Name {
				return plan, append(reasons, ReasonBindConflict), nil
			}
			toProvision = append(toProvision, claim)
		} else {
			toMatch = append(toMatch, claim)
		}
	}
	slices.SortFunc(toMatch, func(a, b *corev1.PersistentVolumeClaim) int {
		return a.Spec.Resources.Requests.Storage().Cmp(*b.Spec.Resources.Requests.Storage())
	})
	chosen := map[string]*corev1.PersistentVolume{}
	for _, claim := range toMatch {
		onNode := claims.volumesByClass[volume.GetPersistentVolumeClaimClass(claim)].on(node.Labels)
		pv, err := volume.FindMatchingVolume(claim, onNode, node, chosen, true, true)
		if err != nil {
			return plan, nil, err
		}
		if pv == nil {
			toProvision = append(toProvision, claim)
			continue
		}
		chosen[pv.Name] = pv
		plan.StaticBindings = append(plan.StaticBindings, StaticBinding{Volume: pv, Claim: claim})
	}
	for _, claim := range toProvision {
		capacity, reason, err := v.canProvision(claim, node)
		if err != nil {
			return plan, nil, err
		}
		if reason != "" {
			return plan, append(reasons, reason), nil
		}
		plan.DynamicProvisions = append(plan.DynamicProvisions, DynamicProvision{Claim: claim, Capacity: capacity})
	}
	return plan, reasons, nil
}

// canProvision reports whether a volume for a claim can be provisioned on a node, or the reason why not.
func (v *volumeObjects) canProvision(claim *corev1.PersistentVolumeClaim, node *corev1.Node) (capacity *storagev1.CSIStorageCapacity, reason string, err error) {
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return nil, "", fmt.Errorf("no class for claim %q", ObjectKey(claim))
	}
	class := v.Classes[name]
	if class == nil {
		return nil, "", fmt.Errorf("failed to find storage class %q", name)
	}
	if class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner || !topologyAllows(class.AllowedTopologies, node.Labels) {
		return nil, ReasonBindConflict, nil
	}
	size, requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !requested || !TracksCapacity(v.Drivers[class.Provisioner]) {
		return nil, "", nil
	}
	for _, c := range v.capacitiesOf(name).on(node.Labels) {
		limit := c.MaximumVolumeSize
		if limit == nil {
			limit = c.Capacity
		}
		if limit != nil && limit.Value() >= size.Value() && c.nodes.Matches(labels.Set(node.Labels)) {
			return c.CSIStorageCapacity, "", nil
		}
	}
	return nil, ReasonNotEnoughSpace, nil
}

// reachableCapacity is a capacity with the nodes that can use it.
type reachableCapacity struct {
	*storagev1.CSIStorageCapacity
	nodes labels.Selector
}

// capacitiesOf returns the capacities of a class, by name.
func (v *volumeObjects) capacitiesOf(class string) *nodeIndex[reachableCapacity] {
	if v.capacityIndex == nil {
		v.capacityIndex = map[string]*nodeIndex[reachableCapacity]{}
		for _, key := range slices.Sorted(maps.Keys(v.capacities)) {
			v.indexCapacity(v.capacities[key])
		}
	}
	if v.capacityIndex[class] == nil {
		v.capacityIndex[class] = &nodeIndex[reachableCapacity]{}
	}
	return v.capacityIndex[class]
}

// indexCapacity adds a capacity to the index, unless no node can use it.
func (v *volumeObjects) indexCapacity(c *storagev1.CSIStorageCapacity) {
	if c.NodeTopology == nil {
		return
	}
	nodes, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	if err != nil {
		return
	}
	if v.capacityIndex[c.StorageClassName] == nil {
		v.capacityIndex[c.StorageClassName] = &nodeIndex[reachableCapacity]{}
	}
	index := v.capacityIndex[c.StorageClassName]
	if r, ok := requirementOf(nodes); ok {
		index.add(reachableCapacity{c, nodes}, r)
	} else {
		index.addEverywhere(reachableCapacity{c, nodes})
	}
}

// TracksCapacity reports whether a driver publishes storage capacity.
func TracksCapacity(driver *storagev1.CSIDriver) bool {
	return driver != nil && ptr.Deref(driver.Spec.StorageCapacity, false)
}

// topologyAllows reports whether a class's allowedTopologies match a node's labels.
func topologyAllows(terms []corev1.TopologySelectorTerm, set map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		if len(t.MatchLabelExpressions) == 0 {
			return false
		}
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, has := set[e.Key]
			return !has || !slices.Contains(e.Values, value)
		})
	})
}

// AssumePodVolumes assumes a plan: its volumes are bound, and its claims have the node selected.
func (v *volumeObjects) AssumePodVolumes(plan *PodVolumes, nodeName string) error {
	for i := range plan.StaticBindings {
		b := &plan.StaticBindings[i]
		pv, changed, err := volume.GetBindVolumeToClaim(b.Volume, b.Claim)
		if err != nil {
			v.RevertAssumedPodVolumes(plan)
			return fmt.Errorf("bind volume %s to claim %s: %w", b.Volume.Name, ObjectKey(b.Claim), err)
		}
		if changed {
			v.AssumedVolumes[pv.Name] = pv
		}
		b.Volume = pv
	}
	for i := range plan.DynamicProvisions {
		p := &plan.DynamicProvisions[i]
		_, selected := p.Claim.Annotations[volume.AnnSelectedNode]
		p.Claim = p.Claim.DeepCopy()
		if selected {
			continue // selected by another pod's plan: it must stay when this plan is reverted
		}
		metav1.SetMetaDataAnnotation(&p.Claim.ObjectMeta, volume.AnnSelectedNode, nodeName)
		v.AssumedClaims[ObjectKey(p.Claim)] = p.Claim
	}
	return nil
}

// RevertAssumedPodVolumes undoes AssumePodVolumes. What was written since stays: the watch will deliver it.
func (v *volumeObjects) RevertAssumedPodVolumes(plan *PodVolumes) {
	for _, b := range plan.StaticBindings {
		if v.AssumedVolumes[b.Volume.Name] == b.Volume {
			delete(v.AssumedVolumes, b.Volume.Name)
		}
	}
	for _, p := range plan.DynamicProvisions {
		if v.AssumedClaims[ObjectKey(p.Claim)] == p.Claim {
			delete(v.AssumedClaims, ObjectKey(p.Claim))
		}
	}
}
