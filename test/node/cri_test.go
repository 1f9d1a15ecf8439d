package node

import (
	"os"
	"path/filepath"
	"testing"

	"skiff/internal/kubelet/cri/critest"
	"skiff/test/cluster"
)

// TestContainerdIsWhatTheKubeletExpects runs the CRI test suite, which the fake runtime passes, on containerd.
func TestContainerdIsWhatTheKubeletExpects(t *testing.T) {
	images, err := cluster.Images("busybox")
	if err != nil {
		t.Fatal(err)
	}
	dataDir := shortDir(t)
	if err := os.Mkdir(dataDir+"/images", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(images+"/busybox.tar", filepath.Join(dataDir, "images/busybox.tar")); err != nil {
		t.Fatal(err)
	}
	c := start(t, dataDir)
	critest.Run(t, critest.Harness{Runtime: c.client, Image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", Logs: t.TempDir()})
}
