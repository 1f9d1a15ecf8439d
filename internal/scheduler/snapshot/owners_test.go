package snapshot

import (
	"math/rand/v2"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
)

func ownerMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name}
}

func ownerRC(name string, selector map[string]string) *corev1.ReplicationController {
	return &corev1.ReplicationController{ObjectMeta: ownerMeta(name), Spec: corev1.ReplicationControllerSpec{Selector: selector}}
}

func ownerRS(name string, selector *metav1.LabelSelector) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: ownerMeta(name), Spec: appsv1.ReplicaSetSpec{Selector: selector}}
}

func ownerSS(name string, selector *metav1.LabelSelector) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: ownerMeta(name), Spec: appsv1.StatefulSetSpec{Selector: selector}}
}

// ownerTell gives a snapshot any of the objects that make pods belong together.
func ownerTell(s *Snapshot, objects ...any) {
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			s.SetService(o)
		case *corev1.ReplicationController:
			s.SetReplicationController(o)
		case *appsv1.ReplicaSet:
			s.SetReplicaSet(o)
		case *appsv1.StatefulSet:
			s.SetStatefulSet(o)
		}
	}
}

func TestOwnerSelector(t *testing.T) {
	type set = map[string]string
	x := schedulertest.Labelled("app", "x")
	byRS, bySS, byRC := schedulertest.SpreadOwned("apps/v1", "ReplicaSet", "own"), schedulertest.SpreadOwned("apps/v1", "StatefulSet", "own"), schedulertest.SpreadOwned("v1", "ReplicationController", "own")
	uncontrolled := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "own"}}
	}
	second := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "own"}, {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "own", Controller: ptr.To(true)}}
	}
	web := schedulertest.SpreadService("web", set{"app": "x"})
	elsewhere := schedulertest.SpreadService("web", set{"app": "x"})
	elsewhere.Namespace = "other"
	otherRS := ownerRS("own", schedulertest.Matching("app", "x"))
	otherRS.Namespace = "other"
	for _, test := range []struct {
		what    string
		objects []any
		pod     *corev1.Pod
		want    string
	}{
		{"nobody", nil, schedulertest.TestPod("p", x), ""},
		{"a service", []any{web}, schedulertest.TestPod("p", x), "app=x"},
		{"a service of others", []any{web}, schedulertest.TestPod("p", schedulertest.Labelled("app", "y")), ""},
		{"a service of another namespace", []any{elsewhere}, schedulertest.TestPod("p", x), ""},
		{"a service without a selector is nobody's", []any{schedulertest.SpreadService("web", nil)}, schedulertest.TestPod("p", x), ""},
		{"a service with an empty selector is everybody's, and says nothing", []any{schedulertest.SpreadService("web", set{})}, schedulertest.TestPod("p", x), ""},
		{"a service with two labels, one of which the pod has", []any{schedulertest.SpreadService("web", set{"app": "x", "tier": "y"})}, schedulertest.TestPod("p", x), ""},
		{"two services add up", []any{web, schedulertest.SpreadService("tier", set{"tier": "y"})}, schedulertest.TestPod("p", x, schedulertest.Labelled("tier", "y")), "app=x,tier=y"},
		{"two services that say the same", []any{web, schedulertest.SpreadService("again", set{"app": "x"})}, schedulertest.TestPod("p", x), "app=x"},
		{"a pod without labels", []any{web}, schedulertest.TestPod("p"), ""},

		{"a replica set", []any{ownerRS("own", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, byRS), "app=x"},
		{"a replica set is not asked whether the pod matches", []any{ownerRS("own", schedulertest.Matching("app", "z"))}, schedulertest.TestPod("p", x, byRS), "app=z"},
		{"a replica set of expressions", []any{ownerRS("own", termRequirement("app", metav1.LabelSelectorOpIn, "x", "y"))}, schedulertest.TestPod("p", x, byRS), "app in (x,y)"},
		{"a replica set of another name", []any{ownerRS("other", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, byRS), ""},
		{"a replica set of another namespace", []any{otherRS}, schedulertest.TestPod("p", x, byRS), ""},
		{"a replica set that is not there", nil, schedulertest.TestPod("p", x, byRS), ""},
		{"a replica set without a selector", []any{ownerRS("own", nil)}, schedulertest.TestPod("p", x, byRS), ""},
		{"a replica set with an empty selector", []any{ownerRS("own", &metav1.LabelSelector{})}, schedulertest.TestPod("p", x, byRS), ""},
		{"a replica set that cannot be read", []any{ownerRS("own", termRequirement("app", "Odd"))}, schedulertest.TestPod("p", x, byRS), ""},
		{"a replica set that cannot be read any more", []any{ownerRS("own", schedulertest.Matching("app", "x")), ownerRS("own", termRequirement("app", "Odd"))}, schedulertest.TestPod("p", x, byRS), ""},
		{"a replica set that does not control the pod", []any{ownerRS("own", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, uncontrolled), ""},
		{"the owner that controls, behind one that does not", []any{ownerRS("own", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, second), "app=x"},
		{"a replica set and a service", []any{web, ownerRS("own", schedulertest.Matching("tier", "y"))}, schedulertest.TestPod("p", x, byRS), "app=x,tier=y"},
		{"a replica set and a service of one label: both are demanded", []any{web, ownerRS("own", schedulertest.Matching("app", "z"))}, schedulertest.TestPod("p", x, byRS), "app=x,app=z"},
		{"a replica set as it is now", []any{ownerRS("own", schedulertest.Matching("app", "x")), ownerRS("own", schedulertest.Matching("app", "y"))}, schedulertest.TestPod("p", x, byRS), "app=y"},

		{"a stateful set", []any{ownerSS("own", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, bySS), "app=x"},
		{"a stateful set and a service of one label", []any{web, ownerSS("own", schedulertest.Matching("app", "z"))}, schedulertest.TestPod("p", x, bySS), "app=x,app=z"},
		{"a replica set of the stateful set's name is not it", []any{ownerRS("own", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, bySS), ""},

		{"a replication controller", []any{ownerRC("own", set{"app": "x"})}, schedulertest.TestPod("p", x, byRC), "app=x"},
		{"a replication controller and a service", []any{web, ownerRC("own", set{"tier": "y"})}, schedulertest.TestPod("p", x, byRC), "app=x,tier=y"},
		{"a replication controller and a service of one label: the controller's counts", []any{web, ownerRC("own", set{"app": "z"})}, schedulertest.TestPod("p", x, byRC), "app=z"},
		{"a replication controller without a selector", []any{web, ownerRC("own", nil)}, schedulertest.TestPod("p", x, byRC), "app=x"},
		{"a replication controller of another group", []any{ownerRC("own", set{"app": "x"})}, schedulertest.TestPod("p", x, schedulertest.SpreadOwned("apps/v1", "ReplicationController", "own")), ""},

		{"an owner of a kind that is not asked", []any{ownerRS("own", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, schedulertest.SpreadOwned("batch/v1", "Job", "own")), ""},
		{"an owner of a kind that is not asked, and a service", []any{web}, schedulertest.TestPod("p", x, schedulertest.SpreadOwned("apps/v1", "DaemonSet", "own")), "app=x"},
		{"a replica set of an older version", []any{ownerRS("own", schedulertest.Matching("app", "x"))}, schedulertest.TestPod("p", x, schedulertest.SpreadOwned("extensions/v1beta1", "ReplicaSet", "own")), ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := NewSnapshot()
			ownerTell(s, test.objects...)
			if got := s.OwnerSelector(test.pod); got.String() != test.want || MatchesNothing(got) {
				t.Errorf("selects %q, want %q", got, test.want)
			}
		})
	}
}

// What is known of pods' belonging is asked again after each change that may matter, and only then.
func TestOwnersTellOfChanges(t *testing.T) {
	type set = map[string]string
	s := NewSnapshot()
	byRS, byRC := schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.SpreadOwned("apps/v1", "ReplicaSet", "own")), schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.SpreadOwned("v1", "ReplicationController", "own"))
	for _, step := range []struct {
		what    string
		do      func()
		changes bool
		rs, rc  string
	}{
		{"a service", func() { ownerTell(s, schedulertest.SpreadService("web", set{"app": "x"})) }, true, "app=x", "app=x"},
		{"the same service", func() { ownerTell(s, schedulertest.SpreadService("web", set{"app": "x"})) }, false, "app=x", "app=x"},
		{"its selector is another", func() { ownerTell(s, schedulertest.SpreadService("web", set{"app": "y"})) }, true, "", ""},
		{"a set", func() { ownerTell(s, ownerRS("own", schedulertest.Matching("app", "z"))) }, true, "app=z", ""},
		{"the same set", func() { ownerTell(s, ownerRS("own", schedulertest.Matching("app", "z"))) }, false, "app=z", ""},
		{"its selector has one demand more", func() {
			ownerTell(s, ownerRS("own", &metav1.LabelSelector{MatchLabels: set{"app": "z", "b": "c"}}))
		}, true, "app=z,b=c", ""},
		{"a controller", func() { ownerTell(s, ownerRC("own", set{"app": "w"})) }, true, "app=z,b=c", "app=w"},
		{"the same controller", func() { ownerTell(s, ownerRC("own", set{"app": "w"})) }, false, "app=z,b=c", "app=w"},
		{"its selector is another", func() { ownerTell(s, ownerRC("own", set{"app": "v"})) }, true, "app=z,b=c", "app=v"},
		{"a set of another kind under the name", func() { ownerTell(s, ownerSS("own", schedulertest.Matching("q", "q"))) }, true, "app=z,b=c", "app=v"},
		{"the controller is gone", func() { s.DeleteController("v1", "ReplicationController", "default", "own") }, true, "app=z,b=c", ""},
		{"the set of the other kind is gone", func() { s.DeleteController("apps/v1", "StatefulSet", "default", "own") }, true, "app=z,b=c", ""},
		{"the set is gone", func() { s.DeleteController("apps/v1", "ReplicaSet", "default", "own") }, true, "", ""},
		{"the service is the pod's again", func() { ownerTell(s, schedulertest.SpreadService("web", set{"app": "x"})) }, true, "app=x", "app=x"},
		{"the service is gone", func() { s.DeleteService("default", "web") }, true, "", ""},
		{"a service nobody knew is gone", func() { s.DeleteService("nowhere", "web") }, true, "", ""},
	} {
		before := s.TopologyVersion
		step.do()
		if changed := s.TopologyVersion != before; changed != step.changes {
			t.Errorf("%s: what was known is asked again: %t", step.what, changed)
		}
		if rs, rc := s.OwnerSelector(byRS).String(), s.OwnerSelector(byRC).String(); rs != step.rs || rc != step.rc {
			t.Errorf("%s: %q and %q, want %q and %q", step.what, rs, rc, step.rs, step.rc)
		}
	}
}

// Random services and controllers: whom the selector matches is whom all of them match that have a say.
func TestOwnerSelectorEqualsModel(t *testing.T) {
	const seed = 71
	r := rand.New(rand.NewPCG(seed, 1))
	keys := []string{"a", "b", "c"}
	ownerless := 0
	for round := range 800 {
		s := NewSnapshot()
		pod := schedulertest.TestPod("p", func(p *corev1.Pod) { p.Labels = schedulertest.RandomLabels(r, keys, "1", "2") })
		demands := map[string][]string{}
		services := schedulertest.SomeOf(r, 4, func() labels.Set { return schedulertest.RandomLabels(r, keys, "1", "2") })
		for i, selector := range services {
			service := schedulertest.SpreadService(string(rune('a'+i)), selector)
			s.SetService(service)
			matches := true
			for key, value := range selector {
				matches = matches && pod.Labels[key] == value
			}
			if matches {
				for key, value := range selector {
					demands[key] = []string{value}
				}
			}
		}
		own := schedulertest.RandomLabels(r, keys, "1", "2", "3")
		switch r.IntN(3) {
		case 0:
			schedulertest.SpreadOwned("v1", "ReplicationController", "own")(pod)
			s.SetReplicationController(ownerRC("own", own))
			for key, value := range own {
				demands[key] = []string{value}
			}
		case 1:
			schedulertest.SpreadOwned("apps/v1", "ReplicaSet", "own")(pod)
			s.SetReplicaSet(ownerRS("own", &metav1.LabelSelector{MatchLabels: own}))
			for key, value := range own {
				demands[key] = append(demands[key], value)
			}
		}
		selector := s.OwnerSelector(pod)
		if selector.Empty() != (len(demands) == 0) {
			t.Fatalf("seed %d, round %d: selects %q, want %v", seed, round, selector, demands)
		}
		if selector.Empty() {
			ownerless++
		}
		for range 5 {
			other := schedulertest.RandomLabels(r, keys, "1", "2", "3")
			want := true
			for key, values := range demands {
				for _, value := range values {
					want = want && other[key] == value
				}
			}
			if got := selector.Matches(other); got != want {
				t.Fatalf("seed %d, round %d: %q matches %v: %t, want %t", seed, round, selector, other, got, want)
			}
		}
	}
	if ownerless < 20 || ownerless > 700 {
		t.Errorf("%d of 800 pods have no owner: too one-sided to tell anything", ownerless)
	}
}
