//go:build root

package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

func TestTokenFile(t *testing.T) {
	root := privateMounts(t)
	source := corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: pointer(int32(0o644)), Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: pointer(int64(3600))}}}}}}
	for name, test := range map[string]struct {
		security corev1.PodSecurityContext
		mode     string
		uid, gid uint32
	}{
		"everyone":  {corev1.PodSecurityContext{}, "-rw-r--r--", 0, 0},
		"one user":  {corev1.PodSecurityContext{RunAsUser: pointer(int64(1000))}, "-rw-------", 1000, 0},
		"one group": {corev1.PodSecurityContext{FSGroup: pointer(int64(2000))}, "-rw-r-----", 0, 2000},
		"both":      {corev1.PodSecurityContext{RunAsUser: pointer(int64(1000)), FSGroup: pointer(int64(2000))}, "-rw-r-----", 1000, 2000},
	} {
		v := testVolumes(root, &fakeObjects{})
		v.tokens.request = (&issuer{}).request
		pod := testPod(source)
		pod.Spec.SecurityContext = &test.security
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(v.mounted(pod.UID, "token").path + "/token")
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		if info.Mode().String() != test.mode || stat.Uid != test.uid || stat.Gid != test.gid {
			t.Errorf("%s: %v %d:%d", name, info.Mode(), stat.Uid, stat.Gid)
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSubPathRace(t *testing.T) {
	root := privateMounts(t)
	secret := outside(t)
	v := testVolumes(root, &fakeObjects{})
	pod := testPod(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "a/b"
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	volume := v.dir(pod.UID, emptyDirPlugin, "data")
	if err := os.MkdirAll(filepath.Join(volume, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	stop := swap(t, filepath.Join(volume, "a"), secret)
	defer stop()
	bound, denied := 0, 0
	for end := time.Now().Add(raceTime); time.Now().Before(end); {
		mounts, _, err := v.Mounts(pod, &pod.Spec.Containers[0], nil)
		if err != nil {
			denied++
			continue
		}
		bound++
		if _, err := os.Lstat(filepath.Join(mounts[0].HostPath, "secret")); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the container sees what is outside: %v", err)
		}
		if entries, _ := os.ReadDir(secret); len(entries) != 1 {
			t.Fatalf("something was made outside: %v", entries)
		}
	}
	t.Logf("bound %d times, denied %d times", bound, denied)
	if bound == 0 {
		t.Error("never bound")
	}
}

// TestRemoveStopsAtMounts: a directory with a mount inside, however deep, is not deleted.
func TestRemoveStopsAtMounts(t *testing.T) {
	root := privateMounts(t)
	source := filepath.Join(root, "source")
	inner := filepath.Join(root, "volume", "a", "b")
	for _, dir := range []string{source, inner} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(source, "keep"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := bindPath(source, inner); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(t.Context(), root, "volume"); err == nil {
		t.Error("a tree with a mount in it was removed")
	}
	if _, err := os.Lstat(filepath.Join(source, "keep")); err != nil {
		t.Errorf("what was mounted is gone: %v", err)
	}
	if err := unmountBelow(root); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(t.Context(), root, "volume"); err != nil {
		t.Error(err)
	}
}

// TestUnmountFollowsNoLinks: a mount that is only reached through a symlink is not unmounted.
func TestUnmountFollowsNoLinks(t *testing.T) {
	root := privateMounts(t)
	target, link := filepath.Join(root, "target"), filepath.Join(root, "link")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mountTmpfs(target, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := unmount(link); err != nil {
		t.Error(err) // nothing is mounted on the link itself
	}
	if err := os.Mkdir(filepath.Join(target, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mountTmpfs(filepath.Join(target, "inner"), 0); err != nil {
		t.Fatal(err)
	}
	if err := unmount(filepath.Join(link, "inner")); err == nil {
		t.Error("a link was followed")
	}
	if mounted, err := isMounted(filepath.Join(target, "inner")); err != nil || !mounted {
		t.Errorf("the inner mount is gone, %v", err)
	}
	if mounted, err := isMounted(target); err != nil || !mounted {
		t.Errorf("the mount is gone, %v", err)
	}
	// All of several mounts on one path are unmounted.
	if err := mountTmpfs(target, 0); err != nil {
		t.Fatal(err)
	}
	if err := unmountBelow(target); err != nil {
		t.Fatal(err)
	}
	if mounted, err := isMounted(target); err != nil || mounted {
		t.Errorf("the mount is still there, %v", err)
	}
}

func TestSubPath(t *testing.T) {
	root := privateMounts(t)
	v := testVolumes(root, objectsWithMap(map[string]string{"key": "one"}))
	pod := testPod(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, configMapVolume("files", corev1.ConfigMapVolumeSource{}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	data := v.mounted(pod.UID, "data").path
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(data, "real/inner"), 0o755))
	must(os.WriteFile(filepath.Join(data, "real/file"), []byte("text"), 0o644))
	must(os.Symlink("real/inner", filepath.Join(data, "inside")))
	must(os.Symlink("/etc", filepath.Join(data, "outside")))
	must(os.Symlink("../../../../..", filepath.Join(data, "up")))
	bindOne := func(volume, path string, index int) (string, error) {
		c := &corev1.Container{Name: "main", VolumeMounts: make([]corev1.VolumeMount, index+1)}
		for i := range c.VolumeMounts {
			c.VolumeMounts[i] = corev1.VolumeMount{Name: volume, SubPath: path}
		}
		mount, err := v.containerMount(pod, c, index, nil)
		if err != nil {
			return "", err
		}
		return mount.HostPath, nil
	}
	for i, test := range []struct{ volume, path, want string }{
		{"data", "real", "directory"}, {"data", "real/file", "text"}, {"data", "inside", "directory"}, {"data", "new/deeper", "directory"},
		{"files", "key", "one"}, {"data", "outside", ""}, {"data", "up", ""}, {"data", "outside/passwd", ""}, {"data", "real/file/x", ""},
	} {
		for range 2 { // a container that starts again binds again
			path, err := bindOne(test.volume, test.path, i)
			if test.want == "" {
				want := `failed to prepare subPath for volumeMount "` + test.volume + `" of container "main"`
				if errorText(err) != want {
					t.Errorf("%s: %v, %s", test.path, err, path)
				}
				continue
			}
			must(err)
			if want := filepath.Join(v.podDir(pod.UID), "volume-subpaths", test.volume, "main"); filepath.Dir(path) != want {
				t.Errorf("%s: at %s", test.path, path)
			}
			if info, err := os.Stat(path); err != nil || info.IsDir() != (test.want == "directory") || !info.IsDir() && read(t, path) != test.want {
				t.Errorf("%s: %v, %v", test.path, info, err)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(data, "new/deeper")); err != nil || info.Mode().String() != "dgrwxrwxrwx" {
		t.Errorf("a directory that was missing has mode %v, %v", info.Mode(), err)
	}
	must(v.Unmount(t.Context(), pod.UID))
	if entries, _ := os.ReadDir(v.podDir(pod.UID)); len(entries) != 0 {
		t.Errorf("left %v", entries)
	}
}

func TestPrepare(t *testing.T) {
	root := privateMounts(t)
	v := testVolumes(root, &fakeObjects{})
	if err := v.Prepare(); err != nil {
		t.Fatal(err)
	}
	if mounted, _ := isMounted(root); !mounted {
		t.Error("the root of a private mount is not made a shared one")
	}
	if err := v.Prepare(); err != nil {
		t.Error(err)
	}
	if err := v.Release(); err != nil {
		t.Fatal(err)
	}
	if mounted, _ := isMounted(root); mounted {
		t.Error("something is left mounted on the root")
	}
}

// privateMounts runs the calling test in a mount namespace of its own: its thread is locked, unshared and ends with the
// test.
func privateMounts(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatalf("a mount namespace needs root: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := unmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestClaims(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	v.helperDirs = nil
	local := filepath.Join(root, "disk")
	if err := os.Mkdir(local, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(local, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	onDisk := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}}
	for name, test := range map[string]struct {
		source corev1.PersistentVolumeSource
		change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
		pod    func(*corev1.Pod)
		want   string
	}{
		"local":    {source: onDisk},
		"hostpath": {source: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: local, Type: pointer(corev1.HostPathDirectory)}}},
		"pending": {onDisk, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimPending
		}, nil,
			`MountVolume.SetUp failed for volume "data" : error processing PVC default/pending: PVC is not bound`},
		"stolen": {onDisk, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "other", UID: "u"}
		}, nil, "bound to PVC UID u, expected PVC UID"},
		"elsewhere": {onDisk, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
		}, nil, `MountVolume.NodeAffinity check failed for volume "pv-elsewhere" : no matching NodeSelectorTerms`},
		"missing": {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local + "/no"}}, nil, nil, `MountVolume.SetUp failed for volume "pv-missing" : path "` + local + `/no" does not exist`},
		"nfs":     {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}, nil, nil, `MountVolume.SetUp failed for volume "pv-nfs" : the host has no mount.nfs`},
		"noclaim": {onDisk, nil, func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "absent" },
			`error processing PVC default/absent: failed to fetch PVC from API server: persistentvolumeclaims "absent" not found`},
		"device": {onDisk, nil, func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		}, "volume data has volumeMode Filesystem, but is specified in volumeDevices"},
		"nodriver": {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "absent.example.com", VolumeHandle: "h"}}, nil, nil,
			`MountVolume.SetUp failed for volume "pv-nodriver" : driver name absent.example.com not found in the list of registered CSI drivers`},
		"ephemeral": {onDisk, nil, func(p *corev1.Pod) {
			p.Name = "x"
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		}, `error processing PVC default/x-data: failed to fetch PVC from API server`},
	} {
		pod := bound(t, v, name, test.source, test.change)
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
		if test.pod != nil {
			test.pod(pod)
		}
		err := v.Mount(t.Context(), pod)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := read(t, v.mounted(pod.UID, "data").path, "file"); got != "kept" || !reflect.DeepEqual(v.SupplementalGroups(pod.UID), []int64{777}) {
			t.Errorf("%s: %q, groups %v", name, got, v.SupplementalGroups(pod.UID))
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if read(t, local, "file") != "kept" {
			t.Fatalf("%s: what the volume held is gone", name)
		}
	}
	info, _ := os.Stat(filepath.Join(local, "file"))
	if info.Sys().(*syscall.Stat_t).Gid != 4321 {
		t.Error("the fsGroup was not applied")
	}
}

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

