package volume

import (
	"context"
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
