package workload

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
)

func living(seconds int32) change[*batchv1.Job] {
	return func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = &seconds }
}

func TestExpiries(t *testing.T) {
	untrue := func(j *batchv1.Job) { j.Status.Conditions[0].Status = corev1.ConditionFalse }
	timeless := func(j *batchv1.Job) { j.Status.Conditions[0].LastTransitionTime = metav1.Time{} }
	for _, test := range []struct {
		what    string
		job     *batchv1.Job
		expires bool
		in      time.Duration
	}{
		{"complete", tick("a", living(60), endedAs(batchv1.JobComplete, 10*time.Second)), true, 50 * time.Second},
		{"failed", tick("a", living(60), endedAs(batchv1.JobFailed, 10*time.Second)), true, 50 * time.Second},
		{"long ago", tick("a", living(60), endedAs(batchv1.JobFailed, time.Hour)), true, time.Minute - time.Hour},
		{"at once", tick("a", living(0), endedAs(batchv1.JobComplete, 0)), true, 0},
		{"very long", tick("a", living(2147483647), endedAs(batchv1.JobComplete, 0)), true, 2147483647 * time.Second},
		{"no time given", tick("a", endedAs(batchv1.JobComplete, time.Hour)), false, 0},
		{"still running", tick("a", living(60)), false, 0},
		{"about to fail", tick("a", living(60), endedAs(batchv1.JobFailureTarget, time.Hour)), false, 0},
		{"about to succeed", tick("a", living(60), endedAs(batchv1.JobSuccessCriteriaMet, time.Hour)), false, 0},
		{"suspended", tick("a", living(60), endedAs(batchv1.JobSuspended, time.Hour)), false, 0},
		{"not complete", tick("a", living(60), endedAs(batchv1.JobComplete, time.Hour), untrue), false, 0},
		{"complete nobody knows when", tick("a", living(60), endedAs(batchv1.JobComplete, time.Hour), timeless), false, 0},
		{"leaving already", tick("a", living(60), endedAs(batchv1.JobComplete, time.Hour), func(j *batchv1.Job) { gone(j) }), false, 0},
		{"finished in the future", tick("a", living(60), endedAs(batchv1.JobComplete, -time.Minute)), true, 2 * time.Minute},
	} {
		at, expires := expiry(test.job)
		if expires != test.expires || expires && at.Sub(now) != test.in {
			t.Errorf("%s: %v, in %v", test.what, expires, at.Sub(now))
		}
	}
}

// TestFinishedJobsGo: jobs are deleted when their time is over, to the second and with their pods; a time that is changed meanwhile counts, whichever way.
func TestFinishedJobsGo(t *testing.T) {
	for _, test := range []struct {
		what   string
		ttl    int32
		change func(*batchv1.Job) // after a minute
		goes   time.Duration      // after the end, 0: never
	}{
		{"after its time", 120, nil, 120 * time.Second},
		{"at once", 0, nil, time.Nanosecond},
		{"longer", 120, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(600)) }, 600 * time.Second},
		{"shorter", 600, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(90)) }, 90 * time.Second},
		{"no longer", 120, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = nil }, 0},
		{"from now on, and long over", 1000, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(1)) }, 60 * time.Second},
	} {
		inWorld(t, 1, func(w *world.World) {
			stop := w.Run(TTLAfterFinished)
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "short"}, Spec: batchv1.JobSpec{TTLSecondsAfterFinished: &test.ttl, Template: template("image:1")}}
			job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			world.Create(w, job)
			w.Pass(time.Hour)
			at := metav1.NewTime(time.Now().Truncate(time.Second))
			world.EditStatus(w, "default", "short", func(j *batchv1.Job) {
				j.Status.StartTime, j.Status.CompletionTime = &at, &at
				j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuccessCriteriaMet, Status: "True", LastTransitionTime: at}, {Type: batchv1.JobComplete, Status: "True", LastTransitionTime: at}}
			})
			leaves := func() bool { return world.Get[*batchv1.Job](w, "default", "short").DeletionTimestamp != nil }
			until := func(d time.Duration) { w.Pass(time.Until(at.Add(d))) }
			if test.change != nil {
				until(time.Minute)
				world.Edit(w, "default", "short", test.change)
			}
			if test.goes == 0 {
				until(time.Hour)
				if leaves() {
					w.T.Errorf("%s: it went", test.what)
				}
				stop()
				return
			}
			if test.goes > time.Minute {
				until(test.goes - time.Second)
				if leaves() {
					w.T.Errorf("%s: it went too early", test.what)
				}
			}
			until(max(test.goes, time.Minute) + time.Second)
			got := world.Get[*batchv1.Job](w, "default", "short")
			if got.DeletionTimestamp == nil || fmt.Sprint(got.Finalizers) != "[foregroundDeletion]" {
				w.T.Errorf("%s: leaves %v, held by %v", test.what, got.DeletionTimestamp, got.Finalizers)
			}
			stop()
		})
	}
}

// TestExpiryIsAskedAgain: what the cache says of a job's time may be old. Before a job goes the server is asked.
func TestExpiryIsAskedAgain(t *testing.T) {
	for what, test := range map[string]struct {
		ttl  *int32
		goes bool
	}{"the same": {new(int32(1)), true}, "longer by now": {new(int32(3600)), false}, "no longer": {nil, false}} {
		inWorld(t, 1, func(w *world.World) {
			var setup *controller.Setup
			stop := w.Run(controller.Definition{Name: "capture", New: func(s *controller.Setup) (controller.Syncer, error) {
				setup = s
				return controller.SyncFunc(func(context.Context, controller.Key) error { return nil }), nil
			}})
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "short"}, Spec: batchv1.JobSpec{TTLSecondsAfterFinished: test.ttl, Template: template("image:1")}}
			job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			world.Create(w, job)
			at := metav1.NewTime(time.Now().Truncate(time.Second))
			world.EditStatus(w, "default", "short", func(j *batchv1.Job) {
				j.Status.StartTime, j.Status.CompletionTime = &at, &at
				j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuccessCriteriaMet, Status: "True", LastTransitionTime: at}, {Type: batchv1.JobComplete, Status: "True", LastTransitionTime: at}}
			})
			w.Pass(time.Minute)
			stale := world.Get[*batchv1.Job](w, "default", "short").DeepCopy()
			stale.Spec.TTLSecondsAfterFinished = new(int32(1))
			if err := syncTTL(w.Ctx, setup, controller.KeyOf(stale), stale); err != nil {
				w.T.Error(err)
			}
			if goes := world.Get[*batchv1.Job](w, "default", "short").DeletionTimestamp != nil; goes != test.goes {
				w.T.Errorf("%s: goes %v", what, goes)
			}
			stop()
		})
	}
}
