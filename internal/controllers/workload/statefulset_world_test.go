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
)

// TestStatefulSetsReachAFixedPoint scales, changes and disturbs a set. In the end the pods with the right names run the last template,
// each with its claim, and the status says so.
func TestStatefulSetsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, func(t *testing.T, seed uint64) {
		inWorld(t, seed, 3, func(w *world) {
			stop := w.run(StatefulSet)
			set := aStatefulSet(3, func(s *appsv1.StatefulSet) {
				s.UID, s.Generation = "", 0
				s.Spec.RevisionHistoryLimit = new(int32(1))
				s.Spec.PodManagementPolicy = pick(w, appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)
				s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = pick(w, nil, new(intstr.FromInt32(2)))
				s.Spec.Ordinals = pick(w, nil, &appsv1.StatefulSetOrdinals{Start: 2})
				s.Spec.PersistentVolumeClaimRetentionPolicy = pick(w, nil, &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: "Delete", WhenScaled: "Retain"})
			})
			create(w, set)
			w.chaos(0.2, 0)
			for range 12 {
				w.pass(time.Duration(w.random.IntN(200)) * time.Millisecond)
				pods := list[*corev1.Pod](w)
				switch w.random.IntN(6) {
				case 0, 1:
					edit(w, "db", func(s *appsv1.StatefulSet) {
						s.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("image:", w.random.IntN(4))
					})
				case 2:
					edit(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(w.random.IntN(6))) })
				case 3:
					edit(w, "db", func(s *appsv1.StatefulSet) {
						s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(w.random.IntN(3)))
					})
				case 4:
					if len(pods) > 0 {
						remove(w, pick(w, pods...))
					}
				case 5:
					if revisions := list[*appsv1.ControllerRevision](w); len(revisions) > 0 {
						edit(w, pick(w, revisions...).Name, func(r *appsv1.ControllerRevision) { r.OwnerReferences = nil })
					}
				}
			}
			edit(w, "db", func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(0)) })
			w.chaos(0, 0)
			w.pass(20 * time.Minute)
			set = get[*appsv1.StatefulSet](w, "db")
			want, s := *set.Spec.Replicas, set.Status
			if s.Replicas != want || s.ReadyReplicas != want || s.AvailableReplicas != want || s.UpdatedReplicas != want || s.CurrentReplicas != want || s.CurrentRevision != s.UpdateRevision || s.ObservedGeneration != set.Generation {
				t.Errorf("wanted %d: %+v", want, s)
			}
			pods := list[*corev1.Pod](w)
			if len(pods) != int(want) {
				t.Errorf("%d pods, want %d", len(pods), want)
			}
			for i := range int(want) {
				pod := get[*corev1.Pod](w, fmt.Sprintf("db-%d", startOrdinal(set)+i))
				if pod.Spec.Containers[0].Image != set.Spec.Template.Spec.Containers[0].Image || pod.Labels[appsv1.StatefulSetRevisionLabel] != s.UpdateRevision {
					t.Errorf("pod %s runs %s at %s", pod.Name, pod.Spec.Containers[0].Image, pod.Labels[appsv1.StatefulSetRevisionLabel])
				}
				claim := get[*corev1.PersistentVolumeClaim](w, "data-"+pod.Name)
				if withSet := set.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted == "Delete"; metav1.IsControlledBy(claim, set) != withSet {
					t.Errorf("claim %s belongs to %+v", claim.Name, claim.OwnerReferences)
				}
			}
			if revisions := list[*appsv1.ControllerRevision](w); len(revisions) > 2 {
				t.Errorf("%d revisions", len(revisions))
			}
			stop()
			w.assertSettled(StatefulSet)
		})
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
