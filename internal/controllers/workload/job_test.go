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
)

func TestIndexes(t *testing.T) {
	for _, test := range []struct {
		text  string
		limit int
		want  string
		total int
	}{
		{"", 10, "", 0}, {"3", 10, "3", 1}, {"1,3-5,7", 10, "1,3-5,7", 5}, {"3,4", 10, "3,4", 2}, {"1-2,3-6", 10, "1-6", 6},
		{"0-9", 5, "0-4", 5}, {"1,8", 5, "1", 1}, {"x,2,3-y,4", 10, "2,4", 2},
	} {
		got := parseIndexes(test.text, test.limit)
		if got.String() != test.want || got.size() != test.total {
			t.Errorf("%q below %d: %s, %d indexes", test.text, test.limit, got, got.size())
		}
	}
	s := parseIndexes("1,3-5,7", 10)
	for index, want := range []bool{false, true, false, true, true, true, false, true, false} {
		if s.has(index) != want {
			t.Errorf("has %d: %v", index, !want)
		}
	}
	expect(t, "with", s.withIndexes([]int{0, 6, 9}).String(), "0,1,3-7,9")
	expect(t, "missing", fmt.Sprint(s.firstMissing(3, 10)), "[0 2 6]")
	expect(t, "missing below a limit", fmt.Sprint(s.firstMissing(9, 7)), "[0 2 6]")
	expect(t, "nothing missing", fmt.Sprint(parseIndexes("0-4", 5).firstMissing(3, 5)), "[]")
	if n := s.overlap(parseIndexes("0-3,5-9", 10)); n != 4 {
		t.Errorf("%d in common", n)
	}
}

// aJob wants three successes, two at a time.
func aJob(changes ...change[*batchv1.Job]) *batchv1.Job {
	start := ago(time.Hour)
	return with(&batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work", UID: "uid-work"},
		Spec: batchv1.JobSpec{Parallelism: new(int32(2)), Completions: new(int32(3)), BackoffLimit: new(int32(6)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("image:1"),
			CompletionMode: new(batchv1.NonIndexedCompletion), Suspend: new(false), PodReplacementPolicy: new(batchv1.TerminatingOrFailed)},
		Status: batchv1.JobStatus{StartTime: &start, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}},
	}, changes...)
}

func byIndex(j *batchv1.Job)     { j.Spec.CompletionMode = new(batchv1.IndexedCompletion) }
func suspended(j *batchv1.Job)   { j.Spec.Suspend = new(true) }
func patient(j *batchv1.Job)     { j.Spec.PodReplacementPolicy = new(batchv1.Failed) }
func withoutGoal(j *batchv1.Job) { j.Spec.Completions = nil }
func perIndex(n int32) change[*batchv1.Job] {
	return func(j *batchv1.Job) { byIndex(j); j.Spec.BackoffLimitPerIndex = &n }
}
func wants(completions, parallelism int32) change[*batchv1.Job] {
	return func(j *batchv1.Job) { j.Spec.Completions, j.Spec.Parallelism = &completions, &parallelism }
}
func counted(succeeded, failed int32, uncounted ...types.UID) change[*batchv1.Job] {
	return func(j *batchv1.Job) {
		j.Status.Succeeded, j.Status.Failed = succeeded, failed
		j.Status.UncountedTerminatedPods.Succeeded = uncounted
	}
}
func hasCondition(t batchv1.JobConditionType, reason string) change[*batchv1.Job] {
	return func(j *batchv1.Job) {
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: t, Status: "True", Reason: reason, Message: "because"})
	}
}

