// Package snapshottest makes snapshots for the tests of the packages that read them.
package snapshottest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// PodInfo is what a snapshot has of a pod.
func PodInfo(t testing.TB, pod *corev1.Pod) *snapshot.PodInfo {
	t.Helper()
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// New makes a snapshot of nodes and of pods that run on them.
func New(t testing.TB, nodes []*corev1.Node, running ...*corev1.Pod) *snapshot.Snapshot {
	t.Helper()
	s := snapshot.NewSnapshot()
	for _, n := range nodes {
		s.SetNode(n)
	}
	for _, p := range running {
		s.SetPod(PodInfo(t, p))
	}
	return s
}

// NewWithObjects makes a snapshot that has objects besides nodes and pods.
func NewWithObjects(t testing.TB, nodes []*corev1.Node, objects schedulertest.Objects, running ...*corev1.Pod) *snapshot.Snapshot {
	t.Helper()
	s := New(t, nodes, running...)
	for _, o := range objects {
		s.SetObject(o)
	}
	return s
}
