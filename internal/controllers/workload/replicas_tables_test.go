package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/diff"

	"skiff/internal/controller"
	"skiff/internal/podstate"
)

// refusal is the outcome of a plan whose write of obj was refused.
func refusal(verb controller.Verb, obj kindObject, text string) controller.ApplyResult {
	return controller.ApplyResult{Err: &controller.WriteError{Verb: verb, Object: obj, Err: errors.New(text)}}
}

// same compares two objects as the API does.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !apiequality.Semantic.DeepEqual(got, want) {
		t.Errorf("%s:\n%s", what, diff.Diff(want, got))
	}
}

func gone(at metav1.Object) { t := ago(time.Second); at.SetDeletionTimestamp(&t) }

func goneSet(s *appsv1.ReplicaSet) { gone(s) }
func minReady(n int32) change[*appsv1.ReplicaSet] {
	return func(s *appsv1.ReplicaSet) { s.Spec.MinReadySeconds = n }
}

// pick is a selector of one key and its values.
func expressed(key string, op metav1.LabelSelectorOperator, values ...string) change[*appsv1.ReplicaSet] {
	return func(s *appsv1.ReplicaSet) {
		s.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
}

func several(n int, prefix string, changes ...change[*corev1.Pod]) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, aPod(fmt.Sprint(prefix, i), changes...))
	}
	return pods
}

// tally counts the writes of a plan: "3 create, 1 patch".
func tally(plan controller.Plan) string {
	var words []string
	for _, step := range plan.Steps {
		n := map[controller.Verb]int{}
		var order []controller.Verb
		for _, w := range step.Writes {
			if n[w.Verb]++; n[w.Verb] == 1 {
				order = append(order, w.Verb)
			}
		}
		for _, verb := range order {
			words = append(words, fmt.Sprintf("%d %s", n[verb], verb))
		}
	}
	return strings.Join(words, ", ")
}

