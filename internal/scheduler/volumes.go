package scheduler

import (
	"cmp"
	"fmt"
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

// volumeObjects is what the snapshot knows of storage.
type volumeObjects struct {
	claims       map[string]*corev1.PersistentVolumeClaim // by namespace/name
	volumes      map[string]*corev1.PersistentVolume
	classes      map[string]*storagev1.StorageClass
	drivers      map[string]*storagev1.CSIDriver
	capacities   map[string]*storagev1.CSIStorageCapacity // by namespace/name
	attachments  map[string]*storagev1.VolumeAttachment
	attachedTo   map[string]map[string]*storagev1.VolumeAttachment // by node, name
	assumedClaim map[string]*corev1.PersistentVolumeClaim
	assumedPV    map[string]*corev1.PersistentVolume
}

func newVolumeObjects() volumeObjects {
	return volumeObjects{
		claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
		classes: map[string]*storagev1.StorageClass{}, drivers: map[string]*storagev1.CSIDriver{},
		capacities: map[string]*storagev1.CSIStorageCapacity{}, attachments: map[string]*storagev1.VolumeAttachment{},
		attachedTo:   map[string]map[string]*storagev1.VolumeAttachment{},
		assumedClaim: map[string]*corev1.PersistentVolumeClaim{}, assumedPV: map[string]*corev1.PersistentVolume{},
	}
}

func keyOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// SetObject takes over an object of storage or of devices as it is now. Other objects are ignored.
func (s *Snapshot) SetObject(object metav1.Object) {
	v := &s.volumes
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		v.claims[keyOf(o)] = o
		if assumed := v.assumedClaim[keyOf(o)]; assumed != nil && newer(o, assumed) {
			delete(v.assumedClaim, keyOf(o))
		}
	case *corev1.PersistentVolume:
		v.volumes[o.Name] = o
		if assumed := v.assumedPV[o.Name]; assumed != nil && newer(o, assumed) {
			delete(v.assumedPV, o.Name)
		}
	case *storagev1.StorageClass:
		v.classes[o.Name] = o
	case *storagev1.CSIDriver:
		v.drivers[o.Name] = o
	case *storagev1.CSIStorageCapacity:
		v.capacities[keyOf(o)] = o
	case *storagev1.VolumeAttachment:
		s.DeleteObject(o)
		v.attachments[o.Name] = o
		if v.attachedTo[o.Spec.NodeName] == nil {
			v.attachedTo[o.Spec.NodeName] = map[string]*storagev1.VolumeAttachment{}
		}
		v.attachedTo[o.Spec.NodeName][o.Name] = o
	case *storagev1.CSINode:
		s.nodes[s.number(o.Name)].csi = o
	default:
		s.devices.set(object)
	}
}

// DeleteObject forgets an object of storage or of devices.
func (s *Snapshot) DeleteObject(object metav1.Object) {
	v := &s.volumes
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		delete(v.claims, keyOf(o))
		delete(v.assumedClaim, keyOf(o))
	case *corev1.PersistentVolume:
		delete(v.volumes, o.Name)
		delete(v.assumedPV, o.Name)
	case *storagev1.StorageClass:
		delete(v.classes, o.Name)
	case *storagev1.CSIDriver:
		delete(v.drivers, o.Name)
	case *storagev1.CSIStorageCapacity:
		delete(v.capacities, keyOf(o))
	case *storagev1.VolumeAttachment:
		if old := v.attachments[o.Name]; old != nil {
			delete(v.attachments, o.Name)
			delete(v.attachedTo[old.Spec.NodeName], o.Name)
			if len(v.attachedTo[old.Spec.NodeName]) == 0 {
				delete(v.attachedTo, old.Spec.NodeName)
			}
		}
	case *storagev1.CSINode:
		if n, ok := s.nodeNumber[o.Name]; ok {
			s.nodes[n].csi = nil
			s.release(n)
		}
	default:
		s.devices.delete(object)
	}
}

// newer reports whether an object from the API server is newer than the one our assumption was made from.
func newer(now, assumed metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(now.GetResourceVersion(), assumed.GetResourceVersion())
	return err != nil || order > 0
}

// claim returns a claim as the API server has it or, if we have decided about it since, as it will be.
func (v *volumeObjects) claim(namespace, name string) *corev1.PersistentVolumeClaim {
	key := namespace + "/" + name
	if assumed := v.assumedClaim[key]; assumed != nil {
		return assumed
	}
	return v.claims[key]
}

