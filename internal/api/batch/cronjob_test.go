package batch

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

type cronJob = *batchv1.CronJob

func baseCronJob() cronJob {
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: "default", CreationTimestamp: kindtest.MinutesAgo(60)},
		Spec:       batchv1.CronJobSpec{Schedule: "*/5 * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: baseJob().Spec}},
	}
}

func TestParseSchedule(t *testing.T) {
	for schedule, want := range map[string]string{
		"* * * * *": "", "0 0 1 1 *": "", "@hourly": "", "@every 1h30m": "", "1-5,7 */2 1,15 JAN-MAR MON": "", "? * * * ?": "",
		"0 0 * *": "expected exactly 5 fields, found 4", "60 * * * *": "end of range (60) above maximum (59)", "* * * * * *": "expected exactly 5 fields, found 6",
		"@never": "unrecognized descriptor", "x * * * *": "failed to parse int", "TZ=0": "invalid schedule format", "*/0 * * * *": "step of range should be a positive number",
	} {
		_, err := ParseSchedule(schedule)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", schedule, err, want)
		}
	}
}

func TestValidateCronJob(t *testing.T) {
	spec := func(f func(*batchv1.CronJobSpec)) func(cronJob) { return func(c cronJob) { f(&c.Spec) } }
	zone := func(z string) func(cronJob) { return func(c cronJob) { c.Spec.TimeZone = &z } }
	kindtest.Validations(t, CronJob, baseCronJob(), []kindtest.Case[cronJob]{
		{Name: "ordinary"},
		{Name: "no schedule", Change: spec(func(s *batchv1.CronJobSpec) { s.Schedule = "" }), Want: []string{"spec.schedule: Required value"}},
		{Name: "bad schedule", Change: spec(func(s *batchv1.CronJobSpec) { s.Schedule = "daily" }), Want: []string{`spec.schedule: Invalid value: "daily": expected exactly 5 fields, found 1: [daily]`}},
		{Name: "zone in schedule", Change: spec(func(s *batchv1.CronJobSpec) { s.Schedule = "TZ=UTC 0 * * * *" }), Want: []string{"spec.schedule: cannot use TZ or CRON_TZ in schedule, use timeZone field instead"}},
		{Name: "zone", Change: zone("Europe/Zurich")},
		{Name: "empty zone", Change: zone(""), Want: []string{"spec.timeZone: timeZone must be nil or non-empty string"}},
		{Name: "local", Change: zone("local"), Want: []string{"spec.timeZone: timeZone must be an explicit time zone", "spec.timeZone: unknown time zone local"}},
		{Name: "no such zone", Change: zone("Europe/Atlantis"), Want: []string{"spec.timeZone: unknown time zone Europe/Atlantis"}},
		{Name: "zone outside", Change: zone("../../etc/passwd"), Want: []string{"spec.timeZone: unknown time zone ../../etc/passwd"}},
		{Name: "concurrency", Change: spec(func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = "x" }), Want: []string{`spec.concurrencyPolicy: Unsupported value: "x": supported values: "Allow", "Forbid", "Replace"`}},
		{Name: "negative", Change: spec(func(s *batchv1.CronJobSpec) {
			s.StartingDeadlineSeconds, s.SuccessfulJobsHistoryLimit, s.FailedJobsHistoryLimit = ptr.To[int64](-1), ptr.To[int32](-1), ptr.To[int32](-1)
		}), Want: []string{
			"spec.startingDeadlineSeconds: must be greater than or equal to 0", "spec.successfulJobsHistoryLimit: must be greater than or equal to 0", "spec.failedJobsHistoryLimit: must be greater than or equal to 0",
		}},
		{Name: "long name", Change: func(c cronJob) { c.Name = strings.Repeat("a", 53) }, Want: []string{"metadata.name: must be no more than 52 characters"}},
		{Name: "selector", Change: spec(func(s *batchv1.CronJobSpec) {
			s.JobTemplate.Spec.Selector, s.JobTemplate.Spec.ManualSelector = &metav1.LabelSelector{}, ptr.To(true)
		}), Want: []string{"spec.jobTemplate.spec.selector: `selector` will be auto-generated", `spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"`}},
		{Name: "template is validated", Change: spec(func(s *batchv1.CronJobSpec) {
			s.JobTemplate.Spec.Template.Spec.RestartPolicy, s.JobTemplate.Spec.BackoffLimit = "Always", ptr.To[int32](-1)
		}), Want: []string{"spec.jobTemplate.spec.template.spec.restartPolicy: Required value", "spec.jobTemplate.spec.backoffLimit: must be greater than or equal to 0"}},
		{Name: "success policy without completions", Change: spec(func(s *batchv1.CronJobSpec) {
			s.JobTemplate.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
			s.JobTemplate.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: ptr.To[int32](1)}}}
		}), Want: []string{"spec.jobTemplate.spec.completions: Required value: when completion mode is Indexed"}},
		{Name: "all may change", Update: true, Change: spec(func(s *batchv1.CronJobSpec) {
			s.Schedule, s.JobTemplate.Spec.Template.Spec.Containers[0].Image = "@daily", "perl:6"
		})},
	})
	old := kindtest.With(baseCronJob(), func(c cronJob) { c.Spec.Schedule = "CRON_TZ=UTC 0 * * * *" })
	for _, c := range []struct {
		change func(cronJob)
		want   []string
	}{
		{change: func(c cronJob) { c.Spec.Schedule = "TZ=UTC 1 * * * *" }},
		{change: zone("UTC"), want: []string{"spec.schedule: Invalid value: cannot use both timeZone field and TZ or CRON_TZ in schedule"}},
	} {
		_, errs := kindtest.Update(CronJob, nil, kindtest.With(old, c.change), old)
		kindtest.Errors(t, errs, c.want...)
	}
	kindtest.Warnings(t, CronJob.Warn(old, old), "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead")
	kindtest.Warnings(t, CronJob.Warn(kindtest.With(baseCronJob(), func(c cronJob) { c.Name = "a.b" }), nil), "metadata.name: this is used in Pod names")
}

func TestCronJobDefaultsAndRow(t *testing.T) {
	kindtest.ColumnsDescribed(t, CronJob)
	stored, _ := kindtest.Create(CronJob, nil, baseCronJob())
	spec := &stored.Spec
	if spec.ConcurrencyPolicy != "Allow" || *spec.Suspend || *spec.SuccessfulJobsHistoryLimit != 3 || *spec.FailedJobsHistoryLimit != 1 ||
		spec.JobTemplate.Spec.Completions != nil || spec.JobTemplate.Spec.Template.Spec.DNSPolicy != "ClusterFirst" {
		t.Errorf("defaults %+v", spec)
	}
	kindtest.Row(t, CronJob, stored, "nightly", "*/5 * * * *", "<none>", "False", int64(0), "<none>", "60m", "pi", "perl:5", "<none>")
	kindtest.Row(t, CronJob, kindtest.With(stored, func(c cronJob) {
		c.Spec.TimeZone, c.Spec.Suspend = ptr.To("UTC"), ptr.To(true)
		c.Status = batchv1.CronJobStatus{Active: make([]corev1.ObjectReference, 2), LastScheduleTime: ptr.To(kindtest.MinutesAgo(3))}
	}), "nightly", "*/5 * * * *", "UTC", "True", int64(2), "3m", "60m", "pi", "perl:5", "<none>")
}
