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

// track counts finished pods in three moves, of which each look makes what is due: uids of finished pods go into the status; then their
// finalizers are removed; uids whose finalizer is gone go into the counters. At last, when nothing is left to count and no pod on its
// way out, the job is declared finished.
func (l *jobLook) track() {
	l.settle()
	freed := l.note()
	if l.indexed {
		l.status.Succeeded = int32(l.done.total())
		l.status.CompletedIndexes = l.done.String()
		if l.job.Spec.BackoffLimitPerIndex != nil {
			l.status.FailedIndexes = new(l.wrong.String())
		}
	}
	if l.ending != nil && !isTrue(l.status.Conditions, l.ending.Type) {
		l.status.Conditions = append(l.status.Conditions, *l.ending)
	}
	if len(freed) == 0 {
		return
	}
	if !apiequality.Semantic.DeepEqual(l.status, l.job.Status) {
		first := *l.job
		first.Status = *l.status.DeepCopy()
		l.plan.AddStep(controller.UpdatingStatus(&first))
	}
	var writes []controller.Write
	for _, pod := range freed {
		writes = append(writes, untracking(pod))
	}
	l.plan.AddStep(writes...)
}

// settle moves uids whose pod has lost its finalizer, or is gone, into the counters.
func (l *jobLook) settle() {
	tracked := map[types.UID]bool{}
	for _, pod := range l.pods {
		if l.tracked(pod) {
			tracked[pod.UID] = true
		}
	}
	uncounted := l.status.UncountedTerminatedPods
	still := func(uid types.UID) bool { return tracked[uid] }
	succeeded, failed := filter(uncounted.Succeeded, still), filter(uncounted.Failed, still)
	l.status.Succeeded += int32(len(uncounted.Succeeded) - len(succeeded))
	l.status.Failed += int32(len(uncounted.Failed) - len(failed))
	uncounted.Succeeded, uncounted.Failed = succeeded, failed
}

// note writes finished pods into the status and returns those whose finalizer can go once it stands there.
func (l *jobLook) note() (freed []*corev1.Pod) {
	uncounted := l.status.UncountedTerminatedPods
	noted := len(uncounted.Succeeded) + len(uncounted.Failed)
	for _, pod := range l.pods {
		if !l.tracked(pod) || !l.canFree(pod) {
			continue
		}
		if noted >= maxUncounted {
			break
		}
		freed = append(freed, pod)
		failedBefore := slices.Contains(uncounted.Failed, pod.UID)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && !failedBefore:
			if l.indexed {
				if l.validIndex(pod) && !l.before.has(completionIndex(pod)) {
					noted++
				}
			} else if !slices.Contains(uncounted.Succeeded, pod.UID) {
				uncounted.Succeeded = append(uncounted.Succeeded, pod.UID)
				noted++
			}
		case jobPodFailed(pod, l.job) || l.ending != nil && l.ending.Type == batchv1.JobFailureTarget:
			if !failedBefore && l.validIndex(pod) && judgeFailure(l.job.Spec.PodFailurePolicy, pod).counts() {
				uncounted.Failed = append(uncounted.Failed, pod.UID)
				noted++
			}
		}
	}
	return freed
}

// canFree says whether a pod's fate is decided.
func (l *jobLook) canFree(pod *corev1.Pod) bool {
	if l.job.DeletionTimestamp != nil || l.ending != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !jobPodFailed(pod, l.job) {
		return false
	}
	held := l.held[completionIndex(pod)]
	return held == nil || held.UID != pod.UID
}

// report writes the status when the steps are done.
func (l *jobLook) report(deleted []*corev1.Pod, creating int) {
	finish := l.finishing(len(deleted))
	// Events of the end belong to the plan that writes it.
	if finish != nil {
		l.tellEnd(finish)
	}
	l.plan.Status = func(outcome controller.ApplyResult) kind.Object {
		if outcome.Err != nil && outcome.FailedVerb() != controller.Create {
			return nil
		}
		base := l.job
		created := 0
		for _, obj := range outcome.Written {
			switch written := obj.(type) {
			case *batchv1.Job:
				base = written
			case *corev1.Pod:
				// Adopted and untracked pods are written too; a new one is not among those seen.
				if !slices.ContainsFunc(l.jobView.pods, func(p *corev1.Pod) bool { return p.UID == written.UID }) {
					created++
				}
			}
		}
		if outcome.Err == nil {
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

// finishing returns the last condition of the job if there is nothing left to wait for.
func (l *jobLook) finishing(deleting int) *batchv1.JobCondition {
	uncounted := l.status.UncountedTerminatedPods
	if l.ending == nil || l.terminating > 0 || deleting > 0 || len(uncounted.Succeeded)+len(uncounted.Failed) > 0 {
		return nil
	}
	// A pod that was finished but not counted yet would be lost.
	if slices.ContainsFunc(l.pods, func(pod *corev1.Pod) bool { return l.tracked(pod) }) {
		return nil
	}
	final := batchv1.JobComplete
	if l.ending.Type == batchv1.JobFailureTarget {
		final = batchv1.JobFailed
	}
	return l.condition(final, l.ending.Reason, l.ending.Message)
}

func (l *jobLook) tellEnd(finish *batchv1.JobCondition) {
	tell := func(eventType, reason, message string) {
		l.plan.Events = append(l.plan.Events, controller.Event{Object: l.job, Type: eventType, Reason: reason, Message: message})
	}
	if finish.Type == batchv1.JobFailed {
		tell(corev1.EventTypeWarning, finish.Reason, finish.Message)
		return
	}
	if l.job.Spec.Completions != nil && l.status.Succeeded > *l.job.Spec.Completions {
		tell(corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
	}
	tell(corev1.EventTypeNormal, "Completed", "Job completed")
}
