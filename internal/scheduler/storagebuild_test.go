package scheduler

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// csiName is the driver of the class "late" and of volumes that say nothing else.
const csiName = "csi.example.com"

type objects = []metav1.Object

// says is what a rule says of each node; nodes it has nothing against are missing. "*" is said of all nodes at once. Refusals that
// no preemption can help begin with "never", others with "no"; "error" is what ends the attempt.
type says = map[string]string

func sayingOf(t testing.TB, rule Rule, r *Refusal) string {
	t.Helper()
	if r.Rule != rule.Name() {
		t.Errorf("%s speaks as %s", rule.Name(), r.Rule)
	}
	switch reasons := strings.Join(r.Reasons, "; "); {
	case r.Err != nil:
		return "error: " + r.Err.Error()
	case r.Unresolvable:
		return "never: " + reasons
	default:
		return "no: " + reasons
	}
}

// heard is what a rule says about a pod.
func heard(t testing.TB, s *Snapshot, rule Rule, pod *corev1.Pod) says {
	t.Helper()
	filter, refusal := rule.(FilterRule).Filter(s, infoOf(t, pod))
	if refusal != nil {
		return says{"*": sayingOf(t, rule, refusal)}
	}
	all := says{}
	if filter.Check != nil && !filter.Volatile {
		t.Errorf("what %s says would be remembered for other pods", rule.Name())
	}
	for i := range s.nodes {
		if filter.Check == nil || s.nodes[i].object == nil {
			continue
		}
		if r := filter.Check(int32(i)); r != nil {
			all[s.nodes[i].name] = sayingOf(t, rule, r)
		}
	}
	return all
}

// knowing is a cluster that knows of some objects.
func knowing(t testing.TB, nodes []*corev1.Node, known objects, running ...*corev1.Pod) *Snapshot {
	t.Helper()
	s := cluster(t, nodes, running...)
	for _, o := range known {
		s.SetObject(o)
	}
	return s
}

// twoZones are nodes a in zone za and b in zone zb.
func twoZones() []*corev1.Node {
	return []*corev1.Node{testNode("a", zone("za")), testNode("b", zone("zb"))}
}

type claimOption func(*corev1.PersistentVolumeClaim)

// storageClaim is an unbound claim for 1Gi of the class "late".
func storageClaim(name string, options ...claimOption) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "10"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("late"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, o := range options {
		o(c)
	}
	return c
}

func claimClass(name string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func claimSize(size string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	}
}

func claimModes(modes ...corev1.PersistentVolumeAccessMode) claimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

// claimHas binds a claim to a volume; claimWants only names the volume.
func claimHas(pv string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = pv
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
}

func claimWants(pv string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = pv }
}

func claimNote(key, value string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) }
}

func claimFor(node string) claimOption { return claimNote(volume.AnnSelectedNode, node) }

func claimIn(namespace string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Namespace = namespace }
}

func claimVersion(version string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = version }
}

// claimOf makes a pod the claim's owner.
func claimOf(pod string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}}
	}
}

func claimLost(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }

func claimLeaving(c *corev1.PersistentVolumeClaim) {
	c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

type volumeOption func(*corev1.PersistentVolume)

// storageVolume is an available volume of 5Gi of the class "late", which the driver knows by its name.
func storageVolume(name string, options ...volumeOption) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "10"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "late", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiName, VolumeHandle: name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, o := range options {
		o(v)
	}
	return v
}

func volumeSource(source corev1.PersistentVolumeSource) volumeOption {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeSource = source }
}

func volumeHandle(driver, handle string) volumeOption {
	return volumeSource(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}})
}

func volumeClass(name string) volumeOption {
	return func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = name }
}

func volumeSize(size string) volumeOption {
	return func(v *corev1.PersistentVolume) {
		v.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse(size)
	}
}

func volumeNear(key string, values ...string) volumeOption {
	return func(v *corev1.PersistentVolume) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{expression(key, corev1.NodeSelectorOpIn, values...)}}}
	}
}

