package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSharedStaging: a volume that two pods use is unstaged with the second, also after a restart in between, and nobody reads the data of other volumes for
// that.
func TestSharedStaging(t *testing.T) {
	v := clusterVolumes(t, t.TempDir())
	followNode(t, v)
	put(t, v, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: pointer(false)}})
	driver := startDriver(t, v.Root)
	runWithRegistry(t, v)
	claim := func(name string) *corev1.Pod {
		return bound(t, v, name, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: name}}, nil)
	}
	first, other := claim("shared"), claim("other")
	second, third := first.DeepCopy(), first.DeepCopy()
	second.UID, third.UID = "second", "third"
	for _, pod := range []*corev1.Pod{first, second, third, other} {
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	unmount := func(v *Volumes, pod *corev1.Pod, unstaged int) {
		t.Helper()
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if got := count(driver, "unstage shared"); got != unstaged {
			t.Errorf("unstaged %d times, want %d", got, unstaged)
		}
	}
	unmount(v, first, 0)
	v.csi.mu.Lock()
	connected := v.csi.byName["disk.example.com"]
	v.csi.mu.Unlock()
	restarted := New(v.Options)
	restarted.csi.byName["disk.example.com"] = connected
	unmount(restarted, second, 0)
	// Data that cannot be decoded would be an error if it were read.
	file := filepath.Join(v.dir(other.UID, csiPlugin, "pv-other"), dataFile)
	if err := os.WriteFile(file, []byte(`{"driverName":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	unmount(restarted, third, 1)
	// Somebody else has removed the directory of a pod.
	if used, err := restarted.csi.index.all(); err != nil || len(used) != 1 {
		t.Errorf("published %v, %v", used, err)
	}
	if err := os.RemoveAll(v.podDir(other.UID)); err != nil {
		t.Fatal(err)
	}
	if used, err := restarted.csi.index.all(); err != nil || len(used) > 0 {
		t.Errorf("published %v, %v", used, err)
	}
}

// TestUnpublishOthers: a volume that cannot be unpublished does not keep the others of its pod from it, and the error names those that failed, in order.
func TestUnpublishOthers(t *testing.T) {
	v := clusterVolumes(t, t.TempDir())
	followNode(t, v)
	put(t, v, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: pointer(false)}})
	driver := startDriver(t, v.Root)
	runWithRegistry(t, v)
	handles := []string{"a", "b", "c", "d"}
	pod := testPod()
	for _, name := range handles {
		claimed := bound(t, v, name, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: name}}, nil)
		volume := claimed.Spec.Volumes[0]
		volume.Name = name
		pod.Namespace, pod.Spec.Volumes = claimed.Namespace, append(pod.Spec.Volumes, volume)
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	broken := []string{"a", "c"}
	for _, name := range broken {
		driver.setError("unpublish "+name, status.Error(codes.Internal, "busy"))
	}
	err := v.Unmount(t.Context(), pod.UID)
	var want []string
	for _, name := range broken {
		want = append(want, fmt.Sprintf("unpublish volume %q of pod %s: rpc error: code = Internal desc = busy", "pv-"+name, pod.UID))
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("error %v, want %s", err, strings.Join(want, "\n"))
	}
	for _, name := range handles {
		if got := count(driver, "unstage "+name); got == 1 == slices.Contains(broken, name) {
			t.Errorf("volume %s was unstaged %d times", name, got)
		}
	}
	for _, name := range broken {
		driver.setError("unpublish "+name, nil)
	}
	if err := v.Unmount(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
}
