package kubelet

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/kubelet/status"
)

// What a pod that made room for a critical one says.
const (
	preemptReason  = "Preempting"
	preemptMessage = "Preempted in order to admit critical pod"
	// preemptTimeout bounds the wait for the room.
	preemptTimeout = 2 * time.Minute
)

// preempt ends pods until a critical one fits, and returns when they have ended.
func (k *Kubelet) preempt(pod *corev1.Pod, others []*corev1.Pod, missing []refusal) error {
	victims, err := choose(pod, others, missing)
	if err != nil {
		return fmt.Errorf("preemption: error finding a set of pods to preempt: %w", err)
	}
	for _, victim := range victims {
		k.podEvent(victim, corev1.EventTypeWarning, preemptReason, preemptMessage)
		k.Evict(victim.UID, status.Reason{Reason: preemptReason, Message: preemptMessage}, nil, &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: "Pod was preempted by Kubelet to accommodate a critical pod.", LastTransitionTime: metav1.Now(), ObservedGeneration: victim.Generation,
		})
	}
	deadline := time.Now().Add(preemptTimeout)
	for _, victim := range victims {
		for slices.ContainsFunc(k.Active(), func(p *corev1.Pod) bool { return p.UID == victim.UID }) {
			if time.Now().After(deadline) {
				return fmt.Errorf("pod %s did not end", describe(victim))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// choose picks the pods whose end makes room: as few of the better classes of service as possible, and among those of one class
// the pods that free what is missing with the least waste.
func choose(pod *corev1.Pod, others []*corev1.Pod, missing []refusal) ([]*corev1.Pod, error) {
	need := map[corev1.ResourceName]int64{}
	for _, m := range missing {
		need[m.resource] = m.missing
	}
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	for _, other := range others {
		if preemptable(other, pod) {
			class := qosClass(other)
			classes[class] = append(classes[class], other)
		}
	}
	best, burst, guaranteed := classes[corev1.PodQOSBestEffort], classes[corev1.PodQOSBurstable], classes[corev1.PodQOSGuaranteed]
	if len(without(need, slices.Concat(best, burst, guaranteed))) > 0 {
		return nil, errors.New("no set of running pods found to reclaim resources")
	}
	first := nearest(guaranteed, without(need, slices.Concat(best, burst)))
	second := nearest(burst, without(need, slices.Concat(best, first)))
	third := nearest(best, without(need, slices.Concat(second, first)))
	return slices.Concat(third, second, first), nil
}

// preemptable reports whether one pod may be ended for another.
func preemptable(victim, pod *corev1.Pod) bool {
	if critical(pod) && !critical(victim) {
		return true
	}
	return pod.Spec.Priority != nil && victim.Spec.Priority != nil && *pod.Spec.Priority > *victim.Spec.Priority
}

func requested(pod *corev1.Pod, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return 1
	}
	return amount(name, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
}

// without is what is still missing when pods are gone.
func without(need map[corev1.ResourceName]int64, pods []*corev1.Pod) map[corev1.ResourceName]int64 {
	left := map[corev1.ResourceName]int64{}
	for name, n := range need {
		for _, pod := range pods {
			n -= requested(pod, name)
		}
		if n > 0 {
			left[name] = n
		}
	}
	return left
}

// nearest picks pods one by one, each time the one that covers most of what is still missing.
func nearest(pods []*corev1.Pod, need map[corev1.ResourceName]int64) []*corev1.Pod {
	pods = slices.Clone(pods)
	var chosen []*corev1.Pod
	for len(need) > 0 && len(pods) > 0 {
		closest, distance := 0, float64(len(need)+1)
		for i, pod := range pods {
			d := 0.0
			for name, n := range need {
				if short := float64(n - requested(pod, name)); short > 0 {
					d += (short / float64(n)) * (short / float64(n))
				}
			}
			if d < distance {
				closest, distance = i, d
			}
		}
		chosen = append(chosen, pods[closest])
		need = without(need, pods[closest:closest+1])
		pods = slices.Delete(pods, closest, closest+1)
	}
	return chosen
}