// TestSubPathsAreUnmountedFirst: nothing of the kubelet uses a volume any more when its driver unpublishes it.
func TestSubPathsAreUnmountedFirst(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	followNode(t, v)
	put(t, v, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: pointer(false)}})
	driver := startDriver(t, root)
	tid := unix.Gettid() // the driver runs in other threads, and the mounts are those of this one
	subPathMounts := func() int {
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/mountinfo", tid))
		if err != nil {
			t.Error(err)
		}
		return strings.Count(string(text), "/"+subPathsDir+"/")
	}
	left := make(chan int, 1)
	driver.mu.Lock()
	driver.unpublishing = func() { left <- subPathMounts() }
	driver.mu.Unlock()
	runWithRegistry(t, v)
	pod := bound(t, v, "disk", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h"}}, nil)
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "a"
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.Mounts(pod, &pod.Spec.Containers[0], nil); err != nil {
		t.Fatal(err)
	}
	if mounts := subPathMounts(); mounts != 1 {
		t.Fatalf("%d subPaths are mounted", mounts)
	}
	if err := v.Unmount(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if mounts := <-left; mounts != 0 {
		t.Errorf("%d subPaths are mounted when the volume is unpublished", mounts)
	}
}

// TestRemoveDir: what is mounted in the directory of a pod after its volumes were unmounted is not deleted with the directory.
func TestRemoveDir(t *testing.T) {
	root := privateMounts(t)
	v := testVolumes(root, &fakeObjects{})
	kept := filepath.Join(root, "kept")
	late := filepath.Join(v.podDir("uid-1"), "volumes/kubernetes.io~csi/pv/mount")
	if err := errors.Join(os.Mkdir(kept, 0o755), os.WriteFile(filepath.Join(kept, "file"), []byte("kept"), 0o644), os.MkdirAll(late, 0o755),
		os.MkdirAll(filepath.Join(v.podDir("uid-1"), "containers/c"), 0o755), os.WriteFile(filepath.Join(v.podDir("uid-1"), "etc-hosts"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := bindPath(kept, late); err != nil {
		t.Fatal(err)
	}
	if err := v.RemoveDir(t.Context(), "uid-1"); err != nil {
		t.Error(err)
	}
	if got := read(t, kept, "file"); got != "kept" {
		t.Errorf("the volume has %q", got)
	}
	if exists(v.podDir("uid-1")) {
		t.Error("the directory of the pod is left")
	}
	if err := v.RemoveDir(t.Context(), "uid-1"); err != nil {
		t.Errorf("a directory that does not exist: %v", err)
	}
}

// TestLocalVolumeAfterKill: a kubelet that was killed after it had mounted a local volume completes it when it starts again, once.
func TestLocalVolumeAfterKill(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	local := filepath.Join(root, "disk")
	file := filepath.Join(local, "file")
	if err := errors.Join(os.Mkdir(local, 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	pod := bound(t, v, "local", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}}, nil)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
	target := v.dir(pod.UID, localPlugin, "pv-local")
	if err := errors.Join(os.MkdirAll(target, 0o755), bindPath(local, target)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint32{4321, 77} {
		if err := New(v.Options).Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Gid; got != want {
			t.Errorf("the file belongs to the group %d, want %d", got, want)
		}
		// The pod may change it.
		if err := os.Chown(file, -1, 77); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Unmount(t.Context(), pod.UID); err != nil {
		t.Error(err)
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

// TestNFS: exports are mounted by the host's helper, with the options of the persistent volume, and unmounted with the pod.
func TestNFS(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	v.helperDirs = nil
	inline := testPod(corev1.Volume{Name: "share", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "fd00::1", Path: "/export"}}})
	if err := v.Mount(t.Context(), inline); err == nil || !strings.Contains(err.Error(), "the host has no mount.nfs") {
		t.Errorf("without the helper: %v", err)
	}
	v.helperDirs = []string{t.TempDir(), t.TempDir()}
	arguments := filepath.Join(root, "arguments")
	helper := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(v.helperDirs[1], "mount.nfs"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	helper("echo access denied by server >&2; exit 32")
	if err := v.Mount(t.Context(), inline); err == nil || !strings.Contains(err.Error(), "exit status 32") || !strings.Contains(err.Error(), "Output: access denied by server") {
		t.Errorf("a helper that fails: %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(v.podDir(inline.UID), "volumes/kubernetes.io~nfs")); len(entries) != 0 {
		t.Errorf("left %v", entries)
	}
	helper(`echo "$@" >> ` + arguments + `; exec mount -t tmpfs none "$2"`)
	claimed := bound(t, v, "nfs", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "files", Path: "/export", ReadOnly: true}}, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
		pv.Spec.MountOptions = []string{"vers=4.1", "hard"}
	})
	for _, pod := range []*corev1.Pod{inline, claimed} {
		for range 2 { // again, as after a restart
			if err := New(v.Options).withHelpers(v.helperDirs).Mount(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(v.Mount(t.Context(), inline), v.Mount(t.Context(), claimed)); err != nil {
		t.Fatal(err)
	}
	m := v.mounted(claimed.UID, "data")
	want := "[fd00::1]:/export " + v.mounted(inline.UID, "share").path + "\nfiles:/export " + m.path + " -o ro,vers=4.1,hard\n"
	if got := read(t, arguments); got != want || !m.readOnly || m.plugin != nfsPlugin {
		t.Errorf("the helper was called with\n%swant\n%s%+v", got, want, m)
	}
	for _, pod := range []*corev1.Pod{inline, claimed} {
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if entries, _ := os.ReadDir(v.podDir(pod.UID)); len(entries) != 0 {
			t.Errorf("left %v", entries)
		}
	}
}

// TestSymlinkedRoot: the mounts of pods are found where the kubelet's directory is reached through a symlink.
func TestSymlinkedRoot(t *testing.T) {
	dir := privateMounts(t)
	root := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "disk"), 0o755), os.Symlink("disk", root)); err != nil {
		t.Fatal(err)
	}
	v := testVolumes(root, &fakeObjects{})
	if err := v.Prepare(); err != nil {
		t.Fatal(err)
	}
	pod := testPod(corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}})
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	m := v.mounted(pod.UID, "scratch")
	if mounted, err := isMounted(m.path); err != nil || !mounted || !strings.HasPrefix(m.path, root+"/") {
		t.Fatalf("mounted at %s: %t, %v", m.path, mounted, err)
	}
	if err := v.Unmount(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(v.podDir(pod.UID)); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	if err := v.Release(); err != nil {
		t.Error(err)
	}
	if mounted, err := isMounted(filepath.Join(dir, "disk")); err != nil || mounted {
		t.Errorf("the directory is still mounted on itself, %v", err)
	}
}

// mountUnresponsive mounts a file system whose server never responds. The returned function ends it and reports whether somebody had to wait for it.
func mountUnresponsive(t *testing.T, dir string) (waited func() bool) {
	t.Helper()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no file system without a server can be mounted: %v", err)
	}
	if err := unix.Mount("fuse", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(10*time.Second, func() { server.Close() })
	return func() bool { return !late.Stop() || server.Close() != nil }
}

// TestUnresponsiveNFS: a kubelet that starts while the server of a volume does not respond does not wait for that, nor when the pod is removed.
func TestUnresponsiveNFS(t *testing.T) {
	v := clusterVolumes(t, privateMounts(t))
	v.helperDirs = nil // it is not mounted again
	pod := testPod(corev1.Volume{Name: "share", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "files", Path: "/export"}}})
	dir := v.dir(pod.UID, nfsPlugin, "share")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	waited := mountUnresponsive(t, dir)
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Error(err)
	}
	if err := v.Unmount(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
	if waited() {
		t.Error("the server was waited for")
	}
	if entries, err := os.ReadDir(v.podDir(pod.UID)); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

// withHelpers sets the directories of mount helpers.
func (v *Volumes) withHelpers(dirs []string) *Volumes {
	v.helperDirs = dirs
	return v
}

func TestFileVolumes(t *testing.T) {
	root := privateMounts(t)
	objects := objectsWithMap(map[string]string{"key": "one", "other": "two"})
	mode := pointer(int32(0o644))
	project := func(sources ...corev1.VolumeProjection) corev1.Volume {
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: mode, Sources: sources}}}
	}
	for name, test := range map[string]struct {
		volume corev1.Volume
		want   map[string]string // path to "mode content"
	}{
		"config map": {configMapVolume("v", corev1.ConfigMapVolumeSource{}),
			map[string]string{"key": "-rw-r--r-- one", "other": "-rw-r--r-- two", "bin": "-rw-r--r-- \x00\xff"}},
		"config map, default mode": {configMapVolume("v", corev1.ConfigMapVolumeSource{DefaultMode: pointer(int32(0o400)), Items: []corev1.KeyToPath{{Key: "key", Path: "key"}}}),
			map[string]string{"key": "-r-------- one"}},
		"config map, items": {configMapVolume("v", corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{
			{Key: "key", Path: "a/b/key", Mode: pointer(int32(0o400))}, {Key: "bin", Path: "bin"}}}),
			map[string]string{"a/b/key": "-r-------- one", "bin": "-rw-r--r-- \x00\xff"}},
		"config map, optional": {configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: pointer(true)}),
			map[string]string{}},
		"config map, optional key": {configMapVolume("v", corev1.ConfigMapVolumeSource{Optional: pointer(true), Items: []corev1.KeyToPath{{Key: "absent", Path: "p"}, {Key: "key", Path: "q"}}}),
			map[string]string{"q": "-rw-r--r-- one"}},
		"secret": {corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "hidden", DefaultMode: mode}}},
			map[string]string{"password": "-rw-r--r-- x"}},
		"downward": {corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultMode: mode, Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}, Mode: pointer(int32(0o400))},
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}},
			{Path: "memory", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}},
		}}}}, map[string]string{"name": "-r-------- pod", "labels": `-rw-r--r-- app="x"`, "cpu": "-rw-r--r-- 2", "memory": "-rw-r--r-- 1024"}},
		"projected": {project(
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}, Items: []corev1.KeyToPath{{Key: "key", Path: "same"}}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "hidden"}, Items: []corev1.KeyToPath{{Key: "password", Path: "in/password"}}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: pointer(true)}},
			corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "same", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}}}},
		), map[string]string{"same": "-rw-r--r-- uid-" + dirName("projected"), "in/password": "-rw-r--r-- x"}},
	} {
		v := testVolumes(root, objects)
		pod := testPod(test.volume)
		pod.UID = types.UID("uid-" + dirName(name))
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m := v.mounted(pod.UID, "v")
		plugin, inMemory := apiVolumePlugin(&test.volume)
		if want := filepath.Join(root, "pods", string(pod.UID), "volumes", strings.ReplaceAll(plugin, "/", "~"), "v"); m.path != want || !m.readOnly {
			t.Errorf("%s: at %s, read-only %v", name, m.path, m.readOnly)
		}
		if mounted, err := isMounted(m.path); err != nil || mounted != inMemory {
			t.Errorf("%s: in memory %v, %v", name, mounted, err)
		}
		seen := tree(t, m.path)
		for path := range seen {
			info, err := os.Stat(filepath.Join(m.path, path))
			if err != nil {
				t.Fatal(err)
			}
			seen[path] = info.Mode().String() + " " + seen[path]
		}
		if len(seen) != len(test.want) {
			t.Errorf("%s: %v", name, seen)
		}
		for path, want := range test.want {
			if seen[path] != want {
				t.Errorf("%s: %s is %q, want %q", name, path, seen[path], want)
			}
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(v.podDir(pod.UID)); len(entries) != 0 {
			t.Errorf("%s: left %v", name, entries)
		}
	}
}

