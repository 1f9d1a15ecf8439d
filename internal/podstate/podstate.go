// Package podstate answers the common questions about a pod: is it terminal, active, terminating or ready, is it a static or a mirror
// pod, is it critical. API server, controllers, scheduler and kubelet share these predicates, so that all of them mean the same by these
// words.
package podstate

import corev1 "k8s.io/api/core/v1"

// ConfigSourceAnnotationKey is the annotation in which a kubelet records where it read a pod: file, http or api.
const ConfigSourceAnnotationKey = "kubernetes.io/config.source"

// SystemCriticalPriority is the lowest priority of system-critical pods.
const SystemCriticalPriority = 2_000_000_000

// IsPhaseTerminal reports whether no container of a pod in this phase will run again: Succeeded or Failed.
func IsPhaseTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// IsTerminal reports whether the pod has succeeded or failed.
func IsTerminal(pod *corev1.Pod) bool { return IsPhaseTerminal(pod.Status.Phase) }

// IsActive reports whether the pod counts as a replica: it is neither terminal nor being deleted.
func IsActive(pod *corev1.Pod) bool { return !IsTerminal(pod) && pod.DeletionTimestamp == nil }

// IsTerminating reports whether the pod is being deleted and has not reached a terminal phase.
func IsTerminating(pod *corev1.Pod) bool { return !IsTerminal(pod) && pod.DeletionTimestamp != nil }

// IsReady reports whether the pod's Ready condition is true.
func IsReady(pod *corev1.Pod) bool { return IsConditionTrue(pod, corev1.PodReady) }

// IsConditionTrue reports whether the pod has the condition with status True.
func IsConditionTrue(pod *corev1.Pod, conditionType corev1.PodConditionType) bool {
	condition := Condition(pod, conditionType)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// Condition returns a pointer to the pod's first condition of the type, or nil.
func Condition(pod *corev1.Pod, conditionType corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == conditionType {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// IsStatic reports whether the pod comes from a manifest on its node and not from the API.
func IsStatic(pod *corev1.Pod) bool {
	source := pod.Annotations[ConfigSourceAnnotationKey]
	return source != "" && source != "api"
}

// IsMirror reports whether the pod represents a static pod in the API.
func IsMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// IsCritical reports whether the pod is a static pod, a mirror pod or has a system-critical priority. Such pods are not evicted.
func IsCritical(pod *corev1.Pod) bool {
	return IsStatic(pod) || IsMirror(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= SystemCriticalPriority
}
