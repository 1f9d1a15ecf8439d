package snapshot

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
)

func infoOf(t testing.TB, pod *corev1.Pod) *PodInfo {
	t.Helper()
	info, err := NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// cluster makes a snapshot of nodes and of pods that run on them.
func cluster(t testing.TB, nodes []*corev1.Node, running ...*corev1.Pod) *Snapshot {
	t.Helper()
	s := NewSnapshot()
	for _, n := range nodes {
		s.SetNode(n)
	}
	for _, p := range running {
		s.SetPod(infoOf(t, p))
	}
	return s
}

// knowing is a cluster that has some objects besides nodes and pods.
func knowing(t testing.TB, nodes []*corev1.Node, known schedulertest.Objects, running ...*corev1.Pod) *Snapshot {
	t.Helper()
	s := cluster(t, nodes, running...)
	for _, o := range known {
		s.SetObject(o)
	}
	return s
}