// work is a pod of the job that is tracked.
func work(name string, phase corev1.PodPhase, changes ...change[*corev1.Pod]) *corev1.Pod {
	return aPod(name, append([]change[*corev1.Pod]{ownedBy(aJob(), "Job"), inPhase(phase), func(p *corev1.Pod) { p.Finalizers = []string{batchv1.JobTrackingFinalizer} }}, changes...)...)
}
func atIndex(n int) change[*corev1.Pod] {
	return annotated(batchv1.JobCompletionIndexAnnotation, fmt.Sprint(n))
}
func untracked(p *corev1.Pod) { p.Finalizers = nil }
func exited(code int32, age time.Duration) change[*corev1.Pod] {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: ago(age)}}}}
	}
}
func failedTimes(counted, ignored int) change[*corev1.Pod] {
	return func(p *corev1.Pod) {
		annotated(batchv1.JobIndexFailureCountAnnotation, fmt.Sprint(counted))(p)
		annotated(batchv1.JobIndexIgnoredFailureCountAnnotation, fmt.Sprint(ignored))(p)
	}
}

func syncOnce(job *batchv1.Job, pods ...*corev1.Pod) controller.Plan {
	return jobView{job: job, pods: pods, now: now}.reconcile()
}

// after is the status once the plan is carried out, as words.
func after(job *batchv1.Job, plan controller.Plan) (words string, status batchv1.JobStatus) {
	status = job.Status
	result := controller.ApplyResult{}
	for _, w := range writesOf(plan) {
		result.Written = append(result.Written, w.Object)
		if w.Verb == controller.UpdateStatus {
			status = w.Object.(*batchv1.Job).Status
		}
	}
	if changed := plan.Status(result); changed != nil {
		status = changed.(*batchv1.Job).Status
	}
	var all []string
	for _, c := range status.Conditions {
		if c.Status == corev1.ConditionTrue {
			all = append(all, fmt.Sprintf("%s:%s", c.Type, c.Reason))
		} else {
			all = append(all, fmt.Sprintf("not %s:%s", c.Type, c.Reason))
		}
	}
	return strings.Join(all, " "), status
}

