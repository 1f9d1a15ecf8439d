package workload

import (
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

func uncountedAs(succeeded, failed string) change[*batchv1.Job] {
	uids := func(text string) (all []types.UID) {
		for word := range strings.FieldsSeq(text) {
			all = append(all, types.UID("uid-"+word))
		}
		return all
	}
	return func(j *batchv1.Job) {
		j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: uids(succeeded), Failed: uids(failed)}
	}
}

// TestTracking: in which of its three stations a pod is, and what is due. freed are the pods whose finalizer goes in this sync.
func TestTracking(t *testing.T) {
	const running, ok, bad = corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed
	policy := func(action batchv1.PodFailurePolicyAction) change[*batchv1.Job] {
		return func(j *batchv1.Job) {
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{7}}}}}
		}
	}
	big := wants(100, 0)
	for _, test := range []struct {
		what                string
		job                 *batchv1.Job
		pods                []*corev1.Pod
		freed               string
		succeeded, failed   int32
		uncountedS, uncounF string
	}{
		{"nothing", aJob(big), nil, "", 0, 0, "", ""},
		{"one runs", aJob(wants(100, 1)), []*corev1.Pod{work("a", running)}, "", 0, 0, "", ""},
		{"one succeeded: noted, then freed", aJob(big), []*corev1.Pod{work("a", ok)}, "a", 0, 0, "a", ""},
		{"one failed: noted, then freed", aJob(big), []*corev1.Pod{work("a", bad)}, "a", 0, 0, "", "a"},
		{"noted before: freed", aJob(big, uncountedAs("a", "")), []*corev1.Pod{work("a", ok)}, "a", 0, 0, "a", ""},
		{"noted and freed before: counted", aJob(big, uncountedAs("a", "")), []*corev1.Pod{work("a", ok, untracked)}, "", 1, 0, "", ""},
		{"noted and gone: counted", aJob(big, uncountedAs("a", "b")), nil, "", 1, 1, "", ""},
		{"freed but never noted was counted before", aJob(big, counted(1, 0)), []*corev1.Pod{work("a", ok, untracked)}, "", 1, 0, "", ""},
		{"all stations at once", aJob(big, counted(2, 1), uncountedAs("b c", "d e")), []*corev1.Pod{work("a", ok), work("b", ok), work("c", ok, untracked), work("d", bad), work("f", bad)}, "a b d f", 3, 2, "b a", "d f"},
		{"noted as failed, and succeeded after all: a failure", aJob(big, uncountedAs("", "a")), []*corev1.Pod{work("a", ok)}, "a", 0, 0, "", "a"},
		{"a leaving pod is a failure", aJob(big), []*corev1.Pod{work("a", running, beingDeleted)}, "a", 0, 0, "", "a"},
		{"a leaving pod is waited for", aJob(big, patient), []*corev1.Pod{work("a", running, beingDeleted)}, "", 0, 0, "", ""},
		{"a leaving pod that succeeded is a success", aJob(big), []*corev1.Pod{work("a", ok, beingDeleted)}, "a", 0, 0, "a", ""},
		{"an ignored failure is freed and not noted", aJob(big, policy("Ignore")), []*corev1.Pod{work("a", bad, exited(7, time.Hour))}, "a", 0, 0, "", ""},
		{"a counted failure is noted", aJob(big, policy("Count")), []*corev1.Pod{work("a", bad, exited(7, time.Hour))}, "a", 0, 0, "", "a"},
		{"a failure no rule names is noted", aJob(big, policy("Ignore")), []*corev1.Pod{work("a", bad, exited(8, time.Hour))}, "a", 0, 0, "", "a"},
		{"the job fails: running pods count as failed", aJob(hasCondition(batchv1.JobFailureTarget, "x")), []*corev1.Pod{work("a", running), work("b", bad)}, "a b", 0, 0, "", "a b"},
		{"the job succeeds: running pods count as nothing", aJob(hasCondition(batchv1.JobSuccessCriteriaMet, "x")), []*corev1.Pod{work("a", running), work("b", ok)}, "a b", 0, 0, "b", ""},
		{"the job leaves: all are freed, what ended is noted", aJob(goneJob), []*corev1.Pod{work("a", running), work("b", ok), work("c", bad)}, "a b c", 0, 0, "b", "c"},
		{"an adopted pod that succeeded", aJob(big), []*corev1.Pod{aPod("a", inPhase(ok))}, "a", 0, 0, "a", ""},
		{"a foreign's pod", aJob(big), []*corev1.Pod{work("a", ok, ownedBy(aPod("x"), "Job"))}, "", 0, 0, "", ""},
		{"a pod without a finalizer is not counted", aJob(big), []*corev1.Pod{work("a", ok, untracked), work("b", bad, untracked)}, "", 0, 0, "", ""},
	} {
		plan := syncOnce(test.job, test.pods...)
		var freed []string
		for _, w := range writesOf(plan) {
			if pod := asPod(w.Object); pod != nil && w.Verb == controller.Patch && strings.Contains(string(w.Patch), "deleteFromPrimitiveList") && len(w.Ignore) == 1 {
				freed = append(freed, pod.Name)
			}
		}
		slices.Sort(freed)
		expect(t, test.what+", freed", strings.Join(slices.Compact(freed), " "), test.freed)
		_, status := after(test.job, plan)
		words := func(uids []types.UID) string {
			var all []string
			for _, uid := range uids {
				all = append(all, strings.TrimPrefix(string(uid), "uid-"))
			}
			return strings.Join(all, " ")
		}
		got := fmt.Sprintf("%d %d [%s] [%s]", status.Succeeded, status.Failed, words(status.UncountedTerminatedPods.Succeeded), words(status.UncountedTerminatedPods.Failed))
		expect(t, test.what, got, fmt.Sprintf("%d %d [%s] [%s]", test.succeeded, test.failed, test.uncountedS, test.uncounF))
	}
}

