package queue

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

func infoOf(t testing.TB, pod *corev1.Pod) *snapshot.PodInfo {
	t.Helper()
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
