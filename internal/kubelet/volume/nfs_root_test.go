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
)

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
