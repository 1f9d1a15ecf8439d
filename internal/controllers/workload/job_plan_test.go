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
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/internal/podstate"
)

func workers(n int, phase corev1.PodPhase, changes ...change[*corev1.Pod]) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, work(fmt.Sprint("w", i), phase, changes...))
	}
	return pods
}

func started(age time.Duration) change[*batchv1.Job] {
	return func(j *batchv1.Job) { t := ago(age); j.Status.StartTime = &t }
}
func unstarted(j *batchv1.Job) { j.Status.StartTime = nil }
func deadlineAfter(seconds int64) change[*batchv1.Job] {
	return func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &seconds }
}
func backoff(n int32) change[*batchv1.Job] {
	return func(j *batchv1.Job) { j.Spec.BackoffLimit = &n }
}
func restartsInPlace(j *batchv1.Job) {
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
}
func goneJob(j *batchv1.Job) { gone(j) }

// deeds are what a plan does to pods, by number: "2 create, 1 delete".
func deeds(plan controller.Plan) string {
	n := map[controller.Verb]int{}
	for _, w := range writesOf(plan) {
		if _, ok := w.Object.(*corev1.Pod); ok && w.Verb != controller.Patch {
			n[w.Verb]++
		}
	}
	var words []string
	for _, verb := range []controller.Verb{controller.Create, controller.Delete} {
		if n[verb] > 0 {
			words = append(words, fmt.Sprintf("%d %s", n[verb], verb))
		}
	}
	return strings.Join(words, ", ")
}

// TestJobNumbers: how many pods a job of so many completions and so many at once makes or deletes.
func TestJobNumbers(t *testing.T) {
	const running = corev1.PodRunning
	for _, test := range []struct {
		what string
		job  *batchv1.Job
		pods []*corev1.Pod
		want string
	}{
		{"as many as may run", aJob(wants(10, 3)), nil, "3 create"},
		{"as many as are wanted", aJob(wants(2, 5)), nil, "2 create"},
		{"none may run", aJob(wants(5, 0)), nil, ""},
		{"none may run: those that do go", aJob(wants(5, 0)), workers(2, running), "2 delete"},
		{"fewer may run than do", aJob(wants(5, 1)), workers(3, running), "2 delete"},
		{"fewer are wanted than run", aJob(wants(5, 5), counted(4, 0)), workers(3, running), "2 delete"},
		{"enough have succeeded: those that run go", aJob(wants(5, 5), counted(5, 0)), workers(2, running), "2 delete"},
		{"some have succeeded", aJob(wants(5, 5), counted(2, 0)), nil, "3 create"},
		{"some have succeeded and are not counted yet", aJob(wants(5, 5)), workers(2, corev1.PodSucceeded), "3 create"},
		{"some are noted", aJob(wants(5, 5), counted(0, 0, "uid-w0", "uid-w1")), workers(2, corev1.PodSucceeded), "3 create"},
		{"some run", aJob(wants(5, 4)), workers(3, running), "1 create"},
		{"more than wanted have succeeded", aJob(wants(2, 2), counted(3, 0)), nil, ""},
		{"without a goal", aJob(withoutGoal), nil, "2 create"},
		{"without a goal, one succeeded: no more are made", aJob(withoutGoal, counted(1, 0)), workers(1, running), ""},
		{"without a goal, one just succeeded: no more are made", aJob(withoutGoal), append(workers(1, running), work("s", corev1.PodSucceeded)), ""},
		{"without a goal, fewer may run", aJob(withoutGoal, func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(1)) }), workers(3, running), "2 delete"},
		{"the burst", aJob(wants(burstReplicas+10, burstReplicas+10)), nil, fmt.Sprint(burstReplicas, " create")},
		{"just the burst", aJob(wants(burstReplicas, burstReplicas)), nil, fmt.Sprint(burstReplicas, " create")},
		{"deletions in bursts", aJob(wants(burstReplicas+10, 0)), workers(burstReplicas+5, running), fmt.Sprint(burstReplicas, " delete")},
		{"suspended: all at once, however many", aJob(wants(burstReplicas+10, burstReplicas+10), suspended), workers(burstReplicas+5, running), fmt.Sprint(burstReplicas+5, " delete")},
		{"pending pods run", aJob(wants(2, 2)), workers(2, corev1.PodPending), ""},
		{"leaving pods do not", aJob(wants(2, 2)), workers(2, running, beingDeleted, exited(1, time.Hour)), "2 create"},
		{"leaving pods are waited for", aJob(wants(2, 2), patient), workers(2, running, beingDeleted), ""},
		{"one of two is waited for", aJob(wants(2, 2), patient), workers(1, running, beingDeleted), "1 create"},
		{"leaving and failed is failed", aJob(wants(2, 2), patient), workers(2, corev1.PodFailed, beingDeleted, exited(1, time.Hour)), "2 create"},
		{"a leaving job makes none", aJob(goneJob), nil, ""},
		{"a leaving job deletes none", aJob(goneJob, wants(5, 0)), workers(2, running), ""},
		{"a job that has decided to fail makes none", aJob(hasCondition(batchv1.JobFailureTarget, "x")), nil, ""},
		{"a job that has decided to fail ends all", aJob(hasCondition(batchv1.JobFailureTarget, "x")), workers(2, running), "2 delete"},
		{"a job that has succeeded ends all", aJob(hasCondition(batchv1.JobSuccessCriteriaMet, "x")), workers(2, running), "2 delete"},
		{"indexed: the burst", aJob(byIndex, wants(burstReplicas+10, burstReplicas+10)), nil, fmt.Sprint(burstReplicas, " create")},
	} {
		expect(t, test.what, deeds(syncOnce(test.job, test.pods...)), test.want)
	}
}

