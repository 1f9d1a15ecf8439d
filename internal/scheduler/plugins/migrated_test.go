package plugins

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

func TestMovedVolumeOfEveryKind(t *testing.T) {
	for what, test := range inTree {
		t.Run(what, func(t *testing.T) {
			pv := schedulertest.StorageVolume("v", schedulertest.VolumeSource(test.source), schedulertest.VolumeLabel(corev1.LabelTopologyZone, "z"))
			before := pv.DeepCopy()
			got, moved := snapshot.MigratedVolume(pv)
			if moved != (test.driver != "") || moved && got != (snapshot.AttachedVolume{Driver: test.driver, Handle: test.handle}) {
				t.Errorf("%v, %t", got, moved)
			}
			if !equality.Semantic.DeepEqual(pv, before) {
				t.Error("the volume itself was changed")
			}
			// It counts for its driver where drivers are told of, and nowhere else.
			known := schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), pv}
			if test.driver != "" {
				known = append(known, schedulertest.CSINodeWithDrivers("a", map[string]int32{test.driver: 0}))
			} else {
				known = append(known, schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 0, schedulertest.EbsDriver: 0, "csi.vsphere.vmware.com": 0, "file.csi.azure.com": 0}))
			}
			said := heard(t, knowing(t, schedulertest.TwoZones(), known), nodeVolumeLimits{}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")))
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
		{"kubernetes.io/aws-ebs", schedulertest.EbsDriver, true}, {"kubernetes.io/gce-pd", "pd.csi.storage.gke.io", true}, {"kubernetes.io/azure-disk", "disk.csi.azure.com", true},
		{"kubernetes.io/cinder", "cinder.csi.openstack.org", true}, {"kubernetes.io/portworx-volume", "pxd.portworx.com", true},
		{"kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", false}, {"kubernetes.io/azure-file", "file.csi.azure.com", false},
		{schedulertest.CsiName, schedulertest.CsiName, true}, {"kubernetes.io/no-provisioner", "kubernetes.io/no-provisioner", true}, {"kubernetes.io/rbd", "kubernetes.io/rbd", true},
	} {
		t.Run(test.provisioner, func(t *testing.T) {
			if driver, counts := snapshot.MigratedProvisioner(test.provisioner); driver != test.driver || counts != test.counts {
				t.Errorf("%s, %t", driver, counts)
			}
			// A volume still to be made: of a driver it counts everywhere, of a kind that moved where drivers are told of.
			known := schedulertest.Objects{schedulertest.WaitForConsumerClass("late", test.provisioner), schedulertest.StorageClaim("c"), schedulertest.CSINodeWithDrivers("a", map[string]int32{test.driver: 0}), schedulertest.StorageDriver(test.driver, nil, ptr.To(true))}
			want := schedulertest.Verdicts{}
			if test.counts {
				want["a"] = "no: node(s) exceed max volume count"
			}
			if test.counts && test.driver == test.provisioner {
				want["b"] = "no: " + test.driver + " CSI driver is not installed on the node"
			}
			if got := heard(t, knowing(t, schedulertest.TwoZones(), known), nodeVolumeLimits{}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"))); !maps.Equal(got, want) {
				t.Errorf("limits say %v, want %v", got, want)
			}
		})
	}
}

