package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/status"
	checkmetrics "skiff/test/metrics"
)

// Mounts of image volumes are counted with the containers that have them.
func TestImageVolumeMetrics(t *testing.T) {
	m := metrics.New("n1")
	w := &worker{k: &Kubelet{Config: Config{Metrics: m}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}, {Name: "other"}}}}
	start := Start{Container: &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "image"}, {Name: "other"}}}}
	w.recordContainerStart(pod, start, nil)
	w.recordContainerStart(pod, start, &status.Reason{Reason: "CreateContainerError", Message: cri.ImageVolumeMountFailed + ": no such image"})
	w.recordContainerStart(pod, start, &status.Reason{Reason: "RunContainerError", Message: "no such file"})
	w.recordContainerStart(pod, Start{Container: &corev1.Container{}}, nil)
	checkmetrics.Check(t, m.All, map[string]float64{
		"kubelet_image_volume_requested_total{}": 3, "kubelet_image_volume_mounted_succeed_total{}": 1, "kubelet_image_volume_mounted_errors_total{}": 1,
	})
}
