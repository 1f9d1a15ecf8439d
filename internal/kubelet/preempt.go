package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/api/podspec"
	"skiff/internal/kubelet/status"
	"skiff/internal/podstate"
)

// The event and status of a preempted pod.
const (
	preemptReason  = "Preempting"
	preemptMessage = "Preempted in order to admit critical pod"
	// minPreemptionTimeout is the shortest time to wait for a preempted pod.
	minPreemptionTimeout = 10 * time.Second
)

// preempt terminates pods until a critical one fits, and returns when they have terminated or timed out, or ctx is done.
func (k *Kubelet) preempt(ctx context.Context, pod *corev1.Pod, others []*corev1.Pod, missing []rejection) error {
	victims, err := selectVictims(pod, others, missing)
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
		case <-k.Released(victim.UID):
			k.Metrics.Preempted(missing[0].resource)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(began.Add(preemptionTimeout(victim)))):
			// It is terminating; the critical pod is admitted anyway.
			k.Log.Warn("preempted pod did not terminate in time", "pod", describe(victim), "preemptor", describe(pod))
		}
	}
	return nil
}

// preemptionTimeout is how long to wait for a preempted pod: one and a half times its grace period.
func preemptionTimeout(victim *corev1.Pod) time.Duration {
	grace := int64(30)
	if own := victim.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = *own
	}
	return max(time.Duration(grace)*time.Second*3/2, minPreemptionTimeout)
}

// selectVictims selects the pods to preempt: as few as possible of the higher QoS classes, and within a class those whose requests cover
// the shortfalls with the least waste.
func selectVictims(pod *corev1.Pod, others []*corev1.Pod, missing []rejection) ([]*corev1.Pod, error) {
	var need shortfalls
	for _, m := range missing {
		need = append(need, shortfall{m.resource, m.missing})
	}
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	for _, other := range others {
		if preemptable(other, pod) {
			class := podspec.QOSClass(other)
			classes[class] = append(classes[class], other)
		}
	}
	best, burst, guaranteed := classes[corev1.PodQOSBestEffort], classes[corev1.PodQOSBurstable], classes[corev1.PodQOSGuaranteed]
	if left := need.without(best, burst, guaranteed); len(left) > 0 {
		return nil, fmt.Errorf("no set of running pods found to reclaim resources: %s", left)
	}
	first := selectClosest(guaranteed, need.without(best, burst))
	second := selectClosest(burst, need.without(best, first))
	third := selectClosest(best, need.without(second, first))
	return slices.Concat(third, second, first), nil
}

// preemptable reports whether a pod may be preempted by another.
func preemptable(victim, pod *corev1.Pod) bool {
	if podstate.IsCritical(pod) && !podstate.IsCritical(victim) {
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

// shortfall is how much of a resource is missing, shortfalls those of several resources.
type (
	shortfall struct {
		resource corev1.ResourceName
		amount   int64
	}
	shortfalls []shortfall
)

// String formats the shortfalls as upstream does.
func (s shortfalls) String() string {
	text := "["
	for _, l := range s {
		text += fmt.Sprintf("(res: %v, q: %d), ", l.resource, l.amount)
	}
	return text + "]"
}

// without returns the shortfalls that remain when pods are preempted.
func (s shortfalls) without(victims ...[]*corev1.Pod) shortfalls {
	var left shortfalls
	for _, l := range s {
		for _, pod := range slices.Concat(victims...) {
			l.amount -= requested(pod, l.resource)
		}
		if l.amount > 0 {
			left = append(left, l)
		}
	}
	return left
}

// distance is how far a pod's requests are from covering the shortfalls; all resources have the same weight.
func (s shortfalls) distance(pod *corev1.Pod) (sum float64) {
	for _, l := range s {
		if short := float64(l.amount - requested(pod, l.resource)); short > 0 {
			sum += (short / float64(l.amount)) * (short / float64(l.amount))
		}
	}
	return sum
}

// selectClosest selects pods one by one, each time the one that covers most of the remaining shortfalls, and of equal ones that with the
// smallest requests.
func selectClosest(pods []*corev1.Pod, need shortfalls) []*corev1.Pod {
	pods = slices.Clone(pods)
	var chosen []*corev1.Pod
	for len(need) > 0 && len(pods) > 0 {
		closest, distance := 0, float64(len(need)+1)
		for i, pod := range pods {
			if d := need.distance(pod); d < distance || d == distance && requestsLess(pod, pods[closest]) {
				closest, distance = i, d
			}
		}
		chosen = append(chosen, pods[closest])
		need = need.without(pods[closest : closest+1])
		pods = slices.Delete(pods, closest, closest+1)
	}
	return chosen
}

// requestsLess reports whether a pod requests at most as much as another, comparing memory first, then CPU.
func requestsLess(a, b *corev1.Pod) bool {
	return cmp.Or(
		cmp.Compare(requested(a, corev1.ResourceMemory), requested(b, corev1.ResourceMemory)),
		cmp.Compare(requested(a, corev1.ResourceCPU), requested(b, corev1.ResourceCPU)),
	) <= 0
}
