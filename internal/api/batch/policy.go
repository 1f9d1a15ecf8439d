package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxFailureRules       = 20
	maxExitCodes          = 255
	maxConditionPatterns  = 20
	maxSuccessRules       = 20
	maxSucceededIndexSize = 64 << 10
)

// validatePodFailurePolicy validates the rules that say what the failure of a pod means for its job.
func validatePodFailurePolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	rules := spec.PodFailurePolicy.Rules
	var errs field.ErrorList
	if len(rules) > maxFailureRules {
		errs = append(errs, field.TooMany(path.Child("rules"), len(rules), maxFailureRules))
	}
	containers := sets.New[string]()
	for _, container := range slices.Concat(spec.Template.Spec.Containers, spec.Template.Spec.InitContainers) {
		containers.Insert(container.Name)
	}
	for i := range rules {
		errs = append(errs, validateFailureRule(&rules[i], spec.BackoffLimitPerIndex != nil, containers, path.Child("rules").Index(i))...)
	}
	return errs
}

func validateFailureRule(rule *batchv1.PodFailurePolicyRule, perIndex bool, containers sets.Set[string], path *field.Path) field.ErrorList {
	actions := []batchv1.PodFailurePolicyAction{
		batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore,
	}
	errs := validateChoice(rule.Action, actions, path.Child("action"))
	if rule.Action == batchv1.PodFailurePolicyActionFailIndex && !perIndex {
		errs = append(errs, field.Invalid(path.Child("action"), rule.Action, "requires the backoffLimitPerIndex to be set"))
	}
	if rule.OnExitCodes != nil {
		errs = append(errs, validateExitCodes(rule.OnExitCodes, containers, path.Child("onExitCodes"))...)
	}
	if len(rule.OnPodConditions) > 0 {
		errs = append(errs, validateConditionPatterns(rule.OnPodConditions, path.Child("onPodConditions"))...)
	}
	switch {
	case rule.OnExitCodes != nil && len(rule.OnPodConditions) > 0:
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
	case rule.OnExitCodes == nil && len(rule.OnPodConditions) == 0:
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
	}
	return errs
}

// validateChoice validates an enumeration. The choices are sorted.
func validateChoice[T ~string](value T, choices []T, path *field.Path) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, fmt.Sprintf("valid values: %q", choices))}
	case !slices.Contains(choices, value):
		return field.ErrorList{field.NotSupported(path, value, choices)}
	}
	return nil
}

func validateConditionPatterns(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(patterns) > maxConditionPatterns {
		errs = append(errs, field.TooMany(path, len(patterns), maxConditionPatterns))
	}
	for i, pattern := range patterns {
		for _, message := range utilvalidation.IsQualifiedName(string(pattern.Type)) {
			errs = append(errs, field.Invalid(path.Index(i).Child("type"), string(pattern.Type), message))
		}
		statuses := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		errs = append(errs, validateChoice(pattern.Status, statuses, path.Index(i).Child("status"))...)
	}
	return errs
}

func validateExitCodes(codes *batchv1.PodFailurePolicyOnExitCodesRequirement, containers sets.Set[string], path *field.Path) field.ErrorList {
	operators := []batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	errs := validateChoice(codes.Operator, operators, path.Child("operator"))
	if codes.ContainerName != nil && !containers.Has(*codes.ContainerName) {
		errs = append(errs, field.Invalid(path.Child("containerName"), *codes.ContainerName, "must be one of the container or initContainer names in the pod template"))
	}
	path = path.Child("values")
	if len(codes.Values) == 0 {
		errs = append(errs, field.Invalid(path, codes.Values, "at least one value is required"))
	} else if len(codes.Values) > maxExitCodes {
		errs = append(errs, field.TooMany(path, len(codes.Values), maxExitCodes))
	}
	seen := sets.New[int32]()
	for i, value := range codes.Values {
		// Exit code zero is not a failure.
		if codes.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && value == 0 {
			errs = append(errs, field.Invalid(path.Index(i), value, "must not be 0 for the In operator"))
		}
		if seen.Has(value) {
			errs = append(errs, field.Duplicate(path.Index(i), value))
		}
		seen.Insert(value)
	}
	if !slices.IsSorted(codes.Values) {
		errs = append(errs, field.Invalid(path, codes.Values, "must be ordered"))
	}
	return errs
}

// validateSuccessPolicy validates the rules by which an indexed job succeeds before all of its indexes have.
func validateSuccessPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	rules := spec.SuccessPolicy.Rules
	path = path.Child("rules")
	var errs field.ErrorList
	if len(rules) == 0 {
		errs = append(errs, field.Required(path, "at least one rules must be specified when the successPolicy is specified"))
	}
	if len(rules) > maxSuccessRules {
		errs = append(errs, field.TooMany(path, len(rules), maxSuccessRules))
	}
	if spec.Completions == nil {
		return errs // already refused; the rules cannot be validated without completions
	}
	for i := range rules {
		errs = append(errs, validateSuccessRule(&rules[i], *spec.Completions, path.Index(i))...)
	}
	return errs
}

func validateSuccessRule(rule *batchv1.SuccessPolicyRule, completions int32, path *field.Path) field.ErrorList {
	if rule.SucceededCount == nil && rule.SucceededIndexes == nil {
		return field.ErrorList{field.Required(path, "at least one of succeededCount or succeededIndexes must be specified")}
	}
	var errs field.ErrorList
	var listed int32
	if indexes := rule.SucceededIndexes; indexes != nil {
		fldPath := path.Child("succeededIndexes")
		if len(*indexes) > maxSucceededIndexSize {
			errs = append(errs, field.TooLong(fldPath, "", maxSucceededIndexSize))
		}
		var err error
		if listed, err = countIndexes(*indexes, completions); err != nil {
			errs = append(errs, field.Invalid(fldPath, *indexes, fmt.Sprintf("error parsing succeededIndexes: %s", err)))
		}
	}
	if count := rule.SucceededCount; count != nil {
		fldPath := path.Child("succeededCount")
		errs = append(errs, validation.ValidateNonnegativeField(int64(*count), fldPath)...)
		if *count > completions {
			errs = append(errs, field.Invalid(fldPath, *count, fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions)))
		}
		if rule.SucceededIndexes != nil && *count > listed {
			errs = append(errs, field.Invalid(fldPath, *count, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", listed)))
		}
	}
	return errs
}
