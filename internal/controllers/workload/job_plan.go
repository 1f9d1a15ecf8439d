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
	s := &jobSync{jobView: v, plan: &plan, adopted: map[types.UID]bool{}, indexed: mode != nil && *mode == batchv1.IndexedCompletion}
	matches := func(pod *corev1.Pod) bool { return selector.Matches(labels.Set(pod.Labels)) }
	s.pods = controller.Claim(&plan, controller.Claimer{Owner: v.job, Kind: jobKind, Finalizers: []string{batchv1.JobTrackingFinalizer}}, matches, v.pods)
	for _, pod := range s.pods {
		if metav1.GetControllerOfNoCopy(pod) == nil {
			s.adopted[pod.UID] = true
		}
	}
	s.countPods()
	s.decideFinish()
	s.planWrites()
	return plan
}

// tracked reports whether a pod has the finalizer or gets it with its adoption.
func (s *jobSync) tracked(pod *corev1.Pod) bool { return isTracked(pod) || s.adopted[pod.UID] }

func (s *jobSync) suspended() bool { return s.job.Spec.Suspend != nil && *s.job.Spec.Suspend }

// validIndex reports whether a pod of an indexed job has a valid completion index.
func (s *jobSync) validIndex(pod *corev1.Pod) bool {
	index := completionIndex(pod)
	return !s.indexed || index >= 0 && index < s.completions
}

