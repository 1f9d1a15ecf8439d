package decision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/schedulertest"
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

// knowing is a cluster that has some objects besides nodes and pods.
func knowing(t testing.TB, nodes []*corev1.Node, known schedulertest.Objects, running ...*corev1.Pod) *snapshot.Snapshot {
	t.Helper()
	s := cluster(t, nodes, running...)
	for _, o := range known {
		s.SetObject(o)
	}
	return s
}

func threeNodes(t testing.TB, known ...metav1.Object) *snapshot.Snapshot {
	t.Helper()
	return knowing(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("za")), schedulertest.TestNode("b", schedulertest.Zone("zb")), schedulertest.TestNode("c")},
		append(schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.ModelSlice("a", "small"), schedulertest.ModelSlice("b", "small", "large")}, known...))
}
