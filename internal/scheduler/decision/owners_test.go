package decision

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// Pods that belong together are spread by default; what they belong to comes and goes.
func TestOwners(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "own"}
	owned := func(apiVersion, kind string) *corev1.Pod {
		return schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "own", Controller: ptr.To(true)}}
		})
	}
	for _, test := range []struct {
		what        string
		set, delete func(s *snapshot.Snapshot)
		pod         *corev1.Pod
	}{
		{"service", func(s *snapshot.Snapshot) {
			s.SetService(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: selector.MatchLabels}})
		},
			func(s *snapshot.Snapshot) { s.DeleteService("default", "own") }, schedulertest.TestPod("p", schedulertest.Labelled("app", "x"))},
		{"replication controller", func(s *snapshot.Snapshot) {
			s.SetReplicationController(&corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels}})
		},
			func(s *snapshot.Snapshot) { s.DeleteController("v1", "ReplicationController", "default", "own") }, owned("v1", "ReplicationController")},
		{"replica set", func(s *snapshot.Snapshot) {
			s.SetReplicaSet(&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector}})
		},
			func(s *snapshot.Snapshot) { s.DeleteController("apps/v1", "ReplicaSet", "default", "own") }, owned("apps/v1", "ReplicaSet")},
		{"stateful set", func(s *snapshot.Snapshot) {
			s.SetStatefulSet(&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector}})
		},
			func(s *snapshot.Snapshot) { s.DeleteController("apps/v1", "StatefulSet", "default", "own") }, owned("apps/v1", "StatefulSet")},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "64")), schedulertest.TestNode("b")}, schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("app", "x")), schedulertest.TestPod("y", schedulertest.OnNode("b"), schedulertest.Labelled("app", "z"), schedulertest.RequestingCPU("1")))
			goes := func() string {
				d, err := Schedule(s, snapshottest.PodInfo(t, test.pod.DeepCopy()), plugins.DefaultProfile())
				if err != nil {
					t.Fatal(err)
				}
				return d.Node
			}
			if goes() != "a" {
				t.Error("a pod without constraints is not scheduled to the node with the most free resources")
			}
			test.set(s)
			if goes() != "b" {
				t.Error("a pod goes where its like is already")
			}
			test.delete(s)
			if goes() != "a" {
				t.Error("what the pod belonged to is gone, but still counts")
			}
		})
	}
}
