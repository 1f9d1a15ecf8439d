package workload

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// trackFinishedPods counts finished pods in three phases: their UIDs are added to the status, then their finalizers are removed,
// then the UIDs of pods without the finalizer are counted. When no pod is left to count or terminating, the job is finished.
func (l *jobSync) trackFinishedPods() {
	l.flushUncounted()
	toUntrack := l.recordUncounted()
	if l.indexed {
		l.status.Succeeded = int32(l.completedIndexes.size())
		l.status.CompletedIndexes = l.completedIndexes.String()
		if l.job.Spec.BackoffLimitPerIndex != nil {
			l.status.FailedIndexes = new(l.failedIndexes.String())
		}
	}
	if l.finishing != nil && !isTrue(l.status.Conditions, l.finishing.Type) {
		l.status.Conditions = append(l.status.Conditions, *l.finishing)
	}
	if len(toUntrack) == 0 {
		return
	}
	if !apiequality.Semantic.DeepEqual(l.status, l.job.Status) {
		first := *l.job
		first.Status = *l.status.DeepCopy()
		l.plan.AddStep(controller.UpdatingStatus(&first))
	}
	var writes []controller.Write
	for _, pod := range toUntrack {
		writes = append(writes, removingFinalizer(pod))
	}
	l.plan.AddStep(writes...)
}

// flushUncounted counts the UIDs whose pod no longer has the finalizer or no longer exists.
func (l *jobSync) flushUncounted() {
	tracked := map[types.UID]bool{}
	for _, pod := range l.pods {
		if l.tracked(pod) {
			tracked[pod.UID] = true
		}
	}
	uncounted := l.status.UncountedTerminatedPods
	stillTracked := func(uid types.UID) bool { return tracked[uid] }
	succeeded, failed := filter(uncounted.Succeeded, stillTracked), filter(uncounted.Failed, stillTracked)
	l.status.Succeeded += int32(len(uncounted.Succeeded) - len(succeeded))
	l.status.Failed += int32(len(uncounted.Failed) - len(failed))
	uncounted.Succeeded, uncounted.Failed = succeeded, failed
}

// recordUncounted adds finished pods to the status and returns those whose finalizer can be removed after the status is written.
func (l *jobSync) recordUncounted() (toUntrack []*corev1.Pod) {
	uncounted := l.status.UncountedTerminatedPods
	uncountedTotal := len(uncounted.Succeeded) + len(uncounted.Failed)
	for _, pod := range l.pods {
		if !l.tracked(pod) || !l.canRemoveFinalizer(pod) {
			continue
		}
		if uncountedTotal >= maxUncounted {
			break
		}
		toUntrack = append(toUntrack, pod)
		failedBefore := slices.Contains(uncounted.Failed, pod.UID)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && !failedBefore:
			if l.indexed {
				if l.validIndex(pod) && !l.previouslyCompleted.has(completionIndex(pod)) {
					uncountedTotal++
				}
			} else if !slices.Contains(uncounted.Succeeded, pod.UID) {
				uncounted.Succeeded = append(uncounted.Succeeded, pod.UID)
				uncountedTotal++
			}
		case jobPodFailed(pod, l.job) || l.finishing != nil && l.finishing.Type == batchv1.JobFailureTarget:
			if !failedBefore && l.validIndex(pod) && matchPodFailurePolicy(l.job.Spec.PodFailurePolicy, pod).countsAsFailure() {
				uncounted.Failed = append(uncounted.Failed, pod.UID)
				uncountedTotal++
			}
		}
	}
	return toUntrack
}

// canRemoveFinalizer reports whether the pod needs no further tracking.
func (l *jobSync) canRemoveFinalizer(pod *corev1.Pod) bool {
	if l.job.DeletionTimestamp != nil || l.finishing != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !jobPodFailed(pod, l.job) {
		return false
	}
	delayed := l.delayedFinalizers[completionIndex(pod)]
	return delayed == nil || delayed.UID != pod.UID
}

// planStatus plans the status update after the steps.
func (l *jobSync) planStatus(deleted []*corev1.Pod, creating int) {
	finish := l.finishedCondition(len(deleted))
	// Record the finish events only with the plan that writes the condition.
	if finish != nil {
		l.recordFinishEvents(finish)
	}
	l.plan.Status = func(result controller.ApplyResult) kind.Object {
		if result.Err != nil && result.FailedVerb() != controller.Create {
			return nil
		}
		base := l.job
		created := 0
		for _, obj := range result.Written {
			switch written := obj.(type) {
			case *batchv1.Job:
				base = written
			case *corev1.Pod:
				// Adopted and untracked pods are written too; only unknown UIDs are new pods.
				if !slices.ContainsFunc(l.jobView.pods, func(p *corev1.Pod) bool { return p.UID == written.UID }) {
					created++
				}
			}
		}
		if result.Err == nil {
			created = creating
		}
		changed := *base
		changed.Status = *l.status.DeepCopy()
		changed.Status.Active = int32(len(l.active) - len(deleted) + created)
		changed.Status.Ready = new(count(l.active, podstate.IsReady) - count(deleted, podstate.IsReady))
		changed.Status.Terminating = new(l.terminating + int32(len(deleted)))
		if finish != nil {
			changed.Status.Conditions = append(changed.Status.Conditions, *finish)
			if finish.Type == batchv1.JobComplete {
				changed.Status.CompletionTime = &finish.LastTransitionTime
			}
		}
		if apiequality.Semantic.DeepEqual(changed.Status, base.Status) {
			return nil
		}
		return &changed
	}
}

// finishedCondition returns the final condition, or nil while there are pods to wait for.
func (l *jobSync) finishedCondition(deleting int) *batchv1.JobCondition {
	uncounted := l.status.UncountedTerminatedPods
	if l.finishing == nil || l.terminating > 0 || deleting > 0 || len(uncounted.Succeeded)+len(uncounted.Failed) > 0 {
		return nil
	}
	// A finished pod that is not counted yet would be missed.
	if slices.ContainsFunc(l.pods, func(pod *corev1.Pod) bool { return l.tracked(pod) }) {
		return nil
	}
	final := batchv1.JobComplete
	if l.finishing.Type == batchv1.JobFailureTarget {
		final = batchv1.JobFailed
	}
	return l.condition(final, l.finishing.Reason, l.finishing.Message)
}

func (l *jobSync) recordFinishEvents(finish *batchv1.JobCondition) {
	recordEvent := func(eventType, reason, message string) {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.job, Type: eventType, Reason: reason, Message: message})
	}
	if finish.Type == batchv1.JobFailed {
		recordEvent(corev1.EventTypeWarning, finish.Reason, finish.Message)
		return
	}
	if l.job.Spec.Completions != nil && l.status.Succeeded > *l.job.Spec.Completions {
		recordEvent(corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
	}
	recordEvent(corev1.EventTypeNormal, "Completed", "Job completed")
}
