package plugins

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

// cluster makes a snapshot of nodes and of pods that run on them.
func cluster(t testing.TB, nodes []*corev1.Node, running ...*corev1.Pod) *snapshot.Snapshot {
	t.Helper()
	s := snapshot.NewSnapshot()
	for _, n := range nodes {
		s.SetNode(n)
	}
	for _, p := range running {
		s.SetPod(infoOf(t, p))
	}
	return s
}
