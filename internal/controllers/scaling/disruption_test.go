package scaling

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
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

func unready(p *corev1.Pod)      { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func beingDeleted(p *corev1.Pod) { p.DeletionTimestamp = new(ago(0)) }

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

// TestCounts: how many pods there should be, and how many of them must be healthy. Shares are rounded up, both of those that must be
// there and of those that may be missing.
func TestCounts(t *testing.T) {
	for _, test := range []struct {
		what              string
		budget            *policyv1.PodDisruptionBudget
		pods              int
		scale             int32
		expected, desired int32
		err               string
	}{
		{"nothing is specified", aBudget(), 3, 3, 0, 0, ""},
		{"a number, of the pods there are", aBudget(atLeast("2")), 3, 9, 3, 2, ""},
		{"more than there are", aBudget(atLeast("5")), 3, 9, 3, 5, ""},
		{"none", aBudget(atLeast("0")), 3, 9, 3, 0, ""},
		{"half of what there should be", aBudget(atLeast("50%")), 1, 10, 10, 5, ""},
		{"half of an odd number: rounded up", aBudget(atLeast("50%")), 1, 7, 7, 4, ""},
		{"a little", aBudget(atLeast("1%")), 1, 7, 7, 1, ""},
		{"nearly all", aBudget(atLeast("99%")), 1, 7, 7, 7, ""},
		{"all", aBudget(atLeast("100%")), 1, 7, 7, 7, ""},
		{"a share of none", aBudget(atLeast("0%")), 1, 7, 7, 0, ""},
		{"a share where there should be none", aBudget(atLeast("50%")), 1, 0, 0, 0, ""},
		{"one may be missing", aBudget(atMost("1")), 1, 7, 7, 6, ""},
		{"none may be missing", aBudget(atMost("0")), 1, 7, 7, 7, ""},
		{"all may be missing", aBudget(atMost("7")), 1, 7, 7, 0, ""},
		{"more than all may be missing", aBudget(atMost("8")), 1, 7, 7, 0, ""},
		{"half may be missing: rounded up", aBudget(atMost("50%")), 1, 7, 7, 3, ""},
		{"a little may be missing: at least one", aBudget(atMost("1%")), 1, 7, 7, 6, ""},
		{"a share of none may be missing", aBudget(atMost("0%")), 1, 7, 7, 7, ""},
		{"all may be missing, as a share", aBudget(atMost("100%")), 1, 7, 7, 0, ""},
		{"a share that is none", aBudget(atLeast("x")), 1, 7, 7, 0, "invalid value for IntOrString: invalid type: string is not a percentage"},
		{"a share without its sign", aBudget(func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = new(intstr.FromString("5")) }), 1, 7, 7, 0, "invalid value for IntOrString: invalid type: string is not a percentage"},
		{"what may be missing goes first", aBudget(atLeast("1"), atMost("2")), 3, 7, 7, 5, ""},
		{"very many", aBudget(atLeast("33%")), 1, 2000000, 2000000, 660000, ""},
	} {
		v := budgetView{budget: test.budget, pods: ready(test.pods), scale: test.scale}
		expected, desired, err := v.podCounts()
		if expected != test.expected || desired != test.desired && err == nil || errorText(err) != test.err {
			t.Errorf("%s: %d, %d, %v", test.what, expected, desired, err)
		}
	}
}