// TestJobEnds: when a job ends, and why. Conditions that were there before decide before all else; then the failure policy, the limit of failures, the deadline,
// failed indexes, the success policy, and at last enough successes.
func TestJobEnds(t *testing.T) {
	failPolicy := func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: "FailJob", OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{42}}}}}
	}
	anyOne := func(j *batchv1.Job) {
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}}
	}
	done := func(text string) change[*batchv1.Job] {
		return func(j *batchv1.Job) { j.Status.CompletedIndexes = text }
	}
	wrong := func(text string) change[*batchv1.Job] { return func(j *batchv1.Job) { j.Status.FailedIndexes = &text } }
	most := func(n int32) change[*batchv1.Job] { return func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = &n } }
	failedPods := func(n int) []*corev1.Pod { return workers(n, corev1.PodFailed, exited(1, time.Hour)) }
	const limit, deadline, failed, success = "FailureTarget BackoffLimitExceeded", "FailureTarget DeadlineExceeded", "FailureTarget ", "SuccessCriteriaMet "
	for _, test := range []struct {
		what string
		job  *batchv1.Job
		pods []*corev1.Pod
		want string
	}{
		{"nothing ends it", aJob(), workers(2, corev1.PodRunning), ""},
		{"as many failures as the limit", aJob(backoff(2)), failedPods(2), ""},
		{"one more than the limit", aJob(backoff(2)), failedPods(3), limit},
		{"no failure is allowed", aJob(backoff(0)), failedPods(1), limit},
		{"failures counted before", aJob(backoff(2), counted(0, 3)), nil, limit},
		{"failures counted and to be counted", aJob(backoff(2), counted(0, 2)), failedPods(1), limit},
		{"failures without a finalizer were counted before", aJob(backoff(2)), workers(3, corev1.PodFailed, untracked, exited(1, time.Hour)), ""},
		{"leaving pods are failures", aJob(backoff(1)), workers(2, corev1.PodRunning, beingDeleted), limit},
		{"or not, where they are waited for", aJob(backoff(1), patient), workers(2, corev1.PodRunning, beingDeleted), ""},
		{"restarts in place up to the limit", aJob(backoff(3), restartsInPlace), workers(1, corev1.PodRunning, restarted(2)), ""},
		{"restarts in place at the limit", aJob(backoff(3), restartsInPlace), workers(1, corev1.PodRunning, restarted(3)), limit},
		{"restarts of all pods add up", aJob(backoff(3), restartsInPlace), workers(2, corev1.PodRunning, restarted(2)), limit},
		{"restarts of pending pods count", aJob(backoff(3), restartsInPlace), workers(1, corev1.PodPending, restarted(3)), limit},
		{"restarts of pods that ended do not", aJob(backoff(3), restartsInPlace), workers(1, corev1.PodSucceeded, restarted(9)), ""},
		{"no restart is allowed", aJob(backoff(0), restartsInPlace), workers(1, corev1.PodRunning, restarted(1)), limit},
		{"no restart is allowed, and there was none", aJob(backoff(0), restartsInPlace), workers(1, corev1.PodRunning, restarted(0)), ""},
		{"restarts of init containers count", aJob(backoff(2), restartsInPlace), workers(1, corev1.PodRunning, withStatuses(nil, []corev1.ContainerStatus{{RestartCount: 2}})), limit},
		{"restarts where pods are not restarted", aJob(backoff(1)), workers(1, corev1.PodRunning, restarted(9)), ""},
		{"before the deadline", aJob(deadlineAfter(60), started(59*time.Second)), workers(1, corev1.PodRunning), ""},
		{"at the deadline", aJob(deadlineAfter(60), started(60*time.Second)), workers(1, corev1.PodRunning), deadline},
		{"no time at all", aJob(deadlineAfter(0), unstarted), nil, deadline},
		{"the deadline of a suspended job stands still", aJob(deadlineAfter(60), started(time.Hour), suspended), nil, "Suspended JobSuspended"},
		{"failures before the deadline", aJob(backoff(0), deadlineAfter(60), started(time.Hour)), failedPods(1), limit},
		{"the policy before failures", aJob(failPolicy, backoff(0)), workers(1, corev1.PodFailed, exited(42, time.Hour)), failed + "PodFailurePolicy"},
		{"the policy of a pod counted before", aJob(failPolicy), workers(1, corev1.PodFailed, exited(42, time.Hour), untracked), failed + "PodFailurePolicy"},
		{"the policy and a pod that did not fail", aJob(failPolicy), workers(1, corev1.PodRunning, exited(42, 0)), ""},
		{"decided before: to fail", aJob(hasCondition(batchv1.JobFailureTarget, "Mine"), backoff(0)), failedPods(1), failed + "Mine"},
		{"decided before: to succeed, whatever fails", aJob(hasCondition(batchv1.JobSuccessCriteriaMet, "Mine"), backoff(0)), failedPods(2), success + "Mine"},
		{"too many failed indexes", aJob(perIndex(0), wants(9, 9), most(1), wrong("0,1")), nil, failed + "MaxFailedIndexesExceeded"},
		{"as many failed indexes as allowed", aJob(perIndex(0), wants(9, 9), most(2), wrong("0,1")), nil, ""},
		{"a failed index that was not counted yet", aJob(perIndex(0), wants(9, 9), most(0)), workers(1, corev1.PodFailed, atIndex(3)), failed + "MaxFailedIndexesExceeded"},
		{"all indexes have ended, one wrongly", aJob(perIndex(0), done("0,1"), wrong("2")), nil, failed + "FailedIndexes"},
		{"not all indexes have ended", aJob(perIndex(0), done("0"), wrong("2")), nil, ""},
		{"too many before all have ended", aJob(perIndex(0), most(0), done("0,1"), wrong("2")), nil, failed + "MaxFailedIndexesExceeded"},
		{"a success policy is met", aJob(byIndex, anyOne, done("1")), nil, success + "SuccessPolicy"},
		{"a success policy is met by a pod not counted yet", aJob(byIndex, anyOne), workers(1, corev1.PodSucceeded, atIndex(1)), success + "SuccessPolicy"},
		{"a success policy is met too late", aJob(byIndex, anyOne, backoff(0), done("1")), workers(1, corev1.PodFailed, atIndex(0)), limit},
		{"enough successes", aJob(wants(2, 2), counted(2, 0)), nil, success + "CompletionsReached"},
		{"enough successes, one still runs: it is deleted first", aJob(wants(2, 2), counted(2, 0)), workers(1, corev1.PodRunning), success + "CompletionsReached"},
		{"all indexes", aJob(byIndex, done("0-2")), nil, success + "CompletionsReached"},
		{"an index beyond the job does not count", aJob(byIndex, done("0-1,7")), nil, ""},
		{"nothing was wanted", aJob(wants(0, 0)), nil, success + "CompletionsReached"},
		{"a suspended job that is complete", aJob(wants(1, 1), suspended, counted(1, 0)), nil, success + "CompletionsReached"},
	} {
		_, status := after(test.job, syncOnce(test.job, test.pods...))
		got := ""
		for _, c := range status.Conditions {
			if c.Status == corev1.ConditionTrue && c.Type != batchv1.JobComplete && c.Type != batchv1.JobFailed {
				got = string(c.Type) + " " + c.Reason
			}
		}
		expect(t, test.what, got, test.want)
	}
}