func TestReplicasNumbers(t *testing.T) {
	set := aSet(0)
	mine := ownedBy(set, "ReplicaSet")
	none := func(s *appsv1.ReplicaSet) { s.Spec.Replicas = nil }
	for _, test := range []struct {
		what string
		set  *appsv1.ReplicaSet
		pods []*corev1.Pod
		want string
	}{
		{"none wanted, none there", aSet(0), nil, ""},
		{"one wanted, none there", aSet(1), nil, "1 create"},
		{"no number means one", aSet(9, none), nil, "1 create"},
		{"no number, one there", aSet(9, none), several(1, "p", mine), ""},
		{"one less than wanted", aSet(5), several(4, "p", mine), "1 create"},
		{"as many as wanted", aSet(5), several(5, "p", mine), ""},
		{"one more than wanted", aSet(5), several(6, "p", mine), "1 delete"},
		{"all go", aSet(0), several(5, "p", mine), "5 delete"},
		{"one below the burst", aSet(burstReplicas - 1), nil, fmt.Sprint(burstReplicas-1, " create")},
		{"the burst", aSet(burstReplicas), nil, fmt.Sprint(burstReplicas, " create")},
		{"one above the burst", aSet(burstReplicas + 1), nil, fmt.Sprint(burstReplicas, " create")},
		{"a huge number", aSet(2147483647), nil, fmt.Sprint(burstReplicas, " create")},
		{"deletions: one below the burst", aSet(1), several(burstReplicas, "p", mine), fmt.Sprint(burstReplicas-1, " delete")},
		{"deletions: the burst", aSet(0), several(burstReplicas, "p", mine), fmt.Sprint(burstReplicas, " delete")},
		{"deletions: one above the burst", aSet(0), several(burstReplicas+1, "p", mine), fmt.Sprint(burstReplicas, " delete")},
		{"succeeded pods do not count", aSet(2), several(2, "p", mine, inPhase(corev1.PodSucceeded)), "2 create"},
		{"failed pods do not count", aSet(2), several(2, "p", mine, inPhase(corev1.PodFailed)), "2 create"},
		{"unknown pods count", aSet(2), several(2, "p", mine, inPhase(corev1.PodUnknown)), ""},
		{"pods without a phase count", aSet(2), several(2, "p", mine, inPhase("")), ""},
		{"leaving pods do not count", aSet(2), several(2, "p", mine, beingDeleted), "2 create"},
		{"neither leaving nor finished pods are deleted again", aSet(0), append(several(2, "p", mine, beingDeleted), several(2, "q", mine, inPhase(corev1.PodFailed))...), ""},
		{"orphans are adopted, the rest is made", aSet(3), several(2, "p"), "2 patch, 1 create"},
		{"more orphans than wanted: all are adopted, some go", aSet(1), several(3, "p"), "3 patch, 2 delete"},
		{"a leaving orphan is not adopted", aSet(1), several(1, "p", beingDeleted), "1 create"},
		{"a finished orphan is not adopted", aSet(1), several(1, "p", inPhase(corev1.PodSucceeded)), "1 create"},
		{"a finished pod that no longer matches is not released", aSet(0), several(1, "p", mine, inPhase(corev1.PodFailed), labelled("app", "db")), ""},
		{"a leaving pod that no longer matches is not released", aSet(0), several(1, "p", mine, beingDeleted, labelled("app", "db")), ""},
		{"released ones do not count", aSet(1), several(2, "p", mine, labelled("app", "db")), "2 patch, 1 create"},
		{"a pod elsewhere is not adopted", aSet(1), several(1, "p", func(p *corev1.Pod) { p.Namespace = "other" }), "1 create"},
		{"a pod without labels is not adopted", aSet(1), several(1, "p", func(p *corev1.Pod) { p.Labels = nil }), "1 create"},
		{"an owner that does not control is no owner", aSet(1), several(1, "p", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "uid-web"}}
		}), "1 patch"},
		{"an owner of the same name, another uid", aSet(1), several(1, "p", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "uid-before", Controller: new(true)}}
		}), "1 create"},
		{"an owner of another kind, the same uid", aSet(1), several(1, "p", ownedBy(set, "Job")), ""},
		{"a selector of expressions", aSet(2, expressed("app", metav1.LabelSelectorOpIn, "web", "db")), append(several(1, "p"), aPod("q", labelled("app", "db"))), "2 patch"},
		{"a selector that excludes", aSet(1, expressed("app", metav1.LabelSelectorOpNotIn, "web")), several(1, "p", mine), "1 patch, 1 create"},
		{"a selector of existence", aSet(1, expressed("app", metav1.LabelSelectorOpExists)), several(1, "p"), "1 patch"},
		{"a leaving set does nothing", aSet(3, goneSet), nil, ""},
		{"a leaving set does not delete", aSet(0, goneSet), several(2, "p", mine), ""},
		{"a leaving set does not adopt or release", aSet(1, goneSet), append(several(1, "p"), aPod("q", mine, labelled("app", "db"))), ""},
	} {
		expect(t, test.what, tally(viewOf(t, test.set, test.pods...).reconcile()), test.want)
	}
}

