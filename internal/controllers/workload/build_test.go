package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/internal/kind"
)

// now is when the tables play.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// change is one thing that is special about an object in a table.
type change[T any] func(T)

func with[T any](obj T, changes ...change[T]) T {
	for _, c := range changes {
		c(obj)
	}
	return obj
}

// aPod is pending, belongs to nothing and has the label app=web.
func aPod(name string, changes ...change[*corev1.Pod]) *corev1.Pod {
	return with(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}, CreationTimestamp: ago(time.Hour)},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}, changes...)
}

func ownedBy(owner kind.Object, ownerKind string) change[*corev1.Pod] {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: ownerKind, Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true)}}
	}
}

func inPhase(phase corev1.PodPhase) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}
func onNode(name string) change[*corev1.Pod] { return func(p *corev1.Pod) { p.Spec.NodeName = name } }
func beingDeleted(p *corev1.Pod)             { t := ago(time.Second); p.DeletionTimestamp = &t }
func labelled(key, value string) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}
func annotated(key, value string) change[*corev1.Pod] {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}
func created(age time.Duration) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.CreationTimestamp = ago(age) }
}
func restarted(n int32) change[*corev1.Pod] {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: n}}
	}
}

// readyFor makes a pod run and be ready since a while.
func readyFor(d time.Duration) change[*corev1.Pod] {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(d)}}
	}
}

// told writes a plan down in short words, one per write: "create Pod web-", "delete Pod a", "again 5s".
func told(plan controller.Plan) string {
	var words []string
	for _, step := range plan.Steps {
		var writes []string
		for _, w := range step.Writes {
			name := w.Object.GetName()
			if name == "" {
				name = w.Object.GetGenerateName()
			}
			kind := fmt.Sprintf("%T", w.Object)
			word := fmt.Sprintf("%s %s %s", w.Verb, kind[strings.LastIndexByte(kind, '.')+1:], name)
			if set, ok := w.Object.(*appsv1.ReplicaSet); ok && w.Verb != controller.Delete {
				word += fmt.Sprintf(" size %d", *set.Spec.Replicas)
			}
			writes = append(writes, word)
		}
		slices.Sort(writes)
		words = append(words, strings.Join(writes, " + "))
	}
	if plan.RequeueAfter > 0 {
		words = append(words, "again "+plan.RequeueAfter.String())
	}
	return strings.Join(words, ", ")
}

func names[T kind.Object](objs []T) string {
	var all []string
	for _, obj := range objs {
		all = append(all, obj.GetName())
	}
	return strings.Join(all, " ")
}

// writesOf are all writes of a plan, in order.
func writesOf(plan controller.Plan) (all []controller.Write) {
	for _, step := range plan.Steps {
		all = append(all, step.Writes...)
	}
	return all
}

// events lists the events that a plan tells when everything succeeds.
func events(plan controller.Plan) (all []string) {
	for _, w := range writesOf(plan) {
		if w.SuccessEvent != nil {
			all = append(all, w.SuccessEvent.Reason+": "+strings.Replace(w.SuccessEvent.Message, "%s", w.Object.GetName(), 1))
		}
	}
	for _, e := range plan.Events {
		all = append(all, e.Reason+": "+e.Message)
	}
	return all
}

// kindObject shortens literals.
type kindObject = kind.Object

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}
