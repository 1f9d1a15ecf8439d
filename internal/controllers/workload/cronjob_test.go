package workload

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/test/world"
)

// aCronJob runs every ten minutes, last at ten to twelve; it is twelve.
func aCronJob(changes ...change[*batchv1.CronJob]) *batchv1.CronJob {
	last := ago(10 * time.Minute)
	return with(&batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tick", UID: "uid-tick", CreationTimestamp: ago(24 * time.Hour)},
		Spec: batchv1.CronJobSpec{Schedule: "*/10 * * * *", ConcurrencyPolicy: batchv1.AllowConcurrent, Suspend: new(false),
			SuccessfulJobsHistoryLimit: new(int32(3)), FailedJobsHistoryLimit: new(int32(1)),
			JobTemplate: batchv1.JobTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1"}}, Spec: batchv1.JobSpec{Template: template("image:1")}}},
		Status: batchv1.CronJobStatus{LastScheduleTime: &last},
	}, changes...)
}

func scheduled(text string) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) { c.Spec.Schedule = text }
}
func policy(p batchv1.ConcurrencyPolicy) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = p }
}
func lastRun(age time.Duration) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) { t := ago(age); c.Status.LastScheduleTime = &t }
}
func deadline(s int64) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &s }
}
func running(names ...string) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) {
		for _, name := range names {
			c.Status.Active = append(c.Status.Active, corev1.ObjectReference{Kind: "Job", Namespace: "default", Name: name, UID: types.UID("uid-" + name)})
		}
	}
}

// run is a job of the cron job.
func tick(name string, changes ...change[*batchv1.Job]) *batchv1.Job {
	start := ago(time.Hour)
	return with(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(aCronJob(), cronJobKind)}}, Status: batchv1.JobStatus{StartTime: &start}}, changes...)
}
func endedAs(t batchv1.JobConditionType, age time.Duration) change[*batchv1.Job] {
	return func(j *batchv1.Job) {
		at := ago(age)
		j.Status.Conditions = []batchv1.JobCondition{{Type: t, Status: "True", LastTransitionTime: at}}
		if t == batchv1.JobComplete {
			j.Status.CompletionTime = &at
		}
	}
}
func startedAgo(age time.Duration) change[*batchv1.Job] {
	return func(j *batchv1.Job) { t := ago(age); j.Status.StartTime = &t }
}

var dueName = fmt.Sprintf("tick-%d", now.Unix()/60)