func TestJobPlan(t *testing.T) {
	const create = "create Pod work-"
	failedNow := work("f", corev1.PodFailed, exited(1, 0))
	for _, test := range []struct {
		what       string
		job        *batchv1.Job
		pods       []*corev1.Pod
		want       string
		conditions string
	}{
		{"a new job", aJob(), nil, create + " + " + create, ""},
		{"one runs", aJob(), []*corev1.Pod{work("a", corev1.PodRunning)}, create, ""},
		{"one is done: it is counted before its finalizer goes", aJob(), []*corev1.Pod{work("a", corev1.PodSucceeded), work("b", corev1.PodRunning)},
			"update status of Job work, patch Pod a, " + create, ""},
		{"a uid that was noted needs no second status", aJob(counted(0, 0, "uid-a")), []*corev1.Pod{work("a", corev1.PodSucceeded), work("b", corev1.PodRunning), work("c", corev1.PodRunning)},
			"patch Pod a", ""},
		{"the last one is on its way", aJob(counted(2, 0)), []*corev1.Pod{work("b", corev1.PodRunning)}, "", ""},
		{"done, but not all is counted", aJob(counted(2, 0)), []*corev1.Pod{work("b", corev1.PodSucceeded)},
			"update status of Job work, patch Pod b", "SuccessCriteriaMet:CompletionsReached"},
		{"done and counted", aJob(counted(2, 0, "uid-b")), []*corev1.Pod{work("b", corev1.PodSucceeded, untracked)}, "", "SuccessCriteriaMet:CompletionsReached Complete:CompletionsReached"},
		{"done, a pod is still leaving", aJob(counted(3, 0)), []*corev1.Pod{work("b", corev1.PodRunning, untracked, beingDeleted)}, "", "SuccessCriteriaMet:CompletionsReached"},
		{"nothing to do", aJob(wants(0, 2)), nil, "", "SuccessCriteriaMet:CompletionsReached Complete:CompletionsReached"},
		{"too many run", aJob(wants(3, 1)), []*corev1.Pod{work("a", corev1.PodPending), work("b", corev1.PodRunning, onNode("n"))}, "patch Pod a, delete Pod a", ""},
		{"without a goal: all run until one finds the work done", aJob(withoutGoal, counted(1, 0)), []*corev1.Pod{work("a", corev1.PodRunning)}, "", ""},
		{"without a goal: the last has ended", aJob(withoutGoal, counted(1, 0)), nil, "", "SuccessCriteriaMet:CompletionsReached Complete:CompletionsReached"},
		{"a failure: the next pod waits", aJob(), []*corev1.Pod{failedNow, work("b", corev1.PodRunning)}, "update status of Job work, patch Pod f, again 10s", ""},
		{"failures double the pause", aJob(counted(0, 2)), []*corev1.Pod{work("e", corev1.PodFailed, untracked, exited(1, 5*time.Second)), failedNow, work("b", corev1.PodRunning)},
			"update status of Job work, patch Pod f, again 20s", ""},
		{"a success in between ends the pause", aJob(counted(0, 2)), []*corev1.Pod{work("e", corev1.PodFailed, untracked, exited(1, 5*time.Second)), work("s", corev1.PodSucceeded, untracked, exited(0, time.Second)), work("b", corev1.PodRunning)},
			create, ""},
		{"the pause is over", aJob(counted(0, 1)), []*corev1.Pod{work("e", corev1.PodFailed, untracked, exited(1, 11*time.Second)), work("b", corev1.PodRunning)}, create, ""},
		{"too many failures", aJob(counted(0, 6)), []*corev1.Pod{failedNow, work("b", corev1.PodRunning)},
			"delete Pod b, update status of Job work, patch Pod b + patch Pod f", "FailureTarget:BackoffLimitExceeded"},
		{"failing: pods are leaving", aJob(hasCondition(batchv1.JobFailureTarget, "BackoffLimitExceeded")), []*corev1.Pod{work("b", corev1.PodRunning, untracked, beingDeleted)}, "", "FailureTarget:BackoffLimitExceeded"},
		{"failing: all gone", aJob(hasCondition(batchv1.JobFailureTarget, "BackoffLimitExceeded")), nil, "", "FailureTarget:BackoffLimitExceeded Failed:BackoffLimitExceeded"},
		{"past the deadline", aJob(func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = new(int64(60)) }), []*corev1.Pod{work("b", corev1.PodRunning)},
			"delete Pod b, update status of Job work, patch Pod b", "FailureTarget:DeadlineExceeded"},
		{"before the deadline", aJob(func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = new(int64(3660)) }), []*corev1.Pod{work("a", corev1.PodRunning), work("b", corev1.PodRunning)}, "again 1m0s", ""},
		{"restarts in place count", aJob(func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }), []*corev1.Pod{work("b", corev1.PodRunning, restarted(6))},
			"delete Pod b, update status of Job work, patch Pod b", "FailureTarget:BackoffLimitExceeded"},
		{"suspended: pods go uncounted", aJob(suspended), []*corev1.Pod{work("b", corev1.PodRunning)}, "patch Pod b, delete Pod b", "Suspended:JobSuspended"},
		{"resumed", aJob(hasCondition(batchv1.JobSuspended, "JobSuspended")), nil, create + " + " + create, "not Suspended:JobResumed"},
		{"a pod on its way out is replaced at once", aJob(), []*corev1.Pod{work("a", corev1.PodRunning, beingDeleted, exited(1, 20*time.Second)), work("b", corev1.PodRunning)}, "update status of Job work, patch Pod a, " + create, ""},
		{"or only when it has ended", aJob(patient), []*corev1.Pod{work("a", corev1.PodRunning, beingDeleted), work("b", corev1.PodRunning)}, "", ""},
		{"an orphan is adopted", aJob(), []*corev1.Pod{aPod("a", inPhase(corev1.PodRunning)), work("b", corev1.PodRunning)}, "patch Pod a", ""},
		{"a foreign is released", aJob(), []*corev1.Pod{work("a", corev1.PodRunning, labelled("app", "db")), work("b", corev1.PodRunning), work("c", corev1.PodRunning)}, "patch Pod a", ""},
		{"a job that is being deleted lets its pods go", aJob(func(j *batchv1.Job) { t := ago(0); j.DeletionTimestamp = &t }), []*corev1.Pod{work("a", corev1.PodRunning)}, "patch Pod a", ""},
	} {
		plan := syncOnce(test.job, test.pods...)
		conditions, _ := after(test.job, plan)
		expect(t, test.what, told(plan), test.want)
		expect(t, test.what+", conditions", conditions, test.conditions)
	}
}