// TestIndexTracking: an indexed job notes which indexes are done, not which pods.
func TestIndexTracking(t *testing.T) {
	done := func(text string) change[*batchv1.Job] {
		return func(j *batchv1.Job) { j.Status.CompletedIndexes = text }
	}
	const ok, bad, running = corev1.PodSucceeded, corev1.PodFailed, corev1.PodRunning
	none := "none"
	for _, test := range []struct {
		what              string
		job               *batchv1.Job
		pods              []*corev1.Pod
		completed, failed string
		succeeded         int32
		uncounted         int
	}{
		{"nothing", aJob(byIndex, wants(9, 0)), nil, "", none, 0, 0},
		{"one", aJob(byIndex, wants(9, 0)), []*corev1.Pod{work("a", ok, atIndex(4))}, "4", none, 1, 0},
		{"beside others", aJob(byIndex, wants(9, 0), done("0,1,3")), []*corev1.Pod{work("a", ok, atIndex(2))}, "0-3", none, 4, 0},
		{"one that was done before", aJob(byIndex, wants(9, 0), done("4")), []*corev1.Pod{work("a", ok, atIndex(4))}, "4", none, 1, 0},
		{"one twice", aJob(byIndex, wants(9, 0)), []*corev1.Pod{work("a", ok, atIndex(4)), work("b", ok, atIndex(4))}, "4", none, 1, 0},
		{"one beyond the job", aJob(byIndex, wants(9, 0)), []*corev1.Pod{work("a", ok, atIndex(9))}, "", none, 0, 0},
		{"one without an index", aJob(byIndex, wants(9, 0)), []*corev1.Pod{work("a", ok)}, "", none, 0, 0},
		{"one counted before, without its finalizer", aJob(byIndex, wants(9, 0)), []*corev1.Pod{work("a", ok, atIndex(4), untracked)}, "", none, 0, 0},
		{"a failure is noted by pod", aJob(byIndex, wants(9, 0)), []*corev1.Pod{work("a", bad, atIndex(4))}, "", none, 0, 1},
		{"a failure beyond the job is not", aJob(byIndex, wants(9, 0)), []*corev1.Pod{work("a", bad, atIndex(9))}, "", none, 0, 0},
		{"per index: none failed", aJob(perIndex(0), wants(9, 0)), nil, "", "", 0, 0},
		{"per index: failed for good", aJob(perIndex(0), wants(9, 0)), []*corev1.Pod{work("a", bad, atIndex(4))}, "", "4", 0, 1},
		{"per index: the last failure it may have", aJob(perIndex(2), wants(9, 0)), []*corev1.Pod{work("a", bad, atIndex(4), failedTimes(2, 0))}, "", "4", 0, 1},
		{"per index: one more is allowed, the pod is held", aJob(perIndex(2), wants(9, 0)), []*corev1.Pod{work("a", bad, atIndex(4), failedTimes(1, 0))}, "", "", 0, 0},
		{"per index: ignored failures do not count", aJob(perIndex(2), wants(9, 0)), []*corev1.Pod{work("a", bad, atIndex(4), failedTimes(1, 9))}, "", "", 0, 0},
		{"per index: held until the next runs", aJob(perIndex(2), wants(9, 1)), []*corev1.Pod{work("a", bad, atIndex(4)), work("b", running, atIndex(4), failedTimes(1, 0))}, "", "", 0, 1},
		{"per index: of two that failed the later is held", aJob(perIndex(5), wants(9, 0)), []*corev1.Pod{work("a", bad, atIndex(4), exited(1, time.Hour)), work("b", bad, atIndex(4), exited(1, time.Minute), failedTimes(1, 0))}, "", "", 0, 1},
		{"per index: a failure of an index that is done", aJob(perIndex(5), wants(9, 0), done("4")), []*corev1.Pod{work("a", bad, atIndex(4))}, "4", "", 1, 1},
	} {
		_, status := after(test.job, syncOnce(test.job, test.pods...))
		failed := none
		if status.FailedIndexes != nil {
			failed = *status.FailedIndexes
		}
		if status.CompletedIndexes != test.completed || failed != test.failed || status.Succeeded != test.succeeded || len(status.UncountedTerminatedPods.Failed) != test.uncounted || len(status.UncountedTerminatedPods.Succeeded) != 0 {
			t.Errorf("%s: done %q, failed %q, %d succeeded, uncounted %v", test.what, status.CompletedIndexes, failed, status.Succeeded, status.UncountedTerminatedPods)
		}
	}
}