// TestReplicasChoice: of pods that are too many, those go first that are the least loss, and the choice is reported to no one else.
func TestReplicasChoice(t *testing.T) {
	mine := ownedBy(aSet(0), "ReplicaSet")
	pod := func(name string, changes ...change[*corev1.Pod]) *corev1.Pod {
		return aPod(name, append([]change[*corev1.Pod]{mine, onNode("n-" + name), readyFor(time.Hour)}, changes...)...)
	}
	for _, test := range []struct {
		what string
		keep int32
		pods []*corev1.Pod
		want string
	}{
		{"one that waits for a node", 2, []*corev1.Pod{pod("a"), pod("b", onNode("")), pod("c")}, "delete Pod b"},
		{"one that is not ready", 2, []*corev1.Pod{pod("a"), pod("b"), pod("c", notReady)}, "delete Pod c"},
		{"waiting before not ready", 1, []*corev1.Pod{pod("a", notReady), pod("b", onNode("")), pod("c")}, "delete Pod a + delete Pod b"},
		{"the cheapest", 2, []*corev1.Pod{pod("a", annotated(corev1.PodDeletionCost, "3")), pod("b", annotated(corev1.PodDeletionCost, "2")), pod("c", annotated(corev1.PodDeletionCost, "9"))}, "delete Pod b"},
		{"none specified is cheaper than some", 1, []*corev1.Pod{pod("a", annotated(corev1.PodDeletionCost, "1")), pod("b")}, "delete Pod b"},
		{"dearer than less than nothing", 1, []*corev1.Pod{pod("a", annotated(corev1.PodDeletionCost, "-1")), pod("b")}, "delete Pod a"},
		{"a cost does not save one that is not ready", 1, []*corev1.Pod{pod("a", notReady, annotated(corev1.PodDeletionCost, "1000")), pod("b")}, "delete Pod a"},
		{"the one ready for the shortest time", 2, []*corev1.Pod{pod("a", readyFor(3*time.Hour)), pod("b", readyFor(time.Minute)), pod("c", readyFor(24*time.Hour))}, "delete Pod b"},
		{"the one that restarted most", 1, []*corev1.Pod{pod("a", restarted(1)), pod("b", restarted(4))}, "delete Pod b"},
		{"the youngest", 1, []*corev1.Pod{pod("a", created(time.Minute)), pod("b", created(5*time.Hour))}, "delete Pod a"},
		{"an adopted pod may be the one to go", 1, []*corev1.Pod{pod("a"), aPod("b")}, "patch Pod b, delete Pod b"},
	} {
		for _, pods := range [][]*corev1.Pod{test.pods, backwards(test.pods)} {
			expect(t, test.what, told(viewOf(t, aSet(test.keep), pods...).reconcile()), test.want)
		}
	}
}

func TestReplicasRandom(t *testing.T) {
	mine, sibling := ownedBy(aSet(0), "ReplicaSet"), ownedBy(aPod("x"), "ReplicaSet")
	on := func(node, name string, owner change[*corev1.Pod], changes ...change[*corev1.Pod]) *corev1.Pod {
		return aPod(name, append([]change[*corev1.Pod]{owner, onNode(node), readyFor(time.Hour)}, changes...)...)
	}
	own := []*corev1.Pod{on("n1", "a", mine, readyFor(10*time.Hour)), on("n2", "b", mine, readyFor(5*time.Hour)), on("n3", "c", mine, readyFor(time.Minute))}
	for _, test := range []struct {
		what    string
		related []*corev1.Pod
		want    string
	}{
		{"nobody else: the shortest time ready", nil, "delete Pod c"},
		{"a sibling's pod beside a", []*corev1.Pod{on("n1", "s", sibling)}, "delete Pod a"},
		{"two beside b, one beside a", []*corev1.Pod{on("n1", "s", sibling), on("n2", "t", sibling), on("n2", "u", sibling)}, "delete Pod b"},
		{"one that has ended crowds nobody", []*corev1.Pod{on("n1", "s", sibling, inPhase(corev1.PodFailed))}, "delete Pod c"},
		{"one that leaves crowds nobody", []*corev1.Pod{on("n1", "s", sibling, beingDeleted)}, "delete Pod c"},
		{"one that is not ready crowds", []*corev1.Pod{on("n1", "s", sibling, notReady)}, "delete Pod a"},
		{"one elsewhere", []*corev1.Pod{on("n9", "s", sibling)}, "delete Pod c"},
	} {
		v := viewOf(t, aSet(2), own...)
		v.related = append(slices.Clone(own), test.related...)
		expect(t, test.what, told(v.reconcile()), test.want)
	}
	// A many weighs less than a cost and more than time.
	dear := []*corev1.Pod{on("n1", "a", mine, annotated(corev1.PodDeletionCost, "5")), on("n2", "b", mine)}
	v := viewOf(t, aSet(1), dear...)
	v.related = append([]*corev1.Pod{on("n1", "s", sibling), on("n1", "t", sibling)}, dear...)
	expect(t, "a crowded pod that is dear", told(v.reconcile()), "delete Pod b")
}

