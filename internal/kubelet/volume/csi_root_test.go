//go:build root

package volume

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
)

func TestCSI(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	node := followNode(t, v)
	put(t, v, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount: pointer(true), RequiresRepublish: pointer(true), FSGroupPolicy: pointer(storagev1.FileFSGroupPolicy), TokenRequests: []storagev1.TokenRequest{{Audience: "a", ExpirationSeconds: pointer(int64(3600))}},
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}})
	v.tokens.request = (&issuer{}).request
	driver := startDriver(t, root)
	runWithRegistry(t, v)
	ctx := t.Context()
	csiNode, err := client.For[*storagev1.CSINode](v.Client).Get(ctx, "", "node")
	if err != nil || len(csiNode.Spec.Drivers) != 1 || csiNode.Spec.Drivers[0].NodeID != "id" || *csiNode.Spec.Drivers[0].Allocatable.Count != 7 || csiNode.Spec.Drivers[0].TopologyKeys[0] != "example.com/zone" {
		t.Errorf("the node says %v, %v", csiNode, err)
	}
	if node, err := client.For[*corev1.Node](v.Client).Get(ctx, "", "node"); err != nil || node.Labels["example.com/zone"] != "z" {
		t.Errorf("the node is labelled %v, %v", node.Labels, err)
	}

	first := bound(t, v, "disk", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h", FSType: "ext4", VolumeAttributes: map[string]string{"x": "y"}}}, nil)
	first.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
	if err := v.Mount(ctx, first); err == nil || !strings.Contains(err.Error(), `MountVolume.WaitForAttach failed for volume "pv-disk"`) {
		t.Errorf("not attached: %v", err)
	}
	attachment := attach(t, v, "h")
	const name = "kubernetes.io/csi/disk.example.com^h"
	// The controller is about to detach it.
	if err := v.Mount(ctx, first); err == nil || !strings.Contains(err.Error(), "Volume not attached according to node status") || len(driver.calls) > 0 {
		t.Errorf("not in volumesAttached: %v, calls %q", err, driver.calls)
	}
	if used := node().Status.VolumesInUse; !slices.Equal(used, []corev1.UniqueVolumeName{name}) {
		t.Errorf("volumesInUse %v before the mount", used)
	}
	editNode(t, v, func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: name}} })
	second := first.DeepCopy()
	second.UID = "second"
	inline := testPod(corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "disk.example.com"}}})
	for _, pod := range []*corev1.Pod{first, second, inline} {
		if err := v.Mount(ctx, pod); err != nil {
			t.Fatal(err)
		}
	}
	handle := "csi-" + hexSum("uid-1own")
	if err := v.Mount(ctx, inline); err != nil { // the driver wants to be called again
		t.Fatal(err)
	}
	if at := v.RefreshAt(inline.UID); at.IsZero() || at.After(time.Now().Add(republishPeriod)) {
		t.Errorf("the driver is called again at %v", at)
	}
	if r := driver.published; r.VolumeContext["csi.storage.k8s.io/pod.name"] != "pod" || r.VolumeContext["csi.storage.k8s.io/ephemeral"] != "true" || !strings.Contains(r.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"], `"token":"t`) || !strings.Contains(r.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"], `"expirationTimestamp":"2`) {
		t.Errorf("published %v", r.VolumeContext)
	}
	target := filepath.Join(root, "pods", string(first.UID), "volumes/kubernetes.io~csi/pv-disk/mount")
	if m := v.mounted(first.UID, "data"); m.path != target {
		t.Errorf("at %s", m.path)
	}
	if info, err := os.Stat(target); err != nil || info.Sys().(*syscall.Stat_t).Gid != 4321 {
		t.Errorf("the fsGroup was not applied: %v", err)
	}
	var data map[string]any
	if err := json.Unmarshal([]byte(read(t, filepath.Dir(target), dataFile)), &data); err != nil || data["volumeHandle"] != "h" || data["driverName"] != "disk.example.com" || data["attachmentID"] != attachment.Name || data["fsGroupApplied"] != true {
		t.Errorf("kept %v, %v", data, err)
	}
	// After a restart the state on disk tells what is in use.
	restarted := New(v.Options)
	for _, v := range []*Volumes{v, restarted} {
		if used, err := v.InUse(); err != nil || len(used) != 1 || used[0] != name {
			t.Errorf("in use %v, %v", used, err)
		}
	}
	for _, pod := range []*corev1.Pod{first, second, inline} {
		if err := v.Unmount(ctx, pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"stage h slot", "publish h", "stage h slot", "publish h", "publish " + handle, "publish " + handle, "unpublish h", "unpublish h", "unstage h", "unpublish " + handle}
	if !reflect.DeepEqual(driver.calls, want) {
		t.Errorf("calls of the driver: %q", driver.calls)
	}
	if used := node().Status.VolumesInUse; len(used) > 0 {
		t.Errorf("volumesInUse %v after the unmount", used)
	}
	if driver.registered == nil || !driver.registered.PluginRegistered {
		t.Errorf("registration status %v", driver.registered)
	}
	if entries, _ := os.ReadDir(filepath.Join(root, "plugins/kubernetes.io/csi/disk.example.com")); len(entries) != 0 {
		t.Errorf("left %v", entries)
	}
}

// TestMountDuringDetach: a volume whose attachment is being deleted, or that the node's status does not report in use, is not mounted.
func TestMountDuringDetach(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	followNode(t, v)
	pod := bound(t, v, "disk", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h"}}, nil)
	driver := startDriver(t, root)
	runWithRegistry(t, v)
	ctx := t.Context()
	attachments := client.For[*storagev1.VolumeAttachment](v.Client)
	attachment := attach(t, v, "h", "example.com/attacher")
	editNode(t, v, func(n *corev1.Node) {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/disk.example.com^h"}}
	})
	const notInUse = "Volume has not been added to the list of VolumesInUse"
	report := v.InUseChanged
	v.InUseChanged = func() { // another program has overwritten the report
		used, _ := v.InUse()
		v.ReportedInUse(used)
	}
	if err := v.Mount(ctx, pod); err == nil || !strings.Contains(err.Error(), notInUse) || len(driver.calls) > 0 {
		t.Errorf("mounted although the Node object does not have the volume in use: %v, calls %q", err, driver.calls)
	}
	v.InUseChanged = report
	if err := attachments.Delete(ctx, "", attachment.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := v.Mount(ctx, pod); err == nil || !strings.Contains(err.Error(), "is being deleted") || len(driver.calls) > 0 {
		t.Errorf("mounted on an attachment that is being deleted: %v, calls %q", err, driver.calls)
	}
	v.InUseChanged = nil // the node's status is not reported again
	pod = pod.DeepCopy()
	pod.UID = "second"
	if err := v.Mount(ctx, pod); err == nil || !strings.Contains(err.Error(), notInUse) || len(driver.calls) > 0 {
		t.Errorf("mounted without a report: %v, calls %q", err, driver.calls)
	}
}
