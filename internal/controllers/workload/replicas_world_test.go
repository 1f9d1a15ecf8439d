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

	"skiff/internal/podstate"
	"skiff/test/world"
)

// TestReplicaSetsReachAFixedPoint scales a set, takes pods from it, gives it foreign and lets pods fail; in the end exactly the wanted pods run.
func TestReplicaSetsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, 3, func(w *world.World) {
		t := w.T
		stop := w.Run(ReplicaSet, ReplicationController)
		world.Create(w, aSet(3, func(s *appsv1.ReplicaSet) {
			s.UID, s.Generation = "", 0
			s.CreationTimestamp = metav1.Time{}
			s.Spec.Template = template("image:1")
		}))
		rcTemplate := template("image:1")
		rcTemplate.Labels = map[string]string{"app": "old"}
		world.Create(w, &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"},
			Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(2)), Template: &rcTemplate}})
		w.Chaos(0.3, 0)
		for i := range 15 {
			w.Pass(time.Duration(w.Random.IntN(50)) * time.Millisecond)
			pods := world.List[*corev1.Pod](w)
			switch w.Random.IntN(5) {
			case 0, 1:
				world.Edit(w, "default", "web", func(s *appsv1.ReplicaSet) { s.Spec.Replicas = new(int32(w.Random.IntN(12))) })
			case 2:
				if len(pods) > 0 {
					w.Remove(world.Pick(w, pods...))
				}
			case 3:
				if len(pods) > 0 {
					pod := world.Pick(w, pods...)
					if pod.DeletionTimestamp == nil {
						world.Edit(w, "default", pod.Name, func(p *corev1.Pod) {
							p.Labels = maps.Clone(p.Labels)
							p.Labels["app"] = world.Pick(w, "db", "web", "old")
						})
					}
				}
			case 4:
				stray := template("image:1")
				world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("stray", i), Labels: stray.Labels}, Spec: stray.Spec})
			}
		}
		w.Chaos(0, 0)
		w.Pass(10 * time.Minute)
		set, rc := world.Get[*appsv1.ReplicaSet](w, "default", "web"), world.Get[*corev1.ReplicationController](w, "default", "old")
		mine := filter(world.List[*corev1.Pod](w), func(p *corev1.Pod) bool { return metav1.IsControlledBy(p, set) && podstate.IsActive(p) })
		want := *set.Spec.Replicas
		if int32(len(mine)) != want || set.Status.Replicas != want || set.Status.AvailableReplicas != want || set.Status.ObservedGeneration != set.Generation {
			t.Errorf("%d pods, want %d; status %+v", len(mine), want, set.Status)
		}
		if rc.Status.AvailableReplicas != 2 || rc.Status.Replicas != 2 {
			t.Errorf("%+v", rc.Status)
		}
		stop()
		w.AssertSettled(ReplicaSet, ReplicationController)
	})
}

// TestDeploymentsReachAFixedPoint changes a deployment in all ways a user can while pods fail and sets are taken from it. In the
// end the last template runs, with nothing left over.
func TestDeploymentsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, 3, func(w *world.World) {
		t := w.T
		stop := w.Run(ReplicaSet, Deployment)
		world.Create(w, aDeployment(3, func(d *appsv1.Deployment) { d.UID, d.Generation = "", 0; d.Spec.RevisionHistoryLimit = new(int32(2)) }))
		w.Chaos(0.2, 0)
		for range 15 {
			w.Pass(time.Duration(w.Random.IntN(100)) * time.Millisecond)
			sets, pods := world.List[*appsv1.ReplicaSet](w), world.List[*corev1.Pod](w)
			switch w.Random.IntN(8) {
			case 0, 1, 2:
				world.Edit(w, "default", "web", func(d *appsv1.Deployment) {
					d.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("image:", w.Random.IntN(5))
				})
			case 3:
				world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(w.Random.IntN(10))) })
			case 4:
				world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Paused = !d.Spec.Paused })
			case 5:
				world.Edit(w, "default", "web", func(d *appsv1.Deployment) {
					d.Spec.Strategy = world.Pick(w, appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
						appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
							MaxSurge: new(intstr.FromString("50%")), MaxUnavailable: new(intstr.FromInt32(0))}})
				})
			case 6:
				if len(pods) > 0 {
					w.Remove(world.Pick(w, pods...))
				}
			case 7:
				if len(sets) > 0 {
					set := world.Pick(w, sets...)
					if w.Chance(0.5) {
						world.Edit(w, "default", set.Name, func(s *appsv1.ReplicaSet) { s.OwnerReferences = nil })
					} else {
						world.Edit(w, "default", "web", func(d *appsv1.Deployment) {
							metav1.SetMetaDataAnnotation(&d.ObjectMeta, appsv1.DeprecatedRollbackTo, "0")
						})
					}
				}
			}
		}
		world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Paused = false })
		w.Chaos(0, 0)
		w.Pass(20 * time.Minute)
		d := world.Get[*appsv1.Deployment](w, "default", "web")
		s, want := d.Status, *d.Spec.Replicas
		if s.Replicas != want || s.UpdatedReplicas != want || s.AvailableReplicas != want || s.UnavailableReplicas != 0 || *s.TerminatingReplicas != 0 || s.ObservedGeneration != d.Generation {
			t.Errorf("wanted %d: %+v", want, s)
		}
		for _, pod := range filter(world.List[*corev1.Pod](w), podstate.IsActive) {
			if pod.Spec.Containers[0].Image != d.Spec.Template.Spec.Containers[0].Image {
				t.Errorf("pod %s still runs %s", pod.Name, pod.Spec.Containers[0].Image)
			}
		}
		if sets := world.List[*appsv1.ReplicaSet](w); len(sets) > 3 {
			t.Errorf("%d sets: history is not cleaned up", len(sets))
		}
		stop()
		w.AssertSettled(ReplicaSet, Deployment)
	})
}