func TestReplicasCounts(t *testing.T) {
	mine := ownedBy(aSet(0), "ReplicaSet")
	labelledTemplate := func(s *appsv1.ReplicaSet) { s.Spec.Template.Labels = map[string]string{"app": "web", "tier": "a"} }
	type counts struct{ replicas, labelled, ready, available, terminating int32 }
	for _, test := range []struct {
		what string
		set  *appsv1.ReplicaSet
		pods []*corev1.Pod
		want counts
	}{
		{"nothing", aSet(0), nil, counts{}},
		{"pods to come do not count", aSet(3), nil, counts{}},
		{"pending pods are replicas", aSet(2), several(2, "p", mine), counts{2, 2, 0, 0, 0}},
		{"ready pods are available at once", aSet(2), several(2, "p", mine, readyFor(0)), counts{2, 2, 2, 2, 0}},
		{"or after a while", aSet(3, minReady(10)), append(several(1, "p", mine, readyFor(9*time.Second)), several(2, "q", mine, readyFor(10*time.Second))...), counts{3, 3, 3, 2, 0}},
		{"a pod that lacks a label of the template", aSet(2, labelledTemplate), append(several(1, "p", mine), several(1, "q", mine, labelled("tier", "a"))...), counts{2, 1, 0, 0, 0}},
		{"with another value of it", aSet(1, labelledTemplate), several(1, "p", mine, labelled("tier", "b")), counts{1, 0, 0, 0, 0}},
		{"with labels of its own besides", aSet(1, labelledTemplate), several(1, "p", mine, labelled("tier", "a"), labelled("own", "1")), counts{1, 1, 0, 0, 0}},
		{"a template without labels fits all", aSet(1, func(s *appsv1.ReplicaSet) { s.Spec.Template.Labels = nil }), several(1, "p", mine), counts{1, 1, 0, 0, 0}},
		{"pods that are deleted in this sync still count", aSet(1), several(3, "p", mine, readyFor(time.Hour)), counts{3, 3, 3, 3, 0}},
		{"adopted pods count", aSet(2), several(2, "p", readyFor(time.Hour)), counts{2, 2, 2, 2, 0}},
		{"released pods do not", aSet(0), several(2, "p", mine, labelled("app", "db"), readyFor(time.Hour)), counts{}},
		{"leaving pods are terminating", aSet(0), several(2, "p", mine, beingDeleted, readyFor(time.Hour)), counts{0, 0, 0, 0, 2}},
		{"leaving pods that have ended are not", aSet(0), several(2, "p", mine, beingDeleted, inPhase(corev1.PodSucceeded)), counts{}},
		{"leaving orphans are nobody's", aSet(0), several(2, "p", beingDeleted), counts{}},
		{"leaving pods of others", aSet(0), several(2, "p", beingDeleted, ownedBy(aPod("x"), "ReplicaSet")), counts{}},
		{"leaving pods that no longer match", aSet(0), several(2, "p", beingDeleted, mine, labelled("app", "db")), counts{}},
		{"a leaving set counts on", aSet(5, goneSet), append(several(1, "p", mine, readyFor(0)), several(1, "q", mine, beingDeleted)...), counts{1, 1, 1, 1, 1}},
		{"failed pods are no replicas", aSet(0), several(3, "p", mine, inPhase(corev1.PodFailed)), counts{}},
	} {
		status := appsv1.ReplicaSetStatus{Replicas: test.want.replicas, FullyLabeledReplicas: test.want.labelled, ReadyReplicas: test.want.ready,
			AvailableReplicas: test.want.available, TerminatingReplicas: &test.want.terminating, ObservedGeneration: 3}
		changed := viewOf(t, test.set, test.pods...).reconcile().Status(controller.ApplyResult{})
		if changed == nil {
			t.Errorf("%s: no status", test.what)
			continue
		}
		same(t, test.what, changed.(*appsv1.ReplicaSet).Status, status)
		again := changed.(*appsv1.ReplicaSet)
		if second := viewOf(t, again, test.pods...).reconcile().Status(controller.ApplyResult{}); second != nil {
			t.Errorf("%s: a second sync reports again", test.what)
		}
	}
}

