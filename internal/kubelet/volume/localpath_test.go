package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/localpath"
	"skiff/test/inprocess"
)

// TestLocalPathForAllUsers: a volume of the provisioner is writable for pods of any user, and can be reached only through them.
func TestLocalPathForAllUsers(t *testing.T) {
	v := testVolumes(t.TempDir(), nil)
	v.Client, v.LocalPathDir = inprocess.Start(t, t.Context()), filepath.Join(t.TempDir(), "data/volumes")
	path := filepath.Join(v.LocalPathDir, "pvc-1_default_data")
	pod := bound(t, v, "data", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: pointer(corev1.HostPathDirectoryOrCreate)}},
		func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Annotations[provisionedByAnnotation] = localpath.Provisioner
		})
	mode := func(path string, want os.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
	// An attempt that a power loss has interrupted.
	if err := os.MkdirAll(filepath.Join(v.LocalPathDir, ".pv-data.new"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		mode(path, 0o777)
	}
	mode(v.LocalPathDir, 0o700)
	// What a user has set is kept.
	if err := os.Chmod(path, 0o750); err != nil {
		t.Fatal(err)
	}
	other := testVolumes(t.TempDir(), nil)
	other.Client, other.LocalPathDir = v.Client, v.LocalPathDir
	if err := other.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	mode(path, 0o750)
	if entries, err := os.ReadDir(v.LocalPathDir); err != nil || len(entries) != 1 {
		t.Errorf("entries %v, %v", entries, err)
	}
}

// TestRemoveLocalPaths: directories of deleted volumes are removed and reported, but nothing else is.
func TestRemoveLocalPaths(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := inprocess.Start(t, ctx)
	nodes := client.For[*corev1.Node](c)
	if _, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	v := testVolumes(t.TempDir(), nil)
	v.Client, v.LocalPathDir = c, filepath.Join(t.TempDir(), "volumes")
	v.Node = func() *corev1.Node {
		node, err := nodes.Get(ctx, "", "node")
		if err != nil {
			return nil
		}
		return node
	}
	for _, dir := range []string{"pvc-a/deep", "pvc-b", "pvc-used", "other", "../pvc-outside"} {
		if err := os.MkdirAll(filepath.Join(v.LocalPathDir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(v.LocalPathDir, "../pvc-outside"), filepath.Join(v.LocalPathDir, "pvc-a/link")); err != nil {
		t.Fatal(err)
	}
	state := v.state("pod")
	v.setMounted(state, "data", &mounted{path: filepath.Join(v.LocalPathDir, "pvc-used")})
	var running sync.WaitGroup
	running.Go(func() {
		if err := v.removeLocalPaths(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })

	request := func(names ...string) {
		t.Helper()
		node := v.Node().DeepCopy()
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, localpath.RemovalsAnnotation, strings.Join(names, ","))
		if _, err := nodes.Update(ctx, node, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		v.NodeChanged()
	}
	untilReported := func(names ...string) {
		t.Helper()
		want := strings.Join(names, ",")
		for deadline := time.Now().Add(15 * time.Second); v.Node().Annotations[localpath.RemovedAnnotation] != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("reported %q, want %q", v.Node().Annotations[localpath.RemovedAnnotation], want)
			}
		}
	}
	request("pvc-a", "../pvc-outside", "other", "pvc-used", "pvc-never-made")
	untilReported("pvc-a", "pvc-never-made")
	for name, want := range map[string]bool{"pvc-a": false, "pvc-b": true, "pvc-used": true, "other": true, "../pvc-outside": true} {
		if got := exists(filepath.Join(v.LocalPathDir, name)); got != want {
			t.Errorf("%s exists: %v", name, got)
		}
	}
	if err := v.Unmount(ctx, "pod"); err != nil {
		t.Fatal(err)
	}
	request("pvc-used", "pvc-b")
	untilReported("pvc-used", "pvc-b")
	request()
	untilReported()
	if entries, err := os.ReadDir(v.LocalPathDir); err != nil || len(entries) != 1 {
		t.Errorf("entries %v, %v", entries, err)
	}
}
