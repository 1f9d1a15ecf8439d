package core

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// ReplicationController is the predecessor of ReplicaSet. It is stored under /registry/controllers, its original name, and
// its pods are orphaned on deletion unless the client requests otherwise.
var ReplicationController = kind.Of(kind.Definition[*corev1.ReplicationController]{
	GVK: corev1.SchemeGroupVersion.WithKind("ReplicationController"), Plural: "replicationcontrollers", Prefix: "controllers",
	Short: []string{"rc"}, Categories: []string{"all"}, Namespaced: true, List: &corev1.ReplicationControllerList{},

	Default: defaultReplicationController,
	Prepare: func(_ *kind.Request, obj, old *corev1.ReplicationController) {
		podspec.DropDisabledTemplate(obj.Spec.Template, controllerTemplate(old))
	},
	Validate:    validateReplicationController,
	Warn:        warnReplicationController,
	SpecChanged: controllerChanged,

	CopyStatus:     func(to, from *corev1.ReplicationController) { to.Status = from.Status },
	ValidateStatus: validateControllerStatus,

	Subresources: []kind.Subresource{{
		Name: "scale", GVK: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), NewBody: func() kind.Object { return &autoscalingv1.Scale{} },
		View: &kind.View{
			From: controllerScale, Apply: scaleController, Validate: validateScale, Paths: map[string]string{"spec.replicas": "spec.replicas"},
			Columns: kind.ScaleColumns(), Row: kind.ScaleRow,
		},
	}},

	Fields: map[string]func(*corev1.ReplicationController) string{
		"status.replicas": func(obj *corev1.ReplicationController) string { return strconv.Itoa(int(obj.Status.Replicas)) },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Desired", "integer", corev1.ReplicationControllerSpec{}.SwaggerDoc()["replicas"]),
		kind.Column("Current", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["replicas"]),
		kind.Column("Ready", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["readyReplicas"]),
		kind.AgeColumn(),
		kind.Wide("Containers", "string", "Names of each container in the template."),
		kind.Wide("Images", "string", "Images referenced by each container in the template."),
		kind.Wide("Selector", "string", corev1.ReplicationControllerSpec{}.SwaggerDoc()["selector"]),
	},
	Row: controllerRow,

	Propagation: metav1.DeletePropagationOrphan,
})

// defaultReplicationController copies selector and labels from the template.
func defaultReplicationController(obj *corev1.ReplicationController) {
	if t := obj.Spec.Template; t != nil && t.Labels != nil {
		if len(obj.Spec.Selector) == 0 {
			obj.Spec.Selector = maps.Clone(t.Labels)
		}
		if len(obj.Labels) == 0 {
			obj.Labels = maps.Clone(t.Labels)
		}
	}
	if obj.Spec.Replicas == nil {
		obj.Spec.Replicas = ptr.To[int32](1)
	}
	podspec.DefaultTemplate(obj.Spec.Template)
}

func controllerTemplate(obj *corev1.ReplicationController) *corev1.PodTemplateSpec {
	if obj == nil {
		return nil
	}
	return obj.Spec.Template
}

func controllerChanged(obj, old *corev1.ReplicationController) bool {
	return !equality.Semantic.DeepEqual(&obj.Spec, &old.Spec)
}

func validateReplicationController(_ *kind.Request, obj, old *corev1.ReplicationController) field.ErrorList {
	path := field.NewPath("spec")
	spec := &obj.Spec
	errs := apivalidation.ValidateNonnegativeField(int64(spec.MinReadySeconds), path.Child("minReadySeconds"))
	if len(spec.Selector) == 0 {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	}
	if spec.Replicas == nil {
		errs = append(errs, field.Required(path.Child("replicas"), ""))
	} else {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*spec.Replicas), path.Child("replicas"))...)
	}
	errs = append(errs, validateControllerTemplate(obj, old, path.Child("template"))...)
	if old != nil {
		errs = append(errs, validateNonConvertible(obj, old)...)
	}
	return errs
}

