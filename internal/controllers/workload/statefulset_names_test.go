package workload

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

func TestOrdinals(t *testing.T) {
	for _, test := range []struct {
		name, parent string
		ordinal      int
	}{
		{"db-0", "db", 0}, {"db-1", "db", 1}, {"db-10", "db", 10}, {"my-db-3", "my-db", 3}, {"a-1-2", "a-1", 2}, {"db-007", "db", 7}, {"-5", "", 5}, {"db--1", "db-", 1},
		{"db-2147483647", "db", 2147483647}, {"db-2147483648", "db", -1}, {"db-99999999999999999999", "db", -1},
		{"db", "", -1}, {"", "", -1}, {"db-", "", -1}, {"db-x", "", -1}, {"db-1x", "", -1}, {"db-+1", "", -1}, {"db-1.5", "", -1}, {"db_1", "", -1}, {"7", "", -1}, {"-", "", -1},
	} {
		parent, ordinal := parentAndOrdinal(aPod(test.name))
		if parent != test.parent || ordinal != test.ordinal || ordinalOf(aPod(test.name)) != test.ordinal {
			t.Errorf("%q is %q, %d; want %q, %d", test.name, parent, ordinal, test.parent, test.ordinal)
		}
	}
}

func startingAt(n int32) change[*appsv1.StatefulSet] {
	return func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: n} }
}

func TestOrdinalRange(t *testing.T) {
	unset := func(s *appsv1.StatefulSet) { s.Spec.Replicas = nil }
	for _, test := range []struct {
		what       string
		set        *appsv1.StatefulSet
		start, end int
		within     []int
		beyond     []int
	}{
		{"from zero", aStatefulSet(3), 0, 3, []int{0, 1, 2}, []int{-1, 3, 4}},
		{"none", aStatefulSet(0), 0, 0, nil, []int{0, 1}},
		{"no number means one", aStatefulSet(5, unset), 0, 1, []int{0}, []int{1}},
		{"from five", aStatefulSet(2, startingAt(5)), 5, 7, []int{5, 6}, []int{0, 4, 7}},
		{"from zero, explicitly", aStatefulSet(1, startingAt(0)), 0, 1, []int{0}, []int{1}},
		{"none from five", aStatefulSet(0, startingAt(5)), 5, 5, nil, []int{4, 5, 6}},
	} {
		if startOrdinal(test.set) != test.start || endOrdinal(test.set) != test.end {
			t.Errorf("%s: from %d to %d", test.what, startOrdinal(test.set), endOrdinal(test.set))
		}
		for _, n := range test.within {
			if !inRange(test.set, aPod(fmt.Sprint("db-", n))) {
				t.Errorf("%s: %d is not in it", test.what, n)
			}
		}
		for _, n := range test.beyond {
			if inRange(test.set, aPod(fmt.Sprint("db-", n))) && n >= 0 {
				t.Errorf("%s: %d is in it", test.what, n)
			}
		}
	}
}

// TestStatefulSetFromAnOrdinal runs a set that does not begin at zero: pods and claims have the ordinals it asks for.
func TestStatefulSetFromAnOrdinal(t *testing.T) {
	inWorld(t, 1, func(w *world.World) {
		t := w.T
		stop := w.Run(StatefulSet)
		world.Create(w, aStatefulSet(2, startingAt(1), func(s *appsv1.StatefulSet) { s.UID, s.Generation = "", 0 }))
		w.Pass(time.Minute)
		stop()
		set := world.Get[*appsv1.StatefulSet](w, "default", "db")
		var names []string
		for _, pod := range world.List[*corev1.Pod](w) {
			names = append(names, pod.Name)
		}
		if fmt.Sprint(names) != "[db-1 db-2]" || set.Status.ReadyReplicas != 2 {
			t.Errorf("pods %v, %+v", names, set.Status)
		}
		for _, name := range []string{"data-db-1", "data-db-2"} {
			if claim := world.Get[*corev1.PersistentVolumeClaim](w, "default", name); len(claim.OwnerReferences) != 0 || claim.Labels["app"] != "web" {
				t.Errorf("%+v", claim)
			}
		}
	})
}

// TestStatefulSetHears: each of these changes makes the controller sync again, and it sets right what was changed.
func TestStatefulSetHears(t *testing.T) {
	inWorld(t, 1, func(w *world.World) {
		t := w.T
		stop := w.Run(StatefulSet)
		world.Create(w, aStatefulSet(2, func(s *appsv1.StatefulSet) { s.UID, s.Generation = "", 0 }))
		w.Pass(time.Minute)
		for _, step := range []struct {
			what  string
			do    func()
			right func() bool
		}{
			{"a pod lost its name's label", func() {
				world.Edit(w, "default", "db-0", func(p *corev1.Pod) { delete(p.Labels, appsv1.StatefulSetPodNameLabel) })
			}, func() bool {
				return world.Get[*corev1.Pod](w, "default", "db-0").Labels[appsv1.StatefulSetPodNameLabel] == "db-0"
			}},
			{"a pod was deleted", func() { w.Remove(world.Get[*corev1.Pod](w, "default", "db-0")) }, func() bool { return !world.Gone[*corev1.Pod](w, "default", "db-0") }},
			{"the last pod was deleted", func() { w.Remove(world.Get[*corev1.Pod](w, "default", "db-1")) }, func() bool { return !world.Gone[*corev1.Pod](w, "default", "db-1") }},
			{"a revision was orphaned", func() {
				for _, r := range world.List[*appsv1.ControllerRevision](w) {
					world.Edit(w, "default", r.Name, func(r *appsv1.ControllerRevision) { r.OwnerReferences = nil })
				}
			}, func() bool { return metav1.GetControllerOf(world.List[*appsv1.ControllerRevision](w)[0]) != nil }},
			{"a pod was orphaned", func() { world.Edit(w, "default", "db-1", func(p *corev1.Pod) { p.OwnerReferences = nil }) },
				func() bool { return metav1.GetControllerOf(world.Get[*corev1.Pod](w, "default", "db-1")) != nil }},
			{"it was scaled", func() {
				world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(3)) })
			},
				func() bool { return !world.Gone[*corev1.Pod](w, "default", "db-2") }},
			{"it was scaled down", func() {
				world.Edit(w, "default", "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
			},
				func() bool {
					return world.Gone[*corev1.Pod](w, "default", "db-1") && world.Gone[*corev1.Pod](w, "default", "db-2")
				}},
			{"claims stay", func() {}, func() bool { return len(world.List[*corev1.PersistentVolumeClaim](w)) == 3 }},
		} {
			step.do()
			w.Pass(time.Minute)
			if !step.right() {
				t.Errorf("%s: it was not set right", step.what)
			}
		}
		stop()
		w.AssertSettled(StatefulSet)
	})
}
