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

	"skiff/internal/client"
	"skiff/internal/podstate"
	"skiff/test/world"
)

func aDaemonSet(changes ...change[*appsv1.DaemonSet]) *appsv1.DaemonSet {
	return with(&appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "log", UID: "uid-log", Generation: 1},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("image:1"), RevisionHistoryLimit: new(int32(10)),
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{
				MaxUnavailable: new(intstr.FromInt32(1)), MaxSurge: new(intstr.FromInt32(0))}},
		},
	}, changes...)
}

// TestDaemonSetsReachAFixedPoint changes the set, its nodes and its pods. In the end exactly one pod of the last template runs on each node that fits.
func TestDaemonSetsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, 5, func(w *world.World) {
		t := w.T
		stop := w.Run(DaemonSet)
		world.Create(w, aDaemonSet(func(s *appsv1.DaemonSet) {
			s.UID, s.Generation = "", 0
			s.Spec.RevisionHistoryLimit = new(int32(1))
			if w.Chance(0.5) {
				s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(2))}
			}
		}))
		w.Chaos(0.2, 0)
		for range 12 {
			w.Pass(time.Duration(w.Random.IntN(2000)) * time.Millisecond)
			pods := world.List[*corev1.Pod](w)
			switch w.Random.IntN(5) {
			case 0, 1:
				world.Edit(w, "default", "log", func(s *appsv1.DaemonSet) {
					s.Spec.Template.Spec.Containers[0].Image = fmt.Sprint("image:", w.Random.IntN(4))
				})
			case 2:
				node, err := client.For[*corev1.Node](w.Client).Get(w.Ctx, "", fmt.Sprint("n", w.Random.IntN(5)))
				if err != nil {
					t.Fatal(err)
				}
				c := node.DeepCopy()
				c.Labels = maps.Clone(c.Labels)
				c.Labels["zone"] = world.Pick(w, "0", "1", "2")
				c.Spec.Taints = world.Pick(w, nil, []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}, []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}, []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}})
				if _, err := client.For[*corev1.Node](w.Client).Update(w.Ctx, c, client.WriteOptions{}); err != nil {
					t.Fatal(err)
				}
			case 3:
				world.Edit(w, "default", "log", func(s *appsv1.DaemonSet) {
					s.Spec.Template.Spec.NodeSelector = world.Pick(w, nil, map[string]string{"zone": "0"}, map[string]string{"zone": "1"})
				})
			case 4:
				if len(pods) > 0 {
					w.Remove(world.Pick(w, pods...))
				}
			}
		}
		w.Chaos(0, 0)
		w.Pass(25 * time.Minute)
		set := world.Get[*appsv1.DaemonSet](w, "default", "log")
		want := int32(0)
		placed := map[string]*corev1.Pod{}
		for _, pod := range world.List[*corev1.Pod](w) {
			if !podstate.IsActive(pod) || placed[pod.Spec.NodeName] != nil {
				t.Errorf("pod %s on %s, %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase)
			}
			placed[pod.Spec.NodeName] = pod
		}
		for i := range 5 {
			node, err := client.For[*corev1.Node](w.Client).Get(w.Ctx, "", fmt.Sprint("n", i))
			if err != nil {
				t.Fatal(err)
			}
			run, stay := placementOf(set).shouldRun(node)
			pod := placed[node.Name]
			if run {
				want++
			}
			if run && pod == nil || !stay && pod != nil {
				t.Errorf("node %s with %v %v has %v", node.Name, node.Labels, node.Spec.Taints, pod)
			}
			if pod != nil && pod.Spec.Containers[0].Image != set.Spec.Template.Spec.Containers[0].Image && run {
				t.Errorf("pod %s runs %s", pod.Name, pod.Spec.Containers[0].Image)
			}
		}
		s := set.Status
		if s.DesiredNumberScheduled != want || s.CurrentNumberScheduled != want || s.NumberAvailable != want || s.UpdatedNumberScheduled != want || s.NumberUnavailable != 0 || s.ObservedGeneration != set.Generation {
			t.Errorf("wanted %d: %+v", want, s)
		}
		stop()
		w.AssertSettled(DaemonSet)
	})
}
