package apps

import (
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

var daemonSetStatusDoc = appsv1.DaemonSetStatus{}.SwaggerDoc()

// DaemonSet runs a pod on each matching node.
var DaemonSet = kind.Of(kind.Definition[*appsv1.DaemonSet]{
	GVK: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), Plural: "daemonsets", Short: []string{"ds"}, Categories: []string{"all"}, Namespaced: true,
	List:     &appsv1.DaemonSetList{},
	Default:  defaultDaemonSet,
	Prepare:  prepareDaemonSet,
	Validate: validateDaemonSet,
	Warn: func(set, old *appsv1.DaemonSet) []string {
		path := templatePath()
		switch {
		case old == nil:
			return podspec.WarnTemplate(path, &set.Spec.Template, nil)
		case templateChanged(set, old):
			return podspec.WarnTemplate(path, &set.Spec.Template, &old.Spec.Template)
		}
		return nil
	},
	CopyStatus:     func(to, from *appsv1.DaemonSet) { to.Status = from.Status },
	ValidateStatus: validateDaemonSetStatus,
	SpecChanged: func(set, old *appsv1.DaemonSet) bool {
		return !equality.Semantic.DeepEqual(set.Spec, old.Spec)
	},
	Columns: columns([]metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Desired", "integer", daemonSetStatusDoc["desiredNumberScheduled"]),
		kind.Column("Current", "integer", daemonSetStatusDoc["currentNumberScheduled"]),
		kind.Column("Ready", "integer", daemonSetStatusDoc["numberReady"]),
		kind.Column("Up-to-date", "integer", daemonSetStatusDoc["updatedNumberScheduled"]),
		kind.Column("Available", "integer", daemonSetStatusDoc["numberAvailable"]),
		kind.Column("Node Selector", "string", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
		kind.AgeColumn(),
	}, kind.Wide("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"])),
	Row: func(set *appsv1.DaemonSet, now time.Time) []any {
		status := &set.Status
		names, images := ContainerCells(&set.Spec.Template)
		return []any{
			set.Name, int64(status.DesiredNumberScheduled), int64(status.CurrentNumberScheduled), int64(status.NumberReady),
			int64(status.UpdatedNumberScheduled), int64(status.NumberAvailable), labels.FormatLabels(set.Spec.Template.Spec.NodeSelector),
			kind.Age(set.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(set.Spec.Selector),
		}
	},
})

// daemonSetTemplate is the template of the stored object, nil if there is none.
func daemonSetTemplate(old *appsv1.DaemonSet) *corev1.PodTemplateSpec {
	if old == nil {
		return nil
	}
	return &old.Spec.Template
}

