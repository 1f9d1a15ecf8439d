package batch

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/apps"
	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// The labels of a job's pods, and their names before labels of Kubernetes had a prefix.
const (
	legacyControllerUIDLabel = "controller-uid"
	legacyJobNameLabel       = "job-name"
)

const (
	completionsSoftLimit = 100_000
	parallelismSoftLimit = 10_000
)

// Job runs pods until enough of them have succeeded.
var Job = kind.Of(kind.Definition[*batchv1.Job]{
	GVK: batchv1.SchemeGroupVersion.WithKind("Job"), Plural: "jobs", Categories: []string{"all"}, Namespaced: true,
	List:     &batchv1.JobList{},
	Default:  defaultJob,
	Prepare:  prepareJob,
	Validate: validateJob,
	Warn: func(job, old *batchv1.Job) []string {
		path := field.NewPath("spec")
		switch {
		case old == nil:
			return append(apps.WarnName(job.Name), warnJobSpec(&job.Spec, nil, path)...)
		case jobChanged(job, old):
			return warnJobSpec(&job.Spec, &old.Spec, path)
		}
		return nil
	},
	CopyStatus:     func(to, from *batchv1.Job) { to.Status = from.Status },
	ValidateStatus: validateJobStatus,
	SpecChanged:    jobChanged,
	Fields: map[string]func(*batchv1.Job) string{
		"status.successful": func(job *batchv1.Job) string { return strconv.Itoa(int(job.Status.Succeeded)) },
	},
	// The default for batch/v1 is to orphan the pods, for compatibility; few clients expect it, so there is a warning.
	Propagation: metav1.DeletePropagationOrphan,
	WarnDelete: func(_ *batchv1.Job, options *metav1.DeleteOptions) []string {
		if options.PropagationPolicy != nil || options.OrphanDependents != nil { //nolint:staticcheck // old clients still send it
			return nil
		}
		return []string{"child pods are preserved by default when jobs are deleted; " +
			"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"}
	},
	Columns: columns([]metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Status", "string", "Status of the job."),
		kind.Column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
		kind.Column("Duration", "string", "Time required to complete the job."),
		kind.AgeColumn(),
	}),
	Row: func(job *batchv1.Job, now time.Time) []any {
		names, images := apps.ContainerCells(&job.Spec.Template)
		return []any{
			job.Name, statusOf(job), completionsOf(job), durationOf(job, now), kind.Age(job.CreationTimestamp, now),
			names, images, metav1.FormatLabelSelector(job.Spec.Selector),
		}
	},
})

// columns are those of Job and CronJob: the containers and the selector come last.
func columns(first []metav1.TableColumnDefinition) []metav1.TableColumnDefinition {
	return append(append(first, apps.ContainerColumns()...), kind.Wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]))
}

func jobChanged(job, old *batchv1.Job) bool { return !equality.Semantic.DeepEqual(job.Spec, old.Spec) }

