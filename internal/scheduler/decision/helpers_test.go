package decision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func threeNodes(t testing.TB, known ...metav1.Object) *snapshot.Snapshot {
	t.Helper()
	return snapshottest.NewWithObjects(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("za")), schedulertest.TestNode("b", schedulertest.Zone("zb")), schedulertest.TestNode("c")},
		append(schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.ModelSlice("a", "small"), schedulertest.ModelSlice("b", "small", "large")}, known...))
}
