package scheduler

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
		"EBS":         {corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, attachedVolume{ebsDriver, "vol-1"}},
		"GCE":         {corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, attachedVolume{"pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"}},
		"Azure":       {corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DataDiskURI: "uri"}}, attachedVolume{"disk.csi.azure.com", "uri"}},
		"Cinder":      {corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "id"}}, attachedVolume{"cinder.csi.openstack.org", "id"}},
		"Portworx":    {corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "id"}}, attachedVolume{"pxd.portworx.com", "id"}},
		"a directory": {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, attachedVolume{}},
		"a secret":    {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, attachedVolume{}},
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

// inTree are volumes of every kind that was once built in, and what their drivers call them. Those without a driver are left alone.
var inTree = map[string]struct {
	source         corev1.PersistentVolumeSource
	plugin         string
	driver, handle string
}{
	"EBS":        {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, "kubernetes.io/aws-ebs", ebsDriver, "vol-1"},
	"EBS, long":  {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-2"}}, "kubernetes.io/aws-ebs", ebsDriver, "vol-2"},
	"GCE":        {corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, "kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/z/disks/disk"},
	"Azure disk": {corev1.PersistentVolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DataDiskURI: "uri"}}, "kubernetes.io/azure-disk", "disk.csi.azure.com", "uri"},
	"Cinder":     {corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "id"}}, "kubernetes.io/cinder", "cinder.csi.openstack.org", "id"},
	"Portworx":   {corev1.PersistentVolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "id"}}, "kubernetes.io/portworx-volume", "pxd.portworx.com", "id"},
	"vSphere":    {corev1.PersistentVolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "x"}}, "kubernetes.io/vsphere-volume", "", ""},
	"Azure file": {corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{ShareName: "s", SecretName: "x"}}, "kubernetes.io/azure-file", "", ""},
	"NFS":        {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s"}}, "", "", ""},
	"local":      {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}}, "", "", ""},
	"unreadable": {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws:///x/"}}, "kubernetes.io/aws-ebs", "", ""},
}

func TestMovedVolumeOfEveryKind(t *testing.T) {
	for what, test := range inTree {
		t.Run(what, func(t *testing.T) {
			pv := storageVolume("v", volumeSource(test.source), volumeLabel(corev1.LabelTopologyZone, "z"))
			before := pv.DeepCopy()
			got, moved := movedVolume(pv)
			if moved != (test.driver != "") || moved && got != (attachedVolume{test.driver, test.handle}) {
				t.Errorf("%v, %t", got, moved)
			}
			if !equality.Semantic.DeepEqual(pv, before) {
				t.Error("the volume itself was changed")
			}
			// It counts for its driver where drivers are told of, and nowhere else.
			known := objects{storageClaim("c", claimHas("v")), pv}
			if test.driver != "" {
				known = append(known, driversOn("a", map[string]int32{test.driver: 0}))
			} else {
				known = append(known, driversOn("a", map[string]int32{csiName: 0, ebsDriver: 0, "csi.vsphere.vmware.com": 0, "file.csi.azure.com": 0}))
			}
			said := heard(t, knowing(t, twoZones(), known), nodeVolumeLimits{}, testPod("p", usingClaim("c")))
			if _, full := said["a"]; full != (test.driver != "") || said["b"] != "" {
				t.Errorf("limits say %v", said)
			}
		})
	}
}

func TestMovedProvisioners(t *testing.T) {
	for _, test := range []struct {
		provisioner, driver string
		counts              bool
	}{
		{"kubernetes.io/aws-ebs", ebsDriver, true}, {"kubernetes.io/gce-pd", "pd.csi.storage.gke.io", true}, {"kubernetes.io/azure-disk", "disk.csi.azure.com", true},
		{"kubernetes.io/cinder", "cinder.csi.openstack.org", true}, {"kubernetes.io/portworx-volume", "pxd.portworx.com", true},
		{"kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", false}, {"kubernetes.io/azure-file", "file.csi.azure.com", false},
		{csiName, csiName, true}, {"kubernetes.io/no-provisioner", "kubernetes.io/no-provisioner", true}, {"kubernetes.io/rbd", "kubernetes.io/rbd", true},
	} {
		t.Run(test.provisioner, func(t *testing.T) {
			if driver, counts := movedProvisioner(test.provisioner); driver != test.driver || counts != test.counts {
				t.Errorf("%s, %t", driver, counts)
			}
			// A volume still to be made: of a driver it counts everywhere, of a kind that moved where drivers are told of.
			known := objects{lateClass("late", test.provisioner), storageClaim("c"), driversOn("a", map[string]int32{test.driver: 0}), storageDriver(test.driver, nil, ptr.To(true))}
			want := says{}
			if test.counts {
				want["a"] = "no: node(s) exceed max volume count"
			}
			if test.counts && test.driver == test.provisioner {
				want["b"] = "no: " + test.driver + " CSI driver is not installed on the node"
			}
			if got := heard(t, knowing(t, twoZones(), known), nodeVolumeLimits{}, testPod("p", usingClaim("c"))); !maps.Equal(got, want) {
				t.Errorf("limits say %v, want %v", got, want)
			}
		})
	}
}

