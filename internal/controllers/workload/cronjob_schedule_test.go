package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
)

// moment reads "2026-03-08 12:00" as a time of UTC, with seconds if there are any.
func moment(text string) time.Time {
	for _, layout := range []string{"2006-01-02 15:04", "2006-01-02 15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at
		}
	}
	panic(text)
}

func inZone(zone string) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) { c.Spec.TimeZone = &zone }
}
func lastAt(text string) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) { c.Status.LastScheduleTime = &metav1.Time{Time: moment(text)} }
}
func bornAt(text string) change[*batchv1.CronJob] {
	return func(c *batchv1.CronJob) {
		c.Status.LastScheduleTime, c.CreationTimestamp = nil, metav1.Time{Time: moment(text)}
	}
}

func TestLastDue(t *testing.T) {
	for _, test := range []struct {
		what    string
		cronJob *batchv1.CronJob
		now     string
		last    string // "" when none has come
		missed  int64
		next    string // the next sync, without the moment it waits longer
	}{
		{"not yet", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-01 10:59:59", "", 0, "2026-03-01 11:00"},
		{"just now", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-01 11:00", "2026-03-01 11:00", 0, "2026-03-01 12:00"},
		{"a while ago", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-01 11:59:59", "2026-03-01 11:00", 0, "2026-03-01 12:00"},
		{"two came", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-01 12:00", "2026-03-01 12:00", 2, "2026-03-01 13:00"},
		{"five came", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-01 15:30", "2026-03-01 15:00", 5, "2026-03-01 16:00"},
		{"a hundred came", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-05 14:30", "2026-03-05 14:00", 100, "2026-03-05 15:00"},
		{"a hundred and one came", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-05 15:30", "2026-03-05 15:00", 101, "2026-03-05 16:00"},
		{"a year of minutes", aCronJob(scheduled("* * * * *"), lastAt("2025-03-01 10:00")), "2026-03-01 10:00:30", "2026-03-01 10:00", 525600, "2026-03-01 10:01"},
		{"never ran: since it was created", aCronJob(scheduled("0 * * * *"), bornAt("2026-03-01 10:30")), "2026-03-01 11:30", "2026-03-01 11:00", 0, "2026-03-01 12:00"},
		{"never ran: created at the very moment", aCronJob(scheduled("0 * * * *"), bornAt("2026-03-01 10:00")), "2026-03-01 10:30", "", 0, "2026-03-01 11:00"},
		{"every month", aCronJob(scheduled("0 0 1 * *"), lastAt("2026-01-01 00:00")), "2026-04-15 00:00", "2026-04-01 00:00", 3, "2026-05-01 00:00"},
		{"every month, from a long one", aCronJob(scheduled("0 0 31 * *"), lastAt("2025-12-31 00:00")), "2026-06-15 00:00", "2026-05-31 00:00", 3, "2026-07-31 00:00"},
		{"workdays, over a weekend", aCronJob(scheduled("0 9 * * 1-5"), lastAt("2026-02-26 09:00")), "2026-03-01 12:00", "2026-02-27 09:00", 0, "2026-03-02 09:00"},
		{"workdays, over a week", aCronJob(scheduled("0 9 * * 1-5"), lastAt("2026-02-18 09:00")), "2026-02-26 12:00", "2026-02-26 09:00", 8, "2026-02-27 09:00"},
		{"two close together and then a long gap: the jump lands beyond both", aCronJob(scheduled("0,1 0 * * *"), lastAt("2026-02-28 00:01")), "2026-03-01 12:00", "", 721, "2026-03-02 00:00"},
		{"a word", aCronJob(scheduled("@hourly"), lastAt("2026-03-01 10:00")), "2026-03-01 11:10", "2026-03-01 11:00", 0, "2026-03-01 12:00"},
		{"an interval", aCronJob(scheduled("@every 90m"), lastAt("2026-03-01 10:00")), "2026-03-01 11:40", "2026-03-01 11:30", 0, "2026-03-01 13:00"},
		{"a day of the year", aCronJob(scheduled("0 0 29 2 *"), lastAt("2024-02-29 00:00")), "2028-03-01 00:00", "2028-02-29 00:00", 0, "2032-02-29 00:00"},
		{"a clock that went back", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 12:00")), "2026-03-01 10:30", "", 0, "2026-03-01 13:00"},
	} {
		times, err := parseSchedule(test.cronJob)
		if err != nil {
			t.Fatal(err)
		}
		d, err := mostRecentScheduleTime(test.cronJob, moment(test.now), times, true)
		last := ""
		if !d.last.IsZero() {
			last = d.last.UTC().Format("2006-01-02 15:04")
		}
		if err != nil || last != test.last || d.missed != test.missed {
			t.Errorf("%s: last %q, missed %d, %v; want %q, %d", test.what, last, d.missed, err, test.last, test.missed)
		}
		if next := moment(test.now).Add(untilNext(test.cronJob, moment(test.now), times) - nextScheduleDelta); next.Format("2006-01-02 15:04:05") != test.next+":00" {
			t.Errorf("%s: next %v, want %s", test.what, next, test.next)
		}
	}
}

// TestManyMissed: up to a hundred missed times are nothing's concern. A long deadline does not reach back before the last run or the creation.
func TestManyMissed(t *testing.T) {
	for _, test := range []struct {
		what    string
		cronJob *batchv1.CronJob
		now     string
		starts  bool
		warns   bool
	}{
		{"a hundred", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-05 14:30", true, false},
		{"a hundred and one", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 10:00")), "2026-03-05 15:30", true, true},
		{"many, of which few lie within the deadline", aCronJob(scheduled("0 * * * *"), lastAt("2026-01-01 10:00"), deadline(7200)), "2026-03-05 15:30", true, false},
		{"none since it was created, whatever the deadline", aCronJob(scheduled("0 * * * *"), bornAt("2026-03-01 11:55"), deadline(7200)), "2026-03-01 11:58", false, false},
		{"none since the last, whatever the deadline", aCronJob(scheduled("0 * * * *"), lastAt("2026-03-01 11:30"), deadline(7200)), "2026-03-01 11:58", false, false},
	} {
		plan := cronJobView{cronJob: test.cronJob, now: moment(test.now)}.reconcile()
		warns := slices.ContainsFunc(plan.Events, func(e controller.Event) bool {
			return e.Reason == "TooManyMissedTimes" && e.Type == corev1.EventTypeWarning
		})
		if starts := len(plan.Steps) > 0; starts != test.starts || warns != test.warns {
			t.Errorf("%s: starts %v, warns %v", test.what, starts, warns)
		}
	}
}

// TestDeadlines: how far back a scheduled time may lie.
func TestDeadlines(t *testing.T) {
	for _, test := range []struct {
		what     string
		deadline int64
		now      string
		starts   bool
	}{
		{"within", 600, "2026-03-01 12:09:59", true},
		{"to the second: what lies exactly so far back is past", 600, "2026-03-01 12:10", false},
		{"past", 600, "2026-03-01 12:10:01", false},
		{"no time at all, at the moment", 0, "2026-03-01 12:00", false},
		{"a second", 1, "2026-03-01 12:00", true},
		{"a long time", 1000000, "2026-03-01 12:30", true},
	} {
		at := moment(test.now)
		plan := cronJobView{cronJob: aCronJob(scheduled("0 12 * * *"), lastAt("2026-02-28 12:00"), deadline(test.deadline)), now: at}.reconcile()
		if starts := len(plan.Steps) > 0; starts != test.starts {
			t.Errorf("%s: starts %v", test.what, starts)
		}
		if next := at.Add(plan.RequeueAfter - nextScheduleDelta); !next.Equal(moment("2026-03-02 12:00")) {
			t.Errorf("%s: next %v", test.what, next)
		}
	}
	// Called with a time from elsewhere, the last check still holds.
	l := &cronJobSync{cronJobView: cronJobView{cronJob: aCronJob(deadline(60)), now: now}, plan: &controller.Plan{}}
	if l.startJob(now.Add(-61*time.Second), time.UTC) != nil || len(l.plan.Events) != 1 || l.plan.Events[0].Message != "Missed scheduled time to start a job: Sun, 01 Mar 2026 11:58:59 +0000" || l.plan.Events[0].Reason != "MissSchedule" {
		t.Errorf("%+v", l.plan.Events)
	}
	l = &cronJobSync{cronJobView: cronJobView{cronJob: aCronJob(deadline(60)), now: now}, plan: &controller.Plan{}}
	if l.startJob(now.Add(-60*time.Second), time.UTC) == nil {
		t.Error("exactly at its deadline a job does not start")
	}
}

// TestClocksThatChange: schedules in zones whose clocks are put forward and back. A time that does not exist is passed over, a time that comes twice runs twice.
func TestClocksThatChange(t *testing.T) {
	for _, test := range []struct {
		what, zone, schedule string
		from                 string
		want                 []string // of UTC
	}{
		{"New York forward: half past two does not exist", "America/New_York", "30 2 * * *", "2026-03-07 00:00", []string{"2026-03-07 07:30", "2026-03-09 06:30", "2026-03-10 06:30"}},
		{"New York forward: three exists", "America/New_York", "0 3 * * *", "2026-03-07 00:00", []string{"2026-03-07 08:00", "2026-03-08 07:00", "2026-03-09 07:00"}},
		{"New York forward: every hour", "America/New_York", "0 * * * *", "2026-03-08 05:30", []string{"2026-03-08 06:00", "2026-03-08 07:00", "2026-03-08 08:00"}},
		{"New York back: half past one comes twice", "America/New_York", "30 1 * * *", "2026-10-31 12:00", []string{"2026-11-01 05:30", "2026-11-01 06:30", "2026-11-02 06:30"}},
		{"New York back: two comes once", "America/New_York", "0 2 * * *", "2026-10-31 12:00", []string{"2026-11-01 07:00", "2026-11-02 07:00"}},
		{"New York back: every hour", "America/New_York", "0 * * * *", "2026-11-01 04:30", []string{"2026-11-01 05:00", "2026-11-01 06:00", "2026-11-01 07:00"}},
		{"Paris forward", "Europe/Paris", "30 2 * * *", "2026-03-28 12:00", []string{"2026-03-30 00:30", "2026-03-31 00:30"}},
		{"Paris back", "Europe/Paris", "30 2 * * *", "2026-10-24 12:00", []string{"2026-10-25 00:30", "2026-10-25 01:30", "2026-10-26 01:30"}},
		{"noon moves against UTC", "Europe/Paris", "0 12 * * *", "2026-03-28 00:00", []string{"2026-03-28 11:00", "2026-03-29 10:00", "2026-03-30 10:00"}},
		{"Kathmandu, three quarters of an hour off", "Asia/Kathmandu", "0 0 * * *", "2026-03-01 00:00", []string{"2026-03-01 18:15", "2026-03-02 18:15"}},
		{"the other side of the date line", "Pacific/Kiritimati", "0 0 1 1 *", "2026-06-01 00:00", []string{"2026-12-31 10:00"}},
		{"a day in another zone is another day", "Asia/Tokyo", "0 8 * * 1", "2026-03-01 12:00", []string{"2026-03-01 23:00", "2026-03-08 23:00"}},
		{"UTC, explicitly", "UTC", "0 0 * * *", "2026-03-01 12:00", []string{"2026-03-02 00:00"}},
		{"UTC by another name", "Etc/UTC", "0 0 * * *", "2026-03-01 12:00", []string{"2026-03-02 00:00"}},
	} {
		cronJob := aCronJob(scheduled(test.schedule), inZone(test.zone))
		times, err := parseSchedule(cronJob)
		if err != nil {
			t.Errorf("%s: %v", test.what, err)
			continue
		}
		var got []string
		for at := moment(test.from); len(got) < len(test.want); {
			at = times.Next(at)
			got = append(got, at.UTC().Format("2006-01-02 15:04"))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s:\n got %v\nwant %v", test.what, got, test.want)
		}
	}
}

// TestDueModel finds the last due time of regular schedules by trying every minute, in zones with and without changing clocks.
func TestDueModel(t *testing.T) {
	zones := []string{"UTC", "America/New_York", "Europe/Paris", "Asia/Kathmandu", "Australia/Lord_Howe"}
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 10))
		zone := zones[random.IntN(len(zones))]
		place, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		every, minute := []int{5, 10, 15, 20, 30, 60}[random.IntN(6)], 0
		text := fmt.Sprintf("*/%d * * * *", every)
		if every == 60 {
			minute = random.IntN(60)
			text = fmt.Sprintf("%d * * * *", minute)
		}
		// Around the nights on which clocks change, as well as any other.
		begin := moment([]string{"2026-03-08 03:00", "2026-11-01 03:00", "2026-03-28 22:00", "2026-10-24 22:00", "2026-06-01 00:00", "2026-04-04 12:00"}[random.IntN(6)]).Add(time.Duration(random.IntN(3600)) * time.Second)
		at := begin.Add(time.Duration(random.IntN(12*3600)) * time.Second)
		cronJob := aCronJob(scheduled(text), inZone(zone), func(c *batchv1.CronJob) { c.Status.LastScheduleTime = &metav1.Time{Time: begin} })
		times, err := parseSchedule(cronJob)
		if err != nil {
			t.Fatal(err)
		}
		d, err := mostRecentScheduleTime(cronJob, at, times, true)
		if err != nil {
			t.Fatal(err)
		}
		var last time.Time
		for m := begin.Truncate(time.Minute); !m.After(at); m = m.Add(time.Minute) {
			if local := m.In(place); m.After(begin) && (every < 60 && local.Minute()%every == 0 || every == 60 && local.Minute() == minute) {
				last = m
			}
		}
		if !d.last.Equal(last) && !(d.last.IsZero() && last.IsZero()) {
			t.Errorf("seed %d: %q in %s from %v to %v: last %v, want %v", seed, text, zone, begin, at, d.last.UTC(), last)
		}
	}
}

func TestSchedulesNobodyCanRead(t *testing.T) {
	for _, test := range []struct {
		what    string
		cronJob *batchv1.CronJob
		want    []string
	}{
		{"too few fields", aCronJob(scheduled("* * *")), []string{`UnparseableSchedule: unparseable schedule: "* * *" : expected exactly 5 fields, found 3: [* * *]`}},
		{"a minute that does not exist", aCronJob(scheduled("61 * * * *")), []string{`UnparseableSchedule: unparseable schedule: "61 * * * *" : end of range (61) above maximum (59): 61`}},
		{"nothing", aCronJob(scheduled("")), []string{`UnparseableSchedule: unparseable schedule: "" : empty spec string`}},
		{"a zone that does not exist", aCronJob(inZone("Mars/Olympus")), []string{`UnknownTimeZone: invalid timeZone: "Mars/Olympus": unknown time zone Mars/Olympus`}},
		{"a zone that does not exist, suspended", aCronJob(inZone("Mars/Olympus"), func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) }), []string{`UnknownTimeZone: invalid timeZone: "Mars/Olympus": unknown time zone Mars/Olympus`}},
		{"a schedule nobody can read, suspended: nobody reads it", aCronJob(scheduled("* * *"), func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) }), nil},
		{"a zone in the schedule that does not exist", aCronJob(scheduled("TZ=Mars 0 0 * * *")), []string{
			`UnsupportedSchedule: CRON_TZ or TZ used in schedule "TZ=Mars 0 0 * * *" is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details`,
			`UnparseableSchedule: unparseable schedule: "TZ=Mars 0 0 * * *" : provided bad location Mars: unknown time zone Mars`}},
		{"a zone in the schedule and nothing else", aCronJob(scheduled("TZ=UTC")), []string{
			`UnsupportedSchedule: CRON_TZ or TZ used in schedule "TZ=UTC" is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details`,
			`UnparseableSchedule: unparseable schedule: "TZ=UTC" : invalid schedule format: runtime error: slice bounds out of range [:-1]`}},
		{"a zone in the schedule", aCronJob(scheduled("CRON_TZ=Asia/Tokyo 0 12 * * *"), lastAt("2026-03-01 03:00")), []string{
			`UnsupportedSchedule: CRON_TZ or TZ used in schedule "CRON_TZ=Asia/Tokyo 0 12 * * *" is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details`}},
	} {
		plan := cronJobView{cronJob: test.cronJob, now: now}.reconcile()
		if got := events(plan); !slices.Equal(got, test.want) || len(plan.Steps) != 0 {
			t.Errorf("%s: %q, %s", test.what, got, told(plan))
		}
		if again := strings.HasPrefix(test.what, "a zone in the schedule") && len(test.want) == 1; (plan.RequeueAfter > 0) != again {
			t.Errorf("%s: again after %v", test.what, plan.RequeueAfter)
		}
	}
	soon := &cronJobSync{cronJobView: cronJobView{cronJob: aCronJob(scheduled("@every 1s")), now: now}, plan: &controller.Plan{}}
	if soon.startDueJob(); soon.plan.RequeueAfter <= 0 {
		t.Error("a schedule of seconds is not looked at again")
	}
}

// TestConcurrency: what becomes of jobs that still run when the next is due.
func TestConcurrency(t *testing.T) {
	allow, forbid, replace := batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent
	done := endedAs(batchv1.JobComplete, time.Minute)
	for _, test := range []struct {
		what   string
		policy batchv1.ConcurrencyPolicy
		active []string
		jobs   []*batchv1.Job
		writes string
		left   string
	}{
		{"allow: none runs", allow, nil, nil, "create Job " + dueName, dueName},
		{"allow: two run", allow, []string{"a", "b"}, []*batchv1.Job{tick("a"), tick("b")}, "create Job " + dueName, "a b " + dueName},
		{"forbid: none runs", forbid, nil, nil, "create Job " + dueName, dueName},
		{"forbid: one runs", forbid, []string{"a"}, []*batchv1.Job{tick("a")}, "", "a"},
		{"forbid: one has just finished", forbid, []string{"a"}, []*batchv1.Job{tick("a", done)}, "create Job " + dueName, dueName},
		{"forbid: one is gone", forbid, []string{"a"}, nil, "create Job " + dueName, dueName},
		{"forbid: one runs that nobody noted", forbid, nil, []*batchv1.Job{tick("a")}, "create Job " + dueName, dueName},
		{"replace: none runs", replace, nil, nil, "create Job " + dueName, dueName},
		{"replace: two run", replace, []string{"a", "b"}, []*batchv1.Job{tick("a"), tick("b")}, "delete Job a + delete Job b, create Job " + dueName, dueName},
		{"replace: one has just finished", replace, []string{"a"}, []*batchv1.Job{tick("a", done)}, "create Job " + dueName, dueName},
		{"replace: one runs that nobody noted", replace, nil, []*batchv1.Job{tick("a")}, "create Job " + dueName, dueName},
		{"no policy is to allow", "", []string{"a"}, []*batchv1.Job{tick("a")}, "create Job " + dueName, "a " + dueName},
	} {
		cronJob := aCronJob(policy(test.policy), running(test.active...))
		plan := cronJobView{cronJob: cronJob, jobs: test.jobs, now: now}.reconcile()
		again := plan.RequeueAfter
		plan.RequeueAfter = 0
		expect(t, test.what, told(plan), test.writes)
		result := controller.ApplyResult{}
		for _, w := range writesOf(plan) {
			if w.Verb == controller.Create {
				result.Written = append(result.Written, w.Object)
			}
			if w.Verb == controller.Delete && (w.DeleteOptions.PropagationPolicy == nil || *w.DeleteOptions.PropagationPolicy != metav1.DeletePropagationBackground || *w.DeleteOptions.Preconditions.UID != w.Object.GetUID()) {
				t.Errorf("%s: %+v", test.what, w.DeleteOptions)
			}
		}
		var left []string
		status := cronJob.Status
		if changed := plan.Status(result); changed != nil {
			status = changed.(*batchv1.CronJob).Status
		}
		for _, ref := range status.Active {
			left = append(left, ref.Name)
		}
		expect(t, test.what+", active", strings.Join(left, " "), test.left)
		if again != 10*time.Minute+nextScheduleDelta {
			t.Errorf("%s: again after %v", test.what, again)
		}
	}
}

func TestCronHistory(t *testing.T) {
	limits := func(good, bad int32) change[*batchv1.CronJob] {
		return func(c *batchv1.CronJob) {
			c.Status.LastScheduleTime = &metav1.Time{Time: now}
			if c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = &good, &bad; good < 0 {
				c.Spec.SuccessfulJobsHistoryLimit = nil
			}
			if bad < 0 {
				c.Spec.FailedJobsHistoryLimit = nil
			}
		}
	}
	good := func(name string, age time.Duration) *batchv1.Job {
		return tick(name, endedAs(batchv1.JobComplete, 0), startedAgo(age))
	}
	bad := func(name string, age time.Duration) *batchv1.Job {
		return tick(name, endedAs(batchv1.JobFailed, 0), startedAgo(age))
	}
	unstarted := func(name string) *batchv1.Job {
		return tick(name, endedAs(batchv1.JobComplete, 0), func(j *batchv1.Job) { j.Status.StartTime = nil })
	}
	for _, test := range []struct {
		what string
		cron *batchv1.CronJob
		jobs []*batchv1.Job
		want string
	}{
		{"nothing", aCronJob(limits(0, 0)), nil, ""},
		{"as many as kept", aCronJob(limits(2, 1)), []*batchv1.Job{good("a", 3), good("b", 2), bad("c", 1)}, ""},
		{"one more of each", aCronJob(limits(1, 1)), []*batchv1.Job{good("a", 1), good("b", 2), bad("c", 1), bad("d", 2)}, "b d"},
		{"keep none", aCronJob(limits(0, 0)), []*batchv1.Job{good("a", 1), bad("b", 1)}, "a b"},
		{"good ones without limit", aCronJob(limits(-1, 0)), []*batchv1.Job{good("a", 1), bad("b", 1)}, "b"},
		{"bad ones without limit", aCronJob(limits(0, -1)), []*batchv1.Job{good("a", 1), bad("b", 1)}, "a"},
		{"no limits", aCronJob(limits(-1, -1)), []*batchv1.Job{good("a", 1), bad("b", 1)}, ""},
		{"the oldest by start", aCronJob(limits(1, 0)), []*batchv1.Job{good("a", time.Minute), good("b", time.Hour), good("c", time.Second)}, "a b"},
		{"equal starts by name", aCronJob(limits(1, 0)), []*batchv1.Job{good("b", time.Minute), good("a", time.Minute)}, "a"},
		{"never started counts as youngest", aCronJob(limits(1, 0)), []*batchv1.Job{unstarted("a"), good("b", 0)}, "b"},
		{"those that run are not history", aCronJob(limits(0, 0)), []*batchv1.Job{tick("a")}, ""},
		{"those that leave are not counted", aCronJob(limits(1, 0)), []*batchv1.Job{with(good("a", 2), func(j *batchv1.Job) { gone(j) }), good("b", 1)}, ""},
		{"a suspended cron job keeps its history short", aCronJob(limits(0, 0), func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) }), []*batchv1.Job{good("a", 1)}, "a"},
	} {
		plan := cronJobView{cronJob: test.cron, jobs: test.jobs, now: now}.reconcile()
		var deleted []string
		for _, w := range writesOf(plan) {
			deleted = append(deleted, w.Object.GetName())
		}
		slices.Sort(deleted)
		expect(t, test.what, strings.Join(deleted, " "), test.want)
	}
	// A job that is deleted as soon as it is done is reported once.
	cronJob := aCronJob(limits(0, 0), running("a"))
	plan := cronJobView{cronJob: cronJob, jobs: []*batchv1.Job{good("a", time.Minute)}, now: now}.reconcile()
	if got := events(plan); !slices.Equal(got, []string{"SuccessfulDelete: Deleted job a"}) {
		t.Errorf("%q", got)
	}
	if status := plan.Status(controller.ApplyResult{}).(*batchv1.CronJob).Status; len(status.Active) != 0 || status.LastSuccessfulTime == nil {
		t.Errorf("%+v", status)
	}
	failed := plan.Steps[0].Writes[0].FailureEvent
	if failed.Reason != "FailedDelete" || failed.Message != "Deleted job: %s" || failed.Type != corev1.EventTypeWarning {
		t.Errorf("%+v", failed)
	}
}

func TestLastSuccess(t *testing.T) {
	was := func(age time.Duration) change[*batchv1.CronJob] {
		return func(c *batchv1.CronJob) { at := ago(age); c.Status.LastSuccessfulTime = &at }
	}
	timeless := func(j *batchv1.Job) { j.Status.CompletionTime = nil }
	for _, test := range []struct {
		what string
		cron *batchv1.CronJob
		jobs []*batchv1.Job
		want time.Duration // -1: none
	}{
		{"none", aCronJob(), nil, -1},
		{"one that runs", aCronJob(), []*batchv1.Job{tick("a")}, -1},
		{"one that failed", aCronJob(), []*batchv1.Job{tick("a", endedAs(batchv1.JobFailed, 5))}, -1},
		{"the first", aCronJob(), []*batchv1.Job{tick("a", endedAs(batchv1.JobComplete, time.Minute))}, time.Minute},
		{"the latest of several", aCronJob(), []*batchv1.Job{tick("a", endedAs(batchv1.JobComplete, time.Hour)), tick("b", endedAs(batchv1.JobComplete, time.Minute)), tick("c", endedAs(batchv1.JobComplete, 2*time.Hour))}, time.Minute},
		{"not before the one that was", aCronJob(was(time.Second)), []*batchv1.Job{tick("a", endedAs(batchv1.JobComplete, time.Minute))}, time.Second},
		{"after the one that was", aCronJob(was(time.Hour)), []*batchv1.Job{tick("a", endedAs(batchv1.JobComplete, time.Minute))}, time.Minute},
		{"complete nobody knows when", aCronJob(was(time.Hour)), []*batchv1.Job{tick("a", endedAs(batchv1.JobComplete, time.Minute), timeless)}, time.Hour},
	} {
		status := test.cron.Status
		if changed := (cronJobView{cronJob: test.cron, jobs: test.jobs, now: now}).reconcile().Status(controller.ApplyResult{}); changed != nil {
			status = changed.(*batchv1.CronJob).Status
		}
		got := time.Duration(-1)
		if status.LastSuccessfulTime != nil {
			got = now.Sub(status.LastSuccessfulTime.Time)
		}
		if got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

func TestCronJobsJob(t *testing.T) {
	cronJob := aCronJob(inZone("Europe/Paris"), scheduled("0 13 * * *"), lastAt("2026-02-28 12:00"), func(c *batchv1.CronJob) {
		c.Spec.JobTemplate.Annotations = map[string]string{"b": "2"}
		c.Spec.JobTemplate.Spec.Parallelism = new(int32(3))
	})
	before := cronJob.DeepCopy()
	plan := cronJobView{cronJob: cronJob, now: now}.reconcile()
	same(t, "the job", plan.Steps[0].Writes[0].Object, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("tick-%d", now.Unix()/60), Labels: map[string]string{"a": "1"}, Annotations: map[string]string{"b": "2", "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-01T13:00:00+01:00"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "tick", UID: "uid-tick", Controller: new(true), BlockOwnerDeletion: new(true)}}},
		Spec: batchv1.JobSpec{Parallelism: new(int32(3)), Template: template("image:1")},
	})
	same(t, "the shared object", cronJob, before)
	failed := plan.Steps[0].Writes[0].FailureEvent
	if failed.Reason != "FailedCreate" || failed.Message != "Error creating job: %s" {
		t.Errorf("%+v", failed)
	}
}

