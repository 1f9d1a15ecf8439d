package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/internal/podstate"
)

const (
	// maxUncounted limits the number of UIDs in the status.
	maxUncounted = 500
	// maxGeneratedName is the maximum length of a generateName.
	maxGeneratedName = 58
)

// jobSync is the state of one sync of a job.
type jobSync struct {
	jobView
	plan        *controller.Plan
	status      batchv1.JobStatus // the new status
	pods        []*corev1.Pod     // claimed by the job
	adopted     map[types.UID]bool
	active      []*corev1.Pod
	terminating int32
	indexed     bool
	completions int // of an indexed job

	succeeded, failed                                    int32 // including uncounted pods
	previouslyCompleted, completedIndexes, failedIndexes indexSet
	// delayedFinalizers are failed pods whose index is retried: the finalizer is kept until the next pod carries the failure
	// count.
	delayedFinalizers map[int]*corev1.Pod
	// finishing is the interim condition of a job that is about to finish: SuccessCriteriaMet or FailureTarget.
	finishing *batchv1.JobCondition
}

func (v jobView) reconcile() controller.Plan {
	var plan controller.Plan
	selector, err := metav1.LabelSelectorAsSelector(v.job.Spec.Selector)
	if err != nil {
		return plan // rejected by validation
	}
	mode := v.job.Spec.CompletionMode
	if mode != nil && *mode != batchv1.NonIndexedCompletion && *mode != batchv1.IndexedCompletion {
		plan.Events = []controller.Event{{Object: v.job, Type: corev1.EventTypeWarning, Reason: "UnknownCompletionMode",
			Message: "Skipped Job sync because completion mode is unknown"}}
		return plan
	}
	l := &jobSync{jobView: v, plan: &plan, adopted: map[types.UID]bool{}, indexed: mode != nil && *mode == batchv1.IndexedCompletion}
	matches := func(pod *corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }
	l.pods = controller.Claim(&plan, controller.Claimer{Owner: v.job, Kind: jobKind, Finalizers: []string{batchv1.JobTrackingFinalizer}}, matches, v.pods)
	for _, pod := range l.pods {
		if metav1.GetControllerOfNoCopy(pod) == nil {
			l.adopted[pod.UID] = true
		}
	}
	l.countPods()
	l.decideFinish()
	l.planWrites()
	return plan
}

// tracked reports whether a pod has the finalizer or gets it with its adoption.
func (l *jobSync) tracked(pod *corev1.Pod) bool { return isTracked(pod) || l.adopted[pod.UID] }

func (l *jobSync) suspended() bool { return l.job.Spec.Suspend != nil && *l.job.Spec.Suspend }

// validIndex reports whether a pod of an indexed job has a valid completion index.
func (l *jobSync) validIndex(pod *corev1.Pod) bool {
	index := completionIndex(pod)
	return !l.indexed || index >= 0 && index < l.completions
}