// A volume is read in its driver's words on the nodes that have left its kind to the driver.
func TestVolumesAsNodesSeeThem(t *testing.T) {
	for what, test := range inTree {
		for _, node := range []struct {
			what string
			csi  *storagev1.CSINode
			left bool // this kind to its driver
		}{
			{"a node that tells nothing", nil, false},
			{"a node without a note", driversOn("a", nil), false},
			{"a node with an empty note", driversOn("a", nil, ""), false},
			{"a node that has left another kind", driversOn("a", nil, "kubernetes.io/other"), false},
			{"a node that has left this kind", driversOn("a", nil, test.plugin), true},
			{"a node that has left several", driversOn("a", nil, "kubernetes.io/other", test.plugin), true},
			{"a node that only looks as if", driversOn("a", nil, test.plugin+"x", "x"+test.plugin), false},
		} {
			t.Run(what+"/"+node.what, func(t *testing.T) {
				pv := storageVolume("v", volumeSource(test.source), volumeLabel(corev1.LabelTopologyZone, "z"))
				got, err := asOnNode(pv, node.csi)
				switch {
				case what == "unreadable" && node.left:
					if err == nil || got != nil {
						t.Errorf("%v, %v", got, err)
					}
				case err != nil:
					t.Error(err)
				case !node.left || test.driver == "":
					if got != pv {
						t.Errorf("read as %+v", got.Spec.PersistentVolumeSource)
					}
				case got.Spec.CSI == nil || got.Spec.CSI.Driver != test.driver || got.Spec.CSI.VolumeHandle != test.handle || pv.Spec.CSI != nil:
					t.Errorf("read as %+v", got.Spec.PersistentVolumeSource)
				}
			})
		}
	}
	// A volume of a driver is what it is.
	pv := storageVolume("v")
	if got, err := asOnNode(pv, driversOn("a", nil, "kubernetes.io/aws-ebs")); got != pv || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// Volumes that pods name themselves, of every kind: which count, and which may.
func TestInlineVolumesOfEveryKind(t *testing.T) {
	for _, test := range []struct {
		what   string
		source corev1.VolumeSource
		driver string // that it counts for
	}{
		{"EBS", ebsDisk("vol-1", false), ebsDriver}, {"GCE", gceDisk("d", false), "pd.csi.storage.gke.io"}, {"Azure disk", azureDisk("d"), "disk.csi.azure.com"},
		{"Cinder", corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "x"}}, "cinder.csi.openstack.org"},
		{"Portworx", corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "x"}}, "pxd.portworx.com"},
		{"vSphere", corev1.VolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "x"}}, ""},
		{"Azure file", corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{ShareName: "x"}}, ""},
		{"iSCSI", iscsiDisk("q", false), ""}, {"RBD", rbdDisk("p", "i", false, "m"), ""},
		{"a driver's own", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: csiName}}, ""}, {"NFS", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			counts := map[string]int32{csiName: 0, "csi.vsphere.vmware.com": 0, "file.csi.azure.com": 0}
			if test.driver != "" {
				counts = map[string]int32{test.driver: 0}
			}
			pod := testPod("p", inline(test.source))
			got := heard(t, knowing(t, twoZones(), objects{driversOn("a", counts)}), nodeVolumeLimits{}, pod)
			if _, full := got["a"]; full != (test.driver != "") || got["b"] != "" {
				t.Errorf("limits say %v", got)
			}
			if may := mayAttach(pod); may != (test.driver != "") {
				t.Errorf("may be attached: %t", may)
			}
			// A pod that runs counts in the same way.
			running := knowing(t, twoZones(), objects{driversOn("a", map[string]int32{ebsDriver: 1}), driversOn("b", map[string]int32{ebsDriver: 1})}, testPod("1", on("a"), inline(test.source)))
			got = heard(t, running, nodeVolumeLimits{}, testPod("q", inline(ebsDisk("vol-9", false))))
			if _, full := got["a"]; full != (test.driver == ebsDriver) || got["b"] != "" {
				t.Errorf("beside it limits say %v", got)
			}
		})
	}
}