// TestBudgetStatus: the whole status of a budget and what is reported.
func TestBudgetStatus(t *testing.T) {
	evict := func(pairs ...any) change[*policyv1.PodDisruptionBudget] {
		return func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{}
			for i := 0; i < len(pairs); i += 2 {
				b.Status.DisruptedPods[pairs[i].(string)] = ago(pairs[i+1].(time.Duration))
			}
		}
	}
	const sufficient, insufficient = "DisruptionAllowed=True SufficientPods @3", "DisruptionAllowed=False InsufficientPods @3"
	const notDeleted = "Warning NotDeleted: Pod was expected by PDB default/default to be deleted but it wasn't" // sic: the namespace twice
	for _, test := range []struct {
		what   string
		view   budgetView
		want   string
		told   string
		again  time.Duration
		silent bool // nothing is written
	}{
		{"no pods", budgetView{budget: aBudget(atLeast("1"))}, "0 of 1, of 0, allowed 0, waiting []; " + insufficient, "Normal NoPods: No matching pods found", 0, false},
		{"no pods, and none needed: nothing is allowed all the same", budgetView{budget: aBudget(atLeast("0"))}, "0 of 0, of 0, allowed 0, waiting []; " + insufficient, "Normal NoPods: No matching pods found", 0, false},
		{"just enough", budgetView{budget: aBudget(atLeast("3")), pods: ready(3)}, "3 of 3, of 3, allowed 0, waiting []; " + insufficient, "", 0, false},
		{"one too many", budgetView{budget: aBudget(atLeast("2")), pods: ready(3)}, "3 of 2, of 3, allowed 1, waiting []; " + sufficient, "", 0, false},
		{"too few", budgetView{budget: aBudget(atLeast("5")), pods: ready(3)}, "3 of 5, of 3, allowed 0, waiting []; " + insufficient, "", 0, false},
		{"unready ones are not healthy", budgetView{budget: aBudget(atLeast("1")), pods: append(ready(1), aPod("u", unready))}, "1 of 1, of 2, allowed 0, waiting []; " + insufficient, "", 0, false},
		{"leaving ones are not healthy", budgetView{budget: aBudget(atLeast("1")), pods: append(ready(1), aPod("l", beingDeleted))}, "1 of 1, of 2, allowed 0, waiting []; " + insufficient, "", 0, false},
		{"ready ones count whatever their phase", budgetView{budget: aBudget(atLeast("0")), pods: []*corev1.Pod{aPod("p", inPhase(corev1.PodPending))}}, "1 of 0, of 1, allowed 1, waiting []; " + sufficient, "", 0, false},
		{"an evicted pod is taken to be gone", budgetView{budget: aBudget(atLeast("1"), evict("p0", time.Second)), pods: ready(3)}, "2 of 1, of 3, allowed 1, waiting [p0]; " + sufficient, "", 119*time.Second + time.Millisecond, false},
		{"two evicted: the first that is due", budgetView{budget: aBudget(atLeast("0"), evict("p0", time.Second, "p1", 90*time.Second)), pods: ready(3)}, "1 of 0, of 3, allowed 1, waiting [p0 p1]; " + sufficient, "", 30*time.Second + time.Millisecond, false},
		{"exactly two minutes: waited for, but it counts again", budgetView{budget: aBudget(atLeast("0"), evict("p0", 2*time.Minute)), pods: ready(2)}, "2 of 0, of 2, allowed 2, waiting [p0]; " + sufficient, "", time.Millisecond, false},
		{"a moment less", budgetView{budget: aBudget(atLeast("0"), evict("p0", 2*time.Minute-time.Nanosecond)), pods: ready(2)}, "1 of 0, of 2, allowed 1, waiting [p0]; " + sufficient, "", time.Millisecond + time.Nanosecond, false},
		{"a moment more: it stays", budgetView{budget: aBudget(atLeast("0"), evict("p0", 2*time.Minute+time.Nanosecond)), pods: ready(2)}, "2 of 0, of 2, allowed 2, waiting []; " + sufficient, notDeleted, 0, false},
		{"an evicted pod that goes is no longer waited for", budgetView{budget: aBudget(atLeast("0"), evict("l", time.Second)), pods: append(ready(1), aPod("l", beingDeleted))}, "1 of 0, of 2, allowed 1, waiting []; " + sufficient, "", 0, false},
		{"an evicted pod that is gone", budgetView{budget: aBudget(atLeast("0"), evict("x", time.Second)), pods: ready(1)}, "1 of 0, of 1, allowed 1, waiting []; " + sufficient, "", 0, false},
		{"an evicted pod that was not ready", budgetView{budget: aBudget(atLeast("0"), evict("u", time.Second)), pods: []*corev1.Pod{aPod("u", unready)}}, "0 of 0, of 1, allowed 0, waiting [u]; " + insufficient, "", 119*time.Second + time.Millisecond, false},
		{"an evicted pod of the future", budgetView{budget: aBudget(atLeast("0"), evict("p0", -time.Minute)), pods: ready(1)}, "0 of 0, of 1, allowed 0, waiting [p0]; " + insufficient, "", 3*time.Minute + time.Millisecond, false},
		{"pods nobody manages", budgetView{budget: aBudget(atMost("1"), func(b *policyv1.PodDisruptionBudget) {
			b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}), pods: ready(2), scale: 1, unmanaged: []string{"p0"}}, "2 of 0, of 1, allowed 2, waiting []; " + sufficient,
			`Warning UnmanagedPods: Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}) were found to be unmanaged. ` +
				`As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to an integer value.`, 0, false},
		{"they cannot be counted", budgetView{budget: aBudget(atMost("1")), pods: ready(2), err: errors.New("no scale"), failureEvent: controller.Event{Type: "Warning", Reason: "CalculateExpectedPodCountFailed", Message: "x"}},
			"0 of 0, of 0, allowed 0, waiting []; DisruptionAllowed=False SyncFailed no scale @0", "Warning CalculateExpectedPodCountFailed: x", 0, false},
		{"a share that is none", budgetView{budget: aBudget(atLeast("x")), pods: ready(2)}, "0 of 0, of 0, allowed 0, waiting []; DisruptionAllowed=False SyncFailed invalid value for IntOrString: invalid type: string is not a percentage @0",
			"Warning CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: invalid value for IntOrString: invalid type: string is not a percentage", 0, false},
		{"a share that is none, of no pods: both are told", budgetView{budget: aBudget(atLeast("x"))}, "0 of 0, of 0, allowed 0, waiting []; DisruptionAllowed=False SyncFailed invalid value for IntOrString: invalid type: string is not a percentage @0",
			"Normal NoPods: No matching pods found | Warning CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: invalid value for IntOrString: invalid type: string is not a percentage", 0, false},
		{"what was allowed is taken back when it cannot be counted", budgetView{budget: aBudget(atMost("1"), func(b *policyv1.PodDisruptionBudget) {
			b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 3, CurrentHealthy: 5, DesiredHealthy: 2, ExpectedPods: 5, ObservedGeneration: 2}
		}), err: errors.New("no scale"), failureEvent: controller.Event{Type: "Warning", Reason: noPods, Message: "x"}}, "5 of 2, of 5, allowed 0, waiting []; DisruptionAllowed=False SyncFailed no scale @2", "Warning NoPods: x", 0, false},
		{"at rest", budgetView{budget: aBudget(atLeast("2"), func(b *policyv1.PodDisruptionBudget) {
			b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2, ExpectedPods: 3, ObservedGeneration: 3, Conditions: []metav1.Condition{
				{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionTrue, Reason: policyv1.SufficientPodsReason, ObservedGeneration: 3}}}
		}), pods: ready(3)}, "", "", 0, true},
		{"another generation", budgetView{budget: aBudget(atLeast("2"), func(b *policyv1.PodDisruptionBudget) {
			b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2, ExpectedPods: 3, ObservedGeneration: 2, Conditions: []metav1.Condition{
				{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionTrue, Reason: policyv1.SufficientPodsReason, ObservedGeneration: 2}}}
		}), pods: ready(3)}, "3 of 2, of 3, allowed 1, waiting []; " + sufficient, "", 0, false},
	} {
		test.view.now = now
		plan := test.view.reconcile()
		got := ""
		if obj := plan.Status(controller.ApplyResult{}); obj != nil {
			got = budgetWords(obj)
			if obj == kind.Object(test.view.budget) {
				t.Errorf("%s: what came from the cache was changed", test.what)
			}
		}
		var told []string
		for _, e := range plan.Events {
			told = append(told, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message))
		}
		if got != test.want || strings.Join(told, " | ") != test.told || plan.RequeueAfter != test.again || test.silent != (got == "") {
			t.Errorf("%s:\n got %s, again %v\nwant %s, again %v\ntold %q\nwant %q", test.what, got, plan.RequeueAfter, test.want, test.again, told, test.told)
		}
	}
}

