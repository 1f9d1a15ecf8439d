package scaling

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/controller"
	"skiff/test/world"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

type change[T any] func(T)

func with[T any](obj T, changes ...change[T]) T {
	for _, c := range changes {
		c(obj)
	}
	return obj
}

func aPod(name string, changes ...change[*corev1.Pod]) *corev1.Pod {
	return with(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(time.Hour)}},
			StartTime: new(ago(time.Hour))},
	}, changes...)
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func leaving(p *corev1.Pod) { p.DeletionTimestamp = new(ago(0)) }

func ready(n int) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, aPod(fmt.Sprint("p", i)))
	}
	return pods
}

func aBudget(changes ...change[*policyv1.PodDisruptionBudget]) *policyv1.PodDisruptionBudget {
	return with(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Generation: 3}}, changes...)
}

func atLeast(n string) change[*policyv1.PodDisruptionBudget] {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = new(intstr.Parse(n)) }
}

func atMost(n string) change[*policyv1.PodDisruptionBudget] {
	return func(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = new(intstr.Parse(n)) }
}

func evicted(name string, before time.Duration) change[*policyv1.PodDisruptionBudget] {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status.DisruptedPods = map[string]metav1.Time{name: ago(before)}
	}
}

func TestDisruptionBudgets(t *testing.T) {
	for _, test := range []struct {
		what   string
		view   budgetView
		status string // healthy/desired/expected allowed reason
		events string
	}{
		{"no pods", budgetView{budget: aBudget(atLeast("1"))}, "0/1/0 allowed 0 InsufficientPods", "NoPods"},
		{"a number", budgetView{budget: aBudget(atLeast("2")), pods: ready(3)}, "3/2/3 allowed 1 SufficientPods", ""},
		{"a number, one not ready", budgetView{budget: aBudget(atLeast("2")), pods: append(ready(2), aPod("x", unready))}, "2/2/3 allowed 0 InsufficientPods", ""},
		{"a number, one leaving", budgetView{budget: aBudget(atLeast("2")), pods: append(ready(2), aPod("x", leaving))}, "2/2/3 allowed 0 InsufficientPods", ""},
		{"a share, rounded up", budgetView{budget: aBudget(atLeast("50%")), pods: ready(5), scale: 5}, "5/3/5 allowed 2 SufficientPods", ""},
		{"of what there should be, not of what there is", budgetView{budget: aBudget(atLeast("50%")), pods: ready(3), scale: 10}, "3/5/10 allowed 0 InsufficientPods", ""},
		{"at most one out", budgetView{budget: aBudget(atMost("1")), pods: ready(3), scale: 3}, "3/2/3 allowed 1 SufficientPods", ""},
		{"at most a third out", budgetView{budget: aBudget(atMost("34%")), pods: ready(3), scale: 3}, "3/1/3 allowed 2 SufficientPods", ""},
		{"more may be out than there are", budgetView{budget: aBudget(atMost("9")), pods: ready(3), scale: 3}, "3/0/3 allowed 3 SufficientPods", ""},
		{"pods without a controller", budgetView{budget: aBudget(atMost("1")), pods: ready(1), unmanaged: []string{"p0"}}, "1/0/0 allowed 0 InsufficientPods", "UnmanagedPods"},
		{"one evicted just now", budgetView{budget: aBudget(atLeast("1"), evicted("p0", time.Second)), pods: ready(2)}, "1/1/2 allowed 0 InsufficientPods", ""},
		{"one evicted long ago", budgetView{budget: aBudget(atLeast("1"), evicted("p0", time.Hour)), pods: ready(2)}, "2/1/2 allowed 1 SufficientPods", "NotDeleted"},
		{"nobody knows", budgetView{budget: aBudget(atMost("1")), pods: ready(2), failure: errors.New("no scale"), failed: controller.Event{Reason: "CalculateExpectedPodCountFailed"}}, "0/0/0 allowed 0 SyncFailed", "CalculateExpectedPodCountFailed"},
	} {
		test.view.now = now
		plan := test.view.reconcile()
		b := plan.Status(controller.Outcome{}).(*policyv1.PodDisruptionBudget)
		s := b.Status
		got := fmt.Sprintf("%d/%d/%d allowed %d %s", s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, s.DisruptionsAllowed, s.Conditions[0].Reason)
		var events []string
		for _, e := range plan.Events {
			events = append(events, e.Reason)
		}
		if got != test.status || strings.Join(events, " ") != test.events {
			t.Errorf("%s: %s, events %v\nwant %s, %s", test.what, got, events, test.status, test.events)
		}
		test.view.budget = b
		if again := test.view.reconcile(); again.Status(controller.Outcome{}) != nil {
			t.Errorf("%s: a second look changes the status", test.what)
		}
	}
	plan := budgetView{budget: aBudget(atLeast("1"), evicted("p0", time.Minute)), pods: ready(2), now: now}.reconcile()
	if plan.RequeueAfter.Round(time.Second) != time.Minute {
		t.Errorf("an evicted pod is looked at again after %v", plan.RequeueAfter)
	}
}

