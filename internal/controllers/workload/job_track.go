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
func (s *jobSync) trackFinishedPods() {
	s.flushUncounted()
	toUntrack := s.recordUncounted()
	if s.indexed {
		s.status.Succeeded = int32(s.completedIndexes.size())
		s.status.CompletedIndexes = s.completedIndexes.String()
		if s.job.Spec.BackoffLimitPerIndex != nil {
			s.status.FailedIndexes = new(s.failedIndexes.String())
		}
	}
	if s.finishing != nil && !isTrue(s.status.Conditions, s.finishing.Type) {
		s.status.Conditions = append(s.status.Conditions, *s.finishing)
	}
	if len(toUntrack) == 0 {
		return
	}
	if !apiequality.Semantic.DeepEqual(s.status, s.job.Status) {
		first := *s.job
		first.Status = *s.status.DeepCopy()
		s.plan.AddStep(controller.NewUpdateStatus(&first))
	}
	var writes []controller.Write
	for _, pod := range toUntrack {
		writes = append(writes, removingFinalizer(pod))
	}
	s.plan.AddStep(writes...)
}

// flushUncounted counts the UIDs whose pod no longer has the finalizer or no longer exists.
func (s *jobSync) flushUncounted() {
	tracked := map[types.UID]bool{}
	for _, pod := range s.pods {
		if s.tracked(pod) {
			tracked[pod.UID] = true
		}
	}
	uncounted := s.status.UncountedTerminatedPods
	stillTracked := func(uid types.UID) bool { return tracked[uid] }
	succeeded, failed := filter(uncounted.Succeeded, stillTracked), filter(uncounted.Failed, stillTracked)
	s.status.Succeeded += int32(len(uncounted.Succeeded) - len(succeeded))
	s.status.Failed += int32(len(uncounted.Failed) - len(failed))
	uncounted.Succeeded, uncounted.Failed = succeeded, failed
}

// recordUncounted adds finished pods to the status and returns those whose finalizer can be removed after the status is written.
func (s *jobSync) recordUncounted() (toUntrack []*corev1.Pod) {
	uncounted := s.status.UncountedTerminatedPods
	uncountedTotal := len(uncounted.Succeeded) + len(uncounted.Failed)
	for _, pod := range s.pods {
		if !s.tracked(pod) || !s.canRemoveFinalizer(pod) {
			continue
		}
		if uncountedTotal >= maxUncounted {
			break
		}
		toUntrack = append(toUntrack, pod)
		failedBefore := slices.Contains(uncounted.Failed, pod.UID)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && !failedBefore:
			if s.indexed {
				if s.validIndex(pod) && !s.previouslyCompleted.has(completionIndex(pod)) {
					uncountedTotal++
				}
			} else if !slices.Contains(uncounted.Succeeded, pod.UID) {
				uncounted.Succeeded = append(uncounted.Succeeded, pod.UID)
				uncountedTotal++
			}
		case jobPodFailed(pod, s.job) || s.finishing != nil && s.finishing.Type == batchv1.JobFailureTarget:
			if !failedBefore && s.validIndex(pod) && matchPodFailurePolicy(s.job.Spec.PodFailurePolicy, pod).countsAsFailure() {
				uncounted.Failed = append(uncounted.Failed, pod.UID)
				uncountedTotal++
			}
		}
	}
	return toUntrack
}

// canRemoveFinalizer reports whether the pod needs no further tracking.
func (s *jobSync) canRemoveFinalizer(pod *corev1.Pod) bool {
	if s.job.DeletionTimestamp != nil || s.finishing != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !jobPodFailed(pod, s.job) {
		return false
	}
	delayed := s.delayedFinalizers[completionIndex(pod)]
	return delayed == nil || delayed.UID != pod.UID
}

// planStatus plans the status update after the steps.
func (s *jobSync) planStatus(deleted []*corev1.Pod, creating int) {
	finish := s.finishedCondition(len(deleted))
	// Record the finish events only with the plan that writes the condition.
	if finish != nil {
		s.recordFinishEvents(finish)
	}
	s.plan.Status = func(result controller.ApplyResult) kind.Object {
		if result.Err != nil && result.FailedVerb() != controller.Create {
			return nil
		}
		base := s.job
		created := 0
		for _, obj := range result.Written {
			switch written := obj.(type) {
			case *batchv1.Job:
				base = written
			case *corev1.Pod:
				// Adopted and untracked pods are written too; only unknown UIDs are new pods.
				if !slices.ContainsFunc(s.jobView.pods, func(p *corev1.Pod) bool { return p.UID == written.UID }) {
					created++
				}
			}
		}
		if result.Err == nil {
			created = creating
		}
		changed := *base
		changed.Status = *s.status.DeepCopy()
		changed.Status.Active = int32(len(s.active) - len(deleted) + created)
		changed.Status.Ready = new(count(s.active, podstate.IsReady) - count(deleted, podstate.IsReady))
		changed.Status.Terminating = new(s.terminating + int32(len(deleted)))
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
func (s *jobSync) finishedCondition(deleting int) *batchv1.JobCondition {
	uncounted := s.status.UncountedTerminatedPods
	if s.finishing == nil || s.terminating > 0 || deleting > 0 || len(uncounted.Succeeded)+len(uncounted.Failed) > 0 {
		return nil
	}
	// A finished pod that is not counted yet would be missed.
	if slices.ContainsFunc(s.pods, func(pod *corev1.Pod) bool { return s.tracked(pod) }) {
		return nil
	}
	final := batchv1.JobComplete
	if s.finishing.Type == batchv1.JobFailureTarget {
		final = batchv1.JobFailed
	}
	return s.condition(final, s.finishing.Reason, s.finishing.Message)
}

func (s *jobSync) recordFinishEvents(finish *batchv1.JobCondition) {
	recordEvent := func(eventType, reason, message string) {
		s.plan.Events = append(s.plan.Events, controller.Event{Object: s.job, Type: eventType, Reason: reason, Message: message})
	}
	if finish.Type == batchv1.JobFailed {
		recordEvent(corev1.EventTypeWarning, finish.Reason, finish.Message)
		return
	}
	if s.job.Spec.Completions != nil && s.status.Succeeded > *s.job.Spec.Completions {
		recordEvent(corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
	}
	recordEvent(corev1.EventTypeNormal, "Completed", "Job completed")
}
