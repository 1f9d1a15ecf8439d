package batch

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	_ "time/tzdata" // time zones must be the same on every host

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/apps"
	"skiff/internal/kind"
)

// maxCronJobName leaves space for the suffix of the jobs' names.
const maxCronJobName = utilvalidation.DNS1035LabelMaxLength - 11

var cronJobSpecDoc = batchv1.CronJobSpec{}.SwaggerDoc()

// CronJob creates jobs on a schedule.
var CronJob = kind.Of(kind.Definition[*batchv1.CronJob]{
	GVK: batchv1.SchemeGroupVersion.WithKind("CronJob"), Plural: "cronjobs", Short: []string{"cj"}, Categories: []string{"all"}, Namespaced: true,
	List:    &batchv1.CronJobList{},
	Default: defaultCronJob,
	Prepare: func(_ *kind.Request, cronJob, old *batchv1.CronJob) {
		dropDisabled(&cronJob.Spec.JobTemplate.Spec, jobSpecOf(old))
	},
	Validate:    validateCronJob,
	Warn:        warnCronJob,
	CopyStatus:  func(to, from *batchv1.CronJob) { to.Status = from.Status },
	SpecChanged: cronJobChanged,
	Columns: columns([]metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Schedule", "string", cronJobSpecDoc["schedule"]),
		kind.Column("Timezone", "string", cronJobSpecDoc["timeZone"]),
		kind.Column("Suspend", "boolean", cronJobSpecDoc["suspend"]),
		kind.Column("Active", "integer", batchv1.CronJobStatus{}.SwaggerDoc()["active"]),
		kind.Column("Last Schedule", "string", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]),
		kind.AgeColumn(),
	}),
	Row: rowOfCronJob,
})

func cronJobChanged(cronJob, old *batchv1.CronJob) bool {
	return !equality.Semantic.DeepEqual(cronJob.Spec, old.Spec)
}

// jobSpecOf is the job spec of the stored object, nil if there is none.
func jobSpecOf(old *batchv1.CronJob) *batchv1.JobSpec {
	if old == nil {
		return nil
	}
	return &old.Spec.JobTemplate.Spec
}

func defaultCronJob(cronJob *batchv1.CronJob) {
	spec := &cronJob.Spec
	if spec.ConcurrencyPolicy == "" {
		spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	kind.SetDefault(&spec.Suspend, false)
	kind.SetDefault(&spec.SuccessfulJobsHistoryLimit, 3)
	kind.SetDefault(&spec.FailedJobsHistoryLimit, 1)
	defaultJobTemplate(&spec.JobTemplate.Spec)
}

// ParseSchedule parses the schedule of a CronJob: five fields, or a name such as @daily.
func ParseSchedule(schedule string) (parsed cron.Schedule, err error) {
	// The parser panics on some schedules that begin with a time zone.
	defer func() {
		if problem := recover(); problem != nil {
			parsed, err = nil, fmt.Errorf("invalid schedule format: %v", problem)
		}
	}()
	return cron.ParseStandard(schedule)
}

func validateCronJob(_ *kind.Request, cronJob, old *batchv1.CronJob) field.ErrorList {
	spec, path := &cronJob.Spec, field.NewPath("spec")
	zoneInSchedule := old != nil && strings.Contains(old.Spec.Schedule, "TZ")
	errs := validateSchedule(spec, zoneInSchedule, path.Child("schedule"))
	if spec.StartingDeadlineSeconds != nil {
		errs = append(errs, validation.ValidateNonnegativeField(*spec.StartingDeadlineSeconds, path.Child("startingDeadlineSeconds"))...)
	}
	if old == nil || !ptr.Equal(old.Spec.TimeZone, spec.TimeZone) {
		errs = append(errs, validateTimeZone(spec.TimeZone, path.Child("timeZone"))...)
	}
	switch policy, fldPath := spec.ConcurrencyPolicy, path.Child("concurrencyPolicy"); policy {
	case batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent:
	case "":
		errs = append(errs, field.Required(fldPath, ""))
	default:
		errs = append(errs, field.NotSupported(fldPath, policy, []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}))
	}
	errs = append(errs, validateJobTemplate(cronJob, old, path.Child("jobTemplate", "spec"))...)
	for _, limit := range []struct {
		field string
		value *int32
	}{{"successfulJobsHistoryLimit", spec.SuccessfulJobsHistoryLimit}, {"failedJobsHistoryLimit", spec.FailedJobsHistoryLimit}} {
		errs = append(errs, validation.ValidateNonnegativeField(int64(ptr.Deref(limit.value, 0)), path.Child(limit.field))...)
	}
	if old == nil && len(cronJob.Name) > maxCronJobName {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), cronJob.Name, "must be no more than 52 characters"))
	}
	return errs
}

