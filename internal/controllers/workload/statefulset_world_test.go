package workload

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/test/world"
)

// TestStatefulSetsReachAFixedPoint scales, changes and disturbs a set. In the end the pods with the right names run the last template,
// each with its claim, and the status says so.
func TestStatefulSetsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, 3, func(w *world.World) {
		t := w.T
		stop := w.Run(StatefulSet)
		set := aStatefulSet(3, func(s *appsv1.StatefulSet) {
			s.UID, s.Generation = "", 0
			s.Spec.RevisionHistoryLimit = new(int32(1))
			s.Spec.PodManagementPolicy = world.Pick(w, appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)
			s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = world.Pick(w, nil, new(intstr.FromInt32(2)))
			s.Spec.Ordinals = world.Pick(w, nil, &appsv1.StatefulSetOrdinals{Start: 2})
			s.Spec.PersistentVolumeClaimRetentionPolicy = world.Pick(w, nil, &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: "Delete", WhenScaled: "Retain"})
		})
		world.Create(w, set)
		w.Chaos(0.2, 0)
		for range 12 {
			w.Pass(time.Duration(w.Random.IntN(200)) * time.Millisecond)
			pods := world.List[*corev1.Pod](w)
			switch w.Random.IntN(6) {
			case 0, 1:
				world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) {
					s.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("image:", w.Random.IntN(4))
				})
			case 2:
				world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(w.Random.IntN(6))) })
			case 3:
				world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) {
					s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(w.Random.IntN(3)))
				})
			case 4:
				if len(pods) > 0 {
					w.Remove(world.Pick(w, pods...))
				}
			case 5:
				if revisions := world.List[*appsv1.ControllerRevision](w); len(revisions) > 0 {
					world.Edit(w, "default", world.Pick(w, revisions...).Name, func(r *appsv1.ControllerRevision) { r.OwnerReferences = nil })
				}
			}
		}
		world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(0)) })
		w.Chaos(0, 0)
		w.Pass(20 * time.Minute)
		set = world.Get[*appsv1.StatefulSet](w, "default", "db")
		want, s := *set.Spec.Replicas, set.Status
		if s.Replicas != want || s.ReadyReplicas != want || s.AvailableReplicas != want || s.UpdatedReplicas != want || s.CurrentReplicas != want || s.CurrentRevision != s.UpdateRevision || s.ObservedGeneration != set.Generation {
			t.Errorf("wanted %d: %+v", want, s)
		}
		pods := world.List[*corev1.Pod](w)
		if len(pods) != int(want) {
			t.Errorf("%d pods, want %d", len(pods), want)
		}
		for i := range int(want) {
			pod := world.Get[*corev1.Pod](w, "default", fmt.Sprintf("db-%d", startOrdinal(set)+i))
			if pod.Spec.Containers[0].Image != set.Spec.Template.Spec.Containers[0].Image || pod.Labels[appsv1.StatefulSetRevisionLabel] != s.UpdateRevision {
				t.Errorf("pod %s runs %s at %s", pod.Name, pod.Spec.Containers[0].Image, pod.Labels[appsv1.StatefulSetRevisionLabel])
			}
			claim := world.Get[*corev1.PersistentVolumeClaim](w, "default", "data-"+pod.Name)
			if withSet := set.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted == "Delete"; metav1.IsControlledBy(claim, set) != withSet {
				t.Errorf("claim %s belongs to %+v", claim.Name, claim.OwnerReferences)
			}
		}
		if revisions := world.List[*appsv1.ControllerRevision](w); len(revisions) > 2 {
			t.Errorf("%d revisions", len(revisions))
		}
		stop()
		w.AssertSettled(StatefulSet)
	})
}

// aStatefulSet has one claim for each pod.
func aStatefulSet(size int32, changes ...change[*appsv1.StatefulSet]) *appsv1.StatefulSet {
	return with(&appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "uid-db", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &size, ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("image:1"),
			UpdateStrategy:      appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}},
			PodManagementPolicy: appsv1.OrderedReadyPodManagement, RevisionHistoryLimit: new(int32(10)),
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}},
		},
	}, changes...)
}