// Volumes that pods name themselves, of every kind: which count, and which may.
func TestInlineVolumesOfEveryKind(t *testing.T) {
	for _, test := range []struct {
		what   string
		source corev1.VolumeSource
		driver string // that it counts for
	}{
		{"EBS", schedulertest.EbsDisk("vol-1", false), schedulertest.EbsDriver}, {"GCE", schedulertest.GceDisk("d", false), "pd.csi.storage.gke.io"}, {"Azure disk", schedulertest.AzureDisk("d"), "disk.csi.azure.com"},
		{"Cinder", corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "x"}}, "cinder.csi.openstack.org"},
		{"Portworx", corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "x"}}, "pxd.portworx.com"},
		{"vSphere", corev1.VolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "x"}}, ""},
		{"Azure file", corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{ShareName: "x"}}, ""},
		{"iSCSI", schedulertest.IscsiDisk("q", false), ""}, {"RBD", schedulertest.RbdDisk("p", "i", false, "m"), ""},
		{"a driver's own", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: schedulertest.CsiName}}, ""}, {"NFS", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			counts := map[string]int32{schedulertest.CsiName: 0, "csi.vsphere.vmware.com": 0, "file.csi.azure.com": 0}
			if test.driver != "" {
				counts = map[string]int32{test.driver: 0}
			}
			pod := schedulertest.TestPod("p", schedulertest.InlineVolumeSource(test.source))
			got := heard(t, knowing(t, schedulertest.TwoZones(), schedulertest.Objects{schedulertest.CSINodeWithDrivers("a", counts)}), nodeVolumeLimits{}, pod)
			if _, full := got["a"]; full != (test.driver != "") || got["b"] != "" {
				t.Errorf("limits say %v", got)
			}
			if may := hasAttachableVolumes(pod); may != (test.driver != "") {
				t.Errorf("may be attached: %t", may)
			}
			// A pod that runs counts in the same way.
			running := knowing(t, schedulertest.TwoZones(), schedulertest.Objects{schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.EbsDriver: 1}), schedulertest.CSINodeWithDrivers("b", map[string]int32{schedulertest.EbsDriver: 1})}, schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(test.source)))
			got = heard(t, running, nodeVolumeLimits{}, schedulertest.TestPod("q", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("vol-9", false))))
			if _, full := got["a"]; full != (test.driver == schedulertest.EbsDriver) || got["b"] != "" {
				t.Errorf("beside it limits say %v", got)
			}
		})
	}
}

func TestNamesOfClaims(t *testing.T) {
	pod := schedulertest.TestPod("p", schedulertest.UsingClaim("x"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("d", false)), schedulertest.UsingEphemeralVolume("v"), schedulertest.UsingClaim("x"))
	if got := snapshot.ClaimNames(pod); !slices.Equal(got, []string{"x", "p-v", "x"}) {
		t.Errorf("names %v", got)
	}
	for _, test := range []struct {
		claim       *corev1.PersistentVolumeClaim
		uses, names bool
	}{
		{nil, false, false}, {schedulertest.StorageClaim("x"), true, true}, {schedulertest.StorageClaim("p-v"), true, false}, {schedulertest.StorageClaim("y"), false, false},
		{schedulertest.StorageClaim("x", schedulertest.ClaimNamespace("other")), false, false}, {schedulertest.StorageClaim("p-v", schedulertest.ClaimNamespace("other")), false, false},
	} {
		if got := snapshot.UsesClaim(pod, test.claim); got != test.uses {
			t.Errorf("uses %v: %t", test.claim, got)
		}
		if got := referencedClaimHint(nil, pod, nil, test.claim); got != test.names {
			t.Errorf("names %v: %t", test.claim, got)
		}
	}
}

// A node's drivers may be told of before the node and after it is gone.
func TestDriversBeforeTheirNode(t *testing.T) {
	s := snapshot.NewSnapshot()
	s.SetObject(schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 0}))
	if s.NumNodes() != 0 {
		t.Error("a node that is only spoken of counts")
	}
	for _, o := range (schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}) {
		s.SetObject(o)
	}
	refused := func() bool {
		return heard(t, s, nodeVolumeLimits{}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")))["a"] != ""
	}
	s.SetNode(schedulertest.TestNode("a"))
	if !refused() {
		t.Error("the limit is forgotten when the node comes")
	}
	s.DeleteNode("a")
	s.SetNode(schedulertest.TestNode("a"))
	if !refused() {
		t.Error("the limit is forgotten when the node goes and comes")
	}
	s.DeleteObject(schedulertest.CSINodeWithDrivers("a", nil))
	if refused() {
		t.Error("the limit outlives the drivers")
	}
	s.DeleteNode("a")
	if len(s.NodeNumbers) != 0 {
		t.Error("a node nobody speaks of is kept")
	}
	s.DeleteObject(schedulertest.CSINodeWithDrivers("never", nil))
	if len(s.NodeNumbers) != 0 {
		t.Error("a node was made by forgetting it")
	}
}