func TestCronJobPlan(t *testing.T) {
	wait := "again 10m0.1s"
	jobs := func(all ...*batchv1.Job) []*batchv1.Job { return all }
	for _, test := range []struct {
		what    string
		cronJob *batchv1.CronJob
		jobs    []*batchv1.Job
		want    string
		events  []string
		active  string
	}{
		{"due", aCronJob(), nil, "create Job " + dueName + ", " + wait, []string{"SuccessfulCreate: Created job " + dueName}, dueName},
		{"not due", aCronJob(scheduled("5 * * * *"), lastRun(55*time.Minute)), nil, "again 5m0.1s", nil, ""},
		{"never ran", aCronJob(scheduled("0 * * * *"), func(c *batchv1.CronJob) { c.Status.LastScheduleTime = nil; c.CreationTimestamp = ago(time.Minute) }), nil,
			"create Job " + dueName + ", again 1h0m0.1s", []string{"SuccessfulCreate: Created job " + dueName}, dueName},
		{"suspended", aCronJob(func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) }), nil, "", nil, ""},
		{"being deleted", aCronJob(func(c *batchv1.CronJob) { t := ago(0); c.DeletionTimestamp = &t }), nil, "", nil, ""},
		{"several missed: only the last runs", aCronJob(lastRun(45 * time.Minute)), nil, "create Job " + dueName + ", " + wait, []string{"SuccessfulCreate: Created job " + dueName}, dueName},
		{"a hundred missed: a warning", aCronJob(lastRun(2000 * time.Minute)), nil, "create Job " + dueName + ", " + wait,
			[]string{"SuccessfulCreate: Created job " + dueName, "TooManyMissedTimes: too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"}, dueName},
		{"past its deadline: only what is within counts", aCronJob(scheduled("30 * * * *"), lastRun(90*time.Minute), deadline(60)), nil, "again 30m0.1s", nil, ""},
		{"within its deadline", aCronJob(deadline(60)), nil, "create Job " + dueName + ", " + wait, []string{"SuccessfulCreate: Created job " + dueName}, dueName},
		{"started already", aCronJob(lastRun(0)), nil, wait, nil, ""},
		{"active by name", aCronJob(running(dueName)), jobs(tick(dueName)), wait, nil, dueName},
		{"others may run", aCronJob(running("old")), jobs(tick("old")), "create Job " + dueName + ", " + wait, []string{"SuccessfulCreate: Created job " + dueName}, "old " + dueName},
		{"others forbid", aCronJob(running("old"), policy(batchv1.ForbidConcurrent)), jobs(tick("old")), wait,
			[]string{"JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid"}, "old"},
		{"others are replaced", aCronJob(running("old"), policy(batchv1.ReplaceConcurrent)), jobs(tick("old")), "delete Job old, create Job " + dueName + ", " + wait,
			[]string{"SuccessfulDelete: Deleted job old", "SuccessfulCreate: Created job " + dueName}, dueName},
		{"one has finished", aCronJob(running("old"), lastRun(0)), jobs(tick("old", endedAs(batchv1.JobFailed, time.Minute))), wait, []string{"SawCompletedJob: Saw completed job: old, condition: Failed"}, ""},
		{"one is gone", aCronJob(running("old"), lastRun(0)), nil, wait, []string{"MissingJob: Active job went missing: old"}, ""},
		{"one is unknown", aCronJob(lastRun(0)), jobs(tick("odd")), wait, []string{"UnexpectedJob: Saw a job that the controller did not create or forgot: odd"}, ""},
		{"history: the oldest go", aCronJob(lastRun(0), func(c *batchv1.CronJob) { c.Spec.SuccessfulJobsHistoryLimit = new(int32(1)) }),
			jobs(tick("a", endedAs(batchv1.JobComplete, 0), startedAgo(3*time.Minute)), tick("b", endedAs(batchv1.JobComplete, 0), startedAgo(5*time.Minute)), tick("c", endedAs(batchv1.JobComplete, 0), startedAgo(time.Minute)),
				tick("d", endedAs(batchv1.JobFailed, 0)), tick("e")), "delete Job a + delete Job b, " + wait,
			[]string{"SuccessfulDelete: Deleted job b", "SuccessfulDelete: Deleted job a", "UnexpectedJob: Saw a job that the controller did not create or forgot: e"}, ""},
		{"no limits", aCronJob(lastRun(0), func(c *batchv1.CronJob) { c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = nil, nil }),
			jobs(tick("a", endedAs(batchv1.JobFailed, 0)), tick("b", endedAs(batchv1.JobFailed, 0))), wait, nil, ""},
		{"an unknown zone", aCronJob(func(c *batchv1.CronJob) { c.Spec.TimeZone = new("Nowhere/Land") }), nil, "", []string{`UnknownTimeZone: invalid timeZone: "Nowhere/Land": unknown time zone Nowhere/Land`}, ""},
		{"a schedule nobody can read", aCronJob(scheduled("now and then")), nil, "", []string{`UnparseableSchedule: unparseable schedule: "now and then" : expected exactly 5 fields, found 3: [now and then]`}, ""},
	} {
		plan := cronJobView{cronJob: test.cronJob, jobs: test.jobs, now: now}.reconcile()
		expect(t, test.what, told(plan), test.want)
		if got := events(plan); !slices.Equal(got, test.events) {
			t.Errorf("%s: events %q", test.what, got)
		}
		result := controller.ApplyResult{}
		for _, w := range writesOf(plan) {
			if w.Verb == controller.Create {
				result.Written = append(result.Written, w.Object)
			}
		}
		status := test.cronJob.Status
		if changed := plan.Status(result); changed != nil {
			status = changed.(*batchv1.CronJob).Status
		}
		var active []string
		for _, ref := range status.Active {
			active = append(active, ref.Name)
		}
		expect(t, test.what+", active", strings.Join(active, " "), test.active)
	}
}

func TestCronJobStatus(t *testing.T) {
	cronJob := aCronJob(running("old"))
	done := tick("old", endedAs(batchv1.JobComplete, 5*time.Minute))
	plan := cronJobView{cronJob: cronJob, jobs: []*batchv1.Job{done, tick("older", endedAs(batchv1.JobComplete, time.Hour))}, now: now}.reconcile()
	made := plan.Steps[0].Writes[0].Object.(*batchv1.Job)
	if made.Labels["a"] != "1" || made.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "2026-03-01T12:00:00Z" || !metav1.IsControlledBy(made, cronJob) {
		t.Errorf("%+v", made)
	}
	answer := made.DeepCopy()
	answer.UID, answer.ResourceVersion = "new", "9"
	status := plan.Status(controller.ApplyResult{Written: []kindObject{answer}}).(*batchv1.CronJob).Status
	if len(status.Active) != 1 || status.Active[0].UID != "new" || status.Active[0].APIVersion != "batch/v1" || !status.LastScheduleTime.Time.Equal(now) || !status.LastSuccessfulTime.Equal(done.Status.CompletionTime) {
		t.Errorf("%+v", status)
	}
	refused := controller.ApplyResult{Err: &controller.WriteError{Verb: controller.Create, Object: made, Err: errors.New("quota")}}
	if status := plan.Status(refused).(*batchv1.CronJob).Status; len(status.Active) != 0 || !status.LastScheduleTime.Equal(cronJob.Status.LastScheduleTime) || status.LastSuccessfulTime == nil {
		t.Errorf("after a refusal: %+v", status)
	}
	kept := cronJobView{cronJob: aCronJob(running("old"), policy(batchv1.ReplaceConcurrent)), jobs: []*batchv1.Job{tick("old")}, now: now}.reconcile()
	if got := kept.Status(controller.ApplyResult{Err: &controller.WriteError{Verb: controller.Delete, Object: done, Err: errors.New("no")}}); got != nil {
		t.Errorf("a job that could not be deleted is still active: %+v", got)
	}
	own, other := tick(dueName), tick(dueName, func(j *batchv1.Job) { j.OwnerReferences = nil })
	view := cronJobView{cronJob: aCronJob(), jobs: []*batchv1.Job{own}, jobByName: func(string) *batchv1.Job { return own }, now: now}
	if status := view.reconcile().Status(controller.ApplyResult{}).(*batchv1.CronJob).Status; len(status.Active) != 1 || !status.LastScheduleTime.Time.Equal(now) {
		t.Errorf("a job that was created but not written down: %+v", status)
	}
	view = cronJobView{cronJob: aCronJob(), jobByName: func(string) *batchv1.Job { return other }, now: now}
	plan = view.reconcile()
	if len(plan.Steps) != 0 || plan.Status(controller.ApplyResult{}) != nil {
		t.Errorf("the name is someone else's: %s", told(plan))
	}
}