func defaultDaemonSet(set *appsv1.DaemonSet) {
	strategy := &set.Spec.UpdateStrategy
	if strategy.Type == "" {
		strategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if strategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		kind.SetDefault(&strategy.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		kind.SetDefault(&strategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		kind.SetDefault(&strategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	kind.SetDefault(&set.Spec.RevisionHistoryLimit, 10)
	podspec.DefaultTemplate(&set.Spec.Template)
}

func templateChanged(set, old *appsv1.DaemonSet) bool {
	return !equality.Semantic.DeepEqual(set.Spec.Template, old.Spec.Template)
}

func prepareDaemonSet(_ *kind.Request, set, old *appsv1.DaemonSet) {
	podspec.DropDisabledTemplate(&set.Spec.Template, daemonSetTemplate(old))
	// The template generation counts changes of the template. It was a field once and is an annotation now.
	var generation int64
	if old == nil {
		given, err := templateGeneration(set)
		if err != nil {
			return // validation refuses it
		}
		generation = max(given, 1)
	} else {
		generation, _ = templateGeneration(old)
		if templateChanged(set, old) {
			generation++
		}
	}
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, appsv1.DeprecatedTemplateGeneration, strconv.FormatInt(generation, 10))
}

// templateGeneration is zero when the annotation is absent.
func templateGeneration(set *appsv1.DaemonSet) (int64, error) {
	text, given := set.Annotations[appsv1.DeprecatedTemplateGeneration]
	if !given {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

func validateDaemonSet(_ *kind.Request, set, old *appsv1.DaemonSet) field.ErrorList {
	spec, path := &set.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if _, err := templateGeneration(set); err != nil {
		idxPath := field.NewPath("metadata", "annotations").Key(appsv1.DeprecatedTemplateGeneration)
		errs = append(errs, field.Invalid(idxPath, set.Annotations[appsv1.DeprecatedTemplateGeneration], err.Error()))
	}
	var options metav1validation.LabelSelectorValidationOptions
	if old != nil {
		options.AllowInvalidLabelValueInSelector = metav1validation.LabelSelectorHasInvalidLabelValue(old.Spec.Selector)
		errs = append(errs, validation.ValidateImmutableField(spec.Selector, old.Spec.Selector, path.Child("selector"))...)
	}
	errs = append(errs, metav1validation.ValidateLabelSelector(spec.Selector, options, path.Child("selector"))...)
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil {
		errs = append(errs, validateMatch(selector, &spec.Template, path.Child("template"))...)
	}
	errs = append(errs, validateSelectsSomething(spec.Selector, "daemonset", path.Child("selector"))...)
	errs = append(errs, podspec.ValidateTemplate(&spec.Template, daemonSetTemplate(old), path.Child("template"))...)
	errs = append(errs, validateAlwaysRestarts(&spec.Template.Spec, "DaemonSet", path.Child("template", "spec"))...)
	errs = append(errs, validateCounts(path, countOf("minReadySeconds", spec.MinReadySeconds))...)
	errs = append(errs, validateDaemonSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	return append(errs, validateCounts(path, optionalCount("revisionHistoryLimit", spec.RevisionHistoryLimit))...)
}

func validateDaemonSetStrategy(strategy *appsv1.DaemonSetUpdateStrategy, path *field.Path) field.ErrorList {
	rolling := path.Child("rollingUpdate")
	switch strategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
		if strategy.RollingUpdate == nil {
			return field.ErrorList{field.Required(rolling, "")}
		}
	default:
		return field.ErrorList{field.NotSupported(path, strategy,
			[]appsv1.DaemonSetUpdateStrategyType{appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType})}
	}
	unavailable, surge := ptr.Deref(strategy.RollingUpdate.MaxUnavailable, intstr.IntOrString{}), ptr.Deref(strategy.RollingUpdate.MaxSurge, intstr.IntOrString{})
	var errs field.ErrorList
	for _, rule := range []func(intstr.IntOrString, *field.Path) field.ErrorList{ValidateIntOrPercent, ValidateAtMost100Percent} {
		errs = append(errs, rule(unavailable, rolling.Child("maxUnavailable"))...)
		errs = append(errs, rule(surge, rolling.Child("maxSurge"))...)
	}
	// Either the old pod is removed first or the new one is created first.
	switch hasUnavailable, hasSurge := !isZero(&unavailable), !isZero(&surge); {
	case hasUnavailable && hasSurge:
		errs = append(errs, field.Invalid(rolling.Child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero"))
	case !hasUnavailable && !hasSurge:
		errs = append(errs, field.Required(rolling.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

func validateDaemonSetStatus(_ *kind.Request, set, old *appsv1.DaemonSet) field.ErrorList {
	status, path := &set.Status, field.NewPath("status")
	errs := validateCounts(path,
		countOf("currentNumberScheduled", status.CurrentNumberScheduled), countOf("numberMisscheduled", status.NumberMisscheduled),
		countOf("desiredNumberScheduled", status.DesiredNumberScheduled), countOf("numberReady", status.NumberReady),
		countOf("observedGeneration", status.ObservedGeneration), countOf("updatedNumberScheduled", status.UpdatedNumberScheduled),
		countOf("numberAvailable", status.NumberAvailable), countOf("numberUnavailable", status.NumberUnavailable),
		optionalCount("collisionCount", status.CollisionCount))
	return append(errs, validateCollisions(status.CollisionCount, old.Status.CollisionCount, path.Child("collisionCount"))...)
}
