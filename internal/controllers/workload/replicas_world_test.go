package workload

import (
	"fmt"
	"maps"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestReplicaSetsReachAFixedPoint scales a set, takes pods from it, gives it strangers and lets pods fail; in the end exactly the wanted pods run.
func TestReplicaSetsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, func(t *testing.T, seed uint64) {
		inWorld(t, seed, 3, func(w *world) {
			stop := w.run(ReplicaSet, ReplicationController)
			create(w, aSet(3, func(s *appsv1.ReplicaSet) {
				s.UID, s.Generation = "", 0
				s.CreationTimestamp = metav1.Time{}
				s.Spec.Template = template("image:1")
			}))
			rcTemplate := template("image:1")
			rcTemplate.Labels = map[string]string{"app": "old"}
			create(w, &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"},
				Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(2)), Template: &rcTemplate}})
			w.chaos(0.3, 0)
			for i := range 15 {
				w.pass(time.Duration(w.random.IntN(50)) * time.Millisecond)
				pods := list[*corev1.Pod](w)
				switch w.random.IntN(5) {
				case 0, 1:
					edit(w, "web", func(s *appsv1.ReplicaSet) { s.Spec.Replicas = new(int32(w.random.IntN(12))) })
				case 2:
					if len(pods) > 0 {
						remove(w, pick(w, pods...))
					}
				case 3:
					if len(pods) > 0 {
						pod := pick(w, pods...)
						if pod.DeletionTimestamp == nil {
							edit(w, pod.Name, func(p *corev1.Pod) { p.Labels = maps.Clone(p.Labels); p.Labels["app"] = pick(w, "db", "web", "old") })
						}
					}
				case 4:
					stray := template("image:1")
					create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("stray", i), Labels: stray.Labels}, Spec: stray.Spec})
				}
			}
			w.chaos(0, 0)
			w.pass(10 * time.Minute)
			set, rc := get[*appsv1.ReplicaSet](w, "web"), get[*corev1.ReplicationController](w, "old")
			mine := filter(list[*corev1.Pod](w), func(p *corev1.Pod) bool { return metav1.IsControlledBy(p, set) && active(p) })
			want := *set.Spec.Replicas
			if int32(len(mine)) != want || set.Status.Replicas != want || set.Status.AvailableReplicas != want || set.Status.ObservedGeneration != set.Generation {
				t.Errorf("%d pods, want %d; status %+v", len(mine), want, set.Status)
			}
			if rc.Status.AvailableReplicas != 2 || rc.Status.Replicas != 2 {
				t.Errorf("%+v", rc.Status)
			}
			stop()
			w.assertSettled(ReplicaSet, ReplicationController)
		})
	})
}

// TestDeploymentsReachAFixedPoint changes a deployment in all ways a user can while pods fail and sets are taken from it. In the
// end the last template runs, with nothing left over.
func TestDeploymentsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, func(t *testing.T, seed uint64) {
		inWorld(t, seed, 3, func(w *world) {
			stop := w.run(ReplicaSet, Deployment)
			create(w, aDeployment(3, func(d *appsv1.Deployment) { d.UID, d.Generation = "", 0; d.Spec.RevisionHistoryLimit = new(int32(2)) }))
			w.chaos(0.2, 0)
			for range 15 {
				w.pass(time.Duration(w.random.IntN(100)) * time.Millisecond)
				sets, pods := list[*appsv1.ReplicaSet](w), list[*corev1.Pod](w)
				switch w.random.IntN(8) {
				case 0, 1, 2:
					edit(w, "web", func(d *appsv1.Deployment) {
						d.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("image:", w.random.IntN(5))
					})
				case 3:
					edit(w, "web", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(w.random.IntN(10))) })
				case 4:
					edit(w, "web", func(d *appsv1.Deployment) { d.Spec.Paused = !d.Spec.Paused })
				case 5:
					edit(w, "web", func(d *appsv1.Deployment) {
						d.Spec.Strategy = pick(w, appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
							appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
								MaxSurge: new(intstr.FromString("50%")), MaxUnavailable: new(intstr.FromInt32(0))}})
					})
				case 6:
					if len(pods) > 0 {
						remove(w, pick(w, pods...))
					}
				case 7:
					if len(sets) > 0 {
						set := pick(w, sets...)
						if w.chance(0.5) {
							edit(w, set.Name, func(s *appsv1.ReplicaSet) { s.OwnerReferences = nil })
						} else {
							edit(w, "web", func(d *appsv1.Deployment) {
								metav1.SetMetaDataAnnotation(&d.ObjectMeta, appsv1.DeprecatedRollbackTo, "0")
							})
						}
					}
				}
			}
			edit(w, "web", func(d *appsv1.Deployment) { d.Spec.Paused = false })
			w.chaos(0, 0)
			w.pass(20 * time.Minute)
			d := get[*appsv1.Deployment](w, "web")
			s, want := d.Status, *d.Spec.Replicas
			if s.Replicas != want || s.UpdatedReplicas != want || s.AvailableReplicas != want || s.UnavailableReplicas != 0 || *s.TerminatingReplicas != 0 || s.ObservedGeneration != d.Generation {
				t.Errorf("wanted %d: %+v", want, s)
			}
			for _, pod := range filter(list[*corev1.Pod](w), active) {
				if pod.Spec.Containers[0].Image != d.Spec.Template.Spec.Containers[0].Image {
					t.Errorf("pod %s still runs %s", pod.Name, pod.Spec.Containers[0].Image)
				}
			}
			if sets := list[*appsv1.ReplicaSet](w); len(sets) > 3 {
				t.Errorf("%d sets: history is not cleaned up", len(sets))
			}
			stop()
			w.assertSettled(ReplicaSet, Deployment)
		})
	})
}
