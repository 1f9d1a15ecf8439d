package apps

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// ReplicaSet keeps a number of identical pods running.
var ReplicaSet = kind.Of(kind.Definition[*appsv1.ReplicaSet]{
	GVK: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), Plural: "replicasets", Short: []string{"rs"}, Categories: []string{"all"}, Namespaced: true,
	List: &appsv1.ReplicaSetList{},
	Default: func(rs *appsv1.ReplicaSet) {
		kind.SetDefault(&rs.Spec.Replicas, 1)
		podspec.DefaultTemplate(&rs.Spec.Template)
	},
	Prepare: func(_ *kind.Request, rs, old *appsv1.ReplicaSet) {
		podspec.DropDisabledTemplate(&rs.Spec.Template, replicaSetTemplate(old))
	},
	Validate: validateReplicaSet,
	Warn: func(rs, old *appsv1.ReplicaSet) []string {
		return warnReplicated(rs.Name, &rs.Spec.Template, replicaSetTemplate(old), old != nil && replicaSetChanged(rs, old))
	},
	CopyStatus:     func(to, from *appsv1.ReplicaSet) { to.Status = from.Status },
	ValidateStatus: validateReplicaSetStatus,
	SpecChanged:    replicaSetChanged,
	Columns: columns([]metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
		kind.Column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
		kind.Column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
		kind.AgeColumn(),
	}, kind.Wide("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"])),
	Row: func(rs *appsv1.ReplicaSet, now time.Time) []any {
		names, images := ContainerCells(&rs.Spec.Template)
		return []any{
			rs.Name, int64(ptr.Deref(rs.Spec.Replicas, 0)), int64(rs.Status.Replicas), int64(rs.Status.ReadyReplicas),
			kind.Age(rs.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(rs.Spec.Selector),
		}
	},
	Subresources: []kind.Subresource{scaleOf(appsv1.Resource("replicasets"), func(rs *appsv1.ReplicaSet) scalable {
		return scalable{&rs.Spec.Replicas, rs.Spec.Selector, rs.Status.Replicas}
	})},
})

// replicaSetTemplate is the template of the stored object, nil if there is none.
func replicaSetTemplate(old *appsv1.ReplicaSet) *corev1.PodTemplateSpec {
	if old == nil {
		return nil
	}
	return &old.Spec.Template
}

func replicaSetChanged(rs, old *appsv1.ReplicaSet) bool {
	return !equality.Semantic.DeepEqual(rs.Spec, old.Spec)
}

func validateReplicaSet(_ *kind.Request, rs, old *appsv1.ReplicaSet) field.ErrorList {
	spec, path := &rs.Spec, field.NewPath("spec")
	errs := validateCounts(path, optionalCount("replicas", spec.Replicas), countOf("minReadySeconds", spec.MinReadySeconds))
	errs = append(errs, validateReplicated(spec.Selector, &spec.Template, replicaSetTemplate(old), path)...)
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(spec.Selector, old.Spec.Selector, path.Child("selector"))...)
	}
	return errs
}

func validateReplicaSetStatus(_ *kind.Request, rs, _ *appsv1.ReplicaSet) field.ErrorList {
	status, path := &rs.Status, field.NewPath("status")
	labeled, ready, available := countOf("fullyLabeledReplicas", status.FullyLabeledReplicas), countOf("readyReplicas", status.ReadyReplicas), countOf("availableReplicas", status.AvailableReplicas)
	errs := validateCounts(path, countOf("replicas", status.Replicas), labeled, ready, available,
		countOf("observedGeneration", status.ObservedGeneration), optionalCount("terminatingReplicas", status.TerminatingReplicas))
	errs = append(errs, validateWithin(path, status.Replicas, labeled, ready, available)...)
	if status.AvailableReplicas > status.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), status.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return errs
}
