package autoscaling

import (
	"errors"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

const (
	maxPeriodSeconds        = 1800
	maxStabilizationSeconds = 3600
)

// references says how strictly the apiVersion of a reference is validated.
type references struct {
	anyVersion bool // stored values are kept
	emptyGroup bool // the core group
}

func validateAutoscaler(_ *kind.Request, hpa, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	spec, path := &hpa.Spec, field.NewPath("spec")
	target, objects := referenceRules(hpa, old)
	var errs field.ErrorList
	if spec.MinReplicas != nil && *spec.MinReplicas < 0 {
		errs = append(errs, field.Invalid(path.Child("minReplicas"), *spec.MinReplicas, content.MinError(0)))
	}
	if spec.MinReplicas != nil && spec.MaxReplicas < *spec.MinReplicas {
		errs = append(errs, field.Invalid(path.Child("maxReplicas"), spec.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}
	errs = append(errs, validateReference(spec.ScaleTargetRef, target, path.Child("scaleTargetRef"))...)
	errs = append(errs, validateMetrics(spec, objects, path.Child("metrics"))...)
	if spec.Behavior != nil {
		errs = append(errs, validateRules(spec.Behavior.ScaleUp, path.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateRules(spec.Behavior.ScaleDown, path.Child("behavior", "scaleDown"))...)
	}
	switch {
	case spec.MaxReplicas == 0:
		errs = append(errs, field.Required(path.Child("maxReplicas"), ""))
	case spec.MaxReplicas < 0:
		errs = append(errs, field.Invalid(path.Child("maxReplicas"), spec.MaxReplicas, content.MinError(1)))
	}
	return errs
}

// referenceRules are the validations of the target and of the objects that metrics describe.
func referenceRules(hpa, old *autoscalingv2.HorizontalPodAutoscaler) (target, objects references) {
	objects.emptyGroup = true
	ref := hpa.Spec.ScaleTargetRef
	switch {
	case old != nil && old.Spec.ScaleTargetRef.APIVersion == ref.APIVersion && old.Spec.ScaleTargetRef.Kind == ref.Kind:
		target.anyVersion = true
	case ref.Kind == "ReplicationController":
		target.emptyGroup = true
	}
	if old != nil {
		for _, metric := range old.Spec.Metrics {
			if metric.Type == autoscalingv2.ObjectMetricSourceType && metric.Object != nil && objects.check(metric.Object.DescribedObject) != nil {
				objects.anyVersion = true
				break
			}
		}
	}
	return target, objects
}

func (r references) check(ref autoscalingv2.CrossVersionObjectReference) error {
	if r.anyVersion {
		return nil
	}
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err == nil && version.Group == "" && !r.emptyGroup {
		err = errors.New("apiVersion must specify API group")
	}
	return err
}

func validateReference(ref autoscalingv2.CrossVersionObjectReference, rules references, path *field.Path) field.ErrorList {
	errs := validateSegment(ref.Kind, "", path.Child("kind"))
	errs = append(errs, validateSegment(ref.Name, "", path.Child("name"))...)
	if err := rules.check(ref); err != nil {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), ref.APIVersion, err.Error()))
	}
	return errs
}

// validateSegment validates a name that becomes a path segment of a URL.
func validateSegment(name, missing string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, missing)}
	}
	var errs field.ErrorList
	for _, message := range content.IsPathSegmentName(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

func validateMetrics(spec *autoscalingv2.HorizontalPodAutoscalerSpec, objects references, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	outside := false
	for i := range spec.Metrics {
		errs = append(errs, validateMetric(&spec.Metrics[i], objects, path.Index(i))...)
		outside = outside || spec.Metrics[i].Type == autoscalingv2.ObjectMetricSourceType || spec.Metrics[i].Type == autoscalingv2.ExternalMetricSourceType
	}
	// Without pods, only a metric from elsewhere can show that pods are needed.
	if spec.MinReplicas != nil && *spec.MinReplicas == 0 && !outside {
		errs = append(errs, field.Forbidden(path, "must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	return errs
}

func validateMetric(metric *autoscalingv2.MetricSpec, objects references, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if metric.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric source type"))
	}
	sources := []struct {
		typ      autoscalingv2.MetricSourceType
		field    string
		present  bool
		validate func(path *field.Path) field.ErrorList
	}{
		{autoscalingv2.ObjectMetricSourceType, "object", metric.Object != nil, func(p *field.Path) field.ErrorList { return validateObject(metric.Object, objects, p) }},
		{autoscalingv2.ExternalMetricSourceType, "external", metric.External != nil, func(p *field.Path) field.ErrorList { return validateExternal(metric.External, p) }},
		{autoscalingv2.PodsMetricSourceType, "pods", metric.Pods != nil, func(p *field.Path) field.ErrorList { return validatePods(metric.Pods, p) }},
		{autoscalingv2.ResourceMetricSourceType, "resource", metric.Resource != nil, func(p *field.Path) field.ErrorList { return validateResource(metric.Resource, p) }},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", metric.ContainerResource != nil, func(p *field.Path) field.ErrorList { return validateContainerResource(metric.ContainerResource, p) }},
	}
	types := sets.New[autoscalingv2.MetricSourceType]()
	present := 0
	for _, source := range sources {
		types.Insert(source.typ)
		if source.present {
			if present++; present == 1 {
				errs = append(errs, source.validate(path.Child(source.field))...)
			}
		}
	}
	for _, source := range sources {
		switch {
		case source.typ == metric.Type && !source.present:
			errs = append(errs, field.Required(path.Child(source.field), "must populate information for the given metric source"))
		case source.typ != metric.Type && source.present && present > 1:
			errs = append(errs, field.Forbidden(path.Child(source.field), "must populate the given metric source only"))
		}
	}
	if !types.Has(metric.Type) {
		// Upstream reports an unknown type twice, and clients see both errors.
		unsupported := field.NotSupported(path.Child("type"), metric.Type, sets.List(types))
		errs = append(errs, unsupported, unsupported)
	}
	return errs
}

func validateObject(source *autoscalingv2.ObjectMetricSource, objects references, path *field.Path) field.ErrorList {
	errs := validateReference(source.DescribedObject, objects, path.Child("describedObject"))
	errs = append(errs, validateIdentifier(source.Metric, path.Child("metric"))...)
	errs = append(errs, validateTarget(source.Target, path.Child("target"))...)
	if source.Target.Value == nil && source.Target.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func validateExternal(source *autoscalingv2.ExternalMetricSource, path *field.Path) field.ErrorList {
	errs := validateIdentifier(source.Metric, path.Child("metric"))
	errs = append(errs, validateTarget(source.Target, path.Child("target"))...)
	switch hasValue, hasAverage := source.Target.Value != nil, source.Target.AverageValue != nil; {
	case !hasValue && !hasAverage:
		errs = append(errs, field.Required(path.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target"))
	case hasValue && hasAverage:
		errs = append(errs, field.Forbidden(path.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func validatePods(source *autoscalingv2.PodsMetricSource, path *field.Path) field.ErrorList {
	errs := validateIdentifier(source.Metric, path.Child("metric"))
	errs = append(errs, validateTarget(source.Target, path.Child("target"))...)
	if source.Target.AverageValue == nil {
		errs = append(errs, field.Required(path.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func validateResource(source *autoscalingv2.ResourceMetricSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if source.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "must specify a resource name"))
	}
	return append(errs, validateUsage(source.Target, path.Child("target"))...)
}

func validateContainerResource(source *autoscalingv2.ContainerResourceMetricSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if source.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "must specify a resource name"))
	} else {
		errs = append(errs, podspec.ValidateContainerResourceName(source.Name, path.Child("name"))...)
	}
	if source.Container == "" {
		errs = append(errs, field.Required(path.Child("container"), "must specify a container"))
	} else {
		for _, message := range utilvalidation.IsDNS1123Label(source.Container) {
			errs = append(errs, field.Invalid(path.Child("container"), source.Container, message))
		}
	}
	return append(errs, validateUsage(source.Target, path.Child("target"))...)
}

// validateUsage validates the target of a resource metric: an average value or a utilization, not both.
func validateUsage(target autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	errs := validateTarget(target, path)
	switch hasShare, hasAmount := target.AverageUtilization != nil, target.AverageValue != nil; {
	case !hasShare && !hasAmount:
		errs = append(errs, field.Required(path.Child("averageUtilization"), "must set either a target raw value or a target utilization"))
	case hasShare && hasAmount:
		errs = append(errs, field.Forbidden(path.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateTarget(target autoscalingv2.MetricTarget, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if target.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric target type"))
	}
	switch target.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	default:
		errs = append(errs, field.Invalid(path.Child("type"), target.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if target.Value != nil && target.Value.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("value"), target.Value, "must be positive"))
	}
	if target.AverageValue != nil && target.AverageValue.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("averageValue"), target.AverageValue, "must be positive"))
	}
	if target.AverageUtilization != nil && *target.AverageUtilization < 1 {
		errs = append(errs, field.Invalid(path.Child("averageUtilization"), target.AverageUtilization, "must be greater than 0"))
	}
	return errs
}

func validateIdentifier(metric autoscalingv2.MetricIdentifier, path *field.Path) field.ErrorList {
	return validateSegment(metric.Name, "must specify a metric name", path.Child("name"))
}

func validateRules(rules *autoscalingv2.HPAScalingRules, path *field.Path) field.ErrorList {
	if rules == nil {
		return nil
	}
	var errs field.ErrorList
	if window := rules.StabilizationWindowSeconds; window != nil {
		fldPath := path.Child("stabilizationWindowSeconds")
		if *window < 0 {
			errs = append(errs, field.Invalid(fldPath, window, "must be greater than or equal to zero"))
		}
		if *window > maxStabilizationSeconds {
			errs = append(errs, field.Invalid(fldPath, window, fmt.Sprintf("must be less than or equal to %d", maxStabilizationSeconds)))
		}
	}
	choices := sets.New(autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect)
	if rules.SelectPolicy != nil && !choices.Has(*rules.SelectPolicy) {
		errs = append(errs, field.NotSupported(path.Child("selectPolicy"), rules.SelectPolicy, sets.List(choices)))
	}
	if len(rules.Policies) == 0 {
		errs = append(errs, field.Required(path.Child("policies"), "must specify at least one Policy"))
	}
	for i, policy := range rules.Policies {
		errs = append(errs, validatePolicy(policy, path.Child("policies").Index(i))...)
	}
	if tolerance := rules.Tolerance; tolerance != nil && tolerance.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("tolerance"), tolerance.String(), validation.IsNegativeErrorMsg))
	}
	return errs
}

func validatePolicy(policy autoscalingv2.HPAScalingPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	types := sets.New(autoscalingv2.PodsScalingPolicy, autoscalingv2.PercentScalingPolicy)
	if !types.Has(policy.Type) {
		errs = append(errs, field.NotSupported(path.Child("type"), policy.Type, sets.List(types)))
	}
	if policy.Value <= 0 {
		errs = append(errs, field.Invalid(path.Child("value"), policy.Value, "must be greater than zero"))
	}
	if policy.PeriodSeconds <= 0 {
		errs = append(errs, field.Invalid(path.Child("periodSeconds"), policy.PeriodSeconds, "must be greater than zero"))
	}
	if policy.PeriodSeconds > maxPeriodSeconds {
		errs = append(errs, field.Invalid(path.Child("periodSeconds"), policy.PeriodSeconds, fmt.Sprintf("must be less than or equal to %d", maxPeriodSeconds)))
	}
	return errs
}