func TestTimeZones(t *testing.T) {
	// Noon in London is one in Paris.
	cronJob := aCronJob(scheduled("0 13 * * *"), lastRun(24*time.Hour), func(c *batchv1.CronJob) { c.Spec.TimeZone = new("Europe/Paris") })
	plan := cronJobView{cronJob: cronJob, now: now}.reconcile()
	expect(t, "Paris", told(plan), "create Job "+dueName+", again 24h0m0.1s")
	if made := plan.Steps[0].Writes[0].Object; made.GetAnnotations()[batchv1.CronJobScheduledTimestampAnnotation] != "2026-03-01T13:00:00+01:00" {
		t.Errorf("%v", made.GetAnnotations())
	}
}

func TestExpiry(t *testing.T) {
	for _, test := range []struct {
		what    string
		job     *batchv1.Job
		expires bool
		in      time.Duration
	}{
		{"no time given", tick("a", endedAs(batchv1.JobComplete, time.Minute)), false, 0},
		{"not finished", tick("a", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(10)) }), false, 0},
		{"finished", tick("a", endedAs(batchv1.JobFailed, time.Minute), func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(100)) }), true, 40 * time.Second},
		{"being deleted", tick("a", endedAs(batchv1.JobFailed, time.Minute), func(j *batchv1.Job) {
			t := ago(0)
			j.Spec.TTLSecondsAfterFinished, j.DeletionTimestamp = new(int32(100)), &t
		}), false, 0},
	} {
		at, expires := expiry(test.job)
		if expires != test.expires || expires && at.Sub(now) != test.in {
			t.Errorf("%s: %v in %v", test.what, expires, at.Sub(now))
		}
	}
}

// TestCronJobsRun lets a cron job run for two hours, with the controllers of jobs and of their end.
func TestCronJobsRun(t *testing.T) {
	inWorld(t, 2, func(w *world.World) {
		stop := w.Run(CronJob, Job, TTLAfterFinished)
		cronJob := aCronJob(func(c *batchv1.CronJob) {
			c.UID, c.CreationTimestamp, c.Status = "", metav1.Time{}, batchv1.CronJobStatus{}
			c.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		})
		world.Create(w, cronJob)
		short := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "short"}, Spec: batchv1.JobSpec{TTLSecondsAfterFinished: new(int32(60)), Template: *cronJob.Spec.JobTemplate.Spec.Template.DeepCopy()}}
		world.Create(w, short)
		w.Chaos(0, 1)
		seen := map[string]bool{}
		for i := range 24 {
			w.Pass(5 * time.Minute)
			if i == 0 {
				w.Pass(time.Second) // from here on a little behind the schedule
			}
			w.Nudge()
			for _, job := range world.List[*batchv1.Job](w) {
				seen[job.Name] = true
				if name, minutes, _ := strings.Cut(job.Name, "-"); name == "tick" {
					if got := fmt.Sprint(job.CreationTimestamp.Unix() / 60); got != minutes {
						t.Errorf("job %s was created at %v", job.Name, job.CreationTimestamp)
					}
				}
			}
		}
		w.Pass(time.Minute)
		w.Nudge()
		w.Pass(time.Minute)
		got := world.Get[*batchv1.CronJob](w, "default", "tick")
		if len(seen) != 13 || len(got.Status.Active) != 0 || got.Status.LastSuccessfulTime == nil {
			t.Errorf("%d jobs were seen: %v; status %+v", len(seen), seen, got.Status)
		}
		left := filter(world.List[*batchv1.Job](w), func(j *batchv1.Job) bool { return strings.HasPrefix(j.Name, "tick") })
		if len(left) != 3 {
			t.Errorf("%d jobs are kept", len(left))
		}
		if job := world.Get[*batchv1.Job](w, "default", "short"); job.DeletionTimestamp == nil || job.DeletionTimestamp.Sub(job.Status.CompletionTime.Time) < time.Minute {
			t.Errorf("%+v", job.ObjectMeta)
		}
		stop()
	})
}
