package volume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeletmetrics "skiff/internal/kubelet/metrics"
	"skiff/test/metrics"
)

// Attempts to mount are measured one by one, and together when the volume is mounted; a mounted volume is not mounted again.
func TestMountMetrics(t *testing.T) {
	dir := t.TempDir()
	v := testVolumes(dir, &fakeObjects{})
	v.Metrics = kubeletmetrics.New("node")
	source := &corev1.HostPathVolumeSource{Path: dir, Type: pointer(corev1.HostPathFile)}
	pod := testPod(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: source}})
	if err := v.Mount(t.Context(), pod); err == nil {
		t.Fatal("a directory is mounted as a file")
	}
	*source.Type = corev1.HostPathDirectory
	for range 2 {
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	const operation = "storage_operation_duration_seconds{migrated=false,operation_name=volume_mount,status="
	metrics.Check(t, v.Metrics.All, map[string]float64{
		operation + "fail-unknown,volume_plugin=kubernetes.io/host-path}": 1, operation + "success,volume_plugin=kubernetes.io/host-path}": 1,
		"volume_operation_total_seconds{operation_name=overall_volume_mount,plugin_name=kubernetes.io/host-path}": 1,
	})
	if len(v.state(pod.UID).requested) > 0 {
		t.Error("the request of a mounted volume is kept")
	}
}
