package volume

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
)

func TestMounts(t *testing.T) {
	host := t.TempDir()
	v := testVolumes(t.TempDir(), objectsWithMap(map[string]string{"key": "one"}))
	v.RecursiveReadOnly = func(*corev1.Pod) bool { return true }
	v.Image = func(context.Context, *corev1.Pod, *corev1.Volume) (string, error) { return "sha256:1", nil }
	pod := testPod(
		corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}},
		configMapVolume("files", corev1.ConfigMapVolumeSource{}),
		corev1.Volume{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "r"}}},
	)
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	files := v.dir(pod.UID, "kubernetes.io/configmap", "files")
	env := []corev1.EnvVar{{Name: "NAME", Value: "n"}, {Name: "EMPTY"}, {Name: "UP", Value: ".."}}
	for name, test := range map[string]struct {
		mount corev1.VolumeMount
		want  *cri.Mount
		err   string
	}{
		"plain":            {corev1.VolumeMount{Name: "host", MountPath: "/m"}, &cri.Mount{ContainerPath: "/m", HostPath: host}, ""},
		"relative":         {corev1.VolumeMount{Name: "host", MountPath: "m"}, &cri.Mount{ContainerPath: "/m", HostPath: host}, ""},
		"read-only":        {corev1.VolumeMount{Name: "host", MountPath: "/m", ReadOnly: true}, &cri.Mount{ContainerPath: "/m", HostPath: host, ReadOnly: true}, ""},
		"objects":          {corev1.VolumeMount{Name: "files", MountPath: "/m"}, &cri.Mount{ContainerPath: "/m", HostPath: files, ReadOnly: true}, ""},
		"image":            {corev1.VolumeMount{Name: "image", MountPath: "/m"}, &cri.Mount{ContainerPath: "/m", Image: "sha256:1", ReadOnly: true}, ""},
		"image with path":  {corev1.VolumeMount{Name: "image", MountPath: "/m", SubPath: "a"}, &cri.Mount{ContainerPath: "/m", Image: "sha256:1", ImageSubPath: "a", ReadOnly: true}, ""},
		"from the host":    {corev1.VolumeMount{Name: "host", MountPath: "/m", MountPropagation: pointer(corev1.MountPropagationHostToContainer)}, &cri.Mount{ContainerPath: "/m", HostPath: host, Propagation: corev1.MountPropagationHostToContainer}, ""},
		"both ways":        {corev1.VolumeMount{Name: "host", MountPath: "/m", MountPropagation: pointer(corev1.MountPropagationBidirectional)}, &cri.Mount{ContainerPath: "/m", HostPath: host, Propagation: corev1.MountPropagationBidirectional}, ""},
		"recursive":        {corev1.VolumeMount{Name: "host", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: pointer(corev1.RecursiveReadOnlyEnabled)}, &cri.Mount{ContainerPath: "/m", HostPath: host, ReadOnly: true, RecursiveReadOnly: true}, ""},
		"recursive, maybe": {corev1.VolumeMount{Name: "host", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: pointer(corev1.RecursiveReadOnlyIfPossible)}, &cri.Mount{ContainerPath: "/m", HostPath: host, ReadOnly: true, RecursiveReadOnly: true}, ""},
		"not recursive":    {corev1.VolumeMount{Name: "host", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: pointer(corev1.RecursiveReadOnlyDisabled)}, &cri.Mount{ContainerPath: "/m", HostPath: host, ReadOnly: true}, ""},
		"recursive, writable": {corev1.VolumeMount{Name: "host", MountPath: "/m", RecursiveReadOnly: pointer(corev1.RecursiveReadOnlyEnabled)}, nil,
			`failed to resolve recursive read-only mode: volume "host" requested recursive read-only mode, but it is not read-only`},
		"recursive, propagated": {corev1.VolumeMount{Name: "host", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: pointer(corev1.RecursiveReadOnlyEnabled), MountPropagation: pointer(corev1.MountPropagationHostToContainer)}, nil,
			`failed to resolve recursive read-only mode: volume "host" requested recursive read-only mode, but it is not compatible with propagation "HostToContainer"`},
		"absent":         {corev1.VolumeMount{Name: "absent", MountPath: "/m"}, nil, `cannot find volume "absent" to mount into container "main"`},
		"absolute path":  {corev1.VolumeMount{Name: "host", MountPath: "/m", SubPath: "/a"}, nil, "error SubPath `/a` must not be an absolute path"},
		"path goes up":   {corev1.VolumeMount{Name: "host", MountPath: "/m", SubPath: "a/../.."}, nil, "unable to provision SubPath `a/../..`: must not contain '..'"},
		"unset variable": {corev1.VolumeMount{Name: "host", MountPath: "/m", SubPathExpr: "$(NO)/$(EMPTY)/$(NAME)"}, nil, "missing value for EMPTY, NO"},
		"variable up":    {corev1.VolumeMount{Name: "host", MountPath: "/m", SubPathExpr: "$(UP)/x"}, nil, "unable to provision SubPath `../x`: must not contain '..'"},
	} {
		c := &corev1.Container{Name: "main", VolumeMounts: []corev1.VolumeMount{test.mount}}
		mounts, _, err := v.Mounts(pod, c, env)
		if errorText(err) != test.err {
			t.Errorf("%s: %v", name, err)
		}
		if test.want != nil && (len(mounts) != 1 || !reflect.DeepEqual(mounts[0], *test.want)) {
			t.Errorf("%s: %v", name, mounts)
		}
	}
	v.RecursiveReadOnly = nil
	c := &corev1.Container{Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: "host", ReadOnly: true, RecursiveReadOnly: pointer(corev1.RecursiveReadOnlyEnabled)}}}
	if _, _, err := v.Mounts(pod, c, nil); err == nil || !strings.Contains(err.Error(), "not supported by the runtime") {
		t.Error(err)
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
