//go:build root

package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
