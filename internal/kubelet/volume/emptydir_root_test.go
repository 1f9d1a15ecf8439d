//go:build root

package volume

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

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