// validateJobTemplate validates the job template; jobs get their selectors only when they are created.
func validateJobTemplate(cronJob, old *batchv1.CronJob, path *field.Path) field.ErrorList {
	spec := &cronJob.Spec.JobTemplate.Spec
	errs := validateJobSpec(spec, jobSpecOf(old), path)
	if spec.Selector != nil {
		errs = append(errs, field.Invalid(path.Child("selector"), spec.Selector, "`selector` will be auto-generated"))
	}
	if ptr.Deref(spec.ManualSelector, false) {
		errs = append(errs, field.NotSupported(path.Child("manualSelector"), spec.ManualSelector, []string{"nil", "false"}))
	}
	return errs
}

// validateSchedule: only stored objects may have a time zone in the schedule.
func validateSchedule(spec *batchv1.CronJobSpec, allowZone bool, path *field.Path) field.ErrorList {
	if spec.Schedule == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if _, err := ParseSchedule(spec.Schedule); err != nil {
		errs = append(errs, field.Invalid(path, spec.Schedule, err.Error()))
	}
	if !strings.Contains(spec.Schedule, "TZ") {
		return errs
	}
	switch {
	case !allowZone:
		errs = append(errs, field.Invalid(path, spec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	case spec.TimeZone != nil:
		errs = append(errs, field.Invalid(path, spec.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
	}
	return errs
}

// zonePart is a path segment of a time zone name. It prevents names from leaving the directory of time zones.
var zonePart = regexp.MustCompile(`^[A-Za-z\.\-_0-9+]{1,14}$`)

func validateTimeZone(zone *string, path *field.Path) field.ErrorList {
	if zone == nil {
		return nil
	}
	if *zone == "" {
		return field.ErrorList{field.Invalid(path, zone, "timeZone must be nil or non-empty string")}
	}
	for _, part := range strings.Split(*zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			return field.ErrorList{field.Invalid(path, zone, fmt.Sprintf("unknown time zone %s", *zone))}
		}
	}
	var errs field.ErrorList
	if strings.EqualFold(*zone, "Local") {
		errs = append(errs, field.Invalid(path, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		errs = append(errs, field.Invalid(path, zone, err.Error()))
	}
	return errs
}

func warnCronJob(cronJob, old *batchv1.CronJob) []string {
	path := field.NewPath("spec", "jobTemplate", "spec")
	template := &cronJob.Spec.JobTemplate.Spec
	if old == nil {
		return append(apps.WarnName(cronJob.Name), warnJobSpec(template, nil, path)...)
	}
	var warnings []string
	if cronJobChanged(cronJob, old) {
		warnings = warnJobSpec(template, &old.Spec.JobTemplate.Spec, path)
	}
	if strings.Contains(cronJob.Spec.Schedule, "TZ") {
		warnings = append(warnings, fmt.Sprintf("cannot use TZ or CRON_TZ in %s, use timeZone instead, "+
			"see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", field.NewPath("spec", "spec", "schedule")))
	}
	return warnings
}

func rowOfCronJob(cronJob *batchv1.CronJob, now time.Time) []any {
	suspend := "<unset>"
	if cronJob.Spec.Suspend != nil {
		suspend = map[bool]string{true: "True", false: "False"}[*cronJob.Spec.Suspend]
	}
	last := "<none>"
	if cronJob.Status.LastScheduleTime != nil {
		last = kind.Age(*cronJob.Status.LastScheduleTime, now)
	}
	names, images := apps.ContainerCells(&cronJob.Spec.JobTemplate.Spec.Template)
	return []any{
		cronJob.Name, cronJob.Spec.Schedule, ptr.Deref(cronJob.Spec.TimeZone, "<none>"), suspend, int64(len(cronJob.Status.Active)), last,
		kind.Age(cronJob.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(cronJob.Spec.JobTemplate.Spec.Selector),
	}
}