func TestJobMessages(t *testing.T) {
	for _, test := range []struct {
		job  *batchv1.Job
		want string
	}{
		{aJob(backoff(0), counted(0, 1)), "Job has reached the specified backoff limit"},
		{aJob(deadlineAfter(1)), "Job was active longer than specified deadline"},
		{aJob(perIndex(0), func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = new(int32(0)); j.Status.FailedIndexes = new("0") }), "Job has exceeded the specified maximal number of failed indexes"},
		{aJob(perIndex(0), func(j *batchv1.Job) { j.Status.FailedIndexes, j.Status.CompletedIndexes = new("0"), "1,2" }), "Job has failed indexes"},
		{aJob(counted(3, 0)), "Reached expected number of succeeded pods"},
	} {
		_, status := after(test.job, syncOnce(test.job))
		if n := len(status.Conditions); n != 2 || status.Conditions[0].Message != test.want || status.Conditions[1].Message != test.want || status.Conditions[0].Reason != status.Conditions[1].Reason {
			t.Errorf("%+v, want %q", status.Conditions, test.want)
			continue
		}
		last := status.Conditions[1]
		if !last.LastTransitionTime.Time.Equal(now) || !last.LastProbeTime.Time.Equal(now) || (last.Type == batchv1.JobComplete) != (status.CompletionTime != nil) {
			t.Errorf("%+v, completed %v", last, status.CompletionTime)
		}
	}
}