func TestGroups(t *testing.T) {
	root := privateMounts(t)
	v := testVolumes(root, objectsWithMap(map[string]string{"key": "one"}))
	pod := testPod(
		configMapVolume("files", corev1.ConfigMapVolumeSource{DefaultMode: pointer(int32(0o400))}),
		corev1.Volume{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
	)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		v.dir(pod.UID, "kubernetes.io/configmap", "files"):          "dgrwxrwxrwx",
		v.dir(pod.UID, "kubernetes.io/configmap", "files") + "/key": "-r--r-----",
		v.dir(pod.UID, emptyDirPlugin, "empty"):                     "dgrwxrwxrwx",
		v.dir(pod.UID, emptyDirPlugin, "memory"):                    "dgtrwxrwxrwx",
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if group := info.Sys().(*syscall.Stat_t).Gid; group != 4321 || info.Mode().String() != want {
			t.Errorf("%s: group %d, mode %s", path, group, info.Mode())
		}
	}
}

func TestFSGroupChangePolicy(t *testing.T) {
	onMismatch := pointer(corev1.FSGroupChangeOnRootMismatch)
	for name, test := range map[string]struct {
		rootMode os.FileMode
		group    int
		policy   *corev1.PodFSGroupChangePolicy
		changed  bool
	}{
		"as it should be":            {0o770 | os.ModeSetgid, 4321, onMismatch, false},
		"more than it should":        {0o777 | os.ModeSetgid, 4321, onMismatch, false},
		"other group":                {0o770 | os.ModeSetgid, 1, onMismatch, true},
		"no setgid":                  {0o770, 4321, onMismatch, true},
		"group may not write":        {0o750 | os.ModeSetgid, 4321, onMismatch, true},
		"always":                     {0o770 | os.ModeSetgid, 4321, pointer(corev1.FSGroupChangeAlways), true},
		"no policy, which is always": {0o770 | os.ModeSetgid, 4321, nil, true},
	} {
		dir := t.TempDir()
		inner := filepath.Join(dir, "file")
		err := errors.Join(os.WriteFile(inner, nil, 0o600), os.Chown(dir, -1, test.group), os.Chmod(dir, test.rootMode), setGroup(t.Context(), dir, 4321, false, test.policy))
		if err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(inner)
		if changed := info.Mode() == 0o660 && info.Sys().(*syscall.Stat_t).Gid == 4321; changed != test.changed {
			t.Errorf("%s: file has mode %v", name, info.Mode())
		}
	}
}

