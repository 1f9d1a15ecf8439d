// Package workload contains the controllers of pods: ReplicaSet and ReplicationController, Deployment, StatefulSet, DaemonSet,
// Job, CronJob and TTL-after-finished.
//
// Each controller has an Observe, which gathers a view, and a pure Reconcile, which turns it into a plan; package controller
// applies it. Names, hashes, annotations, conditions, reasons and messages are those of upstream's controllers, so that either
// implementation can take over from the other in a running cluster.
package workload

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// selectorOf returns the selector of a workload, nil if it is invalid, which validation rejects.
func selectorOf(selector *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil
	}
	return parsed
}

// available reports whether a pod has been ready for minReadySeconds.
func available(pod *corev1.Pod, minReadySeconds int32, now time.Time) bool {
	if !podstate.IsReady(pod) {
		return false
	}
	return minReadySeconds == 0 || untilAvailable(pod, minReadySeconds, now) == 0 && !podstate.Condition(pod, corev1.PodReady).LastTransitionTime.IsZero()
}

// untilAvailable is the time until a ready pod becomes available; zero if it is available or not ready.
func untilAvailable(pod *corev1.Pod, minReadySeconds int32, now time.Time) time.Duration {
	c := podstate.Condition(pod, corev1.PodReady)
	if minReadySeconds <= 0 || c == nil || c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() {
		return 0
	}
	return max(0, c.LastTransitionTime.Add(seconds(minReadySeconds)).Sub(now))
}

// nextAvailable is the time until the next pod becomes available, zero if there is none.
func nextAvailable(pods []*corev1.Pod, minReadySeconds int32, now time.Time) (next time.Duration) {
	for _, pod := range pods {
		if d := untilAvailable(pod, minReadySeconds, now); d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	return next
}

func seconds[N int32 | int64](n N) time.Duration { return time.Duration(n) * time.Second }

// filter returns the elements for which keep holds, in a new slice.
func filter[T any](all []T, keep func(T) bool) []T {
	var kept []T
	for _, element := range all {
		if keep(element) {
			kept = append(kept, element)
		}
	}
	return kept
}

func count[T any](all []T, is func(T) bool) (n int32) {
	for _, element := range all {
		if is(element) {
			n++
		}
	}
	return n
}

// newPodFromTemplate returns a pod of the template, controlled by owner. It may be created several times: requests do not modify
// it.
func newPodFromTemplate(template *corev1.PodTemplateSpec, owner kind.Object, ownerKind schema.GroupVersionKind) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       owner.GetNamespace(),
			GenerateName:    podNamePrefix(owner.GetName()),
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			Finalizers:      slices.Clone(template.Finalizers),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, ownerKind)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
}

// podNamePrefix is the owner's name and a dash, unless that is too long.
func podNamePrefix(owner string) string {
	if prefix := owner + "-"; len(validation.NameIsDNSSubdomain(prefix, true)) == 0 {
		return prefix
	}
	return owner
}

// newPodCreate and newPodDelete return writes with the events that all controllers of pods record.