// countPods counts active, terminating, succeeded and failed pods.
func (s *jobSync) countPods() {
	s.status = *s.job.Status.DeepCopy()
	if s.status.UncountedTerminatedPods == nil {
		s.status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if s.indexed {
		s.completions = int(*s.job.Spec.Completions)
		slices.SortStableFunc(s.pods, func(a, b *corev1.Pod) int { return cmp.Compare(completionIndex(a), completionIndex(b)) })
	}
	s.active = filter(s.pods, podstate.IsActive)
	s.terminating = count(s.pods, podstate.IsTerminating)
	uncounted := s.status.UncountedTerminatedPods
	s.succeeded = s.status.Succeeded + int32(len(uncounted.Succeeded))
	s.failed = s.status.Failed + int32(len(uncounted.Failed))
	for _, pod := range s.pods {
		if !s.tracked(pod) || !s.validIndex(pod) {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded && !slices.Contains(uncounted.Succeeded, pod.UID) {
			s.succeeded++
		}
		if jobPodFailed(pod, s.job) && !slices.Contains(uncounted.Failed, pod.UID) && matchPodFailurePolicy(s.job.Spec.PodFailurePolicy, pod).countsAsFailure() {
			s.failed++
		}
	}
	if s.status.StartTime == nil && !s.suspended() {
		s.status.StartTime = &metav1.Time{Time: s.now}
	}
	if s.indexed {
		s.countIndexes()
	}
}

// countIndexes determines the completed and the failed indexes.
func (s *jobSync) countIndexes() {
	var succeeded, failed []int
	for _, pod := range s.pods {
		if !s.tracked(pod) || !s.validIndex(pod) {
			continue
		}
		if pod.Status.Phase == corev1.PodSucceeded {
			succeeded = append(succeeded, completionIndex(pod))
		}
		if s.job.Spec.BackoffLimitPerIndex != nil && s.indexFailed(pod) {
			failed = append(failed, completionIndex(pod))
		}
	}
	s.previouslyCompleted = parseIndexes(s.status.CompletedIndexes, s.completions)
	s.completedIndexes = s.previouslyCompleted.withIndexes(succeeded)
	s.succeeded = int32(s.completedIndexes.size())
	if s.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	if s.status.FailedIndexes != nil {
		s.failedIndexes = parseIndexes(*s.status.FailedIndexes, s.completions)
	}
	s.failedIndexes = s.failedIndexes.withIndexes(failed)
	s.delayFinalizers()
}

// indexFailed reports whether a pod's failure makes its index fail.
func (s *jobSync) indexFailed(pod *corev1.Pod) bool {
	if !jobPodFailed(pod, s.job) {
		return false
	}
	match := matchPodFailurePolicy(s.job.Spec.PodFailurePolicy, pod)
	counted, _ := indexFailures(pod)
	return match.action == batchv1.PodFailurePolicyActionFailIndex || match.countsAsFailure() && counted >= *s.job.Spec.BackoffLimitPerIndex
}

// delayFinalizers finds, for each index that is retried, the failed pod that carries the failure count.
func (s *jobSync) delayFinalizers() {
	s.delayedFinalizers = map[int]*corev1.Pod{}
	running := podIndexes(s.active)
	for _, pod := range s.pods {
		index := completionIndex(pod)
		if !s.tracked(pod) || !s.validIndex(pod) || !jobPodFailed(pod, s.job) || s.completedIndexes.has(index) || s.failedIndexes.has(index) || slices.Contains(running, index) {
			continue
		}
		if last := s.delayedFinalizers[index]; last == nil || allFailures(last) <= allFailures(pod) && !endTime(pod).Before(endTime(last)) {
			s.delayedFinalizers[index] = pod
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
func (s *jobSync) decideFinish() {
	spec := s.job.Spec
	fail := func(reason, message string) { s.finishing = s.condition(batchv1.JobFailureTarget, reason, message) }
	for _, interim := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if isTrue(s.status.Conditions, interim) {
			s.finishing = jobCondition(s.status.Conditions, interim)
			return
		}
	}
	for _, pod := range s.pods {
		if jobPodFailed(pod, s.job) {
			if reason := matchPodFailurePolicy(spec.PodFailurePolicy, pod).reason; reason != "" {
				fail(batchv1.JobReasonPodFailurePolicy, reason)
				return
			}
		}
	}
	switch {
	case s.failed > *spec.BackoffLimit || s.restartedTooOften():
		fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
		return
	case spec.ActiveDeadlineSeconds != nil && !s.suspended():
		left := s.status.StartTime.Add(seconds(*spec.ActiveDeadlineSeconds)).Sub(s.now)
		if left <= 0 {
			fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
			return
		}
		s.plan.Requeue(left)
	}
	if !s.indexed {
		return
	}
	if wrong := s.failedIndexes.size(); spec.MaxFailedIndexes != nil && wrong > int(*spec.MaxFailedIndexes) {
		fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	} else if wrong > 0 && wrong+s.completedIndexes.size() >= s.completions {
		fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	} else if message, met := matchSuccessPolicy(spec.SuccessPolicy, s.completions, s.completedIndexes); met {
		s.finishing = s.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
	}
}

func (s *jobSync) condition(t batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	at := metav1.NewTime(s.now)
	return &batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: at, LastTransitionTime: at}
}

// restartedTooOften reports whether container restarts exceed the backoff limit, for pods with restartPolicy OnFailure.
func (s *jobSync) restartedTooOften() bool {
	if s.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	total := int32(0)
	for _, pod := range s.pods {
		if pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodPending {
			for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
				total += status.RestartCount
			}
		}
	}
	return total > 0 && total >= *s.job.Spec.BackoffLimit
}

// planWrites builds the plan: delete pods, write the uncounted pods to the status, remove finalizers, create pods, and finally
// update the status.
func (s *jobSync) planWrites() {
	var creates []controller.Write
	var deletes []*corev1.Pod
	managed := s.finishing == nil && s.job.DeletionTimestamp == nil
	switch {
	case s.finishing != nil:
		deletes = s.active
		s.plan.AddStep(s.newPodDeletes(deletes)...)
	case managed:
		deletes, creates = s.managePods()
		var untrack []controller.Write
		for _, pod := range deletes {
			if s.tracked(pod) {
				untrack = append(untrack, removingFinalizer(pod))
			}
		}
		// Pods deleted by the job itself are not counted.
		s.plan.AddStep(untrack...)
		s.plan.AddStep(s.newPodDeletes(deletes)...)
	}
	complete := s.finishing == nil && s.isComplete(len(s.active)-len(deletes)+len(creates))
	// A job that completed before its suspension was recorded is not reported as suspended.
	if managed && !(complete && s.suspended()) {
		s.updateSuspendedCondition()
	}
	if complete {
		s.finishing = s.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
	s.trackFinishedPods()
	s.plan.AddStep(creates...)
	s.planStatus(deletes, len(creates))
}

func (s *jobSync) newPodDeletes(pods []*corev1.Pod) (writes []controller.Write) {
	for _, pod := range pods {
		writes = append(writes, newPodDelete(pod, s.job))
	}
	return writes
}

func (s *jobSync) isComplete(active int) bool {
	if s.job.Spec.Completions == nil {
		return s.succeeded > 0 && active == 0
	}
	return s.succeeded >= *s.job.Spec.Completions && active == 0
}

// managePods decides which pods to delete or to create.
func (s *jobSync) managePods() (deletes []*corev1.Pod, creates []controller.Write) {
	running := int32(len(s.active))
	if s.suspended() {
		return s.active, nil
	}
	want := *s.job.Spec.Parallelism
	switch {
	case s.job.Spec.Completions != nil:
		want = max(0, min(want, *s.job.Spec.Completions-s.succeeded))
	case s.succeeded > 0:
		want = running // one pod has succeeded: no more pods are created
	}
	if deletes = s.podsToDelete(int(max(0, running-want))); len(deletes) > 0 {
		return deletes[:min(len(deletes), burstReplicas)], nil
	}
	missing := want - running
	if onlyReplaceFailed(s.job) {
		missing -= s.terminating
	}
	if missing <= 0 {
		return nil, nil
	}
	return nil, s.newPodCreates(int(min(missing, burstReplicas)))
}

// podsToDelete chooses at least n active pods to delete; of an indexed job also those with an invalid or duplicate index.
func (s *jobSync) podsToDelete(n int) []*corev1.Pod {
	var chosen, remaining []*corev1.Pod
	if s.indexed {
		best := map[int]*corev1.Pod{}
		ranked := slices.Clone(s.active)
		sortByProgress(ranked)
		for _, pod := range ranked {
			index := completionIndex(pod)
			if !s.validIndex(pod) {
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
		remaining = slices.Clone(s.active)
	}
	if more := n - len(chosen); more > 0 {
		slices.SortFunc(remaining, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		sortByProgress(remaining)
		chosen = append(chosen, remaining[:more]...)
	}
	return chosen
}

// newPodCreates plans n pods, unless the backoff after a failure has not expired.
func (s *jobSync) newPodCreates(n int) []controller.Write {
	perIndex := s.job.Spec.BackoffLimitPerIndex != nil
	if !perIndex {
		if delay := remainingBackoff(s.consecutiveFailures()); delay > 0 {
			s.plan.Requeue(delay)
			return nil
		}
	}
	pod := s.newPod()
	if !s.indexed {
		return slices.Repeat([]controller.Write{newPodCreate(pod, s.job)}, n)
	}
	taken := s.completedIndexes.withIndexes(podIndexes(s.active)).union(s.failedIndexes)
	if onlyReplaceFailed(s.job) {
		taken = taken.withIndexes(podIndexes(filter(s.pods, podstate.IsTerminating)))
	}
	var writes []controller.Write
	var next time.Duration
	for _, index := range taken.firstMissing(n, s.completions) {
		last := s.delayedFinalizers[index]
		if last != nil {
			if delay := remainingBackoff(allFailures(last)+1, endTime(last), s.now); delay > 0 {
				if next == 0 || delay < next {
					next = delay
				}
				continue
			}
		}
		writes = append(writes, newPodCreate(s.indexedPod(pod, index, last), s.job))
	}
	// Requeue for the pods still in backoff, even if others are created now.
	s.plan.Requeue(next)
	return writes
}

// consecutiveFailures counts the failures since the last success, as arguments of remainingBackoff.
func (s *jobSync) consecutiveFailures() (failures int32, last, now time.Time) {
	var lastSuccess time.Time
	for _, pod := range s.pods {
		if t := endTime(pod); pod.Status.Phase == corev1.PodSucceeded && t.After(lastSuccess) {
			lastSuccess = t
		}
	}
	for _, pod := range s.pods {
		// Pods deleted by the job itself have no finalizer and are terminating.
		if !jobPodFailed(pod, s.job) || !s.validIndex(pod) || pod.DeletionTimestamp != nil && !s.tracked(pod) {
			continue
		}
		if t := endTime(pod); t.After(lastSuccess) {
			failures++
			if t.After(last) {
				last = t
			}
		}
	}
	return failures, last, s.now
}

// newPod is the pod of the job's template.
func (s *jobSync) newPod() *corev1.Pod {
	pod := newPodFromTemplate(&s.job.Spec.Template, s.job, jobKind)
	if !slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if s.indexed {
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
func (s *jobSync) indexedPod(pod *corev1.Pod, index int, last *corev1.Pod) *corev1.Pod {
	p := *pod
	number := strconv.Itoa(index)
	p.Annotations = maps.Clone(pod.Annotations)
	p.Labels = maps.Clone(pod.Labels)
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	metav1.SetMetaDataLabel(&p.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	p.Spec.Hostname = s.job.Name + "-" + number
	suffix := "-" + number + "-"
	p.GenerateName = s.job.Name[:min(len(s.job.Name), maxGeneratedName-len(suffix))] + suffix
	if s.job.Spec.BackoffLimitPerIndex != nil {
		var counted, ignored int32
		if last != nil {
			if counted, ignored = indexFailures(last); matchPodFailurePolicy(s.job.Spec.PodFailurePolicy, last).countsAsFailure() {
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
func (s *jobSync) updateSuspendedCondition() {
	recordEvent := func(reason, message string) {
		s.plan.Events = append(s.plan.Events, controller.Event{Object: s.job, Type: corev1.EventTypeNormal, Reason: reason, Message: message})
	}
	previous := jobCondition(s.status.Conditions, batchv1.JobSuspended)
	isPrevious := func(status corev1.ConditionStatus, reason, message string) bool {
		return previous != nil && previous.Status == status && previous.Reason == reason && previous.Message == message
	}
	switch {
	case s.suspended() && !isPrevious(corev1.ConditionTrue, "JobSuspended", "Job suspended"):
		s.setCondition(corev1.ConditionTrue, *s.condition(batchv1.JobSuspended, "JobSuspended", "Job suspended"))
		s.status.StartTime = nil
		recordEvent("Suspended", "Job suspended")
	case !s.suspended() && previous != nil && !isPrevious(corev1.ConditionFalse, "JobResumed", "Job resumed"):
		s.setCondition(corev1.ConditionFalse, *s.condition(batchv1.JobSuspended, "JobResumed", "Job resumed"))
		s.status.StartTime = &metav1.Time{Time: s.now}
		recordEvent("Resumed", "Job resumed")
	}
}

func (s *jobSync) setCondition(status corev1.ConditionStatus, condition batchv1.JobCondition) {
	condition.Status = status
	if previous := jobCondition(s.status.Conditions, condition.Type); previous != nil {
		*previous = condition
		return
	}
	s.status.Conditions = append(s.status.Conditions, condition)
}
