package kubelet

import (
	"cmp"
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
	// preemptWait is the least a pod is waited for that has to go.
	preemptWait = 10 * time.Second
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
	began := time.Now()
	for _, victim := range victims {
		select {
		case <-k.Freed(victim.UID):
			k.Metrics.Preempted(missing[0].resource)
		case <-time.After(time.Until(began.Add(patience(victim)))):
			// Its end is under way, and the critical pod needs its room more.
			k.Log.Warn("a pod that makes room has not ended in time", "pod", describe(victim), "for", describe(pod))
		}
	}
	return nil
}

// patience is how long a pod that has to go is waited for: its own grace period and half of that again.
func patience(victim *corev1.Pod) time.Duration {
	grace := int64(30)
	if own := victim.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = *own
	}
	return max(time.Duration(grace)*time.Second*3/2, preemptWait)
}

// choose picks the pods whose end makes room: as few of the better classes of service as possible, and among those of one class
// the pods that free what is missing with the least waste.
func choose(pod *corev1.Pod, others []*corev1.Pod, missing []refusal) ([]*corev1.Pod, error) {
	var need shortage
	for _, m := range missing {
		need = append(need, lack{m.resource, m.missing})
	}
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	for _, other := range others {
		if preemptable(other, pod) {
			class := qosClass(other)
			classes[class] = append(classes[class], other)
		}
	}
	best, burst, guaranteed := classes[corev1.PodQOSBestEffort], classes[corev1.PodQOSBurstable], classes[corev1.PodQOSGuaranteed]
	if left := need.without(best, burst, guaranteed); len(left) > 0 {
		return nil, fmt.Errorf("no set of running pods found to reclaim resources: %s", left)
	}
	first := nearest(guaranteed, need.without(best, burst))
	second := nearest(burst, need.without(best, first))
	third := nearest(best, need.without(second, first))
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

// lack is how much of a resource is missing, shortage all that is.
type (
	lack struct {
		resource corev1.ResourceName
		amount   int64
	}
	shortage []lack
)

// String is the shortage as upstream writes it.
func (s shortage) String() string {
	text := "["
	for _, l := range s {
		text += fmt.Sprintf("(res: %v, q: %d), ", l.resource, l.amount)
	}
	return text + "]"
}

// without is what is still missing when pods are gone.
func (s shortage) without(gone ...[]*corev1.Pod) shortage {
	var left shortage
	for _, l := range s {
		for _, pod := range slices.Concat(gone...) {
			l.amount -= requested(pod, l.resource)
		}
		if l.amount > 0 {
			left = append(left, l)
		}
	}
	return left
}

// distance is how far a pod's end is from covering the shortage; every resource counts the same.
func (s shortage) distance(pod *corev1.Pod) (sum float64) {
	for _, l := range s {
		if short := float64(l.amount - requested(pod, l.resource)); short > 0 {
			sum += (short / float64(l.amount)) * (short / float64(l.amount))
		}
	}
	return sum
}

// nearest picks pods one by one, each time the one that covers most of what is still missing, and of several the one that asks for least.
func nearest(pods []*corev1.Pod, need shortage) []*corev1.Pod {
	pods = slices.Clone(pods)
	var chosen []*corev1.Pod
	for len(need) > 0 && len(pods) > 0 {
		closest, distance := 0, float64(len(need)+1)
		for i, pod := range pods {
			if d := need.distance(pod); d < distance || d == distance && asksLess(pod, pods[closest]) {
				closest, distance = i, d
			}
		}
		chosen = append(chosen, pods[closest])
		need = need.without(pods[closest : closest+1])
		pods = slices.Delete(pods, closest, closest+1)
	}
	return chosen
}

// asksLess reports whether one pod asks for no more than another: memory first, then CPU.
func asksLess(a, b *corev1.Pod) bool {
	return cmp.Or(
		cmp.Compare(requested(a, corev1.ResourceMemory), requested(b, corev1.ResourceMemory)),
		cmp.Compare(requested(a, corev1.ResourceCPU), requested(b, corev1.ResourceCPU)),
	) <= 0
}
