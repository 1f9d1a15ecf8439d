package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/api/batch"
	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

var cronJobKind = batchv1.SchemeGroupVersion.WithKind("CronJob")

const (
	// nextScheduleDelta is added to the requeue delay, because clocks and timers are not exact.
	nextScheduleDelta = 100 * time.Millisecond
	// missedSchedulesWarning is the number of missed start times above which a warning event is recorded.
	missedSchedulesWarning = 100
)

// CronJob starts jobs on a schedule.
var CronJob = controller.Definition{
	Name: "cronjob-controller", Aliases: []string{"cronjob"}, Queue: "cronjob", Workers: 5,
	New: newCronJobs,
}

type cronJobs struct {
	cronJobs client.Informer[*batchv1.CronJob]
	jobs     controller.Dependents[*batchv1.Job]
	skew     prometheus.Histogram
}

func newCronJobs(s *controller.Setup) (controller.Syncer, error) {
	c := &cronJobs{cronJobs: client.InformerFor[*batchv1.CronJob](s.Informers), skew: newCreationSkew()}
	if err := s.Register(c.skew); err != nil {
		return nil, err
	}
	var err error
	if c.jobs, err = controller.DependentsOf[*batchv1.Job](s); err != nil {
		return nil, err
	}
	enqueue := func(cronJob *batchv1.CronJob) { s.Enqueue(controller.KeyOf(cronJob)) }
	onUpdate := func(old, cronJob *batchv1.CronJob) {
		if old.Spec.Schedule == cronJob.Spec.Schedule && ptr.Equal(old.Spec.TimeZone, cronJob.Spec.TimeZone) {
			enqueue(cronJob)
			return
		}
		// A changed schedule takes effect from now on; times it would have had before are not missed ones.
		schedule, err := parseSchedule(cronJob)
		if err != nil {
			s.Events.Eventf(cronJob, corev1.EventTypeWarning, "UnParseableCronJobSchedule", "unparseable schedule for cronjob: %s", cronJob.Spec.Schedule)
			return
		}
		s.EnqueueAfter(controller.KeyOf(cronJob), untilNext(cronJob, time.Now(), schedule))
	}
	if err := c.cronJobs.AddEventHandler(enqueue, onUpdate, enqueue); err != nil {
		return nil, fmt.Errorf("watch cron jobs: %w", err)
	}
	if err := controller.WatchDependents[*batchv1.Job, *batchv1.CronJob](s, cronJobKind, nil); err != nil {
		return nil, err
	}
	return controller.NewSyncer(s, c), nil
}

// cronJobView is the observed state of one cron job.
type cronJobView struct {
	cronJob *batchv1.CronJob
	jobs    []*batchv1.Job // jobs it controls
	// jobByName returns the job of that name, whatever its owner, or nil. The function may be nil.
	jobByName func(name string) *batchv1.Job
	now       time.Time
}

// Observe gathers the cron job and its jobs.
func (c *cronJobs) Observe(key controller.Key) (cronJobView, bool) {
	cronJob, ok := c.cronJobs.Get(key.Namespace, key.Name)
	if !ok {
		return cronJobView{}, false
	}
	return cronJobView{cronJob: cronJob, jobs: c.jobs.ControlledBy(cronJob.UID), now: time.Now(), jobByName: func(name string) *batchv1.Job {
		job, _ := c.jobs.Get(key.Namespace, name)
		return job
	}}, true
}

// Reconcile deletes old jobs, updates the list of active ones and starts the job that is due.
func (c *cronJobs) Reconcile(v cronJobView) controller.Plan {
	plan := v.reconcile()
	plan.OnWrite = observeCreationSkew(c.skew)
	return plan
}

// schedule returns the next scheduled time after a given time.
type schedule interface{ Next(time.Time) time.Time }

