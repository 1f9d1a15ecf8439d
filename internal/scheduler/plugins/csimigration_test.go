package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

func TestMovedInline(t *testing.T) {
	for what, test := range map[string]struct {
		source corev1.VolumeSource
		want   snapshot.AttachedVolume // none when empty
	}{
		"EBS":         {corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, snapshot.AttachedVolume{Driver: schedulertest.EbsDriver, Handle: "vol-1"}},
		"GCE":         {corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}, snapshot.AttachedVolume{Driver: "pd.csi.storage.gke.io", Handle: "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"}},
		"Azure":       {corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DataDiskURI: "uri"}}, snapshot.AttachedVolume{Driver: "disk.csi.azure.com", Handle: "uri"}},
		"Cinder":      {corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "id"}}, snapshot.AttachedVolume{Driver: "cinder.csi.openstack.org", Handle: "id"}},
		"Portworx":    {corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "id"}}, snapshot.AttachedVolume{Driver: "pxd.portworx.com", Handle: "id"}},
		"a directory": {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, snapshot.AttachedVolume{}},
		"a secret":    {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, snapshot.AttachedVolume{}},
	} {
		v := &corev1.Volume{Name: "v", VolumeSource: test.source}
		if moved := snapshot.IsMigratedInline(v); moved != (test.want != snapshot.AttachedVolume{}) {
			t.Errorf("%s: moved is %t", what, moved)
		} else if moved {
			if got, err := snapshot.MigratedInlineVolume(v, "default"); err != nil || got != test.want {
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
	"EBS":        {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}, "kubernetes.io/aws-ebs", schedulertest.EbsDriver, "vol-1"},
	"EBS, long":  {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-2"}}, "kubernetes.io/aws-ebs", schedulertest.EbsDriver, "vol-2"},
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

// A volume is read in its driver's words on the nodes that have left its kind to the driver.
func TestVolumesAsNodesSeeThem(t *testing.T) {
	for what, test := range inTree {
		for _, node := range []struct {
			what string
			csi  *storagev1.CSINode
			left bool // this kind to its driver
		}{
			{"a node that tells nothing", nil, false},
			{"a node without a note", schedulertest.CSINodeWithDrivers("a", nil), false},
			{"a node with an empty note", schedulertest.CSINodeWithDrivers("a", nil, ""), false},
			{"a node that has left another kind", schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/other"), false},
			{"a node that has left this kind", schedulertest.CSINodeWithDrivers("a", nil, test.plugin), true},
			{"a node that has left several", schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/other", test.plugin), true},
			{"a node that only looks as if", schedulertest.CSINodeWithDrivers("a", nil, test.plugin+"x", "x"+test.plugin), false},
		} {
			t.Run(what+"/"+node.what, func(t *testing.T) {
				pv := schedulertest.StorageVolume("v", schedulertest.VolumeSource(test.source), schedulertest.VolumeLabel(corev1.LabelTopologyZone, "z"))
				got, err := snapshot.TranslateForNode(pv, node.csi)
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
	pv := schedulertest.StorageVolume("v")
	if got, err := snapshot.TranslateForNode(pv, schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs")); got != pv || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}
