package workload

import (
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
)

func aSet(size int32, changes ...change[*appsv1.ReplicaSet]) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "web"}
	return with(&appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", Generation: 3, Labels: labels, CreationTimestamp: ago(time.Hour)},
		Spec: appsv1.ReplicaSetSpec{Replicas: &size, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}},
	}, changes...)
}

func viewOf(t *testing.T, set *appsv1.ReplicaSet, pods ...*corev1.Pod) replicasView {
	t.Helper()
	r, err := fromReplicaSet(set)
	if err != nil {
		t.Fatal(err)
	}
	return replicasView{replicas: r, pods: pods, now: now}
}

func TestReplicasPlan(t *testing.T) {
	set := aSet(2)
	mine := ownedBy(set, "ReplicaSet")
	gone := func(s *appsv1.ReplicaSet) { t := ago(time.Second); s.DeletionTimestamp = &t }
	patient := func(s *appsv1.ReplicaSet) { s.Spec.MinReadySeconds = 30 }
	for _, test := range []struct {
		what string
		set  *appsv1.ReplicaSet
		pods []*corev1.Pod
		want string
	}{
		{"nothing there", set, nil, "create Pod web- + create Pod web-"},
		{"enough", set, []*corev1.Pod{aPod("a", mine), aPod("b", mine)}, ""},
		{"finished and leaving pods do not count", set, []*corev1.Pod{aPod("a", mine, inPhase(corev1.PodFailed)), aPod("b", mine, beingDeleted), aPod("c", mine)}, "create Pod web-"},
		{"too many", set, []*corev1.Pod{aPod("a", mine, readyFor(time.Hour), onNode("n")), aPod("b", mine), aPod("c", mine, readyFor(time.Hour), onNode("n"))}, "delete Pod b"},
		{"none wanted", aSet(0), []*corev1.Pod{aPod("a", mine), aPod("b", mine)}, "delete Pod a + delete Pod b"},
		{"an orphan counts and is adopted", set, []*corev1.Pod{aPod("a", mine), aPod("b")}, "patch Pod b"},
		{"one that no longer matches is released and replaced", set, []*corev1.Pod{aPod("a", mine), aPod("b", mine, labelled("app", "db"))}, "patch Pod b, create Pod web-"},
		{"another's pod is left alone", aSet(0), []*corev1.Pod{aPod("a", ownedBy(aPod("x"), "ReplicaSet"))}, ""},
		{"a leaving set neither creates nor deletes", aSet(5, gone), []*corev1.Pod{aPod("a", mine), aPod("b")}, ""},
		{"a pod that is not yet available", aSet(2, patient), []*corev1.Pod{aPod("a", mine, readyFor(10*time.Second)), aPod("b", mine, readyFor(time.Hour))}, "again 20s"},
		{"a ready pod without a time", aSet(1, patient), []*corev1.Pod{aPod("a", mine, readyFor(0), func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} })}, "again 30s"},
		{"all available", aSet(1, patient), []*corev1.Pod{aPod("a", mine, readyFor(time.Hour))}, ""},
	} {
		expect(t, test.what, told(viewOf(t, test.set, test.pods...).reconcile()), test.want)
	}
	plan := viewOf(t, aSet(2*burstReplicas)).reconcile()
	if n := len(plan.Steps[0].Writes); n != burstReplicas {
		t.Errorf("%d pods created in one sync", n)
	}
}

func TestReplicasPreferCrowdedNodes(t *testing.T) {
	set := aSet(2)
	mine, sibling := ownedBy(set, "ReplicaSet"), ownedBy(aSet(0, func(s *appsv1.ReplicaSet) { s.UID = "other" }), "ReplicaSet")
	pods := []*corev1.Pod{
		aPod("a", mine, onNode("n1"), readyFor(2*time.Hour)), aPod("b", mine, onNode("n2"), readyFor(time.Hour)), aPod("c", mine, onNode("n3"), readyFor(30*time.Minute)),
	}
	v := viewOf(t, set, pods...)
	expect(t, "alone", told(v.reconcile()), "delete Pod c")
	v.related = append([]*corev1.Pod{aPod("x", sibling, onNode("n1"), readyFor(time.Hour)), aPod("y", sibling, onNode("n2"), beingDeleted)}, pods...)
	expect(t, "a sibling's pod on the same node", told(v.reconcile()), "delete Pod a")
}

func TestReplicasEvents(t *testing.T) {
	set := aSet(1)
	write := viewOf(t, set).reconcile().Steps[0].Writes[0]
	if write.SuccessEvent.Reason != "SuccessfulCreate" || write.SuccessEvent.Message != "Created pod: %s" || write.FailureEvent.Reason != "FailedCreate" || write.FailureEvent.Message != "Error creating: %s" || write.SuccessEvent.Object != set {
		t.Errorf("%+v %+v", write.SuccessEvent, write.FailureEvent)
	}
	write = viewOf(t, aSet(0), aPod("a", ownedBy(set, "ReplicaSet"))).reconcile().Steps[0].Writes[0]
	if write.SuccessEvent.Reason != "SuccessfulDelete" || write.SuccessEvent.Message != "Deleted pod: %s" || write.FailureEvent.Reason != "FailedDelete" || write.FailureEvent.Message != "Error deleting: %s" {
		t.Errorf("%+v %+v", write.SuccessEvent, write.FailureEvent)
	}
}