// budgetWords writes the status of a budget down.
func budgetWords(obj kind.Object) string {
	s := obj.(*policyv1.PodDisruptionBudget).Status
	c := s.Conditions[0]
	condition := fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason)
	if c.Message != "" {
		condition += " " + c.Message
	}
	return fmt.Sprintf("%d of %d, of %d, allowed %d, waiting %v; %s @%d", s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, s.DisruptionsAllowed,
		slices.Sorted(maps.Keys(s.DisruptedPods)), condition, s.ObservedGeneration)
}

// TestBudgetsKeepTheirPromises: evicting as many as are allowed never leaves fewer healthy than desired; nothing is allowed where nothing
// is expected; and a second sync changes nothing.
func TestBudgetsKeepTheirPromises(t *testing.T) {
	const seed = 31
	random := rand.New(rand.NewPCG(seed, seed))
	for round := range 3000 {
		v := budgetView{now: now, scale: random.Int32N(12)}
		for i := range random.IntN(10) {
			var changes []change[*corev1.Pod]
			if random.IntN(4) == 0 {
				changes = append(changes, unready)
			}
			if random.IntN(6) == 0 {
				changes = append(changes, beingDeleted)
			}
			v.pods = append(v.pods, aPod(fmt.Sprint("p", i), changes...))
		}
		amount := fmt.Sprint(random.IntN(8))
		if random.IntN(2) == 0 {
			amount = fmt.Sprint(random.IntN(101), "%")
		}
		v.budget = aBudget([]change[*policyv1.PodDisruptionBudget]{atLeast(amount), atMost(amount)}[random.IntN(2)])
		v.budget.Status.DisruptedPods = map[string]metav1.Time{}
		for range random.IntN(4) {
			v.budget.Status.DisruptedPods[fmt.Sprint("p", random.IntN(12))] = ago(time.Duration(random.IntN(240)) * time.Second)
		}
		b := v.reconcile().Status(controller.ApplyResult{}).(*policyv1.PodDisruptionBudget)
		s := b.Status
		if s.DisruptionsAllowed < 0 || s.ExpectedPods <= 0 && s.DisruptionsAllowed > 0 || s.DisruptionsAllowed > 0 && s.CurrentHealthy-s.DisruptionsAllowed < s.DesiredHealthy {
			t.Fatalf("seed %d, round %d: %s", seed, round, budgetWords(b))
		}
		for name := range s.DisruptedPods {
			if _, before := v.budget.Status.DisruptedPods[name]; !before {
				t.Fatalf("seed %d, round %d: %s was not evicted", seed, round, name)
			}
		}
		v.budget = b
		if again := v.reconcile().Status(controller.ApplyResult{}); again != nil {
			t.Fatalf("seed %d, round %d: a second sync makes %s of %s", seed, round, budgetWords(again), budgetWords(b))
		}
	}
}