func validateControllerTemplate(obj, old *corev1.ReplicationController, path *field.Path) field.ErrorList {
	t := obj.Spec.Template
	if t == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if !labels.SelectorFromSet(obj.Spec.Selector).Matches(labels.Set(t.Labels)) {
		errs = append(errs, field.Invalid(path.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, podspec.ValidateTemplate(t, controllerTemplate(old), path)...)
	if t.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("spec", "restartPolicy"), t.Spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicationController is not Supported"))
	}
	return errs
}

// validateNonConvertible refuses changes of fields that, by an annotation, could not be converted to a ReplicationController.
func validateNonConvertible(obj, old *corev1.ReplicationController) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(old.Annotations)) {
		parts := strings.Split(key, "/")
		if !strings.HasPrefix(key, corev1.NonConvertibleAnnotationPrefix) || len(parts) != 2 {
			continue
		}
		if !strings.Contains(parts[1], "selector") {
			errs = append(errs, &field.Error{Type: field.ErrorTypeNotFound, Field: parts[1], BadValue: old.Annotations[key], Detail: "unknown non-convertible field"})
		} else if !equality.Semantic.DeepEqual(obj.Spec.Selector, old.Spec.Selector) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), obj.Spec.Selector, "cannot update non-convertible selector"))
		}
	}
	return errs
}

func validateControllerStatus(_ *kind.Request, obj, _ *corev1.ReplicationController) field.ErrorList {
	var errs field.ErrorList
	path, status := field.NewPath("status"), &obj.Status
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"replicas", int64(status.Replicas)}, {"fullyLabeledReplicas", int64(status.FullyLabeledReplicas)},
		{"readyReplicas", int64(status.ReadyReplicas)}, {"availableReplicas", int64(status.AvailableReplicas)},
		{"observedGeneration", status.ObservedGeneration},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(f.value, path.Child(f.name))...)
	}
	const tooMany = "cannot be greater than status.replicas"
	atMost := func(name string, value, limit int32, text string) {
		if value > limit {
			errs = append(errs, field.Invalid(path.Child(name), value, text))
		}
	}
	atMost("fullyLabeledReplicas", status.FullyLabeledReplicas, status.Replicas, tooMany)
	atMost("readyReplicas", status.ReadyReplicas, status.Replicas, tooMany)
	atMost("availableReplicas", status.AvailableReplicas, status.Replicas, tooMany)
	atMost("availableReplicas", status.AvailableReplicas, status.ReadyReplicas, "cannot be greater than readyReplicas")
	return errs
}

func warnReplicationController(obj, old *corev1.ReplicationController) (warnings []string) {
	if old != nil && !controllerChanged(obj, old) {
		return nil
	}
	if texts := validation.IsDNS1123Label(obj.Name); old == nil && len(texts) > 0 {
		warnings = append(warnings, "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; "+
			"a DNS label is recommended: "+listed(texts))
	}
	return append(warnings, podspec.WarnTemplate(field.NewPath("spec", "template"), obj.Spec.Template, controllerTemplate(old))...)
}

func controllerRow(obj *corev1.ReplicationController, now time.Time) []any {
	var containers []corev1.Container
	if t := obj.Spec.Template; t != nil {
		containers = t.Spec.Containers
	}
	names, images := containerCells(containers)
	return []any{
		obj.Name, int64(ptr.Deref(obj.Spec.Replicas, 0)), int64(obj.Status.Replicas), int64(obj.Status.ReadyReplicas),
		kind.Age(obj.CreationTimestamp, now), names, images, labels.FormatLabels(obj.Spec.Selector),
	}
}

func controllerScale(parent kind.Object) (kind.Object, error) {
	obj := parent.(*corev1.ReplicationController)
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: obj.Name, Namespace: obj.Namespace, UID: obj.UID, ResourceVersion: obj.ResourceVersion, CreationTimestamp: obj.CreationTimestamp,
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: ptr.Deref(obj.Spec.Replicas, 0)},
		Status: autoscalingv1.ScaleStatus{Replicas: obj.Status.Replicas, Selector: labels.SelectorFromSet(obj.Spec.Selector).String()},
	}, nil
}

func scaleController(view, parent kind.Object) error {
	scale, obj := view.(*autoscalingv1.Scale), parent.(*corev1.ReplicationController)
	if scale.UID != "" && scale.UID != obj.UID {
		return apierrors.NewConflict(schema.GroupResource{Resource: "replicationcontrollers/scale"}, obj.Name,
			preconditionFailed("UID", string(scale.UID), string(obj.UID)))
	}
	obj.Spec.Replicas = &scale.Spec.Replicas
	if scale.ResourceVersion != "" {
		obj.ResourceVersion = scale.ResourceVersion
	}
	return nil
}

func validateScale(view kind.Object) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(int64(view.(*autoscalingv1.Scale).Spec.Replicas), field.NewPath("spec", "replicas"))
}