// TestJobSurplus: which pods of a job go when there are too many.
func TestJobSurplus(t *testing.T) {
	const running = corev1.PodRunning
	placed := onNode("n")
	for _, test := range []struct {
		what string
		job  *batchv1.Job
		pods []*corev1.Pod
		want string
	}{
		{"those that wait for a node", aJob(wants(3, 1)), []*corev1.Pod{work("a", running, placed), work("b", corev1.PodPending)}, "b"},
		{"those that are not ready", aJob(wants(3, 1)), []*corev1.Pod{work("a", running, placed), work("b", running, placed, readyFor(time.Hour))}, "a"},
		{"those ready for a shorter time, to the second", aJob(wants(3, 1)), []*corev1.Pod{work("a", running, placed, readyFor(100*time.Minute)), work("b", running, placed, readyFor(99*time.Minute))}, "b"},
		{"the younger, to the second", aJob(wants(3, 1)), []*corev1.Pod{work("a", running, placed, created(100*time.Minute)), work("b", running, placed, created(99*time.Minute))}, "b"},
		{"a cost is no matter", aJob(wants(3, 1)), []*corev1.Pod{work("a", running, placed, created(time.Hour), annotated(corev1.PodDeletionCost, "-5")), work("b", running, placed, created(time.Minute), annotated(corev1.PodDeletionCost, "5"))}, "b"},
		{"equal ones by name", aJob(wants(3, 1)), []*corev1.Pod{work("b", running, placed), work("a", running, placed)}, "a"},
		{"indexed: one without an index", aJob(byIndex, wants(3, 3)), []*corev1.Pod{work("a", running, atIndex(0)), work("b", running), work("c", running, atIndex(1))}, "b"},
		{"indexed: one beyond the job", aJob(byIndex, wants(3, 3)), []*corev1.Pod{work("a", running, atIndex(0)), work("b", running, atIndex(3)), work("c", running, atIndex(1))}, "b"},
		{"indexed: the lesser of two with one index", aJob(byIndex, wants(3, 3)), []*corev1.Pod{work("a", running, atIndex(0), placed, readyFor(0)), work("b", running, atIndex(0), placed)}, "b"},
		{"indexed: the two lesser of three", aJob(byIndex, wants(3, 3)), []*corev1.Pod{work("a", corev1.PodPending, atIndex(0)), work("b", running, atIndex(0), placed), work("c", running, atIndex(0), placed, readyFor(0))}, "a b"},
		{"indexed: doubles count towards what must go", aJob(byIndex, wants(3, 1)), []*corev1.Pod{work("a", running, atIndex(0), placed, readyFor(0)), work("b", running, atIndex(0), placed)}, "b"},
		{"indexed: doubles and more", aJob(byIndex, wants(3, 1)), []*corev1.Pod{work("a", running, atIndex(0), placed, readyFor(0)), work("b", running, atIndex(0), placed), work("c", running, atIndex(1), placed)}, "b c"},
	} {
		for _, pods := range [][]*corev1.Pod{test.pods, backwards(test.pods)} {
			var deleted []string
			for _, w := range writesOf(syncOnce(test.job, pods...)) {
				if w.Verb == controller.Delete {
					deleted = append(deleted, w.Object.GetName())
				}
			}
			slices.Sort(deleted)
			expect(t, test.what, strings.Join(deleted, " "), test.want)
		}
	}
}