func TestIndexedJobPlan(t *testing.T) {
	index := func(n int) string { return fmt.Sprintf("create Pod work-%d-", n) }
	policy := func(rules ...batchv1.SuccessPolicyRule) change[*batchv1.Job] {
		return func(j *batchv1.Job) { byIndex(j); j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: rules} }
	}
	done := func(indexes string) change[*batchv1.Job] {
		return func(j *batchv1.Job) { j.Status.CompletedIndexes = indexes }
	}
	for _, test := range []struct {
		what       string
		job        *batchv1.Job
		pods       []*corev1.Pod
		want       string
		conditions string
	}{
		{"the first indexes", aJob(byIndex), nil, index(0) + " + " + index(1), ""},
		{"the next index", aJob(byIndex, done("0")), []*corev1.Pod{work("b", corev1.PodRunning, atIndex(1))}, index(2), ""},
		{"a doubled index and one without go", aJob(byIndex), []*corev1.Pod{work("a", corev1.PodRunning, atIndex(0), onNode("n")), work("b", corev1.PodPending, atIndex(0)), work("c", corev1.PodRunning)},
			"patch Pod b + patch Pod c, delete Pod b + delete Pod c", ""},
		{"fewer completions than before", aJob(byIndex, wants(1, 1)), []*corev1.Pod{work("a", corev1.PodRunning, atIndex(0)), work("b", corev1.PodRunning, atIndex(4))}, "patch Pod b, delete Pod b", ""},
		{"all done", aJob(byIndex, done("0-2")), nil, "", "SuccessCriteriaMet:CompletionsReached Complete:CompletionsReached"},
		{"an index that is done again counts once", aJob(byIndex, done("0,1")), []*corev1.Pod{work("a", corev1.PodSucceeded, atIndex(0)), work("b", corev1.PodRunning, atIndex(2))},
			"update status of Job work, patch Pod a", ""},
		{"per index: a failed index is tried again after a pause, its pod held", aJob(perIndex(1)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, time.Second)), work("b", corev1.PodRunning, atIndex(1))}, "again 9s", ""},
		{"per index: the pause is over", aJob(perIndex(1)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, time.Minute)), work("b", corev1.PodRunning, atIndex(1))}, index(0), ""},
		{"per index: the new pod runs, the old one is counted", aJob(perIndex(1)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, time.Minute)), work("b", corev1.PodRunning, atIndex(1)), work("c", corev1.PodRunning, atIndex(0), failedTimes(1, 0))},
			"update status of Job work, patch Pod a", ""},
		{"per index: failed for good, the others go on", aJob(perIndex(1)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, time.Minute), failedTimes(1, 0)), work("b", corev1.PodRunning, atIndex(1))},
			"update status of Job work, patch Pod a, " + index(2), ""},
		{"per index: one may start now, another later", aJob(perIndex(5), wants(3, 3)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, time.Second)), work("b", corev1.PodFailed, atIndex(1), exited(1, time.Hour))},
			index(1) + " + " + index(2) + ", again 9s", ""},
		{"per index: all ended, some failed", aJob(perIndex(0), done("0,1")), []*corev1.Pod{work("c", corev1.PodFailed, atIndex(2))}, "update status of Job work, patch Pod c", "FailureTarget:FailedIndexes"},
		{"too many failed indexes", aJob(perIndex(0), func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = new(int32(0)) }), []*corev1.Pod{work("c", corev1.PodFailed, atIndex(2)), work("a", corev1.PodRunning, atIndex(0))},
			"delete Pod a, update status of Job work, patch Pod a + patch Pod c", "FailureTarget:MaxFailedIndexesExceeded"},
		{"success policy: enough of them", aJob(policy(batchv1.SuccessPolicyRule{SucceededIndexes: new("0-1"), SucceededCount: new(int32(1))}), done("1")), []*corev1.Pod{work("a", corev1.PodRunning, atIndex(0))},
			"delete Pod a, update status of Job work, patch Pod a", "SuccessCriteriaMet:SuccessPolicy"},
		{"success policy: not these", aJob(policy(batchv1.SuccessPolicyRule{SucceededIndexes: new("0-1")}), done("1")), []*corev1.Pod{work("a", corev1.PodRunning, atIndex(0)), work("c", corev1.PodRunning, atIndex(2))}, "", ""},
		{"success policy: any two", aJob(policy(batchv1.SuccessPolicyRule{SucceededIndexes: new("0-1")}, batchv1.SuccessPolicyRule{SucceededCount: new(int32(2))}), done("1,2")), nil, "", "SuccessCriteriaMet:SuccessPolicy Complete:SuccessPolicy"},
	} {
		plan := syncOnce(test.job, test.pods...)
		conditions, _ := after(test.job, plan)
		expect(t, test.what, told(plan), test.want)
		expect(t, test.what+", conditions", conditions, test.conditions)
	}
}

