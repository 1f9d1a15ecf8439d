package volume

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestCount(t *testing.T) {
	source := map[string]corev1.VolumeSource{
		"empty": {EmptyDir: &corev1.EmptyDirVolumeSource{}}, "none": {}, "map": {ConfigMap: &corev1.ConfigMapVolumeSource{}}, "secret": {Secret: &corev1.SecretVolumeSource{}},
		"about": {DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, "all": {Projected: &corev1.ProjectedVolumeSource{}}, "host": {HostPath: &corev1.HostPathVolumeSource{}},
		"image": {Image: &corev1.ImageVolumeSource{}}, "csi": {CSI: &corev1.CSIVolumeSource{}}, "claim": {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}},
	}
	pod := func(uid types.UID, used ...string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
		p.UID = uid
		for _, name := range used {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source[name]})
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name})
		}
		return p
	}
	unused := pod("x", "empty")
	unused.Spec.Containers[0].VolumeMounts = nil
	v := &Volumes{pods: map[types.UID]*podVolumes{
		"bound": {byName: map[string]*mounted{"claim": {plugin: "kubernetes.io/csi"}}}, "ending": {byName: map[string]*mounted{"s": {plugin: "kubernetes.io/secret"}, "c": {plugin: "kubernetes.io/csi"}}},
	}}
	for _, row := range []struct {
		name string
		pods []*corev1.Pod
		want map[string]int
	}{
		{"no pods", nil, map[string]int{}},
		{"every sort", []*corev1.Pod{pod("x", "empty", "none", "map", "secret", "about", "all", "host", "image", "csi")}, map[string]int{
			"kubernetes.io/empty-dir": 2, "kubernetes.io/configmap": 1, "kubernetes.io/secret": 1, "kubernetes.io/downward-api": 1, "kubernetes.io/projected": 1,
			"kubernetes.io/host-path": 1, "kubernetes.io/image": 1, "kubernetes.io/csi": 1,
		}},
		{"several pods", []*corev1.Pod{pod("x", "secret"), pod("y", "secret", "map")}, map[string]int{"kubernetes.io/secret": 2, "kubernetes.io/configmap": 1}},
		{"a volume that no container uses is not set up", []*corev1.Pod{unused}, map[string]int{}},
		{"a claim that is set up", []*corev1.Pod{pod("bound", "claim")}, map[string]int{"kubernetes.io/csi": 1}},
		{"a claim that is not", []*corev1.Pod{pod("x", "claim")}, map[string]int{}},
	} {
		wanted, there := v.Count(row.pods)
		if !maps.Equal(wanted, row.want) || !maps.Equal(there, map[string]int{"kubernetes.io/csi": 2, "kubernetes.io/secret": 1}) {
			t.Errorf("%s: wanted %v, there %v; want %v", row.name, wanted, there, row.want)
		}
	}
}
