// Package workload holds the controllers that keep pods running: ReplicaSet and ReplicationController, Deployment,
// StatefulSet, DaemonSet, Job, CronJob and the one that removes finished jobs.
//
// Each controller is Observe, which gathers a view, and a pure Reconcile, which turns it into a plan; package controller carries
// it out. What upstream's controllers write, these write: names, hashes, annotations, conditions, reasons and
// messages are the same, so that either can take over from the other in a running cluster.
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
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// available pods have been ready for a while.
func available(pod *corev1.Pod, minReadySeconds int32, now time.Time) bool {
	if !podstate.IsReady(pod) {
		return false
	}
	return minReadySeconds == 0 || untilAvailable(pod, minReadySeconds, now) == 0 && !podstate.Condition(pod, corev1.PodReady).LastTransitionTime.IsZero()
}

// untilAvailable is how long a ready pod needs until it is available; zero for pods that are, or are not ready.
func untilAvailable(pod *corev1.Pod, minReadySeconds int32, now time.Time) time.Duration {
	c := podstate.Condition(pod, corev1.PodReady)
	if minReadySeconds <= 0 || c == nil || c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() {
		return 0
	}
	return max(0, c.LastTransitionTime.Add(seconds(minReadySeconds)).Sub(now))
}

// nextAvailable is how long until the next of the pods becomes available, zero if none is going to.
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

// newPodFromTemplate makes a pod of a template, controlled by owner and named after it. Pods from one template may share it: nothing changes what is sent.
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

// The events all controllers of pods tell about them.

func creatingPod(pod *corev1.Pod, owner kind.Object) controller.Write {
	return controller.Creating(pod).
		OnSuccess(controller.Event{Object: owner, Type: corev1.EventTypeNormal, Reason: "SuccessfulCreate", Message: "Created pod: %s"}).
		OnFailure(controller.Event{Object: owner, Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "Error creating: %s"})
}

func deletingPod(pod *corev1.Pod, owner kind.Object) controller.Write {
	return controller.Deleting(pod).
		OnSuccess(controller.Event{Object: owner, Type: corev1.EventTypeNormal, Reason: "SuccessfulDelete", Message: "Deleted pod: %s"}).
		OnFailure(controller.Event{Object: owner, Type: corev1.EventTypeWarning, Reason: "FailedDelete", Message: "Error deleting: %s"})
}

// phaseOrder: the further a pod has come, the more it is worth.
var phaseOrder = map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}

// sortForDeletion puts the pods that are the least loss first. doubled says how many related pods share a pod's node.
//
// In order: without a node before with one; pending before unknown before running; not ready before ready; lower deletion cost before higher; on a
// crowded node before alone; ready for a short time before a long one; more restarts before fewer; younger before older. Times are
// compared by their binary logarithm, and pods that are equal so far by UID: a random choice, but the same each time.
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

// sortByProgress puts the pods first that have come least far. It is sortForDeletion without costs and crowds, and by the exact times: a job has
// no pods that are as good as each other.
func sortByProgress(pods []*corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if c := compareProgress(a, b); c != 0 {
			return c
		}
		return compareHistory(a, b, func(timeA, timeB metav1.Time) int { return timeB.Compare(timeA.Time) })
	})
}

// compareProgress compares how far two pods have come.
func compareProgress(a, b *corev1.Pod) int {
	return cmp.Or(falseFirst(a.Spec.NodeName != "", b.Spec.NodeName != ""), cmp.Compare(phaseOrder[a.Status.Phase], phaseOrder[b.Status.Phase]),
		falseFirst(podstate.IsReady(a), podstate.IsReady(b)))
}

// compareHistory compares two pods that have come equally far, both ready or neither, by how long and how well they have run. later compares two different times.
func compareHistory(a, b *corev1.Pod, compareDifferent func(timeA, timeB metav1.Time) int) int {
	compare := func(timeA, timeB metav1.Time) int {
		switch {
		case timeA.Equal(&timeB):
			return 0
		case timeA.IsZero() || timeB.IsZero():
			return falseFirst(!timeA.IsZero(), !timeB.IsZero())
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

func falseFirst(a, b bool) int {
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

// deletionCost is what the user says a pod is worth. A malformed value counts as zero.
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

// restarts are the most restarts of a container, and of a sidecar.
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
