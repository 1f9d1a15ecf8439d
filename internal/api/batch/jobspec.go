package batch

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

const (
	maxIndexedParallelism             = 100_000
	maxFailedIndexes                  = 100_000
	maxParallelismForManyCompletions  = 10_000
	maxFailedIndexesOfManyCompletions = 10_000
	maxManagedByLength                = 63
)

func validateJob(_ *kind.Request, job, old *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	var options metav1validation.LabelSelectorValidationOptions
	if old == nil {
		errs = append(errs, validateGeneratedSelector(job)...)
		errs = append(errs, validateJobSpec(&job.Spec, nil, path)...)
	} else {
		options.AllowInvalidLabelValueInSelector = metav1validation.LabelSelectorHasInvalidLabelValue(old.Spec.Selector)
		errs = append(errs, validateJobSpec(&job.Spec, &old.Spec, path)...)
	}
	errs = append(errs, validateSelector(&job.Spec, options, path)...)
	if old != nil {
		errs = append(errs, validateJobChange(job, old, path)...)
	}
	return append(errs, validatePodNames(job)...)
}

// validateGeneratedSelector refuses a selector that a client set without manualSelector.
func validateGeneratedSelector(job *batchv1.Job) field.ErrorList {
	if ptr.Deref(job.Spec.ManualSelector, false) || job.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	if job.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "uid"), ""))
	}
	own := ownLabels(job)
	path := field.NewPath("spec", "template", "metadata", "labels")
	for _, label := range []string{legacyControllerUIDLabel, legacyJobNameLabel, batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		switch value, found := job.Spec.Template.Labels[label]; {
		case !found:
			errs = append(errs, field.Required(path.Key(label), fmt.Sprintf("must be '%s'", own[label])))
		case value != own[label]:
			errs = append(errs, field.Invalid(path.Key(label), job.Spec.Template.Labels, fmt.Sprintf("must be '%s'", own[label])))
		}
	}
	if selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector); err == nil && !selector.Matches(labels.Set(own)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), job.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

func validateSelector(spec *batchv1.JobSpec, options metav1validation.LabelSelectorValidationOptions, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Selector == nil {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	} else {
		errs = append(errs, metav1validation.ValidateLabelSelector(spec.Selector, options, path.Child("selector"))...)
	}
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil && !selector.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// validatePodNames: the hostnames of an indexed job's pods consist of its name and their index.
func validatePodNames(job *batchv1.Job) field.ErrorList {
	completions := ptr.Deref(job.Spec.Completions, 0)
	if ptr.Deref(job.Spec.CompletionMode, "") != batchv1.IndexedCompletion || completions <= 0 {
		return nil
	}
	longest := fmt.Sprintf("%s-%d", job.Name, completions-1)
	if len(utilvalidation.IsDNS1123Label(longest)) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), job.Name, "will not able to create pod with invalid DNS label: "+longest)}
}

// validateJobSpec validates the specification of a job or of a job template.
func validateJobSpec(spec, old *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, number := range []struct {
		field string
		value *int32
	}{
		{"parallelism", spec.Parallelism}, {"completions", spec.Completions}, {"backoffLimit", spec.BackoffLimit},
		{"ttlSecondsAfterFinished", spec.TTLSecondsAfterFinished}, {"backoffLimitPerIndex", spec.BackoffLimitPerIndex},
		{"maxFailedIndexes", spec.MaxFailedIndexes},
	} {
		if number.value != nil {
			errs = append(errs, validation.ValidateNonnegativeField(int64(*number.value), path.Child(number.field))...)
		}
	}
	if spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, validation.ValidateNonnegativeField(*spec.ActiveDeadlineSeconds, path.Child("activeDeadlineSeconds"))...)
	}
	if spec.MaxFailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if spec.ManagedBy != nil {
		errs = append(errs, utilvalidation.IsDomainPrefixedPath(path.Child("managedBy"), *spec.ManagedBy)...)
		if len(*spec.ManagedBy) > maxManagedByLength {
			errs = append(errs, field.TooLong(path.Child("managedBy"), "", maxManagedByLength))
		}
	}
	errs = append(errs, validateCompletionMode(spec, path)...)
	if spec.PodFailurePolicy != nil {
		errs = append(errs, validatePodFailurePolicy(spec, path.Child("podFailurePolicy"))...)
	}
	if spec.SuccessPolicy != nil {
		if isIndexed(spec) {
			errs = append(errs, validateSuccessPolicy(spec, path.Child("successPolicy"))...)
		} else {
			errs = append(errs, field.Invalid(path.Child("successPolicy"), *spec.SuccessPolicy, "requires indexed completion mode"))
		}
	}
	errs = append(errs, validateReplacementPolicy(spec, path.Child("podReplacementPolicy"))...)
	errs = append(errs, podspec.ValidateTemplate(&spec.Template, templateOf(old), path.Child("template"))...)
	return append(errs, validateRestartPolicy(spec, path.Child("template", "spec", "restartPolicy"))...)
}