// TestIndexChoice: which indexes are begun.
func TestIndexChoice(t *testing.T) {
	const running = corev1.PodRunning
	done := func(text string) change[*batchv1.Job] {
		return func(j *batchv1.Job) { j.Status.CompletedIndexes = text }
	}
	wrong := func(text string) change[*batchv1.Job] { return func(j *batchv1.Job) { j.Status.FailedIndexes = &text } }
	for _, test := range []struct {
		what  string
		job   *batchv1.Job
		pods  []*corev1.Pod
		want  string
		again time.Duration
	}{
		{"the lowest", aJob(byIndex, wants(5, 2)), nil, "0 1", 0},
		{"the lowest that are not done", aJob(byIndex, wants(5, 2), done("0,2")), nil, "1 3", 0},
		{"nor run", aJob(byIndex, wants(5, 3)), []*corev1.Pod{work("a", running, atIndex(1))}, "0 2", 0},
		{"nor have just succeeded", aJob(byIndex, wants(5, 2)), []*corev1.Pod{work("a", corev1.PodSucceeded, atIndex(0))}, "1 2", 0},
		{"one that failed is begun again", aJob(byIndex, wants(5, 2)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, time.Hour))}, "0 1", 0},
		{"one whose pod leaves is begun again", aJob(byIndex, wants(5, 2)), []*corev1.Pod{work("a", running, atIndex(0), beingDeleted, exited(1, time.Hour))}, "0 1", 0},
		{"one whose pod leaves is waited for", aJob(byIndex, wants(5, 2), patient), []*corev1.Pod{work("a", running, atIndex(0), beingDeleted)}, "1", 0},
		{"one that failed for good is not", aJob(perIndex(0), wants(5, 2), wrong("0")), nil, "1 2", 0},
		{"per index: one in its pause is left out", aJob(perIndex(3), wants(5, 2)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, 2*time.Second))}, "1", 8 * time.Second},
		{"per index: the second failure has the longer pause", aJob(perIndex(3), wants(5, 2)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, 2*time.Second), failedTimes(1, 0))}, "1", 18 * time.Second},
		{"per index: ignored failures lengthen it too", aJob(perIndex(3), wants(5, 2)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, 2*time.Second), failedTimes(0, 2))}, "1", 38 * time.Second},
		{"per index: both in their pause, the shorter counts", aJob(perIndex(3), wants(2, 2)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, 2*time.Second)), work("b", corev1.PodFailed, atIndex(1), exited(1, 7*time.Second))}, "", 3 * time.Second},
		{"per index: the last failure of an index counts", aJob(perIndex(3), wants(1, 1)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(0), exited(1, time.Hour)), work("b", corev1.PodFailed, atIndex(0), exited(1, 2*time.Second), failedTimes(1, 0))}, "", 18 * time.Second},
		{"per index: the last failure of an index counts, in another order", aJob(perIndex(3), wants(1, 1)), []*corev1.Pod{work("b", corev1.PodFailed, atIndex(0), exited(1, 2*time.Second), failedTimes(1, 0)), work("a", corev1.PodFailed, atIndex(0), exited(1, time.Hour))}, "", 18 * time.Second},
		{"per index: no pause for others", aJob(perIndex(3), wants(5, 3)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(4), exited(1, 0))}, "0 1 2", 0},
		{"not per index: a failure holds up all", aJob(byIndex, wants(5, 2)), []*corev1.Pod{work("a", corev1.PodFailed, atIndex(4), exited(1, 2*time.Second))}, "", 8 * time.Second},
	} {
		plan := syncOnce(test.job, test.pods...)
		var begun []string
		for _, w := range writesOf(plan) {
			if w.Verb == controller.Create {
				begun = append(begun, w.Object.GetAnnotations()[batchv1.JobCompletionIndexAnnotation])
			}
		}
		expect(t, test.what, strings.Join(begun, " "), test.want)
		if plan.RequeueAfter != test.again {
			t.Errorf("%s: again after %v, want %v", test.what, plan.RequeueAfter, test.again)
		}
	}
}

