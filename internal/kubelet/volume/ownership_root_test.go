//go:build root

package volume

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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