// countPods counts active, terminating, succeeded and failed pods.
func (l *jobSync) countPods() {
	l.status = *l.job.Status.DeepCopy()
	if l.status.UncountedTerminatedPods == nil {
		l.status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if l.indexed {
		l.completions = int(*l.job.Spec.Completions)
		slices.SortStableFunc(l.pods, func(a, b *corev1.Pod) int { return cmp.Compare(completionIndex(a), completionIndex(b)) })
	}
	l.active = filter(l.pods, podstate.IsActive)
	l.terminating = count(l.pods, podstate.IsTerminating)
	uncounted := l.status.UncountedTerminatedPods
	l.succeeded = l.status.Succeeded + int32(len(uncounted.Succeeded))
	l.failed = l.status.Failed + int32(len(uncounted.Failed))
	for _, pod := range l.pods {
		if !l.tracked(pod) || !l.validIndex(pod) {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded && !slices.Contains(uncounted.Succeeded, pod.UID) {
			l.succeeded++
		}
		if jobPodFailed(pod, l.job) && !slices.Contains(uncounted.Failed, pod.UID) && matchPodFailurePolicy(l.job.Spec.PodFailurePolicy, pod).countsAsFailure() {
			l.failed++
		}
	}
	if l.status.StartTime == nil && !l.suspended() {
		l.status.StartTime = &metav1.Time{Time: l.now}
	}
	if l.indexed {
		l.countIndexes()
	}
}

// countIndexes determines the completed and the failed indexes.
func (l *jobSync) countIndexes() {
	var succeeded, failed []int
	for _, pod := range l.pods {
		if !l.tracked(pod) || !l.validIndex(pod) {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded {
			succeeded = append(succeeded, completionIndex(pod))
		}
		if l.job.Spec.BackoffLimitPerIndex != nil && l.indexFailed(pod) {
			failed = append(failed, completionIndex(pod))
		}
	}
	l.previouslyCompleted = parseIndexes(l.status.CompletedIndexes, l.completions)
	l.completedIndexes = l.previouslyCompleted.withIndexes(succeeded)
	l.succeeded = int32(l.completedIndexes.size())
	if l.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	if l.status.FailedIndexes != nil {
		l.failedIndexes = parseIndexes(*l.status.FailedIndexes, l.completions)
	}
	l.failedIndexes = l.failedIndexes.withIndexes(failed)
	l.delayFinalizers()
}

// indexFailed reports whether a pod's failure makes its index fail.
func (l *jobSync) indexFailed(pod *corev1.Pod) bool {
	if !jobPodFailed(pod, l.job) {
		return false
	}
	match := matchPodFailurePolicy(l.job.Spec.PodFailurePolicy, pod)
	counted, _ := indexFailures(pod)
	return match.action == batchv1.PodFailurePolicyActionFailIndex || match.countsAsFailure() && counted >= *l.job.Spec.BackoffLimitPerIndex
}

// delayFinalizers finds, for each index that is retried, the failed pod that carries the failure count.
func (l *jobSync) delayFinalizers() {
	l.delayedFinalizers = map[int]*corev1.Pod{}
	running := podIndexes(l.active)
	for _, pod := range l.pods {
		index := completionIndex(pod)
		if !l.tracked(pod) || !l.validIndex(pod) || !jobPodFailed(pod, l.job) || l.completedIndexes.has(index) || l.failedIndexes.has(index) || slices.Contains(running, index) {
			continue
		}
		if last := l.delayedFinalizers[index]; last == nil || allFailures(last) <= allFailures(pod) && !endTime(pod).Before(endTime(last)) {
			l.delayedFinalizers[index] = pod
		}
	}
}

func allFailures(pod *corev1.Pod) int32 {
	counted, ignored := indexFailures(pod)
	return counted + ignored
}

func podIndexes(pods []*corev1.Pod) (all []int) {
	for _, pod := range pods {
		if index := completionIndex(pod); index >= 0 {
			all = append(all, index)
		}
	}
	return all
}

// decideFinish decides whether the job is about to finish, and why. An earlier decision is final.
func (l *jobSync) decideFinish() {
	spec := l.job.Spec
	fail := func(reason, message string) { l.finishing = l.condition(batchv1.JobFailureTarget, reason, message) }
	for _, interim := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if isTrue(l.status.Conditions, interim) {
			l.finishing = jobCondition(l.status.Conditions, interim)
			return
		}
	}
	for _, pod := range l.pods {
		if jobPodFailed(pod, l.job) {
			if reason := matchPodFailurePolicy(spec.PodFailurePolicy, pod).reason; reason != "" {
				fail(batchv1.JobReasonPodFailurePolicy, reason)
				return
			}
		}
	}
	switch {
	case l.failed > *spec.BackoffLimit || l.restartedTooOften():
		fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
		return
	case spec.ActiveDeadlineSeconds != nil && !l.suspended():
		left := l.status.StartTime.Add(seconds(*spec.ActiveDeadlineSeconds)).Sub(l.now)
		if left <= 0 {
			fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
			return
		}
		l.plan.Requeue(left)
	}
	if !l.indexed {
		return
	}
	if wrong := l.failedIndexes.size(); spec.MaxFailedIndexes != nil && wrong > int(*spec.MaxFailedIndexes) {
		fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	} else if wrong > 0 && wrong+l.completedIndexes.size() >= l.completions {
		fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	} else if message, met := matchSuccessPolicy(spec.SuccessPolicy, l.completions, l.completedIndexes); met {
		l.finishing = l.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
	}
}

func (l *jobSync) condition(t batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	at := metav1.NewTime(l.now)
	return &batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: at, LastTransitionTime: at}
}

// restartedTooOften reports whether container restarts exceed the backoff limit, for pods with restartPolicy OnFailure.
func (l *jobSync) restartedTooOften() bool {
	if l.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	total := int32(0)
	for _, pod := range l.pods {
		if pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodPending {
			for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
				total += s.RestartCount
			}
		}
	}
	return total > 0 && total >= *l.job.Spec.BackoffLimit
}