// TestUncountedAreBounded: the status names at most so many pods at once; the rest is noted in later looks.
func TestUncountedAreBounded(t *testing.T) {
	for _, test := range []struct {
		pods, noted, want int
	}{{maxUncounted - 1, 0, maxUncounted - 1}, {maxUncounted, 0, maxUncounted}, {maxUncounted + 1, 0, maxUncounted}, {10, maxUncounted, 0}, {10, maxUncounted - 3, 3}} {
		job := aJob(wants(5000, 0))
		var pods []*corev1.Pod
		for i := range test.noted {
			job.Status.UncountedTerminatedPods.Succeeded = append(job.Status.UncountedTerminatedPods.Succeeded, types.UID(fmt.Sprint("uid-n", i)))
			// It is noted, and has to be freed again because the finalizer is still there: put it behind the new ones.
		}
		for i := range test.pods {
			pods = append(pods, work(fmt.Sprint("p", i), corev1.PodSucceeded))
		}
		for i := range test.noted {
			pods = append(pods, work(fmt.Sprint("n", i), corev1.PodSucceeded))
		}
		_, status := after(job, syncOnce(job, pods...))
		if got := len(status.UncountedTerminatedPods.Succeeded) - test.noted; got != test.want {
			t.Errorf("%d pods beside %d: %d are noted, want %d", test.pods, test.noted, got, test.want)
		}
	}
	// An indexed job names no pods; what bounds it are indexes that are new.
	for done, want := range map[string]int{"": maxUncounted, "0-599": maxUncounted + 100} {
		job := aJob(byIndex, wants(5000, 0), func(j *batchv1.Job) { j.Status.CompletedIndexes = done })
		var pods []*corev1.Pod
		for i := range maxUncounted + 100 {
			pods = append(pods, work(fmt.Sprint("p", i), corev1.PodSucceeded, atIndex(i)))
		}
		if freed := len(slices.DeleteFunc(writesOf(syncOnce(job, pods...)), func(w controller.Write) bool { return w.Verb != controller.Patch })); freed != want {
			t.Errorf("indexes %q were done before: %d pods are freed, want %d", done, freed, want)
		}
	}
}

