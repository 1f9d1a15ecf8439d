package volume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// accessPod has the volume that every pod has: token, root certificate and namespace.
func accessPod() *corev1.Pod {
	return testPod(corev1.Volume{Name: "access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: pointer(int32(0o644)), Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: pointer(int64(3607))}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
	}}}})
}

func accessVolumes(root string) *Volumes {
	v := testVolumes(root, objectsWithMap(map[string]string{"ca.crt": string(make([]byte, 1200))}))
	v.tokens.request = (&issuer{}).request
	return v
}

// BenchmarkMountUnchanged measures Mount of a pod whose volumes have not changed.
func BenchmarkMountUnchanged(b *testing.B) {
	v, pod := accessVolumes(b.TempDir()), accessPod()
	dir := v.dir(pod.UID, "kubernetes.io/projected", "access")
	if err := v.makeDir(dir, 0o777); err != nil {
		b.Fatal(err)
	}
	files, err := v.collect(b.Context(), pod, &pod.Spec.Volumes[0])
	if err == nil {
		_, err = write(dir, files, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	set := v.apiVolume(pod, &pod.Spec.Volumes[0])
	set.written = hashOf(files)
	v.setMounted(v.state(pod.UID), "access", set)
	b.ReportAllocs()
	for b.Loop() {
		if err := v.Mount(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
	}
}