func TestJobPods(t *testing.T) {
	job := aJob(perIndex(3), func(j *batchv1.Job) {
		j.Name = strings.Repeat("x", 63)
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			{Action: batchv1.PodFailurePolicyActionIgnore, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{7}}}}}
		j.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "init", Env: []corev1.EnvVar{{Name: "JOB_COMPLETION_INDEX", Value: "mine"}}}}
	})
	plan := syncOnce(job, work("a", corev1.PodFailed, atIndex(0), exited(1, time.Hour), failedTimes(1, 1)), work("b", corev1.PodFailed, atIndex(1), exited(7, time.Hour)))
	first, second := plan.Steps[0].Writes[0].Object.(*corev1.Pod), plan.Steps[0].Writes[1].Object.(*corev1.Pod)
	if first.Annotations[batchv1.JobCompletionIndexAnnotation] != "0" || first.Labels[batchv1.JobCompletionIndexAnnotation] != "0" || !strings.HasSuffix(first.Spec.Hostname, "x-0") ||
		len(first.GenerateName) != maxGeneratedName || !strings.HasSuffix(first.GenerateName, "x-0-") || !isTracked(first) {
		t.Errorf("%+v", first)
	}
	if c, i := indexFailures(first); c != 2 || i != 1 {
		t.Errorf("failures %d, ignored %d", c, i)
	}
	if c, i := indexFailures(second); c != 0 || i != 1 {
		t.Errorf("an ignored failure: %d, ignored %d", c, i)
	}
	if env := first.Spec.Containers[0].Env; len(env) != 1 || env[0].ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/job-completion-index']" {
		t.Errorf("%+v", env)
	}
	if env := first.Spec.InitContainers[0].Env; len(env) != 1 || env[0].Value != "mine" {
		t.Errorf("%+v", env)
	}
}