// TestReplicasReport: the condition of failure comes with the first failure, stays as it is while there are failures, and goes with the first success.
func TestReplicasReport(t *testing.T) {
	failed := appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetReplicaFailure, Status: "True", Reason: "FailedCreate", Message: "before", LastTransitionTime: ago(time.Hour)}
	other := appsv1.ReplicaSetCondition{Type: "Other", Status: "True", Reason: "Mine", LastTransitionTime: ago(time.Hour)}
	fresh := func(reason, message string) appsv1.ReplicaSetCondition {
		return appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetReplicaFailure, Status: "True", Reason: reason, Message: message, LastTransitionTime: ago(0)}
	}
	type conditions []appsv1.ReplicaSetCondition
	unconfirmed := controller.ApplyResult{Err: errors.New("original is gone")}
	for _, test := range []struct {
		what     string
		has      conditions
		outcome  controller.ApplyResult
		want     conditions
		unwanted bool // nothing is reported
	}{
		{"all is well", nil, controller.ApplyResult{}, nil, false},
		{"a creation failed", nil, refusal(controller.Create, aPod("a"), "quota"), conditions{fresh("FailedCreate", "quota")}, false},
		{"a deletion failed", nil, refusal(controller.Delete, aPod("a"), "locked"), conditions{fresh("FailedDelete", "locked")}, false},
		{"a failure again: the first one stands", conditions{failed}, refusal(controller.Create, aPod("a"), "quota"), conditions{failed}, false},
		{"another failure: the first one stands all the same", conditions{failed}, refusal(controller.Delete, aPod("a"), "locked"), conditions{failed}, false},
		{"it succeeds again", conditions{failed}, controller.ApplyResult{}, nil, false},
		{"what others say stays", conditions{other}, controller.ApplyResult{}, conditions{other}, false},
		{"beside a failure", conditions{other}, refusal(controller.Create, aPod("a"), "quota"), conditions{other, fresh("FailedCreate", "quota")}, false},
		{"and when it succeeds again", conditions{failed, other}, controller.ApplyResult{}, conditions{other}, false},
		{"an adoption failed", conditions{failed}, refusal(controller.Patch, aPod("a"), "conflict"), nil, true},
		{"the owner could not be confirmed", conditions{failed}, unconfirmed, nil, true},
	} {
		set := aSet(1, func(s *appsv1.ReplicaSet) { s.Status.Conditions = test.has })
		changed := viewOf(t, set).reconcile().Status(test.outcome)
		if (changed == nil) != test.unwanted {
			t.Errorf("%s: reported %v", test.what, changed)
		}
		if changed != nil {
			same(t, test.what, changed.(*appsv1.ReplicaSet).Status.Conditions, []appsv1.ReplicaSetCondition(test.want))
		}
	}
}

func TestReplicasRequeue(t *testing.T) {
	mine := ownedBy(aSet(0), "ReplicaSet")
	for _, test := range []struct {
		what string
		set  *appsv1.ReplicaSet
		pods []*corev1.Pod
		want time.Duration
	}{
		{"no wait asked", aSet(2), several(2, "p", mine, readyFor(0)), 0},
		{"nobody is ready", aSet(2, minReady(10)), several(2, "p", mine), 0},
		{"all are available", aSet(2, minReady(10)), several(2, "p", mine, readyFor(time.Minute)), 0},
		{"when the next is", aSet(2, minReady(10)), append(several(1, "p", mine, readyFor(3*time.Second)), several(1, "q", mine, readyFor(8*time.Second))...), 2 * time.Second},
		{"after the whole while when nobody knows", aSet(1, minReady(10)), several(1, "p", mine, readyFor(0), untimed), 10 * time.Second},
		{"adopted pods count", aSet(1, minReady(10)), several(1, "p", readyFor(4*time.Second)), 6 * time.Second},
		{"leaving pods do not", aSet(0, minReady(10)), several(1, "p", mine, beingDeleted, readyFor(4*time.Second)), 0},
		{"other sets' pods do not", aSet(0, minReady(10)), several(1, "p", ownedBy(aPod("x"), "ReplicaSet"), readyFor(4*time.Second)), 0},
	} {
		if got := viewOf(t, test.set, test.pods...).reconcile().RequeueAfter; got != test.want {
			t.Errorf("%s: again after %v, want %v", test.what, got, test.want)
		}
	}
}