func (v *volumeObjects) volume(name string) *corev1.PersistentVolume {
	if assumed := v.assumedPV[name]; assumed != nil {
		return assumed
	}
	return v.volumes[name]
}

// claimNames are the names of the claims a pod uses, made for it or not.
func claimNames(pod *corev1.Pod) (names []string) {
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

func usesClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && claim.Namespace == pod.Namespace && slices.Contains(claimNames(pod), claim.Name)
}

// claimNotFound reads as the API server's own answer.
func claimNotFound(name string) error {
	return apierrors.NewNotFound(corev1.Resource("persistentvolumeclaim"), name)
}

// podClaims are a pod's claims, by what is to be done about them.
type podClaims struct {
	bound []*corev1.PersistentVolumeClaim
	// waiting claims are bound when a pod that uses them has a node.
	waiting []*corev1.PersistentVolumeClaim
	// immediate claims should have been bound already.
	immediate bool
	byClass   map[string][]*corev1.PersistentVolume
}

func fullyBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

// checkClaims says why a pod's claims cannot be used by any pod now.
func (v *volumeObjects) checkClaims(pod *corev1.Pod) (has bool, err error) {
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
		claim := v.claim(pod.Namespace, name)
		switch {
		case claim == nil && source.Ephemeral != nil:
			return has, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case claim == nil:
			return has, claimNotFound(name)
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

func (v *volumeObjects) claimsOf(pod *corev1.Pod) (*podClaims, error) {
	p := &podClaims{byClass: map[string][]*corev1.PersistentVolume{}}
	for _, name := range claimNames(pod) {
		claim := v.claim(pod.Namespace, name)
		if claim == nil {
			return nil, fmt.Errorf("error getting PVC %q: %w", pod.Namespace+"/"+name, claimNotFound(name))
		}
		if fullyBound(claim) {
			p.bound = append(p.bound, claim)
			continue
		}
		class := volume.GetPersistentVolumeClaimClass(claim)
		waits, err := v.waitsForConsumer(class)
		if err != nil {
			return nil, err
		}
		if !waits || claim.Spec.VolumeName != "" {
			p.immediate = true
			continue
		}
		p.waiting = append(p.waiting, claim)
		if p.byClass[class] == nil {
			p.byClass[class] = v.ofClass(class)
		}
	}
	return p, nil
}

func (v *volumeObjects) waitsForConsumer(className string) (bool, error) {
	class := v.classes[className]
	if className == "" || class == nil {
		return false, nil
	}
	if class.VolumeBindingMode == nil {
		return false, fmt.Errorf("VolumeBindingMode not set for StorageClass %q", className)
	}
	return *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer, nil
}

func (v *volumeObjects) ofClass(class string) (all []*corev1.PersistentVolume) {
	for name := range v.volumes {
		if pv := v.volume(name); volume.GetPersistentVolumeClass(pv) == class {
			all = append(all, pv)
		}
	}
	slices.SortFunc(all, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// volumePlan is what has to be done about a pod's claims once it has a node.
type volumePlan struct {
	bindings   []volumeMatch
	provisions []provision
}

type volumeMatch struct {
	volume *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
}

// provision asks for a new volume on the node.
type provision struct {
	claim    *corev1.PersistentVolumeClaim
	capacity *storagev1.CSIStorageCapacity // nil when the driver does not publish any
}

func (p *volumePlan) empty() bool { return len(p.bindings)+len(p.provisions) == 0 }

const (
	reasonBindConflict   = "node(s) didn't find available persistent volumes to bind"
	reasonNodeConflict   = "node(s) didn't match PersistentVolume's node affinity"
	reasonNotEnoughSpace = "node(s) did not have enough free storage"
	reasonVolumeMissing  = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// plan finds how a pod's claims can be had on a node, or the reasons why not.
func (v *volumeObjects) plan(claims *podClaims, node *corev1.Node, csi *storagev1.CSINode) (plan volumePlan, reasons []string, err error) {
	missing := false
	defer func() {
		if missing && err == nil {
			reasons = append(reasons, reasonVolumeMissing)
		}
	}()
	for _, claim := range claims.bound {
		pv := v.volume(claim.Spec.VolumeName)
		if missing = pv == nil; missing {
			break
		}
		if pv, err = asOnNode(pv, csi); err != nil {
			return plan, nil, err
		}
		if volume.CheckNodeAffinity(pv, node.Labels) != nil {
			reasons = append(reasons, reasonNodeConflict)
			break
		}
	}
	var match, make []*corev1.PersistentVolumeClaim
	for _, claim := range claims.waiting {
		if selected, has := claim.Annotations[volume.AnnSelectedNode]; has {
			if selected != node.Name {
				return plan, append(reasons, reasonBindConflict), nil
			}
			make = append(make, claim)
		} else {
			match = append(match, claim)
		}
	}
	slices.SortFunc(match, func(a, b *corev1.PersistentVolumeClaim) int {
		return a.Spec.Resources.Requests.Storage().Cmp(*b.Spec.Resources.Requests.Storage())
	})
	chosen := map[string]*corev1.PersistentVolume{}
	for _, claim := range match {
		pv, err := volume.FindMatchingVolume(claim, claims.byClass[volume.GetPersistentVolumeClaimClass(claim)], node, chosen, true, true)
		if err != nil {
			return plan, nil, err
		}
		if pv == nil {
			make = append(make, claim)
			continue
		}
		chosen[pv.Name] = pv
		plan.bindings = append(plan.bindings, volumeMatch{volume: pv, claim: claim})
	}
	for _, claim := range make {
		capacity, reason, err := v.canProvision(claim, node)
		if err != nil {
			return plan, nil, err
		}
		if reason != "" {
			return plan, append(reasons, reason), nil
		}
		plan.provisions = append(plan.provisions, provision{claim: claim, capacity: capacity})
	}
	return plan, reasons, nil
}

// canProvision tells whether a volume for a claim can be made on a node.
func (v *volumeObjects) canProvision(claim *corev1.PersistentVolumeClaim, node *corev1.Node) (capacity *storagev1.CSIStorageCapacity, reason string, err error) {
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return nil, "", fmt.Errorf("no class for claim %q", keyOf(claim))
	}
	class := v.classes[name]
	if class == nil {
		return nil, "", fmt.Errorf("failed to find storage class %q", name)
	}
	if class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner || !topologyAllows(class.AllowedTopologies, node.Labels) {
		return nil, reasonBindConflict, nil
	}
	size, asks := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !asks || !tracksCapacity(v.drivers[class.Provisioner]) {
		return nil, "", nil
	}
	for _, c := range v.capacities {
		limit := c.MaximumVolumeSize
		if limit == nil {
			limit = c.Capacity
		}
		if c.StorageClassName != name || limit == nil || limit.Value() < size.Value() || c.NodeTopology == nil {
			continue
		}
		if reach, err := metav1.LabelSelectorAsSelector(c.NodeTopology); err == nil && reach.Matches(labels.Set(node.Labels)) {
			return c, "", nil
		}
	}
	return nil, reasonNotEnoughSpace, nil
}

// tracksCapacity reports whether a driver tells how much room there is for new volumes.
func tracksCapacity(driver *storagev1.CSIDriver) bool {
	return driver != nil && ptr.Deref(driver.Spec.StorageCapacity, false)
}

// topologyAllows reports whether a class may have volumes on a node with these labels.
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

// assume decides a plan: from now on its volumes are taken and its claims are for the node.
func (v *volumeObjects) assume(plan *volumePlan, nodeName string) error {
	for i := range plan.bindings {
		b := &plan.bindings[i]
		pv, changed, err := volume.GetBindVolumeToClaim(b.volume, b.claim)
		if err != nil {
			v.revert(plan)
			return fmt.Errorf("bind volume %s to claim %s: %w", b.volume.Name, keyOf(b.claim), err)
		}
		if changed {
			v.assumedPV[pv.Name] = pv
		}
		b.volume = pv
	}
	for i := range plan.provisions {
		p := &plan.provisions[i]
		_, sent := p.claim.Annotations[volume.AnnSelectedNode]
		p.claim = p.claim.DeepCopy()
		if sent {
			continue // to this node: another pod's plan, which stays when this one is taken back
		}
		metav1.SetMetaDataAnnotation(&p.claim.ObjectMeta, volume.AnnSelectedNode, nodeName)
		v.assumedClaim[keyOf(p.claim)] = p.claim
	}
	return nil
}

// revert takes back what assume decided. What has been written since stands: the API server will tell of it.
func (v *volumeObjects) revert(plan *volumePlan) {
	for _, b := range plan.bindings {
		if v.assumedPV[b.volume.Name] == b.volume {
			delete(v.assumedPV, b.volume.Name)
		}
	}
	for _, p := range plan.provisions {
		if v.assumedClaim[keyOf(p.claim)] == p.claim {
			delete(v.assumedClaim, keyOf(p.claim))
		}
	}
}
