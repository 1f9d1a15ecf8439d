package apps

import (
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// Deployment replaces the pods of one revision by those of the next.
var Deployment = kind.Of(kind.Definition[*appsv1.Deployment]{
	GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Plural: "deployments", Short: []string{"deploy"}, Categories: []string{"all"}, Namespaced: true,
	List:    &appsv1.DeploymentList{},
	Default: defaultDeployment,
	Prepare: func(_ *kind.Request, d, old *appsv1.Deployment) {
		podspec.DropDisabledTemplate(&d.Spec.Template, deploymentTemplate(old))
	},
	Validate: validateDeployment,
	Warn: func(d, old *appsv1.Deployment) []string {
		return warnReplicated(d.Name, &d.Spec.Template, deploymentTemplate(old), old != nil && deploymentChanged(d, old))
	},
	CopyStatus:     func(to, from *appsv1.Deployment) { to.Status = from.Status },
	ValidateStatus: validateDeploymentStatus,
	SpecChanged:    deploymentChanged,
	Columns: columns([]metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Ready", "string", "Number of the pod with ready state"),
		kind.Column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
		kind.Column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
		kind.AgeColumn(),
	}, kind.Wide("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"])),
	Row: func(d *appsv1.Deployment, now time.Time) []any {
		selector := "<invalid>"
		if parsed, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
			selector = parsed.String()
		}
		names, images := ContainerCells(&d.Spec.Template)
		return []any{
			d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 0)), int64(d.Status.UpdatedReplicas),
			int64(d.Status.AvailableReplicas), kind.Age(d.CreationTimestamp, now), names, images, selector,
		}
	},
	Subresources: []kind.Subresource{scaleOf(appsv1.Resource("deployments"), func(d *appsv1.Deployment) scalable {
		return scalable{&d.Spec.Replicas, d.Spec.Selector, d.Status.Replicas}
	})},
})

// deploymentTemplate is the template of the stored object, nil if there is none.
func deploymentTemplate(old *appsv1.Deployment) *corev1.PodTemplateSpec {
	if old == nil {
		return nil
	}
	return &old.Spec.Template
}

// deploymentChanged includes annotations, because they are copied to the replica sets.
func deploymentChanged(d, old *appsv1.Deployment) bool {
	return !equality.Semantic.DeepEqual(d.Spec, old.Spec) || !equality.Semantic.DeepEqual(d.Annotations, old.Annotations)
}

func defaultDeployment(d *appsv1.Deployment) {
	spec := &d.Spec
	kind.SetDefault(&spec.Replicas, 1)
	if spec.Strategy.Type == "" {
		spec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		kind.SetDefault(&spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		kind.SetDefault(&spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		kind.SetDefault(&spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	kind.SetDefault(&spec.RevisionHistoryLimit, 10)
	kind.SetDefault(&spec.ProgressDeadlineSeconds, 600)
	podspec.DefaultTemplate(&spec.Template)
}

func validateDeployment(_ *kind.Request, d, old *appsv1.Deployment) field.ErrorList {
	spec, path := &d.Spec, field.NewPath("spec")
	errs := validateCounts(path, optionalCount("replicas", spec.Replicas))
	errs = append(errs, validateReplicated(spec.Selector, &spec.Template, deploymentTemplate(old), path)...)
	errs = append(errs, validateDeploymentStrategy(&spec.Strategy, path.Child("strategy"))...)
	errs = append(errs, validateCounts(path, countOf("minReadySeconds", spec.MinReadySeconds), optionalCount("revisionHistoryLimit", spec.RevisionHistoryLimit),
		optionalCount("progressDeadlineSeconds", spec.ProgressDeadlineSeconds))...)
	errs = append(errs, validateRollback(d, path)...)
	if deadline := spec.ProgressDeadlineSeconds; deadline != nil && *deadline <= spec.MinReadySeconds {
		errs = append(errs, field.Invalid(path.Child("progressDeadlineSeconds"), deadline, "must be greater than minReadySeconds"))
	}
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(spec.Selector, old.Spec.Selector, path.Child("selector"))...)
	}
	return errs
}

func validateDeploymentStrategy(strategy *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	rolling := path.Child("rollingUpdate")
	switch strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if strategy.RollingUpdate != nil {
			return field.ErrorList{field.Forbidden(rolling, "may not be specified when strategy `type` is 'Recreate'")}
		}
		return nil
	case appsv1.RollingUpdateDeploymentStrategyType:
		if strategy.RollingUpdate == nil {
			return field.ErrorList{field.Required(rolling, "this should be defaulted and never be nil")}
		}
	default:
		return field.ErrorList{field.NotSupported(path, strategy,
			[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType})}
	}
	unavailable, surge := ptr.Deref(strategy.RollingUpdate.MaxUnavailable, intstr.IntOrString{}), ptr.Deref(strategy.RollingUpdate.MaxSurge, intstr.IntOrString{})
	errs := ValidateIntOrPercent(unavailable, rolling.Child("maxUnavailable"))
	errs = append(errs, ValidateIntOrPercent(surge, rolling.Child("maxSurge"))...)
	if isZero(&unavailable) && isZero(&surge) {
		errs = append(errs, field.Invalid(rolling.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0"))
	}
	return append(errs, ValidateAtMost100Percent(unavailable, rolling.Child("maxUnavailable"))...)
}

// validateRollback validates the annotation with which old clients request a rollback.
func validateRollback(d *appsv1.Deployment, path *field.Path) field.ErrorList {
	text := d.Annotations[appsv1.DeprecatedRollbackTo]
	if text == "" {
		return nil
	}
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(appsv1.DeprecatedRollbackTo), text, err.Error())}
	}
	return validation.ValidateNonnegativeField(revision, path.Child("rollback", "version"))
}

func validateDeploymentStatus(_ *kind.Request, d, old *appsv1.Deployment) field.ErrorList {
	status, path := &d.Status, field.NewPath("status")
	updated, ready, available := countOf("updatedReplicas", status.UpdatedReplicas), countOf("readyReplicas", status.ReadyReplicas), countOf("availableReplicas", status.AvailableReplicas)
	errs := validateCounts(path, countOf("observedGeneration", status.ObservedGeneration), countOf("replicas", status.Replicas), updated, ready, available,
		countOf("unavailableReplicas", status.UnavailableReplicas), optionalCount("terminatingReplicas", status.TerminatingReplicas),
		optionalCount("collisionCount", status.CollisionCount))
	errs = append(errs, validateWithin(path, status.Replicas, updated, ready, available)...)
	if status.AvailableReplicas > status.ReadyReplicas {
		errs = append(errs, field.Invalid(path.Child("availableReplicas"), status.AvailableReplicas, "cannot be greater than readyReplicas"))
	}
	return append(errs, validateCollisions(status.CollisionCount, old.Status.CollisionCount, path.Child("collisionCount"))...)
}