func TestEmptyDir(t *testing.T) {
	root := privateMounts(t)
	v := testVolumes(root, &fakeObjects{})
	limited := testPod()
	limited.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	for name, test := range map[string]struct {
		source corev1.EmptyDirVolumeSource
		pod    *corev1.Pod
		size   int64 // of its own file system, 0 for none
		mode   string
	}{
		"disk":                  {corev1.EmptyDirVolumeSource{}, nil, 0, "drwxrwxrwx"},
		"disk with a mode":      {corev1.EmptyDirVolumeSource{Mode: pointer(int32(0o1750))}, nil, 0, "dtrwxr-x---"},
		"memory":                {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}, nil, 1 << 30, "dtrwxrwxrwx"},
		"memory with a limit":   {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: pointer(resource.MustParse("1Mi"))}, nil, 1 << 20, "dtrwxrwxrwx"},
		"memory of the pod":     {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}, limited, 64 << 20, "dtrwxrwxrwx"},
		"no more than the node": {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: pointer(resource.MustParse("2Gi"))}, nil, 1 << 30, "dtrwxrwxrwx"},
	} {
		pod := testPod(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &test.source}})
		if test.pod != nil {
			pod.Spec.Containers[0].Resources = test.pod.Spec.Containers[0].Resources
		}
		for range 2 { // again, as after a restart
			v = testVolumes(root, &fakeObjects{})
			if err := v.Mount(t.Context(), pod); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		m := v.mounted(pod.UID, "v")
		info, err := os.Stat(m.path)
		if err != nil || info.Mode().String() != test.mode || m.readOnly {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(m.path, &fs); err != nil {
			t.Fatal(err)
		}
		if own := fs.Type == unix.TMPFS_MAGIC; own != (test.size > 0) || own && int64(fs.Blocks)*fs.Bsize != test.size {
			t.Errorf("%s: in memory %v, %d bytes", name, own, int64(fs.Blocks)*fs.Bsize)
		}
		if err := os.WriteFile(filepath.Join(m.path, "data"), make([]byte, 8192), 0o644); err != nil {
			t.Fatal(err)
		}
		if usage, err := v.usage(t.Context(), v.mounted(pod.UID, "v")); err != nil || usage.Used < 8192 || usage.Used > 1<<20 || usage.InodesUsed != 2 {
			t.Errorf("%s: usage %+v, %v", name, usage, err)
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if entries, _ := os.ReadDir(v.podDir(pod.UID)); len(entries) != 0 {
			t.Errorf("%s: left %v", name, entries)
		}
	}
}

// dirName returns a valid directory name.
func dirName(s string) string { return strings.NewReplacer(" ", "", ",", "").Replace(s) }