// parseSchedule parses the schedule in the cron job's time zone.
func parseSchedule(cronJob *batchv1.CronJob) (schedule, error) {
	text := cronJob.Spec.Schedule
	if zone := cronJob.Spec.TimeZone; zone != nil && !strings.Contains(text, "TZ") {
		if _, err := time.LoadLocation(*zone); err == nil {
			text = "TZ=" + *zone + " " + text
		}
	}
	return batch.ParseSchedule(text)
}

// scheduleTimes are the scheduled times of a cron job up to now.
type scheduleTimes struct {
	earliest time.Time // times before are not considered
	last     time.Time // the most recent scheduled time, zero if there is none
	missed   int64     // number of scheduled times since earliest
}

// mostRecentScheduleTime finds the most recent scheduled time. It estimates it from the interval of the first two times, so that a
// controller that was down for a year does not iterate over a year of minutes.
func mostRecentScheduleTime(cronJob *batchv1.CronJob, now time.Time, s schedule, withDeadline bool) (scheduleTimes, error) {
	d := scheduleTimes{earliest: cronJob.CreationTimestamp.Time}
	if cronJob.Status.LastScheduleTime != nil {
		d.earliest = cronJob.Status.LastScheduleTime.Time
	}
	if deadline := cronJob.Spec.StartingDeadlineSeconds; withDeadline && deadline != nil {
		if limit := now.Add(-seconds(*deadline)); limit.After(d.earliest) {
			d.earliest = limit
		}
	}
	first := s.Next(d.earliest)
	second := s.Next(first)
	if now.Before(first) {
		return d, nil
	}
	if now.Before(second) {
		d.last = first
		return d, nil
	}
	interval := int64(second.Sub(first).Round(time.Second).Seconds())
	if interval < 1 {
		return d, fmt.Errorf("time difference between two schedules is less than 1 second")
	}
	d.missed = int64(now.Sub(first).Seconds())/interval + 1
	from := first.Add(time.Duration((d.missed-2)*interval) * time.Second)
	for t := s.Next(from); !t.After(now); t = s.Next(t) {
		d.last = t
	}
	return d, nil
}

// untilNext is how long until the next scheduled time.
func untilNext(cronJob *batchv1.CronJob, now time.Time, s schedule) time.Duration {
	d, err := mostRecentScheduleTime(cronJob, now, s, false)
	from := d.last
	switch {
	case err != nil, from.IsZero() && d.missed > 0:
		from = now
	case from.IsZero():
		from = d.earliest
	}
	return s.Next(from).Add(nextScheduleDelta).Sub(now)
}

// cronJobSync is the state of one sync of a cron job.
type cronJobSync struct {
	cronJobView
	plan   *controller.Plan
	status batchv1.CronJobStatus // the new status
	// deleted are jobs to remove from the list of active ones if their deletion succeeds.
	deleted []types.UID
}

func (v cronJobView) reconcile() controller.Plan {
	var plan controller.Plan
	s := &cronJobSync{cronJobView: v, plan: &plan, status: *v.cronJob.Status.DeepCopy()}
	slices.SortFunc(s.jobs, func(a, b *batchv1.Job) int { return cmp.Compare(a.Name, b.Name) })
	s.cleanUpFinishedJobs()
	s.updateActive()
	started := s.startDueJob()
	plan.Status = func(result controller.ApplyResult) kind.Object { return s.changedStatus(started, result) }
	return plan
}