func TestIndexedPodWhole(t *testing.T) {
	job := aJob(perIndex(2), wants(3, 1), func(j *batchv1.Job) {
		j.Spec.Template.Annotations, j.Spec.Template.Finalizers = map[string]string{"a": "1"}, []string{"mine/f"}
		j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	})
	made := syncOnce(job, work("x", corev1.PodFailed, atIndex(0), exited(1, time.Hour), failedTimes(0, 3))).Steps[0].Writes[0].Object
	variable := corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['batch.kubernetes.io/job-completion-index']"}}}
	same(t, "the pod", made, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "work-0-", Finalizers: []string{"mine/f", "batch.kubernetes.io/job-tracking"},
			Labels:          map[string]string{"app": "web", "batch.kubernetes.io/job-completion-index": "0"},
			Annotations:     map[string]string{"a": "1", "batch.kubernetes.io/job-completion-index": "0", "batch.kubernetes.io/job-index-failure-count": "1", "batch.kubernetes.io/job-index-ignored-failure-count": "3"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "work", UID: "uid-work", Controller: new(true), BlockOwnerDeletion: new(true)}}},
		Spec: corev1.PodSpec{Hostname: "work-0", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "web", Image: "image:1", Env: []corev1.EnvVar{variable}}}},
	})
	plain := syncOnce(aJob(wants(1, 1))).Steps[0].Writes[0].Object.(*corev1.Pod)
	if plain.GenerateName != "work-" || plain.Spec.Hostname != "" || len(plain.Annotations) != 0 || len(plain.Spec.Containers[0].Env) != 0 || !isTracked(plain) {
		t.Errorf("%+v", plain)
	}
	for _, test := range []struct {
		name  string
		index int
		want  string
	}{
		{"work", 0, "work-0-"}, {"work", 123, "work-123-"}, {strings.Repeat("x", 55), 7, strings.Repeat("x", 55) + "-7-"}, {strings.Repeat("x", 56), 7, strings.Repeat("x", 55) + "-7-"}, {strings.Repeat("x", 63), 1234, strings.Repeat("x", 52) + "-1234-"},
	} {
		l := &jobSync{jobView: jobView{job: aJob(byIndex, func(j *batchv1.Job) { j.Name = test.name })}}
		if got := l.indexedPod(&corev1.Pod{}, test.index, nil); got.GenerateName != test.want || got.Spec.Hostname != fmt.Sprintf("%s-%d", test.name, test.index) {
			t.Errorf("%s at %d: %s, host %s", test.name, test.index, got.GenerateName, got.Spec.Hostname)
		}
	}
}

// TestJobPause: how long a job waits after its pods failed, and what ends the wait.
func TestJobPause(t *testing.T) {
	failed := func(name string, age time.Duration, changes ...change[*corev1.Pod]) *corev1.Pod {
		return work(name, corev1.PodFailed, append([]change[*corev1.Pod]{exited(1, age)}, changes...)...)
	}
	ok := func(name string, age time.Duration) *corev1.Pod {
		return work(name, corev1.PodSucceeded, exited(0, age))
	}
	for _, test := range []struct {
		what string
		pods []*corev1.Pod
		want time.Duration // zero: pods are made
	}{
		{"no failure", nil, 0},
		{"one", []*corev1.Pod{failed("a", time.Second)}, 9 * time.Second},
		{"one, long ago", []*corev1.Pod{failed("a", 11*time.Second)}, 0},
		{"two: twice as long since the last", []*corev1.Pod{failed("a", 9*time.Second), failed("b", 4*time.Second)}, 16 * time.Second},
		{"three", []*corev1.Pod{failed("a", 9*time.Second), failed("b", 4*time.Second), failed("c", 6*time.Second)}, 36 * time.Second},
		{"a success after all", []*corev1.Pod{failed("a", 9*time.Second), failed("b", 4*time.Second), ok("c", time.Second)}, 0},
		{"a success between", []*corev1.Pod{failed("a", 9*time.Second), ok("c", 6*time.Second), failed("b", 4*time.Second)}, 6 * time.Second},
		{"a success before", []*corev1.Pod{ok("c", 20*time.Second), failed("a", 9*time.Second), failed("b", 4*time.Second)}, 16 * time.Second},
		{"a success at the very moment", []*corev1.Pod{failed("a", 4*time.Second), ok("b", 4*time.Second)}, 0},
		{"counted before: it still counts for the pause", []*corev1.Pod{failed("a", 4*time.Second, untracked)}, 6 * time.Second},
		{"one the job gave up itself", []*corev1.Pod{work("a", corev1.PodRunning, beingDeleted, untracked)}, 0},
		{"one that somebody deleted", []*corev1.Pod{work("a", corev1.PodRunning, beingDeleted)}, 9 * time.Second},
	} {
		job := aJob(wants(20, 20))
		plan := syncOnce(job, test.pods...)
		if made := strings.Contains(deeds(plan), "create"); plan.RequeueAfter != test.want || made != (test.want == 0) {
			t.Errorf("%s: again after %v, want %v; %s", test.what, plan.RequeueAfter, test.want, deeds(plan))
		}
	}
	// The pause holds back pods, not the deadline: whichever comes first.
	soon := syncOnce(aJob(deadlineAfter(3603)), failed("a", time.Second))
	if soon.RequeueAfter != 3*time.Second {
		t.Errorf("again after %v", soon.RequeueAfter)
	}
}

