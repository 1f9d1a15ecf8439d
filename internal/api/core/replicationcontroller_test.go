package core

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

func testTemplate() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "i:1"}, {Name: "b", Image: "i:2"}}},
	}
}

func testController() *corev1.ReplicationController {
	template := testTemplate()
	return &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc", Namespace: "default", UID: "u-1", ResourceVersion: "7", CreationTimestamp: kindtest.MinutesAgo(6)},
		Spec:       corev1.ReplicationControllerSpec{Template: &template},
	}
}

func TestReplicationControllerDefaults(t *testing.T) {
	obj := testController()
	ReplicationController.Default(obj)
	if obj.Spec.Selector["app"] != "web" || obj.Labels["app"] != "web" || *obj.Spec.Replicas != 1 || obj.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Errorf("%v", obj)
	}
	obj.Labels["mine"] = "x"
	if len(obj.Spec.Selector) != 1 || len(obj.Spec.Template.Labels) != 1 {
		t.Error("labels, selector and template share a map")
	}
	explicit := testController()
	explicit.Labels, explicit.Spec.Selector, explicit.Spec.Replicas = map[string]string{"l": "1"}, map[string]string{"s": "1"}, ptr.To[int32](0)
	ReplicationController.Default(explicit)
	if explicit.Labels["l"] != "1" || explicit.Spec.Selector["s"] != "1" || *explicit.Spec.Replicas != 0 {
		t.Errorf("explicit values were overwritten: %v", explicit)
	}
	ReplicationController.Default(&corev1.ReplicationController{})
}

func TestReplicationController(t *testing.T) {
	type rc = corev1.ReplicationController
	kindtest.Validations(t, ReplicationController, testController(), []kindtest.Case[*rc]{
		{Name: "ordinary"},
		{Name: "numbers", Change: func(o *rc) { o.Spec.Replicas, o.Spec.MinReadySeconds = ptr.To[int32](-1), -1 }, Want: []string{
			"spec.replicas: Invalid value: -1: must be greater than or equal to 0", "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"}},
		{Name: "no template", Change: func(o *rc) { o.Spec.Template, o.Spec.Selector = nil, map[string]string{"a": "b"} }, Want: []string{"spec.template: Required value"}},
		{Name: "no selector", Change: func(o *rc) { o.Spec.Template.Labels = nil }, Want: []string{"spec.selector: Required value"}},
		{Name: "another selector", Change: func(o *rc) { o.Spec.Selector = map[string]string{"a": "b"} }, Want: []string{"spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`"}},
		{Name: "a bad template", Change: func(o *rc) { o.Spec.Template.Spec.Containers[0].Name = "" }, Want: []string{"spec.template.spec.containers[0].name: Required value"}},
		{Name: "pods that end", Change: func(o *rc) {
			o.Spec.Template.Spec.RestartPolicy, o.Spec.Template.Spec.ActiveDeadlineSeconds = corev1.RestartPolicyNever, ptr.To[int64](5)
		}, Want: []string{
			`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`, "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicationController is not Supported"}},
		{Name: "an update", Update: true, Change: func(o *rc) {
			o.Spec.Replicas = ptr.To[int32](3)
			o.Spec.Selector, o.Spec.Template.Labels = map[string]string{"app": "v2"}, map[string]string{"app": "v2"}
		}},
	})
	base := testController()
	base.Annotations = map[string]string{"non-convertible.kubernetes.io/spec.selector": "x", "non-convertible.kubernetes.io/other": "y"}
	kindtest.Validations(t, ReplicationController, base, []kindtest.Case[*rc]{
		{Name: "what could not be converted", Update: true, Change: func(o *rc) {
			o.Spec.Selector, o.Spec.Template.Labels = map[string]string{"app": "v2"}, map[string]string{"app": "v2"}
		}, Want: []string{"spec.selector: Invalid value: {\"app\":\"v2\"}: cannot update non-convertible selector", "other: Not found: \"y\": unknown non-convertible field"}},
	})
	kindtest.StatusUpdates(t, ReplicationController, testController(), []kindtest.Case[*rc]{
		{Name: "ordinary", Change: func(o *rc) {
			o.Status = corev1.ReplicationControllerStatus{Replicas: 3, FullyLabeledReplicas: 3, ReadyReplicas: 2, AvailableReplicas: 1, ObservedGeneration: 1}
		}},
		{Name: "negative", Change: func(o *rc) { o.Status.Replicas, o.Status.ObservedGeneration = -1, -1 }, Want: []string{
			"status.replicas: must be greater than or equal to 0", "status.observedGeneration: must be greater than or equal to 0",
			"status.fullyLabeledReplicas: cannot be greater than status.replicas", "status.readyReplicas: cannot be greater than status.replicas", "status.availableReplicas: cannot be greater than status.replicas"}},
		{Name: "more available than ready", Change: func(o *rc) { o.Status.Replicas, o.Status.AvailableReplicas = 3, 1 }, Want: []string{"status.availableReplicas: cannot be greater than readyReplicas"}},
	})
}