func (s *cronJobSync) recordEvent(eventType, reason, format string, args ...any) {
	s.plan.Events = append(s.plan.Events, controller.Event{Object: s.cronJob, Type: eventType, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// cleanUpFinishedJobs deletes finished jobs beyond the history limits, the oldest first.
func (s *cronJobSync) cleanUpFinishedJobs() {
	var deletes []controller.Write
	for _, history := range []struct {
		condition batchv1.JobConditionType
		limit     *int32
	}{{batchv1.JobComplete, s.cronJob.Spec.SuccessfulJobsHistoryLimit}, {batchv1.JobFailed, s.cronJob.Spec.FailedJobsHistoryLimit}} {
		if history.limit == nil {
			continue
		}
		jobs := filter(s.jobs, func(job *batchv1.Job) bool {
			return job.DeletionTimestamp == nil && isTrue(job.Status.Conditions, history.condition)
		})
		slices.SortStableFunc(jobs, compareStartTime)
		for i := range len(jobs) - int(*history.limit) {
			deletes = append(deletes, s.newJobDelete(jobs[i]))
		}
	}
	s.plan.AddStep(deletes...)
}

func compareStartTime(a, b *batchv1.Job) int {
	switch {
	case a.Status.StartTime == nil || b.Status.StartTime == nil:
		return cmp.Or(compareBool(a.Status.StartTime == nil, b.Status.StartTime == nil), cmp.Compare(a.Name, b.Name))
	default:
		return cmp.Or(a.Status.StartTime.Compare(b.Status.StartTime.Time), cmp.Compare(a.Name, b.Name))
	}
}

func (s *cronJobSync) newJobDelete(job *batchv1.Job) controller.Write {
	s.deleted = append(s.deleted, job.UID)
	w := controller.NewDelete(job).
		OnSuccess(controller.Event{Object: s.cronJob, Type: corev1.EventTypeNormal, Reason: "SuccessfulDelete", Message: "Deleted job %s"}).
		OnFailure(controller.Event{Object: s.cronJob, Type: corev1.EventTypeWarning, Reason: "FailedDelete", Message: "Deleted job: %s"})
	w.DeleteOptions.PropagationPolicy = ptr.To(metav1.DeletePropagationBackground)
	return w
}

func (s *cronJobSync) isActive(uid types.UID) bool {
	return slices.ContainsFunc(s.status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

func (s *cronJobSync) deactivate(uid types.UID) {
	s.status.Active = filter(s.status.Active, func(ref corev1.ObjectReference) bool { return ref.UID != uid })
}

// updateActive brings the list of active jobs up to date.
func (s *cronJobSync) updateActive() {
	known := map[types.UID]bool{}
	for _, job := range s.jobs {
		known[job.UID] = true
		switch {
		case !jobFinished(job):
			if !s.isActive(job.UID) {
				s.recordEvent(corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", job.Name)
			}
			continue
		case s.isActive(job.UID):
			s.deactivate(job.UID)
			if slices.Contains(s.deleted, job.UID) {
				break // the deletion records its own event
			}
			condition := batchv1.JobComplete
			if isTrue(job.Status.Conditions, batchv1.JobFailed) {
				condition = batchv1.JobFailed
			}
			s.recordEvent(corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", job.Name, condition)
		}
		completionTime := job.Status.CompletionTime
		if isTrue(job.Status.Conditions, batchv1.JobComplete) && completionTime != nil && (s.status.LastSuccessfulTime == nil || completionTime.After(s.status.LastSuccessfulTime.Time)) {
			s.status.LastSuccessfulTime = completionTime
		}
	}
	for _, ref := range s.status.Active {
		if !known[ref.UID] && !(s.jobByName != nil && s.jobByName(ref.Name) != nil) {
			s.recordEvent(corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			s.deactivate(ref.UID)
		}
	}
}

// jobStart is a job to start, or one that was started but is missing in the status.
type jobStart struct {
	name      string
	scheduled time.Time
	existing  *batchv1.Job
}

// startDueJob decides whether a job is due and plans it.
func (s *cronJobSync) startDueJob() *jobStart {
	spec := s.cronJob.Spec
	if s.cronJob.DeletionTimestamp != nil {
		return nil
	}
	zone, err := time.LoadLocation(ptr.Deref(spec.TimeZone, ""))
	if err != nil {
		s.recordEvent(corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *spec.TimeZone, err)
		return nil
	}
	if spec.Suspend != nil && *spec.Suspend {
		return nil
	}
	if strings.Contains(spec.Schedule, "TZ") {
		s.recordEvent(corev1.EventTypeWarning, "UnsupportedSchedule", "CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", spec.Schedule)
	}
	times, err := parseSchedule(s.cronJob)
	if err != nil {
		s.recordEvent(corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", spec.Schedule, err)
		return nil
	}
	d, err := mostRecentScheduleTime(s.cronJob, s.now, times, true)
	if err != nil {
		s.recordEvent(corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", spec.Schedule, err)
		return nil
	}
	s.plan.Requeue(max(untilNext(s.cronJob, s.now, times), time.Millisecond))
	if d.last.IsZero() {
		return nil
	}
	if d.missed > missedSchedulesWarning {
		s.recordEvent(corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	return s.startJob(d.last, zone)
}

// startJob plans the job of a scheduled time, unless its deadline or the concurrency policy prevents it.
func (s *cronJobSync) startJob(at time.Time, zone *time.Location) *jobStart {
	spec := s.cronJob.Spec
	if spec.StartingDeadlineSeconds != nil && at.Add(seconds(*spec.StartingDeadlineSeconds)).Before(s.now) {
		s.recordEvent(corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", at.UTC().Format(time.RFC1123Z))
		return nil
	}
	name := fmt.Sprintf("%s-%d", s.cronJob.Name, at.Unix()/60)
	started := s.status.LastScheduleTime != nil && s.status.LastScheduleTime.Time.Equal(at)
	if started || slices.ContainsFunc(s.status.Active, func(ref corev1.ObjectReference) bool { return ref.Name == name }) {
		return nil
	}
	if spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(s.status.Active) > 0 {
		s.recordEvent(corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return nil
	}
	if spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent {
		var deletes []controller.Write
		for _, job := range s.jobs {
			if s.isActive(job.UID) {
				deletes = append(deletes, s.newJobDelete(job))
			}
		}
		s.plan.AddStep(deletes...)
	}
	start := &jobStart{name: name, scheduled: at}
	if s.jobByName != nil {
		start.existing = s.jobByName(name)
	}
	switch existing := start.existing; {
	case existing == nil:
		s.plan.AddStep(controller.NewCreate(s.newJob(name, at, zone)).
			OnSuccess(controller.Event{Object: s.cronJob, Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate", Message: "Created job %s"}).
			OnFailure(controller.Event{Object: s.cronJob, Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "Error creating job: %s"}))
	case !metav1.IsControlledBy(existing, s.cronJob):
		return nil // a job of another owner has the name
	}
	return start
}

func (s *cronJobSync) newJob(name string, at time.Time, zone *time.Location) *batchv1.Job {
	template := &s.cronJob.Spec.JobTemplate
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: s.cronJob.Namespace, Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.cronJob, cronJobKind)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, batchv1.CronJobScheduledTimestampAnnotation, at.In(zone).Format(time.RFC3339))
	return job
}

// changedStatus returns the cron job with the new status, including a started job, or nil if it is unchanged.
func (s *cronJobSync) changedStatus(start *jobStart, result controller.ApplyResult) kind.Object {
	status := *s.status.DeepCopy()
	if result.FailedVerb() != controller.Delete {
		status.Active = filter(status.Active, func(ref corev1.ObjectReference) bool { return !slices.Contains(s.deleted, ref.UID) })
	}
	if start != nil {
		job := start.existing
		for _, obj := range result.Written {
			if written, ok := obj.(*batchv1.Job); ok && written.Name == start.name {
				job = written
			}
		}
		if job != nil {
			if !jobFinished(job) {
				status.Active = append(status.Active, corev1.ObjectReference{Kind: jobKind.Kind, APIVersion: batchv1.SchemeGroupVersion.String(),
					Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion})
			}
			status.LastScheduleTime = &metav1.Time{Time: start.scheduled}
		}
	}
	if apiequality.Semantic.DeepEqual(status, s.cronJob.Status) {
		return nil
	}
	changed := *s.cronJob
	changed.Status = status
	return &changed
}