// planWrites builds the plan: delete pods, write the uncounted pods to the status, remove finalizers, create pods, and finally
// update the status.
func (l *jobSync) planWrites() {
	var creates []controller.Write
	var deletes []*corev1.Pod
	managed := l.finishing == nil && l.job.DeletionTimestamp == nil
	switch {
	case l.finishing != nil:
		deletes = l.active
		l.plan.AddStep(l.deletingPods(deletes)...)
	case managed:
		deletes, creates = l.managePods()
		var untrack []controller.Write
		for _, pod := range deletes {
			if l.tracked(pod) {
				untrack = append(untrack, removingFinalizer(pod))
			}
		}
		// Pods deleted by the job itself are not counted.
		l.plan.AddStep(untrack...)
		l.plan.AddStep(l.deletingPods(deletes)...)
	}
	complete := l.finishing == nil && l.isComplete(len(l.active)-len(deletes)+len(creates))
	// A job that completed before its suspension was recorded is not reported as suspended.
	if managed && !(complete && l.suspended()) {
		l.updateSuspendedCondition()
	}
	if complete {
		l.finishing = l.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
	l.trackFinishedPods()
	l.plan.AddStep(creates...)
	l.planStatus(deletes, len(creates))
}

func (l *jobSync) deletingPods(pods []*corev1.Pod) (writes []controller.Write) {
	for _, pod := range pods {
		writes = append(writes, deletingPod(pod, l.job))
	}
	return writes
}

func (l *jobSync) isComplete(active int) bool {
	if l.job.Spec.Completions == nil {
		return l.succeeded > 0 && active == 0
	}
	return l.succeeded >= *l.job.Spec.Completions && active == 0
}

// managePods decides which pods to delete or to create.
func (l *jobSync) managePods() (deletes []*corev1.Pod, creates []controller.Write) {
	running := int32(len(l.active))
	if l.suspended() {
		return l.active, nil
	}
	want := *l.job.Spec.Parallelism
	switch {
	case l.job.Spec.Completions != nil:
		want = max(0, min(want, *l.job.Spec.Completions-l.succeeded))
	case l.succeeded > 0:
		want = running // one pod has succeeded: no more pods are created
	}
	if deletes = l.podsToDelete(int(max(0, running-want))); len(deletes) > 0 {
		return deletes[:min(len(deletes), burstReplicas)], nil
	}
	missing := want - running
	if onlyReplaceFailed(l.job) {
		missing -= l.terminating
	}
	if missing <= 0 {
		return nil, nil
	}
	return nil, l.creatingPods(int(min(missing, burstReplicas)))
}

// podsToDelete chooses at least n active pods to delete; of an indexed job also those with an invalid or duplicate index.
func (l *jobSync) podsToDelete(n int) []*corev1.Pod {
	var chosen, remaining []*corev1.Pod
	if l.indexed {
		best := map[int]*corev1.Pod{}
		ranked := slices.Clone(l.active)
		sortByProgress(ranked)
		for _, pod := range ranked {
			index := completionIndex(pod)
			if !l.validIndex(pod) {
				chosen = append(chosen, pod)
				continue
			}
			if lessAdvanced := best[index]; lessAdvanced != nil {
				chosen = append(chosen, lessAdvanced)
			}
			best[index] = pod
		}
		remaining = slices.Collect(maps.Values(best))
	} else {
		remaining = slices.Clone(l.active)
	}
	if more := n - len(chosen); more > 0 {
		slices.SortFunc(remaining, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		sortByProgress(remaining)
		chosen = append(chosen, remaining[:more]...)
	}
	return chosen
}

// creatingPods plans n pods, unless the backoff after a failure has not expired.
func (l *jobSync) creatingPods(n int) []controller.Write {
	perIndex := l.job.Spec.BackoffLimitPerIndex != nil
	if !perIndex {
		if delay := remainingBackoff(l.consecutiveFailures()); delay > 0 {
			l.plan.Requeue(delay)
			return nil
		}
	}
	pod := l.newPod()
	if !l.indexed {
		return slices.Repeat([]controller.Write{creatingPod(pod, l.job)}, n)
	}
	taken := l.completedIndexes.withIndexes(podIndexes(l.active)).union(l.failedIndexes)
	if onlyReplaceFailed(l.job) {
		taken = taken.withIndexes(podIndexes(filter(l.pods, podstate.IsTerminating)))
	}
	var writes []controller.Write
	var next time.Duration
	for _, index := range taken.firstMissing(n, l.completions) {
		last := l.delayedFinalizers[index]
		if last != nil {
			if delay := remainingBackoff(allFailures(last)+1, endTime(last), l.now); delay > 0 {
				if next == 0 || delay < next {
					next = delay
				}
				continue
			}
		}
		writes = append(writes, creatingPod(l.indexedPod(pod, index, last), l.job))
	}
	// Requeue for the pods still in backoff, even if others are created now.
	l.plan.Requeue(next)
	return writes
}

// consecutiveFailures counts the failures since the last success, as arguments of remainingBackoff.
func (l *jobSync) consecutiveFailures() (failures int32, last, now time.Time) {
	var lastSuccess time.Time
	for _, pod := range l.pods {
		if t := endTime(pod); pod.Status.Phase == corev1.PodSucceeded && t.After(lastSuccess) {
			lastSuccess = t
		}
	}
	for _, pod := range l.pods {
		// Pods deleted by the job itself have no finalizer and are terminating.
		if !jobPodFailed(pod, l.job) || !l.validIndex(pod) || pod.DeletionTimestamp != nil && !l.tracked(pod) {
			continue
		}
		if t := endTime(pod); t.After(lastSuccess) {
			failures++
			if t.After(last) {
				last = t
			}
		}
	}
	return failures, last, l.now
}

// newPod is the pod of the job's template.
func (l *jobSync) newPod() *corev1.Pod {
	pod := newPodFromTemplate(&l.job.Spec.Template, l.job, jobKind)
	if !slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if l.indexed {
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range containers {
				addIndexVariable(&containers[i])
			}
		}
	}
	return pod
}

func addIndexVariable(c *corev1.Container) {
	const name = "JOB_COMPLETION_INDEX"
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)}}})
}

