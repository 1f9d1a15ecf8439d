package kubelet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/api/podspec"
)

// pendingResize is a pod whose spec has other resources than are allocated to it.
type pendingResize struct {
	pod *corev1.Pod
	// allocated is the pod with its allocated resources.
	allocated *corev1.Pod
	// since is when it was deferred; zero: it is new.
	since time.Time
}

// increases reports whether a resize needs more of the node than the pod has.
func (r pendingResize) increases() bool {
	old, wanted := requestsOf(r.allocated), requestsOf(r.pod)
	return wanted.Memory().Cmp(*old.Memory()) > 0 || wanted.Cpu().Cmp(*old.Cpu()) > 0
}

// compareResizes orders resizes: first those that need nothing, then by the pod's priority, its QoS class, and how long they have been deferred.
func compareResizes(a, b pendingResize) int {
	rank := func(r pendingResize) (increases, notGuaranteed, isNew int, priority int32) {
		if r.increases() {
			increases = 1
		}
		if podspec.QOSClass(r.pod) != corev1.PodQOSGuaranteed {
			notGuaranteed = 1
		}
		if r.since.IsZero() {
			isNew = 1
		}
		if r.pod.Spec.Priority != nil {
			priority = *r.pod.Spec.Priority
		}
		return increases, notGuaranteed, isNew, priority
	}
	increasesA, classA, newA, priorityA := rank(a)
	increasesB, classB, newB, priorityB := rank(b)
	return cmp.Or(
		cmp.Compare(increasesA, increasesB), cmp.Compare(priorityB, priorityA), cmp.Compare(classA, classB), cmp.Compare(newA, newB), a.since.Compare(b.since),
		strings.Compare(string(a.pod.UID), string(b.pod.UID)),
	)
}

// checkResize returns why the node has not enough for the resize of a pod. Pending resizes of other pods that come before it are considered first: what
// they take is not available, whichever worker runs first. others are the other pods of the node with their allocated resources.
func checkResize(own pendingResize, pending []pendingResize, others []*corev1.Pod, node *corev1.Node) []rejection {
	u := usageOf(others).with(own.allocated)
	slices.SortFunc(pending, compareResizes)
	for _, r := range pending {
		if compareResizes(r, own) > 0 {
			break
		}
		if rest := u.without(r.allocated); len(rest.insufficient(r.pod, node)) == 0 {
			u = rest.with(r.pod)
		}
	}
	return u.without(own.allocated).insufficient(own.pod, node)
}

// usage is what pods request together, and how many they are.
type usage struct {
	requests corev1.ResourceList
	pods     int
}

func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

func usageOf(pods []*corev1.Pod) usage {
	u := usage{requests: corev1.ResourceList{}, pods: len(pods)}
	for _, pod := range pods {
		addTo(u.requests, requestsOf(pod))
	}
	return u
}

// with returns the usage with one pod more.
func (u usage) with(pod *corev1.Pod) usage {
	sum := usage{requests: maps.Clone(u.requests), pods: u.pods + 1}
	addTo(sum.requests, requestsOf(pod))
	return sum
}

// without returns the usage with one pod less.
func (u usage) without(pod *corev1.Pod) usage {
	rest := usage{requests: maps.Clone(u.requests), pods: u.pods - 1}
	for name, q := range requestsOf(pod) {
		total := rest.requests[name].DeepCopy()
		total.Sub(q)
		rest.requests[name] = total
	}
	return rest
}

// otherPods returns the pods of the node besides one, with their allocated resources, and those of their resizes that are not allocated yet.
func (k *Kubelet) otherPods(uid types.UID) (active []*corev1.Pod, pending []pendingResize) {
	for _, w := range k.listWorkers() {
		if w.uid == uid {
			continue
		}
		w.mu.Lock()
		if pod := w.activePod(); pod != nil && !w.removed {
			active = append(active, pod)
			if w.isResizePending() {
				pending = append(pending, pendingResize{pod: w.pod, allocated: pod, since: w.deferredSince})
			}
		}
		w.mu.Unlock()
	}
	return active, pending
}

// isResizePending reports whether the pod runs and has other resources in its spec than are allocated to it. The caller holds mu.
func (w *worker) isResizePending() bool {
	return w.allocated != nil && w.stage == syncing && !w.infeasible && !w.allocated.matches(w.pod)
}

// retryDeferredResizes wakes the workers of pods with a deferred resize after another pod has released its resources.
func (k *Kubelet) retryDeferredResizes() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.workers {
		w.mu.Lock()
		waiting := w.isResizePending()
		w.mu.Unlock()
		if waiting {
			w.wakeUp()
		}
	}
}