func TestStaleMarks(t *testing.T) {
	mark := func(reason string, before time.Duration) change[*corev1.Pod] {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: ago(before)})
		}
	}
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		steps int
		again time.Duration
	}{
		{"no mark", aPod("p"), 0, 0},
		{"a new one", aPod("p", mark("EvictionByEvictionAPI", time.Minute)), 0, time.Minute},
		{"an old one", aPod("p", mark("EvictionByEvictionAPI", time.Hour)), 1, 0},
		{"a kubelet's", aPod("p", mark("TerminationByKubelet", time.Hour)), 0, 0},
		{"a pod that goes", aPod("p", mark("EvictionByEvictionAPI", time.Hour), leaving), 0, 0},
		{"a pod that is over", aPod("p", mark("EvictionByEvictionAPI", time.Hour), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), 0, 0},
	} {
		if plan := unmark(test.pod, now); len(plan.Steps) != test.steps || plan.RequeueAfter != test.again {
			t.Errorf("%s: %d steps, again after %v", test.what, len(plan.Steps), plan.RequeueAfter)
		}
	}
}

func TestDisruptionInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Disruption)()
		labels := map[string]string{"app": "web"}
		set := world.Create(w, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(4)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}})
		daemon := world.Create(w, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "daemon"}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "daemon"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "daemon"}}, Spec: set.Spec.Template.Spec}}})
		pod := func(name, app string, owner *metav1.OwnerReference) {
			world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": app}, OwnerReferences: []metav1.OwnerReference{*owner}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
			world.EditStatus(w, "default", name, func(p *corev1.Pod) { p.Status = aPod("").Status })
		}
		for i := range 4 {
			pod(fmt.Sprint("web-", i), "web", metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")))
		}
		pod("d", "daemon", metav1.NewControllerRef(daemon, appsv1.SchemeGroupVersion.WithKind("DaemonSet")))
		budget := func(name, app string) *policyv1.PodDisruptionBudget {
			world.Create(w, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: new(intstr.Parse("50%")), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}})
			w.Pass(time.Second)
			return world.Get[*policyv1.PodDisruptionBudget](w, "default", name)
		}
		if b := budget("web", "web"); b.Status.DisruptionsAllowed != 2 || b.Status.ExpectedPods != 4 || b.Status.ObservedGeneration != b.Generation {
			t.Errorf("status %+v", b.Status)
		}
		if b := budget("daemon", "daemon"); b.Status.DisruptionsAllowed != 0 || b.Status.Conditions[0].Message != "daemonsets.apps does not implement the scale subresource" {
			t.Errorf("status %+v", b.Status)
		}
		world.EditStatus(w, "default", "web-0", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
		w.Pass(time.Second)
		if b := world.Get[*policyv1.PodDisruptionBudget](w, "default", "web"); b.Status.DisruptionsAllowed != 1 || b.Status.CurrentHealthy != 3 {
			t.Errorf("status %+v", b.Status)
		}
		if told := w.Events("daemon"); !slices.ContainsFunc(told, func(e string) bool { return strings.HasPrefix(e, "CalculateExpectedPodCountFailed: ") }) {
			t.Errorf("events %q", told)
		}
	})
}