// TestMarks: marks of disruption that nothing follows are taken back after two minutes.
func TestMarks(t *testing.T) {
	mark := func(status corev1.ConditionStatus, reason string, before time.Duration) change[*corev1.Pod] {
		return func(p *corev1.Pod) {
			p.Generation = 4
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: status, Reason: reason, LastTransitionTime: ago(before)})
		}
	}
	const evictionReason = "EvictionByEvictionAPI"
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		takes bool
		again time.Duration
	}{
		{"no mark", aPod("p"), false, 0},
		{"just now", aPod("p", mark("True", evictionReason, 0)), false, 2 * time.Minute},
		{"a moment before its time", aPod("p", mark("True", evictionReason, 2*time.Minute-time.Nanosecond)), false, time.Nanosecond},
		{"exactly at its time", aPod("p", mark("True", evictionReason, 2*time.Minute)), true, 0},
		{"long after", aPod("p", mark("True", evictionReason, time.Hour)), true, 0},
		{"taken back already", aPod("p", mark("False", evictionReason, time.Hour)), false, 0},
		{"nobody knows", aPod("p", mark("Unknown", evictionReason, time.Hour)), false, 0},
		{"whatever the reason", aPod("p", mark("True", "PreemptionByScheduler", time.Hour)), true, 0},
		{"but a kubelet's stays", aPod("p", mark("True", corev1.PodReasonTerminationByKubelet, time.Hour)), false, 0},
		{"a pod that goes", aPod("p", mark("True", evictionReason, time.Hour), beingDeleted), false, 0},
		{"a pod that failed", aPod("p", mark("True", evictionReason, time.Hour), inPhase(corev1.PodFailed)), false, 0},
		{"a pod that succeeded", aPod("p", mark("True", evictionReason, time.Hour), inPhase(corev1.PodSucceeded)), false, 0},
		{"a pod that waits", aPod("p", mark("True", evictionReason, time.Hour), inPhase(corev1.PodPending)), true, 0},
	} {
		plan := clearDisruptionTarget(test.pod, now)
		if test.takes != (len(plan.Steps) == 1) || plan.RequeueAfter != test.again {
			t.Errorf("%s: %d steps, again %v", test.what, len(plan.Steps), plan.RequeueAfter)
		}
		if !test.takes {
			continue
		}
		w := plan.Steps[0].Writes[0]
		var patch, want any
		if err := json.Unmarshal(w.Patch, &patch); err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal([]byte(`{"metadata":{"uid":"uid-p"},"status":{"conditions":[{"type":"DisruptionTarget","status":"False","reason":null,"message":null,
			"lastTransitionTime":"2026-03-01T12:00:00Z","observedGeneration":4}]}}`), &want)
		if w.Verb != controller.PatchStatus || w.PatchType != client.StrategicPatch || fmt.Sprint(patch) != fmt.Sprint(want) {
			t.Errorf("%s: %s %s", test.what, w.Verb, w.Patch)
		}
	}
}

