package node

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/runtime"
	"skiff/test/cluster"
	"skiff/test/registry"
)

// disk is a file system in a file. What a copy of the file has is what would be on a disk after a power loss at that moment.
type disk struct {
	file, dir string
}

// newDisk makes a file system and mounts it.
func newDisk(t *testing.T) disk {
	t.Helper()
	parent := shortDir(t)
	d := disk{file: filepath.Join(parent, "disk"), dir: filepath.Join(parent, "d")}
	if err := cluster.MakeDisk(d.file, 256<<20); err != nil {
		t.Fatal(err)
	}
	mountFile(t, d.file, d.dir)
	return d
}

// mountFile mounts the file system in a file until the test ends.
func mountFile(t *testing.T, file, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-o", cluster.DiskOptions, file, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// afterPowerLoss returns a directory with what would be on the disk after a power loss now.
func (d disk) afterPowerLoss(t *testing.T, number int) string {
	t.Helper()
	file, dir := fmt.Sprintf("%s%d", d.file, number), fmt.Sprintf("%s%d", d.dir, number)
	if err := cluster.CopyDisk(d.file, file); err != nil {
		t.Fatal(err)
	}
	mountFile(t, file, dir)
	return dir
}

// compareLayers compares the files of unpacked layers and returns their number.
func compareLayers(t *testing.T, want, got string) int {
	t.Helper()
	const layers = "containerd/root/io.containerd.snapshotter.v1.overlayfs/snapshots"
	files := 0
	err := filepath.WalkDir(filepath.Join(want, layers), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		relative := strings.TrimPrefix(path, want)
		before, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		after, err := os.ReadFile(filepath.Join(got, relative))
		if err != nil {
			t.Errorf("%v", err)
		} else if !bytes.Equal(before, after) {
			t.Errorf("%s has %d bytes, want the %d of the image", relative, len(after), len(before))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestImagesAfterPowerLoss: the files of an image that counts as present are on disk, however it came there.
func TestImagesAfterPowerLoss(t *testing.T) {
	source, err := registry.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Stop)
	content := strings.Repeat("pulled ", 10000)
	if err := source.AddImage("pulled:1", map[string]string{"bin/program": content, "etc/config": "pulled"}, "/bin/program"); err != nil {
		t.Fatal(err)
	}
	d := newDisk(t)
	if err := source.StandIn(filepath.Join(d.dir, "registries"), registry.Everything); err != nil {
		t.Fatal(err)
	}
	c := start(t, d.dir) // imports the pause image
	if files := compareLayers(t, d.dir, d.afterPowerLoss(t, 1)); files != 1 {
		t.Errorf("%d files of the pause image", files)
	}
	if _, err := c.client.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: "registry.k8s.io/pulled:1"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if files := compareLayers(t, d.dir, d.afterPowerLoss(t, 2)); files != 3 {
		t.Errorf("%d files of the pause image and one that was pulled", files)
	}
	importer, err := runtime.NewImporter(c.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer importer.Close()
	if err := importer.Import(t.Context(), dockerArchive(t)); err != nil {
		t.Fatal(err)
	}
	if files := compareLayers(t, d.dir, d.afterPowerLoss(t, 3)); files != 4 {
		t.Errorf("%d files of three images", files)
	}
}

// TestDamagedImage: an image from the last seconds before a power loss is unpacked again, and one whose blobs are damaged too is imported again.
func TestDamagedImage(t *testing.T) {
	for _, name := range []string{"layers", "blobs"} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			if err := os.Mkdir(filepath.Join(dir, "images"), 0o700); err != nil {
				t.Fatal(err)
			}
			archive, err := os.ReadFile(dockerArchive(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "images/import.tar"), archive, 0o600); err != nil {
				t.Fatal(err)
			}
			c := start(t, dir)
			c.stop()
			want := layerFiles(t, dir)
			damaged := "io.containerd.snapshotter.v1.overlayfs/snapshots"
			if name == "blobs" {
				damaged = "io.containerd."
			}
			emptyFiles(t, filepath.Join(dir, "containerd/root"), damaged)
			if err := os.WriteFile(filepath.Join(dir, "containerd/images.json"), []byte(`{"boot":"another"}`), 0o600); err != nil {
				t.Fatal(err)
			}
			c = start(t, dir)
			if len(want) < 2 {
				t.Errorf("files by their content %v, want those of two images", want)
			}
			// containerd removes the directories of the damaged layers when it collects garbage.
			eventually(t, "the files are those from before", func() bool { return maps.Equal(layerFiles(t, dir), want) })
			c.stop()
		})
	}
}

// layerFiles counts the files of unpacked layers by their content. Some may be removed meanwhile.
func layerFiles(t *testing.T, dataDir string) map[string]int {
	t.Helper()
	files := map[string]int{}
	err := filepath.WalkDir(filepath.Join(dataDir, "containerd/root/io.containerd.snapshotter.v1.overlayfs/snapshots"), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files[fmt.Sprintf("%x", sha256.Sum256(data))]++
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// emptyFiles empties the files of containerd whose path begins with a prefix, except its databases.
func emptyFiles(t *testing.T, root, prefix string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !strings.HasPrefix(path, filepath.Join(root, prefix)) || filepath.Ext(path) == ".db" {
			return err
		}
		return os.Truncate(path, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}
