//go:build root

package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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

// privateMountsVariable is set in the environment of the process that runs the tests in a mount namespace.
const privateMountsVariable = "SKIFF_TEST_PRIVATE_MOUNTS"

// TestMain runs the tests in a process with a mount namespace of its own, whose mounts do not reach the host: volumes are mounted by several threads.
func TestMain(m *testing.M) {
	if os.Getenv(privateMountsVariable) != "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the kernel ends the process with the thread that has started it
	process, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env: append(os.Environ(), privateMountsVariable+"=1"), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "a mount namespace needs root:", err)
		os.Exit(1)
	}
	state, err := process.Wait()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(state.ExitCode())
}

// privateMounts is a directory whose mounts are unmounted when the test ends.
func privateMounts(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := unmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
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