// TestExpectedByOwner: the scale that counts is that of whoever manages the pods.
func TestExpectedByOwner(t *testing.T) {
	set := map[string]string{"app": "web"}
	selector := &metav1.LabelSelector{MatchLabels: set}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: set}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	meta := func(name string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: owners}
	}
	owned := func(obj kind.Object, apiVersion, kindOf string) metav1.OwnerReference {
		return *metav1.NewControllerRef(obj, schema.FromAPIVersionAndKind(apiVersion, kindOf))
	}
	ref := func(apiVersion, kindOf, name string, uid types.UID) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kindOf, Name: name, UID: uid, Controller: new(true)}
	}
	replicaSet := func(w *world.World, name string, n int32, owners ...metav1.OwnerReference) *appsv1.ReplicaSet {
		return world.Create(w, &appsv1.ReplicaSet{ObjectMeta: meta(name, owners...), Spec: appsv1.ReplicaSetSpec{Replicas: &n, Selector: selector, Template: template}})
	}
	deployment := func(w *world.World, name string, n int32) *appsv1.Deployment {
		return world.Create(w, &appsv1.Deployment{ObjectMeta: meta(name), Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: selector, Template: template}})
	}
	for _, test := range []struct {
		what   string
		owners func(w *world.World) []metav1.OwnerReference // the controller of each pod; an empty one: none
		want   string                                       // expected, or why not
	}{
		{"a ReplicaSet", func(w *world.World) []metav1.OwnerReference {
			rs := owned(replicaSet(w, "rs", 6), "apps/v1", "ReplicaSet")
			return []metav1.OwnerReference{rs, rs}
		}, "6"},
		{"a ReplicaSet of an older group", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{ref("extensions/v1beta1", "ReplicaSet", "rs", replicaSet(w, "rs", 6).UID)}
		}, "6"},
		{"a Deployment's ReplicaSet: the Deployment", func(w *world.World) []metav1.OwnerReference {
			d := deployment(w, "d", 9)
			return []metav1.OwnerReference{owned(replicaSet(w, "rs", 6, owned(d, "apps/v1", "Deployment")), "apps/v1", "ReplicaSet")}
		}, "9"},
		{"two ReplicaSets of one Deployment: it counts once", func(w *world.World) []metav1.OwnerReference {
			d := owned(deployment(w, "d", 9), "apps/v1", "Deployment")
			return []metav1.OwnerReference{owned(replicaSet(w, "a", 6, d), "apps/v1", "ReplicaSet"), owned(replicaSet(w, "b", 3, d), "apps/v1", "ReplicaSet")}
		}, "9"},
		{"a ReplicaSet of something else counts itself", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{owned(replicaSet(w, "rs", 6, ref("example.com/v1", "Rollout", "r", "uid-r")), "apps/v1", "ReplicaSet")}
		}, "6"},
		{"a ReplicaSet whose Deployment is gone: asked by its scale", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{owned(replicaSet(w, "rs", 6, ref("apps/v1", "Deployment", "gone", "uid-gone")), "apps/v1", "ReplicaSet")}
		}, "6"},
		{"a StatefulSet", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{owned(world.Create(w, &appsv1.StatefulSet{ObjectMeta: meta("s"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(4)), Selector: selector, Template: template}}), "apps/v1", "StatefulSet")}
		}, "4"},
		{"a ReplicationController", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{owned(world.Create(w, &corev1.ReplicationController{ObjectMeta: meta("rc"), Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(5)), Selector: set, Template: &template}}), "v1", "ReplicationController")}
		}, "5"},
		{"two controllers: their sum", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{owned(replicaSet(w, "a", 6), "apps/v1", "ReplicaSet"), owned(replicaSet(w, "b", 3), "apps/v1", "ReplicaSet")}
		}, "9"},
		{"a Deployment itself, by its scale", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{owned(deployment(w, "d", 7), "apps/v1", "Deployment")}
		}, "7"},
		{"one of two pods is nobody's", func(w *world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{owned(replicaSet(w, "rs", 6), "apps/v1", "ReplicaSet"), {}}
		}, "6"},
		{"all are nobody's", func(*world.World) []metav1.OwnerReference { return []metav1.OwnerReference{{}, {}} }, "0"},
		{"a controller that is gone", func(*world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{ref("apps/v1", "ReplicaSet", "gone", "uid-gone")}
		}, `found no controllers for pod "pod-0"`},
		{"another with its name", func(w *world.World) []metav1.OwnerReference {
			replicaSet(w, "rs", 6)
			return []metav1.OwnerReference{ref("apps/v1", "ReplicaSet", "rs", "uid-before")}
		}, `found no controllers for pod "pod-0"`},
		{"a kind without a scale", func(*world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{ref("apps/v1", "DaemonSet", "ds", "uid-ds")}
		}, "daemonsets.apps does not implement the scale subresource"},
		{"a kind nobody knows", func(*world.World) []metav1.OwnerReference {
			return []metav1.OwnerReference{ref("example.com/v1", "Thing", "t", "uid-t")}
		}, `no matches for kind "Thing" in version "example.com/v1"`},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				for i, owner := range test.owners(w) {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", i), Labels: set}, Spec: template.Spec}
					if owner.Kind != "" {
						pod.OwnerReferences = []metav1.OwnerReference{owner}
					}
					world.Create(w, pod)
				}
				world.Create(w, &policyv1.PodDisruptionBudget{ObjectMeta: meta("b"), Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: selector}})
				defer w.Run(Disruption)()
				w.Pass(time.Second)
				s := world.Get[*policyv1.PodDisruptionBudget](w, "default", "b").Status
				got := fmt.Sprint(s.ExpectedPods)
				if c := s.Conditions[0]; c.Reason == policyv1.SyncFailedReason {
					got = c.Message
					if told := w.Events("b"); !slices.Contains(told, "CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: "+got) {
						t.Errorf("told %q", told)
					}
				}
				if got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
			})
		})
	}
}