func isIndexed(spec *batchv1.JobSpec) bool {
	return ptr.Deref(spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

func validateCompletionMode(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if isIndexed(spec) {
		return validateIndexed(spec, path)
	}
	var errs field.ErrorList
	if mode := spec.CompletionMode; mode != nil && *mode != batchv1.NonIndexedCompletion {
		return append(errs, field.NotSupported(path.Child("completionMode"), mode, []batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion}))
	}
	if spec.BackoffLimitPerIndex != nil {
		errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *spec.BackoffLimitPerIndex, "requires indexed completion mode"))
	}
	if spec.MaxFailedIndexes != nil {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *spec.MaxFailedIndexes, "requires indexed completion mode"))
	}
	return errs
}

// validateIndexed bounds the status of an indexed job, which lists indexes.
func validateIndexed(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	completions, failed := spec.Completions, spec.MaxFailedIndexes
	parallelism := ptr.Deref(spec.Parallelism, 0)
	var errs field.ErrorList
	if completions == nil {
		errs = append(errs, field.Required(path.Child("completions"), "when completion mode is Indexed"))
	}
	if parallelism > maxIndexedParallelism {
		errs = append(errs, field.Invalid(path.Child("parallelism"), parallelism,
			fmt.Sprintf("must be less than or equal to %d when completion mode is Indexed", maxIndexedParallelism)))
	}
	if completions != nil && failed != nil && *failed > *completions {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *failed, "must be less than or equal to completions"))
	}
	if failed != nil && *failed > maxFailedIndexes {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *failed, fmt.Sprintf("must be less than or equal to %d", maxFailedIndexes)))
	}
	if spec.BackoffLimitPerIndex == nil || ptr.Deref(completions, 0) <= completionsSoftLimit {
		return errs
	}
	const many = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if failed == nil {
		errs = append(errs, field.Required(path.Child("maxFailedIndexes"), fmt.Sprintf("must be specified when completions is above %d", completionsSoftLimit)))
	}
	if parallelism > maxParallelismForManyCompletions {
		errs = append(errs, field.Invalid(path.Child("parallelism"), parallelism, fmt.Sprintf(many, maxParallelismForManyCompletions, completionsSoftLimit)))
	}
	if failed != nil && *failed > maxFailedIndexesOfManyCompletions {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *failed, fmt.Sprintf(many, maxFailedIndexesOfManyCompletions, completionsSoftLimit)))
	}
	return errs
}

func validateReplacementPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	policy := spec.PodReplacementPolicy
	if policy == nil || *policy == batchv1.Failed {
		return nil
	}
	// With a pod failure policy each failure must be evaluated before the next pod is created.
	if spec.PodFailurePolicy != nil {
		return field.ErrorList{field.NotSupported(path, *policy, []batchv1.PodReplacementPolicy{batchv1.Failed})}
	}
	if *policy != batchv1.TerminatingOrFailed {
		return field.ErrorList{field.NotSupported(path, *policy, []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed})}
	}
	return nil
}

func validateRestartPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	switch policy := spec.Template.Spec.RestartPolicy; policy {
	case corev1.RestartPolicyAlways, "":
		return field.ErrorList{field.Required(path, `valid values: "OnFailure", "Never"`)}
	case corev1.RestartPolicyNever:
		return nil
	case corev1.RestartPolicyOnFailure:
		if spec.PodFailurePolicy != nil {
			return field.ErrorList{field.Invalid(path, policy, `only "Never" is supported when podFailurePolicy is specified`)}
		}
		return nil
	default:
		return field.ErrorList{field.NotSupported(path, policy, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever})}
	}
}

// validateJobChange: most fields of a job are immutable.
func validateJobChange(job, old *batchv1.Job, path *field.Path) field.ErrorList {
	spec, before := &job.Spec, &old.Spec
	errs := validateCompletions(spec, before, path)
	errs = append(errs, validation.ValidateImmutableField(spec.Selector, before.Selector, path.Child("selector"))...)
	errs = append(errs, validateTemplateChange(spec, old, path.Child("template"))...)
	errs = append(errs, validation.ValidateImmutableField(spec.CompletionMode, before.CompletionMode, path.Child("completionMode"))...)
	errs = append(errs, validation.ValidateImmutableField(spec.PodFailurePolicy, before.PodFailurePolicy, path.Child("podFailurePolicy"))...)
	errs = append(errs, validation.ValidateImmutableField(spec.BackoffLimitPerIndex, before.BackoffLimitPerIndex, path.Child("backoffLimitPerIndex"))...)
	errs = append(errs, validation.ValidateImmutableField(spec.ManagedBy, before.ManagedBy, path.Child("managedBy"))...)
	return append(errs, validation.ValidateImmutableField(spec.SuccessPolicy, before.SuccessPolicy, path.Child("successPolicy"))...)
}

// validateCompletions: an elastic indexed job may change its completions together with its parallelism.
func validateCompletions(spec, before *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if !isIndexed(spec) {
		return validation.ValidateImmutableField(spec.Completions, before.Completions, path.Child("completions"))
	}
	if spec.Completions == nil || ptr.Equal(spec.Completions, before.Completions) || *spec.Completions == ptr.Deref(spec.Parallelism, 0) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("completions"), spec.Completions,
		fmt.Sprintf("can only be modified in tandem with %s", path.Child("parallelism")))}
}

// validateTemplateChange: while a job is suspended and has no pods, a job queue may change the scheduling and the
// resources of its pods.
func validateTemplateChange(spec *batchv1.JobSpec, old *batchv1.Job, path *field.Path) field.ErrorList {
	template, before := &spec.Template, old.Spec.Template.DeepCopy()
	if !templateIsOpen(old) {
		return validation.ValidateImmutableField(template, before, path)
	}
	var nodeAffinity *corev1.NodeAffinity
	if template.Spec.Affinity != nil {
		nodeAffinity = template.Spec.Affinity.NodeAffinity
	}
	switch {
	case before.Spec.Affinity != nil:
		before.Spec.Affinity.NodeAffinity = nodeAffinity
		if template.Spec.Affinity == nil && equality.Semantic.DeepEqual(before.Spec.Affinity, &corev1.Affinity{}) {
			before.Spec.Affinity = nil
		}
	case template.Spec.Affinity != nil:
		before.Spec.Affinity = &corev1.Affinity{NodeAffinity: nodeAffinity}
	}
	before.Spec.NodeSelector = template.Spec.NodeSelector
	before.Spec.Tolerations = template.Spec.Tolerations
	before.Spec.SchedulingGates = template.Spec.SchedulingGates
	takeResources(before.Spec.Containers, template.Spec.Containers)
	takeResources(before.Spec.InitContainers, template.Spec.InitContainers)
	return validation.ValidateImmutableField(template.Spec, before.Spec, path.Child("spec"))
}

// takeResources hides a change of resources: to takes those of from if the containers are the same.
func takeResources(to, from []corev1.Container) {
	if len(to) != len(from) {
		return
	}
	for i := range to {
		if to[i].Name == from[i].Name {
			to[i].Resources = from[i].Resources
		}
	}
}

func templateIsOpen(job *batchv1.Job) bool {
	return ptr.Deref(job.Spec.Suspend, false) && (job.Status.StartTime == nil || isTrue(job, batchv1.JobSuspended)) && job.Status.Active == 0
}