func defaultJob(job *batchv1.Job) {
	spec := &job.Spec
	if spec.Completions == nil && spec.Parallelism == nil {
		spec.Completions = ptr.To[int32](1)
	}
	kind.SetDefault(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		kind.SetDefault(&spec.BackoffLimit, math.MaxInt32)
	}
	kind.SetDefault(&spec.BackoffLimit, 6)
	if len(job.Labels) == 0 {
		job.Labels = maps.Clone(spec.Template.Labels)
	}
	kind.SetDefault(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	kind.SetDefault(&spec.Suspend, false)
	if spec.PodFailurePolicy != nil {
		kind.SetDefault(&spec.PodReplacementPolicy, batchv1.Failed)
	}
	kind.SetDefault(&spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	kind.SetDefault(&spec.ManualSelector, false)
	defaultJobTemplate(spec)
}

// defaultJobTemplate sets the defaults that apply to a job template of a CronJob too.
func defaultJobTemplate(spec *batchv1.JobSpec) {
	if spec.PodFailurePolicy != nil {
		for i := range spec.PodFailurePolicy.Rules {
			patterns := spec.PodFailurePolicy.Rules[i].OnPodConditions
			for j := range patterns {
				if patterns[j].Status == "" {
					patterns[j].Status = corev1.ConditionTrue
				}
			}
		}
	}
	podspec.DefaultTemplate(&spec.Template)
}

func prepareJob(_ *kind.Request, job, old *batchv1.Job) {
	if old != nil {
		dropDisabled(&job.Spec, &old.Spec)
		return
	}
	dropDisabled(&job.Spec, nil)
	if !ptr.Deref(job.Spec.ManualSelector, false) {
		generateSelector(job)
	}
}

// dropDisabled clears the fields of disabled features. old is nil on create.
func dropDisabled(spec, old *batchv1.JobSpec) {
	if old == nil || old.Scheduling == nil {
		spec.Scheduling = nil
	}
	podspec.DropDisabledTemplate(&spec.Template, templateOf(old))
}

// generateSelector selects the job's pods by its UID, so that the selectors of two jobs never match the same pods. Values
// of these labels that a client set are kept, and validation refuses them.
func generateSelector(job *batchv1.Job) {
	template := &job.Spec.Template
	// Labels that were copied from the template by default are copied again.
	follow := maps.Equal(job.Labels, template.Labels)
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	for label, value := range ownLabels(job) {
		if _, found := template.Labels[label]; !found {
			template.Labels[label] = value
		}
	}
	if follow {
		job.Labels = maps.Clone(template.Labels)
	}
	if job.Spec.Selector == nil {
		job.Spec.Selector = &metav1.LabelSelector{}
	}
	if job.Spec.Selector.MatchLabels == nil {
		job.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, found := job.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !found {
		job.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(job.UID)
	}
}

// ownLabels are the labels of a job's pods that identify the job.
func ownLabels(job *batchv1.Job) map[string]string {
	return map[string]string{
		legacyJobNameLabel: job.Name, batchv1.JobNameLabel: job.Name,
		legacyControllerUIDLabel: string(job.UID), batchv1.ControllerUidLabel: string(job.UID),
	}
}

func warnJobSpec(spec, old *batchv1.JobSpec, path *field.Path) []string {
	var warnings []string
	if ptr.Deref(spec.CompletionMode, "") == batchv1.IndexedCompletion &&
		ptr.Deref(spec.Completions, 0) > completionsSoftLimit && ptr.Deref(spec.Parallelism, 0) > parallelismSoftLimit {
		warnings = append(warnings, fmt.Sprintf("%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, "+
			"Kubernetes might not be able to track completedIndexes when a big number of indexes fail", path))
	}
	return append(warnings, podspec.WarnTemplate(path.Child("template"), &spec.Template, templateOf(old))...)
}

// templateOf is the template of the stored specification, nil if there is none.
func templateOf(old *batchv1.JobSpec) *corev1.PodTemplateSpec {
	if old == nil {
		return nil
	}
	return &old.Template
}

func isTrue(job *batchv1.Job, condition batchv1.JobConditionType) bool {
	return hasCondition(job, condition, corev1.ConditionTrue)
}

func hasCondition(job *batchv1.Job, condition batchv1.JobConditionType, status corev1.ConditionStatus) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == condition && c.Status == status {
			return true
		}
	}
	return false
}

func isFinished(job *batchv1.Job) bool {
	return isTrue(job, batchv1.JobComplete) || isTrue(job, batchv1.JobFailed)
}

func statusOf(job *batchv1.Job) string {
	switch {
	case isTrue(job, batchv1.JobComplete):
		return "Complete"
	case isTrue(job, batchv1.JobFailed):
		return "Failed"
	case job.DeletionTimestamp != nil:
		return "Terminating"
	case isTrue(job, batchv1.JobSuspended):
		return "Suspended"
	case isTrue(job, batchv1.JobFailureTarget):
		return "FailureTarget"
	case isTrue(job, batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func completionsOf(job *batchv1.Job) string {
	if job.Spec.Completions != nil {
		return fmt.Sprintf("%d/%d", job.Status.Succeeded, *job.Spec.Completions)
	}
	if parallelism := ptr.Deref(job.Spec.Parallelism, 0); parallelism > 1 {
		return fmt.Sprintf("%d/1 of %d", job.Status.Succeeded, parallelism)
	}
	return fmt.Sprintf("%d/1", job.Status.Succeeded)
}

func durationOf(job *batchv1.Job, now time.Time) string {
	switch start, end := job.Status.StartTime, job.Status.CompletionTime; {
	case start == nil:
		return ""
	case end == nil:
		return duration.HumanDuration(now.Sub(start.Time))
	default:
		return duration.HumanDuration(end.Sub(start.Time))
	}
}