func TestReplicasStatus(t *testing.T) {
	set := aSet(3, func(s *appsv1.ReplicaSet) {
		s.Spec.MinReadySeconds = 30
		s.Spec.Template.Labels = map[string]string{"app": "web", "extra": "1"}
	})
	mine := ownedBy(set, "ReplicaSet")
	pods := []*corev1.Pod{
		aPod("a", mine, readyFor(time.Hour), labelled("extra", "1")), aPod("b", mine, readyFor(time.Second)), aPod("c", mine),
		aPod("d", mine, beingDeleted), aPod("e", mine, beingDeleted, inPhase(corev1.PodSucceeded)), aPod("f", beingDeleted),
	}
	plan := viewOf(t, set, pods...).reconcile()
	written := plan.Status(controller.ApplyResult{}).(*appsv1.ReplicaSet)
	want := appsv1.ReplicaSetStatus{Replicas: 3, FullyLabeledReplicas: 1, ReadyReplicas: 2, AvailableReplicas: 1, TerminatingReplicas: new(int32(1)), ObservedGeneration: 3}
	if got := written.Status; got.String() != want.String() {
		t.Errorf("status %v", got)
	}
	if set.Status.Replicas != 0 {
		t.Error("the shared object was changed")
	}
	if again := viewOf(t, written, pods...).reconcile().Status(controller.ApplyResult{}); again != nil {
		t.Errorf("a second sync changes the status to %+v", again)
	}
}

func TestReplicasReportFailures(t *testing.T) {
	refused := func(verb controller.Verb) controller.ApplyResult {
		return controller.ApplyResult{Err: &controller.WriteError{Verb: verb, Object: aPod("a"), Err: errors.New(`pods "a" is forbidden`)}}
	}
	v := viewOf(t, aSet(3))
	failed := v.reconcile().Status(refused(controller.Create)).(*appsv1.ReplicaSet)
	c := failed.Status.Conditions[0]
	if c.Type != appsv1.ReplicaSetReplicaFailure || c.Status != "True" || c.Reason != "FailedCreate" || c.Message != `pods "a" is forbidden` || !c.LastTransitionTime.Time.Equal(now) {
		t.Errorf("%+v", c)
	}
	if again := viewOf(t, failed).reconcile().Status(refused(controller.Create)); again != nil {
		t.Errorf("the same failure again changed %+v", again)
	}
	if c := v.reconcile().Status(refused(controller.Delete)).(*appsv1.ReplicaSet).Status.Conditions[0]; c.Reason != "FailedDelete" {
		t.Errorf("%+v", c)
	}
	if cleared := viewOf(t, failed).reconcile().Status(controller.ApplyResult{}).(*appsv1.ReplicaSet); len(cleared.Status.Conditions) != 0 {
		t.Errorf("%+v", cleared.Status)
	}
	if got := v.reconcile().Status(refused(controller.Patch)); got != nil {
		t.Errorf("an adoption that failed is no failure of replicas: %+v", got)
	}
	if got := v.reconcile().Status(controller.ApplyResult{Err: errors.New("not confirmed")}); got != nil {
		t.Errorf("%+v", got)
	}
}

func TestReplicationControllerIsTheSame(t *testing.T) {
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", Generation: 2},
		Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(2)), Selector: map[string]string{"app": "web"},
			Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}},
		Status: corev1.ReplicationControllerStatus{Conditions: []corev1.ReplicationControllerCondition{{Type: "Other", Status: "True", Reason: "Because"}}},
	}
	r, err := fromReplicationController(rc)
	if err != nil {
		t.Fatal(err)
	}
	plan := replicasView{replicas: r, pods: []*corev1.Pod{aPod("a", ownedBy(rc, "ReplicationController"), readyFor(time.Hour)), aPod("b", beingDeleted, ownedBy(rc, "x"))}, now: now}.reconcile()
	expect(t, "plan", told(plan), "create Pod web-")
	if ref := plan.Steps[0].Writes[0].Object.(*corev1.Pod).OwnerReferences[0]; ref.Kind != "ReplicationController" || ref.APIVersion != "v1" {
		t.Errorf("%+v", ref)
	}
	status := plan.Status(controller.ApplyResult{}).(*corev1.ReplicationController).Status
	if status.Replicas != 1 || status.ReadyReplicas != 1 || status.AvailableReplicas != 1 || status.ObservedGeneration != 2 || len(status.Conditions) != 1 || status.Conditions[0].Reason != "Because" {
		t.Errorf("%+v", status)
	}
	failed := plan.Status(controller.ApplyResult{Err: &controller.WriteError{Verb: controller.Create, Object: rc, Err: errors.New("x")}}).(*corev1.ReplicationController)
	if !strings.Contains(failed.Status.String(), "ReplicaFailure") {
		t.Errorf("%+v", failed.Status)
	}
}