func newPodCreate(pod *corev1.Pod, owner kind.Object) controller.Write {
	return controller.NewCreate(pod).
		OnSuccess(controller.Event{Object: owner, Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate", Message: "Created pod: %s"}).
		OnFailure(controller.Event{Object: owner, Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "Error creating: %s"})
}

func newPodDelete(pod *corev1.Pod, owner kind.Object) controller.Write {
	return controller.NewDelete(pod).
		OnSuccess(controller.Event{Object: owner, Type: corev1.EventTypeNormal, Reason: "SuccessfulDelete", Message: "Deleted pod: %s"}).
		OnFailure(controller.Event{Object: owner, Type: corev1.EventTypeWarning, Reason: "FailedDelete", Message: "Error deleting: %s"})
}

// phaseOrder ranks phases: pods with a lower rank are deleted first.
var phaseOrder = map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}

// sortForDeletion sorts pods so that those to delete come first. podsOnSameNode returns how many related pods are on a pod's node.
//
// The order: unassigned before assigned; pending before unknown before running; not ready before ready; lower deletion cost before
// higher; more related pods on the node before fewer; ready for a shorter time before longer; more restarts before fewer; newer
// before older. Times are compared by their binary logarithm, and equal pods by UID.
func sortForDeletion(pods []*corev1.Pod, podsOnSameNode func(*corev1.Pod) int, now time.Time) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if c := compareProgress(a, b); c != 0 {
			return c
		}
		if c := cmp.Or(cmp.Compare(deletionCost(a), deletionCost(b)), cmp.Compare(podsOnSameNode(b), podsOnSameNode(a))); c != 0 {
			return c
		}
		return compareHistory(a, b, func(timeA, timeB metav1.Time) int {
			return cmp.Or(cmp.Compare(log2Age(now.Sub(timeA.Time)), log2Age(now.Sub(timeB.Time))), strings.Compare(string(a.UID), string(b.UID)))
		})
	})
}

// sortByProgress sorts pods of a job so that those to delete come first. Unlike sortForDeletion it ignores deletion cost and
// nodes, and compares exact times.
func sortByProgress(pods []*corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if c := compareProgress(a, b); c != 0 {
			return c
		}
		return compareHistory(a, b, func(timeA, timeB metav1.Time) int { return timeB.Compare(timeA.Time) })
	})
}

// compareProgress compares two pods by assignment, phase and readiness.
func compareProgress(a, b *corev1.Pod) int {
	return cmp.Or(compareBool(a.Spec.NodeName != "", b.Spec.NodeName != ""), cmp.Compare(phaseOrder[a.Status.Phase], phaseOrder[b.Status.Phase]),
		compareBool(podstate.IsReady(a), podstate.IsReady(b)))
}

// compareHistory compares two pods, both ready or both not, by ready time, restarts and age. compareDifferent compares two
// different times.
func compareHistory(a, b *corev1.Pod, compareDifferent func(timeA, timeB metav1.Time) int) int {
	compare := func(timeA, timeB metav1.Time) int {
		switch {
		case timeA.Equal(&timeB):
			return 0
		case timeA.IsZero() || timeB.IsZero():
			return compareBool(!timeA.IsZero(), !timeB.IsZero())
		}
		return compareDifferent(timeA, timeB)
	}
	if podstate.IsReady(a) {
		if c := compare(podstate.Condition(a, corev1.PodReady).LastTransitionTime, podstate.Condition(b, corev1.PodReady).LastTransitionTime); c != 0 {
			return c
		}
	}
	regularA, sidecarA := restarts(a)
	regularB, sidecarB := restarts(b)
	return cmp.Or(cmp.Compare(regularB, regularA), cmp.Compare(sidecarB, sidecarA), compare(a.CreationTimestamp, b.CreationTimestamp))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// log2Age is the binary logarithm of an age.
func log2Age(age time.Duration) int64 {
	if age <= 0 {
		return -1
	}
	return int64(math.Log2(float64(age)))
}

// deletionCost is the value of the pod-deletion-cost annotation. A malformed value counts as zero.
func deletionCost(pod *corev1.Pod) int32 {
	value := pod.Annotations[corev1.PodDeletionCost]
	if value == "" || value[0] == '+' || len(value) > 1 && value[0] == '0' {
		return 0
	}
	cost, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return 0
	}
	return int32(cost)
}

// restarts returns the maximum restart count of a container and of a sidecar.
func restarts(pod *corev1.Pod) (regular, sidecar int32) {
	for _, c := range pod.Status.ContainerStatuses {
		regular = max(regular, c.RestartCount)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		for _, s := range pod.Status.InitContainerStatuses {
			if s.Name == c.Name {
				sidecar = max(sidecar, s.RestartCount)
			}
		}
	}
	return regular, sidecar
}