// TestCronJobHears changes a cron job while it runs: a new schedule begins from now, a suspended one waits, a resumed one makes up for what was last missed.
func TestCronJobHears(t *testing.T) {
	inWorld(t, 1, func(w *world.World) {
		t := w.T
		stop := w.Run(CronJob)
		world.Create(w, aCronJob(scheduled("0 0 1 1 *"), func(c *batchv1.CronJob) {
			c.UID, c.CreationTimestamp, c.Status = "", metav1.Time{}, batchv1.CronJobStatus{}
			c.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		}))
		jobs := func() int { return len(world.List[*batchv1.Job](w)) }
		w.Pass(90 * time.Minute)
		if jobs() != 0 {
			t.Errorf("%d jobs before the year is over", jobs())
		}
		for _, step := range []struct {
			what   string
			change func(*batchv1.CronJob)
			pass   time.Duration
			more   int
		}{
			{"every ten minutes from now on", func(c *batchv1.CronJob) { c.Spec.Schedule = "*/10 * * * *" }, 31 * time.Minute, 3},
			{"suspended", func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) }, time.Hour, 0},
			{"resumed: the last one that was missed, and those to come", func(c *batchv1.CronJob) { c.Spec.Suspend = new(false) }, 21 * time.Minute, 3},
			{"forbidden while others run", func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent }, 31 * time.Minute, 0},
		} {
			before := jobs()
			world.Edit(w, "default", "tick", step.change)
			w.Pass(step.pass)
			if got := jobs() - before; got != step.more {
				t.Errorf("%s: %d jobs more, want %d", step.what, got, step.more)
			}
		}
		// A job that is deleted by hand is noticed, and the next may start.
		for _, job := range world.List[*batchv1.Job](w) {
			background := metav1.DeletePropagationBackground
			if err := w.Client.Delete(w.Ctx, job, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
				t.Fatal(err)
			}
		}
		w.Pass(11 * time.Minute)
		if n := jobs(); n != 1 {
			t.Errorf("%d jobs after the others were deleted", n)
		}
		stop()
	})
}