func TestFailurePolicy(t *testing.T) {
	exit := func(op batchv1.PodFailurePolicyOnExitCodesOperator, container *string, values ...int32) *batchv1.PodFailurePolicyOnExitCodesRequirement {
		return &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, ContainerName: container, Values: values}
	}
	disrupted := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: "True"}}
	}
	onDisruption := []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: "True"}}
	for _, test := range []struct {
		what  string
		rules []batchv1.PodFailurePolicyRule
		pod   *corev1.Pod
		want  policyMatch
	}{
		{"no rule", nil, work("a", corev1.PodFailed, exited(1, 0)), policyMatch{}},
		{"an exit code", []batchv1.PodFailurePolicyRule{{Action: "FailJob", OnExitCodes: exit("In", nil, 3, 42)}}, work("a", corev1.PodFailed, exited(42, 0)),
			policyMatch{"FailJob", "Container web for pod default/a failed with exit code 42 matching FailJob rule at index 0"}},
		{"another container", []batchv1.PodFailurePolicyRule{{Action: "FailJob", OnExitCodes: exit("In", new("side"), 42)}}, work("a", corev1.PodFailed, exited(42, 0)), policyMatch{}},
		{"all but", []batchv1.PodFailurePolicyRule{{Action: "Ignore", OnExitCodes: exit("NotIn", nil, 1)}}, work("a", corev1.PodFailed, exited(2, 0)), policyMatch{action: "Ignore"}},
		{"zero never matches", []batchv1.PodFailurePolicyRule{{Action: "Ignore", OnExitCodes: exit("NotIn", nil, 1)}}, work("a", corev1.PodFailed, exited(0, 0)), policyMatch{}},
		{"the first rule that matches", []batchv1.PodFailurePolicyRule{{Action: "Count", OnExitCodes: exit("In", nil, 1)}, {Action: "Ignore", OnPodConditions: onDisruption}, {Action: "FailJob", OnPodConditions: onDisruption}},
			work("a", corev1.PodFailed, disrupted), policyMatch{action: "Ignore"}},
		{"a condition", []batchv1.PodFailurePolicyRule{{Action: "FailIndex", OnExitCodes: exit("In", nil, 1)}, {Action: "FailJob", OnPodConditions: onDisruption}},
			work("a", corev1.PodFailed, disrupted), policyMatch{"FailJob", "Pod default/a has condition DisruptionTarget matching FailJob rule at index 1"}},
	} {
		if got := matchPodFailurePolicy(&batchv1.PodFailurePolicy{Rules: test.rules}, test.pod); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.what, got, test.want)
		}
	}
	ignoring := func(j *batchv1.Job) {
		j.Spec.BackoffLimit = new(int32(0))
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: "Ignore", OnPodConditions: onDisruption}}}
	}
	plan := syncOnce(aJob(ignoring), work("a", corev1.PodFailed, disrupted, exited(1, time.Hour)), work("b", corev1.PodRunning))
	expect(t, "an ignored failure does not count", told(plan), "patch Pod a, create Pod work-")
	failing := func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: "FailJob", OnExitCodes: exit("In", nil, 42)}}}
	}
	conditions, status := after(aJob(failing), syncOnce(aJob(failing), work("a", corev1.PodFailed, exited(42, 0))))
	expect(t, "a failure that ends the job", conditions, "FailureTarget:PodFailurePolicy")
	if !slices.Equal(status.UncountedTerminatedPods.Failed, []types.UID{"uid-a"}) {
		t.Errorf("%+v", status)
	}
}