func TestReplicationControllerRow(t *testing.T) {
	obj := testController()
	ReplicationController.Default(obj)
	obj.Spec.Replicas, obj.Status.Replicas, obj.Status.ReadyReplicas = ptr.To[int32](5), 4, 3
	kindtest.ColumnsDescribed(t, ReplicationController)
	kindtest.Row(t, ReplicationController, obj, "rc", int64(5), int64(4), int64(3), "6m", "a,b", "i:1,i:2", "app=web")
	kindtest.Row(t, ReplicationController, &corev1.ReplicationController{}, "", int64(0), int64(0), int64(0), "<unknown>", "", "", "<none>")
	if got := ReplicationController.Fields["status.replicas"](obj); got != "4" {
		t.Errorf("status.replicas: %s", got)
	}
	if ReplicationController.Delete.Propagation != metav1.DeletePropagationOrphan || ReplicationController.Prefix != "controllers" {
		t.Errorf("%v, %s", ReplicationController.Delete.Propagation, ReplicationController.Prefix)
	}
}

func TestReplicationControllerScale(t *testing.T) {
	view := subresource(ReplicationController, "scale").View
	obj := testController()
	ReplicationController.Default(obj)
	obj.Status.Replicas = 2
	got, err := view.From(obj)
	if err != nil {
		t.Fatal(err)
	}
	scale := got.(*autoscalingv1.Scale)
	if scale.Name != "rc" || scale.UID != "u-1" || scale.ResourceVersion != "7" || scale.Spec.Replicas != 1 || scale.Status.Replicas != 2 || scale.Status.Selector != "app=web" {
		t.Errorf("%v", scale)
	}
	scale.Spec.Replicas = 9
	if err := view.Apply(scale, obj); err != nil || *obj.Spec.Replicas != 9 {
		t.Errorf("%v, %d", err, *obj.Spec.Replicas)
	}
	scale.UID = "other"
	if err := view.Apply(scale, obj); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "Precondition failed: UID in precondition: other, UID in object meta: u-1") {
		t.Errorf("another UID: %v", err)
	}
	scale.Spec.Replicas = -1
	kindtest.Errors(t, view.Validate(scale), "spec.replicas: Invalid value: must be greater than or equal to 0")
}

func TestReplicationControllerWarnings(t *testing.T) {
	obj, old := testController(), testController()
	obj.Name = "a.b"
	obj.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1)
	const negative = "spec.template.spec.terminationGracePeriodSeconds: must be >= 0"
	kindtest.Warnings(t, ReplicationController.Warn(obj, nil), "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]", negative)
	kindtest.Warnings(t, ReplicationController.Warn(obj, old), negative)
	kindtest.Warnings(t, ReplicationController.Warn(obj, obj))
}

func TestPodTemplate(t *testing.T) {
	base := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "default"}, Template: testTemplate()}
	type pt = corev1.PodTemplate
	kindtest.Validations(t, PodTemplate, base, []kindtest.Case[*pt]{
		{Name: "ordinary"},
		{Name: "a bad template", Change: func(o *pt) { o.Template.Spec.Containers = nil }, Want: []string{"template.spec.containers: Required value"}},
		{Name: "any change", Update: true, Change: func(o *pt) {
			o.Template = corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: o.Template.Spec.Containers[:1]}}
		}},
		{Name: "a bad change", Update: true, Change: func(o *pt) { o.Template.Labels = map[string]string{"bad key!": ""} }, Want: []string{"template.labels: Invalid value"}},
	})
	kindtest.ColumnsDescribed(t, PodTemplate)
	kindtest.Row(t, PodTemplate, base, "t", "a,b", "i:1,i:2", "app=web")
	changed := base.DeepCopy()
	changed.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1)
	kindtest.Warnings(t, PodTemplate.Warn(changed, base), "template.spec.terminationGracePeriodSeconds: must be >= 0")
	kindtest.Warnings(t, PodTemplate.Warn(changed, changed))
	if !PodTemplate.SpecChanged(changed, base) || PodTemplate.SpecChanged(base, base) {
		t.Error("generation does not follow the template")
	}
	prepared, _ := kindtest.Create(PodTemplate, testNow, kindtest.With(base, func(o *pt) {
		o.Template.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: "a"}}
	}))
	if prepared.Template.Spec.EvictionResponders != nil {
		t.Error("a disabled feature stays")
	}
}
