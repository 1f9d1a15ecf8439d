package scheduler

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

const ebsDriver = "ebs.csi.aws.com"

// boundClaim is a claim that has its volume.
func boundClaim(name, pv string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{volume.AnnBindCompleted: "yes"}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: pv},
	}
}

// ebsVolume is a volume of a kind that was once built in, in a zone if one is given.
func ebsVolume(name, id, zone string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}},
	}}
	if zone != "" {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zone)}}}
	}
	return pv
}

func inlineDisk(id string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: id, VolumeSource: corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: id, DataDiskURI: id}}})
	}
}

// driverLimit says how many volumes a node can attach, and which built-in kinds it leaves to drivers.
func driverLimit(node, driver string, count int32, moved string) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: moved}},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: &count}}}},
	}
}

func TestMovedVolumes(t *testing.T) {
	const full = "node(s) exceed max volume count"
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := func(provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: provisioner, VolumeBindingMode: &wait}
	}
	unbound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("late")}}
	nativeVolume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "native"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: ebsDriver, VolumeHandle: "vol-1"}},
	}}
	vsphere := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "x"}},
	}}
	for what, test := range map[string]struct {
		objects []metav1.Object
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]string // a has a limit; b tells nothing of drivers
	}{
		"a claim's volume counts for its driver": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", ""), driverLimit("a", ebsDriver, 0, "")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{"a": full},
		},
		"while there is room": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", ""), driverLimit("a", ebsDriver, 1, "")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{},
		},
		"beside those of pods there": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", ""), boundClaim("other", "two"), ebsVolume("two", "vol-2", ""), driverLimit("a", ebsDriver, 1, "")},
			running: []*corev1.Pod{testPod("1", on("a"), usingClaim("other"))}, pod: testPod("p", usingClaim("claim")), want: map[string]string{"a": full},
		},
		"the same volume in both words is one": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", ""), boundClaim("other", "native"), nativeVolume, driverLimit("a", ebsDriver, 1, "")},
			running: []*corev1.Pod{testPod("1", on("a"), usingClaim("other"))}, pod: testPod("p", usingClaim("claim")), want: map[string]string{},
		},
		"another driver's limit": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", ""), driverLimit("a", "disk.csi.azure.com", 0, "")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{},
		},
		"a kind whose move does not count": {
			objects: []metav1.Object{boundClaim("claim", "one"), vsphere, driverLimit("a", "csi.vsphere.vmware.com", 0, "")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{},
		},
		"a volume still to be made": {
			objects: []metav1.Object{unbound, class("kubernetes.io/aws-ebs"), driverLimit("a", ebsDriver, 0, "")},
			pod:     testPod("p", usingClaim("new")), want: map[string]string{"a": full},
		},
		"to be made by a kind whose move does not count": {
			objects: []metav1.Object{unbound, class("kubernetes.io/vsphere-volume"), driverLimit("a", "csi.vsphere.vmware.com", 0, "")},
			pod:     testPod("p", usingClaim("new")), want: map[string]string{},
		},
		"a volume without a claim": {
			objects: []metav1.Object{driverLimit("a", "disk.csi.azure.com", 0, "")}, pod: testPod("p", inlineDisk("x")), want: map[string]string{"a": full},
		},
		"beside another of a pod there": {
			objects: []metav1.Object{driverLimit("a", "disk.csi.azure.com", 1, "")},
			running: []*corev1.Pod{testPod("1", on("a"), inlineDisk("y"))}, pod: testPod("p", inlineDisk("x")), want: map[string]string{"a": full},
		},
		"the same disk": {
			objects: []metav1.Object{driverLimit("a", "disk.csi.azure.com", 1, "")},
			running: []*corev1.Pod{testPod("1", on("a"), inlineDisk("x"))}, pod: testPod("p", inlineDisk("x")), want: map[string]string{},
		},
		"a zone, in the old words": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", "zb")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{"a": reasonNodeConflict},
		},
		"a zone, in the driver's words where it has moved in": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", "za"), driverLimit("a", ebsDriver, 5, "kubernetes.io/gce-pd,kubernetes.io/aws-ebs")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{"a": reasonNodeConflict, "b": reasonNodeConflict},
		},
		"which the node's driver may know": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", "driver-zone"), driverLimit("a", ebsDriver, 5, "kubernetes.io/aws-ebs")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{"b": reasonNodeConflict},
		},
		"another kind has moved": {
			objects: []metav1.Object{boundClaim("claim", "one"), ebsVolume("one", "vol-1", "za"), driverLimit("a", ebsDriver, 5, "kubernetes.io/gce-pd")},
			pod:     testPod("p", usingClaim("claim")), want: map[string]string{"b": reasonNodeConflict},
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{testNode("a", zone("za"), nodeLabel("topology.ebs.csi.aws.com/zone", "driver-zone")), testNode("b", zone("zb"))}, test.running...)
			for _, o := range test.objects {
				s.SetObject(o)
			}
			if got := refusalsOf(t, s, test.pod, DefaultProfile()); !maps.Equal(got, test.want) {
				t.Errorf("refused %v, want %v", got, test.want)
			}
		})
	}
}

func TestMovedInline(t *testing.T) {
	for what, test := range map[string]struct {
		source corev1.VolumeSource
		want   attachedVolume // none when empty
	}{
		"EBS":      {corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, attachedVolume{ebsDriver, "vol-1"}},
		"GCE":      {corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, attachedVolume{"pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"}},
		"Azure":    {corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DataDiskURI: "uri"}}, attachedVolume{"disk.csi.azure.com", "uri"}},
		"Cinder":   {corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "id"}}, attachedVolume{"cinder.csi.openstack.org", "id"}},
		"Portworx": {corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "id"}}, attachedVolume{"pxd.portworx.com", "id"}},
		"a folder": {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, attachedVolume{}},
		"a secret": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, attachedVolume{}},
	} {
		v := &corev1.Volume{Name: "v", VolumeSource: test.source}
		if moved := movedInline(v); moved != (test.want != attachedVolume{}) {
			t.Errorf("%s: moved is %t", what, moved)
		} else if moved {
			if got, err := inlineVolume(v, "default"); err != nil || got != test.want {
				t.Errorf("%s: %v, %v; want %v", what, got, err, test.want)
			}
		}
	}
}