// TestSuspension: what is reported and told when a job is suspended or resumed, and what becomes of its start.
func TestSuspension(t *testing.T) {
	saying := func(status corev1.ConditionStatus, reason, message string) change[*batchv1.Job] {
		return func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour)}}
		}
	}
	for _, test := range []struct {
		what  string
		job   *batchv1.Job
		want  string
		since time.Duration
		start *time.Duration
		event string
	}{
		{"never suspended", aJob(), "", 0, new(time.Hour), ""},
		{"never started", aJob(unstarted), "", 0, new(time.Duration(0)), ""},
		{"suspended from the beginning", aJob(unstarted, suspended), "True JobSuspended Job suspended", 0, nil, "Suspended: Job suspended"},
		{"suspended on the way: the start is forgotten", aJob(suspended), "True JobSuspended Job suspended", 0, nil, "Suspended: Job suspended"},
		{"suspended before", aJob(suspended, unstarted, saying("True", "JobSuspended", "Job suspended")), "True JobSuspended Job suspended", time.Hour, nil, ""},
		{"suspended before, in other words", aJob(suspended, unstarted, saying("True", "Other", "Job suspended")), "True JobSuspended Job suspended", 0, nil, "Suspended: Job suspended"},
		{"suspended again", aJob(suspended, saying("False", "JobResumed", "Job resumed")), "True JobSuspended Job suspended", 0, nil, "Suspended: Job suspended"},
		{"resumed: it starts now", aJob(unstarted, saying("True", "JobSuspended", "Job suspended")), "False JobResumed Job resumed", 0, new(time.Duration(0)), "Resumed: Job resumed"},
		{"resumed by a controller that kept the start: it starts anew", aJob(saying("True", "JobSuspended", "Job suspended")), "False JobResumed Job resumed", 0, new(time.Duration(0)), "Resumed: Job resumed"},
		{"resumed before", aJob(saying("False", "JobResumed", "Job resumed")), "False JobResumed Job resumed", time.Hour, new(time.Hour), ""},
		{"suspended, but complete: it just ends", aJob(suspended, counted(3, 0)), "", 0, new(time.Hour), "Completed: Job completed"},
		{"leaving: nothing is reported", aJob(suspended, goneJob), "", 0, new(time.Hour), ""},
	} {
		plan := syncOnce(test.job)
		_, status := after(test.job, plan)
		got := ""
		if c := jobCondition(status.Conditions, batchv1.JobSuspended); c != nil {
			got = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			if age := now.Sub(c.LastTransitionTime.Time); age != test.since {
				t.Errorf("%s: since %v", test.what, age)
			}
		}
		expect(t, test.what, got, test.want)
		if (status.StartTime == nil) != (test.start == nil) || test.start != nil && now.Sub(status.StartTime.Time) != *test.start {
			t.Errorf("%s: started %v", test.what, status.StartTime)
		}
		if told := slices.DeleteFunc(events(plan), func(e string) bool { return strings.HasPrefix(e, "Successful") }); strings.Join(told, "; ") != test.event {
			t.Errorf("%s: events %q", test.what, told)
		}
	}
}