// TestBudgetsFollowPods: budgets are looked at again when pods come, change and go, and evictions are waited for.
func TestBudgetsFollowPods(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Disruption)()
		selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		for _, name := range []string{"a", "b"} {
			world.Create(w, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: selector}})
		}
		w.Pass(time.Second) // they are known before the pods come
		for i := range 3 {
			name := fmt.Sprint("p", i)
			world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
			world.EditStatus(w, "default", name, func(p *corev1.Pod) { p.Status = aPod("").Status })
		}
		allowed := func() string {
			w.Pass(time.Second)
			return fmt.Sprint(world.Get[*policyv1.PodDisruptionBudget](w, "default", "a").Status.DisruptionsAllowed, world.Get[*policyv1.PodDisruptionBudget](w, "default", "b").Status.DisruptionsAllowed)
		}
		if got := allowed(); got != "2 2" {
			t.Errorf("three pods: %s", got)
		}
		if told := w.Events("p0"); !slices.ContainsFunc(told, func(e string) bool {
			return strings.HasPrefix(e, `MultiplePodDisruptionBudgets: Pod "default"/"p0" matches multiple PodDisruptionBudgets.  Chose `)
		}) {
			t.Errorf("two budgets of one pod: told %q", told)
		}
		w.Remove(world.Get[*corev1.Pod](w, "default", "p0"))
		if got := allowed(); got != "1 1" {
			t.Errorf("two pods: %s", got)
		}
		// An eviction was promised and nothing came of it.
		world.EditStatus(w, "default", "a", func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{"p1": metav1.NewTime(time.Now())}
			b.Status.DisruptionsAllowed = 0
		})
		if got := allowed(); got != "0 1" {
			t.Errorf("one is about to go: %s", got)
		}
		w.Pass(3 * time.Minute)
		if got := allowed(); got != "1 1" {
			t.Errorf("it stayed: %s", got)
		}
		if told := w.Events("p1"); !slices.Contains(told, "NotDeleted: Pod was expected by PDB default/default to be deleted but it wasn't") {
			t.Errorf("told %q", told)
		}
		// A label less, and it is not covered any more. Budgets hear of it by what the pod was before, too.
		world.Edit(w, "default", "p2", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "other"} })
		world.EditStatus(w, "default", "p1", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
		w.Pass(time.Second)
		if b := world.Get[*policyv1.PodDisruptionBudget](w, "default", "a"); b.Status.CurrentHealthy != 0 || b.Status.ExpectedPods != 1 {
			t.Errorf("one unready pod is left: %s", budgetWords(b))
		}
	})
}