// TestJobFinishes: the last word is only spoken when nothing is left to count or to wait for.
func TestJobFinishes(t *testing.T) {
	failing, succeeding := hasCondition(batchv1.JobFailureTarget, "Why"), hasCondition(batchv1.JobSuccessCriteriaMet, "Why")
	for _, test := range []struct {
		what  string
		job   *batchv1.Job
		pods  []*corev1.Pod
		want  batchv1.JobConditionType
		event string
	}{
		{"failed", aJob(failing), nil, batchv1.JobFailed, "Why: because"},
		{"complete", aJob(succeeding), nil, batchv1.JobComplete, "Completed: Job completed"},
		{"complete, with too many", aJob(succeeding, wants(2, 2), counted(3, 0)), nil, batchv1.JobComplete, "TooManySucceededPods: Too many succeeded pods running after completion count reached; Completed: Job completed"},
		{"complete without a goal: no number is too many", aJob(succeeding, withoutGoal, counted(3, 0)), nil, batchv1.JobComplete, "Completed: Job completed"},
		{"a pod still runs", aJob(failing), workers(1, corev1.PodRunning), "", ""},
		{"a pod is leaving", aJob(failing), workers(1, corev1.PodRunning, untracked, beingDeleted), "", ""},
		{"a pod that ended is leaving", aJob(failing), workers(1, corev1.PodFailed, untracked, beingDeleted), batchv1.JobFailed, "Why: because"},
		{"a pod has its finalizer", aJob(failing), workers(1, corev1.PodFailed), "", ""},
		{"a pod is noted and gone: it is counted in this sync", aJob(failing, uncountedAs("", "a")), nil, batchv1.JobFailed, "Why: because"},
		{"a pod is noted and not freed", aJob(failing, uncountedAs("", "w0")), workers(1, corev1.PodFailed), "", ""},
		{"not decided", aJob(), nil, "", ""},
	} {
		plan := syncOnce(test.job, test.pods...)
		_, status := after(test.job, plan)
		var last batchv1.JobConditionType
		for _, c := range status.Conditions {
			if c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed {
				last = c.Type
			}
		}
		if last != test.want || (status.CompletionTime != nil) != (last == batchv1.JobComplete) {
			t.Errorf("%s: %q, completed %v", test.what, last, status.CompletionTime)
		}
		told := slices.DeleteFunc(events(plan), func(e string) bool { return strings.HasPrefix(e, "Successful") })
		expect(t, test.what+", events", strings.Join(told, "; "), test.event)
	}
}

// TestJobsOfOthers: a job that names another controller is left alone, with its pods' finalizers; one that names this one is not.
func TestJobsOfOthers(t *testing.T) {
	for _, test := range []struct {
		managedBy *string
		elsewhere bool
	}{{nil, false}, {new(batchv1.JobControllerName), false}, {new("example.com/mine"), true}} {
		if got := managedByExternalController(aJob(func(j *batchv1.Job) { j.Spec.ManagedBy = test.managedBy })); got != test.elsewhere {
			t.Errorf("%v: %v", test.managedBy, got)
		}
	}
	inWorld(t, 1, func(w *world.World) {
		t := w.T
		stop := w.Run(Job)
		for _, name := range []string{"ours", "theirs"} {
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: batchv1.JobSpec{Template: template("image:1")}}
			if job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever; name == "theirs" {
				job.Spec.ManagedBy = new("example.com/mine")
			}
			world.Create(w, job)
		}
		w.Chaos(0, 1)
		for range 3 {
			w.Pass(time.Minute)
			w.Nudge()
		}
		theirs := world.Get[*batchv1.Job](w, "default", "theirs")
		if ours := world.Get[*batchv1.Job](w, "default", "ours"); !jobFinished(ours) || theirs.Status.StartTime != nil {
			t.Errorf("%+v, %+v", ours.Status, theirs.Status)
		}
		// A pod of theirs keeps its finalizer, whoever asks.
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Finalizers: []string{batchv1.JobTrackingFinalizer}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(theirs, jobKind)}}, Spec: template("image:1").Spec}
		world.Create(w, pod)
		w.Pass(time.Minute)
		if got := world.Get[*corev1.Pod](w, "default", "p"); !isTracked(got) {
			t.Error("the finalizer of another controller's pod was removed")
		}
		stop()
	})
}