// TestJobsAlwaysEnd plays jobs in a model of pods alone: pods run, succeed or fail at random, lose their finalizer when the plan says so, and are gone when
// nothing holds them. In the end every job has finished, every pod was counted exactly once, and no finalizer is left.
func TestJobsAlwaysEnd(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 9))
		completions, parallelism := int32(1+random.IntN(6)), int32(1+random.IntN(4))
		job := aJob(wants(completions, parallelism), backoff(int32(random.IntN(6))), func(j *batchv1.Job) { j.Status = batchv1.JobStatus{} })
		indexed := random.IntN(2) == 0
		if indexed {
			byIndex(job)
			if random.IntN(2) == 0 {
				job.Spec.BackoffLimitPerIndex = new(int32(random.IntN(3)))
				job.Spec.BackoffLimit = new(int32(2147483647))
			}
		}
		if random.IntN(3) == 0 {
			patient(job)
		}
		var pods []*corev1.Pod
		made, ended := 0, map[types.UID]corev1.PodPhase{}
		clock := now
		for round := 0; !jobFinished(job); round++ {
			if round > 500 {
				t.Fatalf("seed %d: no end: %+v", seed, job.Status)
			}
			plan := jobView{job: job, pods: pods, now: clock}.reconcile()
			result := controller.ApplyResult{}
			for _, w := range writesOf(plan) {
				i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.UID == w.Object.GetUID() })
				switch w.Verb {
				case controller.UpdateStatus:
					job = w.Object.(*batchv1.Job)
					result.Written = append(result.Written, job)
				case controller.Create:
					made++
					pod := with(w.Object.(*corev1.Pod).DeepCopy(), inPhase(corev1.PodRunning))
					pod.Name, pod.UID, pod.CreationTimestamp = fmt.Sprint("p", made), types.UID(fmt.Sprint("p", made)), metav1.NewTime(clock)
					pods = append(pods, pod)
					result.Written = append(result.Written, pod)
				case controller.Patch:
					pods[i] = with(pods[i].DeepCopy(), untracked)
					result.Written = append(result.Written, pods[i])
				case controller.Delete:
					pods[i] = with(pods[i].DeepCopy(), beingDeleted)
				}
			}
			if changed := plan.Status(result); changed != nil {
				job = changed.(*batchv1.Job)
			}
			running := count(pods, podstate.IsActive)
			if running > parallelism {
				t.Fatalf("seed %d: %d pods run, %d may", seed, running, parallelism)
			}
			// One pod ends, and those that nothing holds are gone.
			for i, pod := range pods {
				if podstate.IsActive(pod) && random.IntN(3) == 0 {
					phase := []corev1.PodPhase{corev1.PodSucceeded, corev1.PodSucceeded, corev1.PodFailed}[random.IntN(3)]
					pods[i] = with(pod.DeepCopy(), inPhase(phase), func(p *corev1.Pod) {
						p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, FinishedAt: metav1.NewTime(clock)}}}}
					})
					ended[pod.UID] = phase
					break
				}
			}
			pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil && !isTracked(p) })
			clock = clock.Add(15 * time.Minute)
		}
		s := job.Status
		if uncounted := s.UncountedTerminatedPods; len(uncounted.Succeeded)+len(uncounted.Failed) != 0 || count(pods, isTracked) != 0 || s.Active != 0 {
			t.Errorf("seed %d: something is left: %+v", seed, s)
		}
		var succeeded, failed int32
		for _, phase := range ended {
			if phase == corev1.PodSucceeded {
				succeeded++
			} else {
				failed++
			}
		}
		if isTrue(s.Conditions, batchv1.JobComplete) && s.Succeeded != completions {
			t.Errorf("seed %d: complete with %d of %d", seed, s.Succeeded, completions)
		}
		if !indexed && s.Succeeded != succeeded {
			t.Errorf("seed %d: %d succeeded, %d counted", seed, succeeded, s.Succeeded)
		}
		// Pods that were deleted when the job failed count as failures, too.
		if s.Failed < failed || isTrue(s.Conditions, batchv1.JobComplete) && s.Failed != failed {
			t.Errorf("seed %d: %d failed, %d counted", seed, failed, s.Failed)
		}
	}
}