func TestJobStatusNumbers(t *testing.T) {
	job := aJob(wants(9, 1), counted(1, 2, "uid-gone", "uid-b"), func(j *batchv1.Job) { j.Status.UncountedTerminatedPods.Failed = []types.UID{"uid-x"} })
	pods := []*corev1.Pod{work("b", corev1.PodSucceeded), work("c", corev1.PodRunning, readyFor(time.Hour)), work("d", corev1.PodRunning, beingDeleted, untracked)}
	_, status := after(job, syncOnce(job, pods...))
	if status.Succeeded != 2 || status.Failed != 3 || status.Active != 1 || *status.Ready != 1 || *status.Terminating != 1 || !slices.Equal(status.UncountedTerminatedPods.Succeeded, []types.UID{"uid-b"}) || len(status.UncountedTerminatedPods.Failed) != 0 {
		t.Errorf("%+v", status)
	}
	plan := syncOnce(aJob())
	refused := controller.ApplyResult{Err: &controller.WriteError{Verb: controller.Create, Object: aPod("x"), Err: errors.New("quota")}, Written: []kindObject{work("new", corev1.PodPending)}}
	if got := plan.Status(refused).(*batchv1.Job).Status; got.Active != 1 {
		t.Errorf("one of two was created, but %d are active", got.Active)
	}
	if got := plan.Status(controller.ApplyResult{Err: errors.New("not confirmed")}); got != nil {
		t.Errorf("%+v", got)
	}
	fresh := aJob(func(j *batchv1.Job) { j.Status = batchv1.JobStatus{} })
	if _, status := after(fresh, syncOnce(fresh)); status.Active != 2 || !status.StartTime.Time.Equal(now) || status.UncountedTerminatedPods == nil {
		t.Errorf("%+v", status)
	}
	var many []*corev1.Pod
	for i := range maxUncounted + 100 {
		many = append(many, work(fmt.Sprint("p", i), corev1.PodSucceeded))
	}
	big := aJob(wants(1000, 0))
	plan = syncOnce(big, many...)
	if _, status := after(big, plan); len(status.UncountedTerminatedPods.Succeeded) != maxUncounted || len(plan.Steps[1].Writes) != maxUncounted {
		t.Errorf("%d uids in the status, %d pods freed", len(status.UncountedTerminatedPods.Succeeded), len(plan.Steps[1].Writes))
	}
	parallel := aJob(wants(4, 2), counted(5, 0))
	if got := events(syncOnce(parallel)); !slices.Equal(got, []string{"TooManySucceededPods: Too many succeeded pods running after completion count reached", "Completed: Job completed"}) {
		t.Errorf("events %q", got)
	}
	if got := events(syncOnce(aJob(hasCondition(batchv1.JobFailureTarget, "DeadlineExceeded")))); !slices.Equal(got, []string{"DeadlineExceeded: because"}) {
		t.Errorf("events %q", got)
	}
	if got := events(syncOnce(aJob(suspended))); !slices.Equal(got, []string{"Suspended: Job suspended"}) {
		t.Errorf("events %q", got)
	}
	// It went on, and its pod was quicker than whoever should have reported so.
	resumed := aJob(wants(1, 1), hasCondition(batchv1.JobSuspended, "JobSuspended"))
	if _, status := after(resumed, syncOnce(resumed, work("a", corev1.PodSucceeded))); isTrue(status.Conditions, batchv1.JobSuspended) || !isTrue(status.Conditions, batchv1.JobSuccessCriteriaMet) {
		t.Errorf("%+v", status.Conditions)
	}
	odd := aJob(func(j *batchv1.Job) { j.Spec.CompletionMode = new(batchv1.CompletionMode("Odd")) })
	if plan := syncOnce(odd); len(plan.Steps) != 0 || plan.Events[0].Reason != "UnknownCompletionMode" {
		t.Errorf("%+v", plan)
	}
}

func TestPause(t *testing.T) {
	for _, test := range []struct {
		failures int32
		since    time.Duration
		want     time.Duration
	}{{0, 0, 0}, {1, 0, 10 * time.Second}, {1, 4 * time.Second, 6 * time.Second}, {1, time.Minute, 0}, {3, 0, 40 * time.Second}, {7, 0, 10 * time.Minute}, {1000, 0, 10 * time.Minute}} {
		if got := remainingBackoff(test.failures, now.Add(-test.since), now); got != test.want {
			t.Errorf("%d failures, the last %v ago: %v, want %v", test.failures, test.since, got, test.want)
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: &always}, {Name: "i"}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "s", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ago(time.Second)}}}, {Name: "i"}}
	}
	unready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: "False", LastTransitionTime: ago(2 * time.Minute)}}
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want time.Duration
	}{
		{"its containers", aPod("a", exited(1, time.Minute)), time.Minute},
		{"its sidecar", aPod("a", exited(1, time.Minute), sidecar), time.Second},
		{"when it was no longer ready", aPod("a", unready), 2 * time.Minute},
		{"when its deletion began", aPod("a", beingDeleted, func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64(30)) }), 31 * time.Second},
		{"when it was created", aPod("a"), time.Hour},
	} {
		if got := now.Sub(endTime(test.pod)); got != test.want {
			t.Errorf("by %s: ended %v ago, want %v", test.what, got, test.want)
		}
	}
}
