package workload

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/podstate"
)

// The backoff for replacing failed pods. It doubles with every failure since the last success.
const (
	minPodBackoff = 10 * time.Second
	maxPodBackoff = 10 * time.Minute
)

// onlyReplaceFailed reports whether a terminating pod is replaced only after it has reached a terminal phase.
func onlyReplaceFailed(job *batchv1.Job) bool {
	return job.Spec.PodReplacementPolicy != nil && *job.Spec.PodReplacementPolicy == batchv1.Failed
}

// jobPodFailed reports whether a pod counts as failed: it has failed, or it is terminating and may be replaced already.
func jobPodFailed(pod *corev1.Pod, job *batchv1.Job) bool {
	return pod.Status.Phase == corev1.PodFailed || !onlyReplaceFailed(job) && pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

// policyMatch is the result of the pod failure policy for a failed pod.
type policyMatch struct {
	action batchv1.PodFailurePolicyAction // "" when no rule matches
	// reason is the condition message if the whole job fails.
	reason string
}

// countsAsFailure reports whether the failure counts towards the backoff limit.
func (m policyMatch) countsAsFailure() bool { return m.action != batchv1.PodFailurePolicyActionIgnore }

// matchPodFailurePolicy returns the action of the first rule that matches.
func matchPodFailurePolicy(policy *batchv1.PodFailurePolicy, pod *corev1.Pod) policyMatch {
	if policy == nil {
		return policyMatch{}
	}
	for i, rule := range policy.Rules {
		reason := ""
		switch {
		case rule.OnExitCodes != nil:
			status := matchOnExitCodes(pod, rule.OnExitCodes)
			if status == nil {
				continue
			}
			reason = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
				status.Name, pod.Namespace, pod.Name, status.State.Terminated.ExitCode, rule.Action, i)
		default:
			condition := matchOnPodConditions(pod, rule.OnPodConditions)
			if condition == nil {
				continue
			}
			reason = fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", pod.Namespace, pod.Name, condition.Type, rule.Action, i)
		}
		if rule.Action != batchv1.PodFailurePolicyActionFailJob {
			reason = ""
		}
		return policyMatch{action: rule.Action, reason: reason}
	}
	return policyMatch{}
}

func matchOnExitCodes(pod *corev1.Pod, want *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i, status := range statuses {
			terminated := status.State.Terminated
			if terminated == nil || terminated.ExitCode == 0 || want.ContainerName != nil && *want.ContainerName != status.Name {
				continue
			}
			listed := slices.Contains(want.Values, terminated.ExitCode)
			if want.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && listed || want.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn && !listed {
				return &statuses[i]
			}
		}
	}
	return nil
}

func matchOnPodConditions(pod *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if slices.ContainsFunc(patterns, func(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return p.Type == c.Type && p.Status == c.Status
		}) {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// matchSuccessPolicy returns the message of the first success policy rule that the succeeded indexes satisfy, if any.
func matchSuccessPolicy(policy *batchv1.SuccessPolicy, completions int, succeeded indexSet) (message string, met bool) {
	if policy == nil {
		return "", false
	}
	for i, rule := range policy.Rules {
		message = fmt.Sprintf("Matched rules at index %d", i)
		if rule.SucceededIndexes == nil {
			if rule.SucceededCount != nil && succeeded.size() >= int(*rule.SucceededCount) {
				return message, true
			}
			continue
		}
		required := parseIndexes(*rule.SucceededIndexes, completions)
		done := required.overlap(succeeded)
		if len(required) > 0 && (done == required.size() || rule.SucceededCount != nil && done >= int(*rule.SucceededCount)) {
			return message, true
		}
	}
	return "", false
}

// remainingBackoff is the time until the next pod may be created after that many consecutive failures.
func remainingBackoff(failures int32, last, now time.Time) time.Duration {
	if failures == 0 {
		return 0
	}
	backoff := minPodBackoff
	for i := int32(1); i < failures && backoff < maxPodBackoff; i++ {
		backoff *= 2
	}
	return max(0, min(backoff, maxPodBackoff)-now.Sub(last))
}

// endTime is the best known time at which a pod finished.
func endTime(pod *corev1.Pod) time.Time {
	if t, ok := containersEnded(pod); ok {
		return t
	}
	if c := podstate.Condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if pod.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if pod.DeletionGracePeriodSeconds != nil {
			grace = seconds(*pod.DeletionGracePeriodSeconds)
		}
		return pod.DeletionTimestamp.Add(-grace)
	}
	return pod.CreationTimestamp.Time
}

// containersEnded is the time at which the last container or sidecar finished; false if one has not, or its time is unknown.
func containersEnded(pod *corev1.Pod) (last time.Time, ok bool) {
	statuses := slices.Clone(pod.Status.ContainerStatuses)
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			statuses = append(statuses, filter(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name })...)
		}
	}
	for _, s := range statuses {
		if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
			return time.Time{}, false
		}
		if s.State.Terminated.FinishedAt.After(last) {
			last = s.State.Terminated.FinishedAt.Time
		}
	}
	return last, len(statuses) > 0
}

// completionIndex is the completion index of a pod, or -1.
func completionIndex(pod *corev1.Pod) int {
	index, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || index < 0 {
		return -1
	}
	return index
}

// indexFailures returns the counted and the ignored failures of the pod's index before this pod.
func indexFailures(pod *corev1.Pod) (counted, ignored int32) {
	read := func(key string) int32 {
		n, err := strconv.Atoi(pod.Annotations[key])
		if err != nil || n < 0 || n > math.MaxInt32 {
			return 0
		}
		return int32(n)
	}
	return read(batchv1.JobIndexFailureCountAnnotation), read(batchv1.JobIndexIgnoredFailureCountAnnotation)
}
