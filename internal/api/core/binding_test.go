package core

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
)

// clientWith returns a client with the objects.
func clientWith(t *testing.T, objs ...kind.Object) *memoryClient {
	t.Helper()
	client := newMemoryClient()
	for _, obj := range objs {
		resource := podResource
		if _, isPod := obj.(*corev1.Pod); !isPod {
			resource = budgetResource
		}
		if _, err := client.Create(context.Background(), resource, obj); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

func storedPod(t *testing.T, client kind.Client) *corev1.Pod {
	t.Helper()
	obj, err := client.Get(context.Background(), podResource, "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*corev1.Pod)
}

func bindingTo(node string, changes ...func(*corev1.Binding)) *corev1.Binding {
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	for _, change := range changes {
		change(binding)
	}
	return binding
}

func subresource(k *kind.Kind, name string) kind.Subresource {
	for _, s := range k.Subresources {
		if s.Name == name {
			return s
		}
	}
	panic("no subresource " + name)
}

// succeeded reports whether the response to an action is a success.
func succeeded(response runtime.Object) bool {
	status, ok := response.(*metav1.Status)
	return ok && status.Status == metav1.StatusSuccess
}

func TestBinding(t *testing.T) {
	client := clientWith(t, testPod(podStatus(`{phase: Pending, nominatedNodeName: other, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable}]}`),
		func(p *corev1.Pod) { p.Annotations = map[string]string{"old": "kept"} }))
	binding := bindingTo("node-1", func(b *corev1.Binding) {
		b.Annotations = map[string]string{"a": "b", "pod.beta.kubernetes.io/init-containers": "x"}
		b.Labels = map[string]string{"topology.kubernetes.io/zone": "z"}
	})
	response, err := subresource(Pod, "binding").Create(context.Background(), client, testNow, types.NamespacedName{Namespace: "default", Name: "p"}, binding)
	if err != nil || !succeeded(response) {
		t.Fatalf("%v, %v", response, err)
	}
	pod := storedPod(t, client)
	if pod.Spec.NodeName != "node-1" || pod.Status.NominatedNodeName != "" {
		t.Errorf("node %q, nominated %q", pod.Spec.NodeName, pod.Status.NominatedNodeName)
	}
	if len(pod.Annotations) != 2 || pod.Annotations["a"] != "b" || pod.Labels["topology.kubernetes.io/zone"] != "z" {
		t.Errorf("annotations %v, labels %v", pod.Annotations, pod.Labels)
	}
	want := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: testNow.Now}
	if len(pod.Status.Conditions) != 1 || pod.Status.Conditions[0] != want {
		t.Errorf("conditions %v", pod.Status.Conditions)
	}
}

func TestBindingRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		pod     *corev1.Pod
		binding *corev1.Binding
		reason  metav1.StatusReason
		want    string
	}{
		{"bound", testPod(podSpec(`nodeName: node-0`)), bindingTo("node-1"), metav1.StatusReasonConflict,
			`Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "node-0"`},
		{"going", testPod(func(p *corev1.Pod) { p.DeletionTimestamp = &testNow.Now }), bindingTo("node-1"), metav1.StatusReasonConflict, "pod p is being deleted, cannot be assigned to a host"},
		{"gated", testPod(podSpec(`schedulingGates: [{name: g}]`)), bindingTo("node-1"), metav1.StatusReasonConflict, "pod p has non-empty .spec.schedulingGates"},
		{"another pod", testPod(), bindingTo("node-1", func(b *corev1.Binding) { b.UID = "other" }), metav1.StatusReasonConflict, "Precondition failed: UID in precondition: other"},
		{"another version", testPod(), bindingTo("node-1", func(b *corev1.Binding) { b.ResourceVersion = "99" }), metav1.StatusReasonConflict, "Precondition failed: ResourceVersion"},
		{"another name", testPod(), bindingTo("node-1", func(b *corev1.Binding) { b.Name = "q" }), metav1.StatusReasonBadRequest, "name in URL does not match name in Binding object"},
		{"no such pod", testPod(func(p *corev1.Pod) { p.Name = "q" }), bindingTo("node-1"), metav1.StatusReasonNotFound, `pods "p" not found`},
		{"no node", testPod(), bindingTo(""), metav1.StatusReasonUnknown, "target.name: Required value"},
		{"a bad node", testPod(), bindingTo("Bad_"), metav1.StatusReasonUnknown, "target.name: Invalid value"},
		{"no kind of node", testPod(), bindingTo("node-1", func(b *corev1.Binding) { b.Target.Kind = "Cat" }), metav1.StatusReasonUnknown, `target.kind: Unsupported value: "Cat": supported values: "Node", "<empty>"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := clientWith(t, c.pod)
			_, err := subresource(Pod, "binding").Create(context.Background(), client, testNow, types.NamespacedName{Namespace: "default", Name: "p"}, c.binding)
			if err == nil || apierrors.ReasonForError(err) != c.reason || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v (%s), want %s (%s)", err, apierrors.ReasonForError(err), c.want, c.reason)
			}
		})
	}
}

func TestBindingDryRun(t *testing.T) {
	client := clientWith(t, testPod())
	dry := &kind.Request{Now: testNow.Now, DryRun: true}
	if response, err := Binding.Action(context.Background(), client, dry, bindingTo("node-1")); err != nil || !succeeded(response) {
		t.Fatalf("%v, %v", response, err)
	}
	if pod := storedPod(t, client); pod.Spec.NodeName != "" {
		t.Errorf("a dry run bound the pod to %s", pod.Spec.NodeName)
	}
	if response, err := Binding.Action(context.Background(), client, testNow, bindingTo("node-1")); err != nil || !succeeded(response) {
		t.Fatalf("%v, %v", response, err)
	}
	if _, err := Binding.Action(context.Background(), client, dry, bindingTo("node-2")); !apierrors.IsConflict(err) {
		t.Errorf("a dry run of what cannot be: %v", err)
	}
}