func TestReplicasPod(t *testing.T) {
	set := aSet(1, func(s *appsv1.ReplicaSet) {
		s.Spec.Template = corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Name: "ignored", Namespace: "ignored", Labels: map[string]string{"app": "web", "a": "1"}, Annotations: map[string]string{"b": "2"}, Finalizers: []string{"x/y"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, NodeName: "n", ServiceAccountName: "sa"},
		}
	})
	made := viewOf(t, set).reconcile().Steps[0].Writes[0].Object
	same(t, "the pod", made, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Namespace: "default", Labels: map[string]string{"app": "web", "a": "1"}, Annotations: map[string]string{"b": "2"}, Finalizers: []string{"x/y"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "uid-web", Controller: new(true), BlockOwnerDeletion: new(true)}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, NodeName: "n", ServiceAccountName: "sa"},
	})
	for name, want := range map[string]string{
		"web": "web-", "web-1": "web-1-", "a.b": "a.b-", strings.Repeat("x", 252): strings.Repeat("x", 252) + "-", strings.Repeat("x", 253): strings.Repeat("x", 253) + "-", "UPPER": "UPPER",
	} {
		if got := podNamePrefix(name); got != want {
			t.Errorf("pods of %s begin with %s, want %s", name, got, want)
		}
	}
}

// TestReplicationControllerKeepsItsFields goes from the older kind and back with every field that the two share.
func TestReplicationControllerKeepsItsFields(t *testing.T) {
	controllerOf := func(changes ...change[*corev1.ReplicationController]) *corev1.ReplicationController {
		return with(&corev1.ReplicationController{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", Generation: 4},
			Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(3)), MinReadySeconds: 7, Selector: map[string]string{"app": "web"},
				Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}},
		}, changes...)
	}
	status := corev1.ReplicationControllerStatus{Replicas: 5, FullyLabeledReplicas: 4, ReadyReplicas: 3, AvailableReplicas: 2, ObservedGeneration: 1,
		Conditions: []corev1.ReplicationControllerCondition{{Type: corev1.ReplicationControllerReplicaFailure, Status: "True", LastTransitionTime: ago(time.Hour), Reason: "FailedCreate", Message: "quota"}}}
	full := controllerOf(func(rc *corev1.ReplicationController) { rc.Status = status })
	r, err := fromReplicationController(full)
	if err != nil || r.desired != 3 || r.minReadySeconds != 7 || r.kind != replicationControllerKind || r.selector.String() != "app=web" || r.template != full.Spec.Template || r.object != full {
		t.Errorf("%+v, %v", r, err)
	}
	same(t, "there", r.status, appsv1.ReplicaSetStatus{Replicas: 5, FullyLabeledReplicas: 4, ReadyReplicas: 3, AvailableReplicas: 2, ObservedGeneration: 1,
		Conditions: []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: "True", LastTransitionTime: ago(time.Hour), Reason: "FailedCreate", Message: "quota"}}})
	back := r.withStatus(r.status).(*corev1.ReplicationController)
	same(t, "and back", back, full)
	if back == full {
		t.Error("the shared object itself was handed out")
	}
	if bare, _ := fromReplicationController(controllerOf(func(rc *corev1.ReplicationController) { rc.Spec.Template, rc.Spec.Replicas = nil, nil })); bare.desired != 1 || bare.template == nil {
		t.Errorf("without a template or number: %+v", bare)
	}
	mine := ownedBy(full, "ReplicationController")
	for _, test := range []struct {
		what   string
		pods   []*corev1.Pod
		want   string
		status corev1.ReplicationControllerStatus
	}{
		{"nothing there", nil, "3 create", corev1.ReplicationControllerStatus{ObservedGeneration: 4}},
		{"one is ready, one not yet long", append(several(1, "p", mine, readyFor(time.Hour)), several(1, "q", mine, readyFor(time.Second))...), "1 create",
			corev1.ReplicationControllerStatus{Replicas: 2, FullyLabeledReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 1, ObservedGeneration: 4}},
		{"too many", several(4, "p", mine), "1 delete", corev1.ReplicationControllerStatus{Replicas: 4, FullyLabeledReplicas: 4, ObservedGeneration: 4}},
		{"leaving pods are not counted by this kind", several(2, "p", mine, beingDeleted), "3 create", corev1.ReplicationControllerStatus{ObservedGeneration: 4}},
		{"orphans are adopted", several(3, "p"), "3 patch", corev1.ReplicationControllerStatus{Replicas: 3, FullyLabeledReplicas: 3, ObservedGeneration: 4}},
	} {
		r, err := fromReplicationController(controllerOf())
		if err != nil {
			t.Fatal(err)
		}
		plan := replicasView{replicas: r, pods: test.pods, now: now}.reconcile()
		expect(t, test.what, tally(plan), test.want)
		same(t, test.what, plan.Status(controller.ApplyResult{}).(*corev1.ReplicationController).Status, test.status)
	}
}