// volumeAt is of one node.
func volumeAt(node string) volumeOption { return volumeNear(corev1.LabelHostname, node) }

func volumeLabel(key, value string) volumeOption {
	return func(v *corev1.PersistentVolume) { metav1.SetMetaDataLabel(&v.ObjectMeta, key, value) }
}

// volumeOf is taken by a claim; without uid it is only kept for one of that name.
func volumeOf(namespace, claim string, uid types.UID) volumeOption {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: claim, UID: uid}
	}
}

func volumePhase(phase corev1.PersistentVolumePhase) volumeOption {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = phase }
}

func volumeLeaving(v *corev1.PersistentVolume) {
	v.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

func volumeVersion(version string) volumeOption {
	return func(v *corev1.PersistentVolume) { v.ResourceVersion = version }
}

// lateClass waits for the first consumer; soonClass does not.
func lateClass(name, provisioner string, allowed ...corev1.TopologySelectorTerm) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), AllowedTopologies: allowed}
}

func soonClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: csiName, VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate)}
}

func modelessClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: csiName}
}

// allowedPlace is a term of allowed topologies, given keys and values separated by commas.
func allowedPlace(pairs ...string) (term corev1.TopologySelectorTerm) {
	for i := 0; i < len(pairs); i += 2 {
		term.MatchLabelExpressions = append(term.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{Key: pairs[i], Values: strings.Split(pairs[i+1], ",")})
	}
	return term
}

// storageDriver says whether a driver tracks capacity, and whether it must be on a node.
func storageDriver(name string, tracks, must *bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{StorageCapacity: tracks, PreventPodSchedulingIfMissing: must}}
}

// room is how much space there is for new volumes of a class, in a zone. Sizes may be missing.
func room(name, class, zone, capacity, largest string) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, StorageClassName: class}
	if zone != "" {
		c.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: zone}}
	}
	if capacity != "" {
		c.Capacity = ptr.To(resource.MustParse(capacity))
	}
	if largest != "" {
		c.MaximumVolumeSize = ptr.To(resource.MustParse(largest))
	}
	return c
}

// driversOn tells of a node's drivers. A count below 0 is no limit.
func driversOn(node string, counts map[string]int32, moved ...string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if len(moved) > 0 {
		n.Annotations = map[string]string{corev1.MigratedPluginsAnnotationKey: strings.Join(moved, ",")}
	}
	for name, count := range counts {
		d := storagev1.CSINodeDriver{Name: name, NodeID: node}
		if count >= 0 {
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, d)
	}
	return n
}

// attachedAs is an attachment of a volume to a node.
func attachedAs(name, node, driver, pv string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node}}
	if pv != "" {
		a.Spec.Source.PersistentVolumeName = &pv
	}
	return a
}

// inline gives a pod a volume that is no claim.
func inline(source corev1.VolumeSource) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "inline-" + string(rune('a'+len(p.Spec.Volumes))), VolumeSource: source})
	}
}

// usingOwn gives a pod a volume with a claim made for it: its name is that of the pod, a dash and that of the volume.
func usingOwn(name string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}})
	}
}

func gceDisk(name string, readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: readOnly}}
}

func ebsDisk(id string, readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id, ReadOnly: readOnly}}
}

func iscsiDisk(iqn string, readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: iqn, ReadOnly: readOnly}}
}

func rbdDisk(pool, image string, readOnly bool, monitors ...string) corev1.VolumeSource {
	return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: monitors, RBDPool: pool, RBDImage: image, ReadOnly: readOnly}}
}

func azureDisk(uri string) corev1.VolumeSource {
	return corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: uri, DataDiskURI: uri}}
}

// helpsPod asks the hints of a rule, as the queue does, whether an event may help a pod.
func helpsPod(t testing.TB, s *Snapshot, rule Rule, pod *corev1.Pod, event Event) bool {
	t.Helper()
	profile := DefaultProfile()
	q := NewQueue(map[string]*Profile{profile.Name: profile}, 0, 0)
	return q.helps(s, &queued{info: infoOf(t, pod), rules: []string{rule.Name()}}, &event)
}