// indexedPod returns the pod of one index. last is the failed pod it replaces, whose failure count it continues.
func (l *jobSync) indexedPod(pod *corev1.Pod, index int, last *corev1.Pod) *corev1.Pod {
	p := *pod
	number := strconv.Itoa(index)
	p.Annotations = maps.Clone(pod.Annotations)
	p.Labels = maps.Clone(pod.Labels)
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	metav1.SetMetaDataLabel(&p.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	p.Spec.Hostname = l.job.Name + "-" + number
	suffix := "-" + number + "-"
	p.GenerateName = l.job.Name[:min(len(l.job.Name), maxGeneratedName-len(suffix))] + suffix
	if l.job.Spec.BackoffLimitPerIndex != nil {
		var counted, ignored int32
		if last != nil {
			if counted, ignored = indexFailures(last); matchPodFailurePolicy(l.job.Spec.PodFailurePolicy, last).countsAsFailure() {
				counted++
			} else {
				ignored++
			}
		}
		p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(counted))
		if ignored > 0 {
			p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(int(ignored))
		}
	}
	return &p
}

// updateSuspendedCondition records in the conditions that the job was suspended or resumed.
func (l *jobSync) updateSuspendedCondition() {
	recordEvent := func(reason, message string) {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.job, Type: corev1.EventTypeNormal, Reason: reason, Message: message})
	}
	previous := jobCondition(l.status.Conditions, batchv1.JobSuspended)
	isPrevious := func(status corev1.ConditionStatus, reason, message string) bool {
		return previous != nil && previous.Status == status && previous.Reason == reason && previous.Message == message
	}
	switch {
	case l.suspended() && !isPrevious(corev1.ConditionTrue, "JobSuspended", "Job suspended"):
		l.setCondition(corev1.ConditionTrue, *l.condition(batchv1.JobSuspended, "JobSuspended", "Job suspended"))
		l.status.StartTime = nil
		recordEvent("Suspended", "Job suspended")
	case !l.suspended() && previous != nil && !isPrevious(corev1.ConditionFalse, "JobResumed", "Job resumed"):
		l.setCondition(corev1.ConditionFalse, *l.condition(batchv1.JobSuspended, "JobResumed", "Job resumed"))
		l.status.StartTime = &metav1.Time{Time: l.now}
		recordEvent("Resumed", "Job resumed")
	}
}

func (l *jobSync) setCondition(status corev1.ConditionStatus, condition batchv1.JobCondition) {
	condition.Status = status
	if previous := jobCondition(l.status.Conditions, condition.Type); previous != nil {
		*previous = condition
		return
	}
	l.status.Conditions = append(l.status.Conditions, condition)
}