// TestReplicasModel plays random sets to their end in a model that is nothing but a list of pods: what the plan creates appears, what it deletes
// disappears, what it patches changes hands. However it begins, at most two looks later there are exactly the wanted pods, and a sync more does nothing.
func TestReplicasModel(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		set := aSet(int32(random.IntN(8)))
		mine := ownedBy(set, "ReplicaSet")
		var pods []*corev1.Pod
		for i := range random.IntN(12) {
			pod := anyPod(random, i)
			pod.UID = types.UID(fmt.Sprint("uid-", i))
			if random.IntN(3) > 0 {
				mine(pod)
			}
			if random.IntN(4) == 0 {
				pod.Labels["app"] = "db"
			}
			if random.IntN(4) == 0 {
				inPhase([]corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded}[random.IntN(2)])(pod)
			}
			if random.IntN(4) == 0 {
				beingDeleted(pod)
			}
			pods = append(pods, pod)
		}
		foreign := count(pods, func(p *corev1.Pod) bool { return p.Labels["app"] == "db" })
		made := 0
		for round := 0; ; round++ {
			plan := viewOf(t, set, pods...).reconcile()
			if len(plan.Steps) == 0 {
				break
			}
			if round == 2 {
				t.Fatalf("seed %d: a third round still wants %s", seed, told(plan))
			}
			for _, w := range writesOf(plan) {
				i := slices.Index(pods, asPod(w.Object))
				switch w.Verb {
				case controller.Create:
					made++
					pods = append(pods, aPod(fmt.Sprint("made", made), mine))
				case controller.Delete:
					if !podstate.IsActive(pods[i]) || pods[i].Labels["app"] != "web" {
						t.Errorf("seed %d: deletes %s, which does not count", seed, pods[i].Name)
					}
					pods = slices.Delete(pods, i, i+1)
				case controller.Patch:
					changed := pods[i].DeepCopy()
					if changed.OwnerReferences = nil; changed.Labels["app"] == "web" {
						mine(changed)
					}
					// Later writes of the plan know the pod as it was.
					*pods[i] = *changed
				}
			}
		}
		if n := count(pods, func(p *corev1.Pod) bool { return podstate.IsActive(p) && metav1.IsControlledBy(p, set) }); n != *set.Spec.Replicas {
			t.Errorf("seed %d: %d pods, want %d", seed, n, *set.Spec.Replicas)
		}
		if n := count(pods, func(p *corev1.Pod) bool { return p.Labels["app"] == "db" }); n != foreign {
			t.Errorf("seed %d: of %d foreign %d are left", seed, foreign, n)
		}
	}
}

func asPod(obj kindObject) *corev1.Pod { pod, _ := obj.(*corev1.Pod); return pod }
