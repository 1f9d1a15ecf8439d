package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
)

// resizeRetry is the period of retrying a deferred resize, besides whenever a pod terminates.
const resizeRetry = 3 * time.Minute

// allocation is the resources allocated to a pod. They follow its spec when the node has enough allocatable resources.
type allocation struct {
	containers map[string]corev1.ResourceRequirements
	pod        *corev1.ResourceRequirements
}

// allocationOf returns the resources in a pod's spec.
func allocationOf(pod *corev1.Pod) *allocation {
	a := &allocation{containers: map[string]corev1.ResourceRequirements{}, pod: pod.Spec.Resources.DeepCopy()}
	for kind, c := range container.All(&pod.Spec) {
		if kind != container.Ephemeral {
			a.containers[c.Name] = *c.Resources.DeepCopy()
		}
	}
	return a
}

// allocationFromStatus returns the allocated resources in the status of a running pod. They differ from its spec if a resize was requested
// while the kubelet was down.
func allocationFromStatus(pod *corev1.Pod) *allocation {
	a := allocationOf(pod)
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		spec, ok := a.containers[s.Name]
		if !ok || s.State.Running == nil || s.Resources == nil {
			continue
		}
		if s.AllocatedResources != nil {
			spec.Requests = s.AllocatedResources.DeepCopy()
		}
		for name, q := range s.Resources.Limits {
			if _, has := spec.Limits[name]; has && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
				spec.Limits[name] = q
			}
		}
		a.containers[s.Name] = spec
	}
	return a
}

// applied returns the pod with the allocated resources in its spec.
func (a *allocation) applied(pod *corev1.Pod) *corev1.Pod {
	if a.matches(pod) {
		return pod
	}
	allocated := *pod
	allocated.Spec.Resources = a.pod
	allocated.Spec.Containers, allocated.Spec.InitContainers = slices.Clone(pod.Spec.Containers), slices.Clone(pod.Spec.InitContainers)
	for _, list := range [][]corev1.Container{allocated.Spec.Containers, allocated.Spec.InitContainers} {
		for i := range list {
			if r, ok := a.containers[list[i].Name]; ok {
				list[i].Resources = r
			}
		}
	}
	return &allocated
}

func (a *allocation) matches(pod *corev1.Pod) bool {
	if !equality.Semantic.DeepEqual(a.pod, pod.Spec.Resources) {
		return false
	}
	for kind, c := range container.All(&pod.Spec) {
		if kind != container.Ephemeral && !equality.Semantic.DeepEqual(a.containers[c.Name], c.Resources) {
			return false
		}
	}
	return true
}

// resizeState is the progress of a resize.
type resizeState struct {
	pending, progress *corev1.PodCondition
	actuatedPod       *corev1.ResourceRequirements
}

func (r *resizeState) conditions() []corev1.PodCondition {
	var list []corev1.PodCondition
	if r.pending != nil {
		list = append(list, *r.pending)
	}
	if r.progress != nil {
		list = append(list, *r.progress)
	}
	return list
}

// resizeCondition returns a condition of a resize; an unchanged one keeps its times.
func resizeCondition(kind corev1.PodConditionType, old *corev1.PodCondition, reason, message string, generation int64) *corev1.PodCondition {
	now := metav1.NewTime(time.Now())
	c := &corev1.PodCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation, LastTransitionTime: now, LastProbeTime: now,
	}
	if old != nil && old.Reason == reason {
		c.LastTransitionTime = old.LastTransitionTime
		if old.Message == message && old.ObservedGeneration == generation {
			c.LastProbeTime = old.LastProbeTime
		}
	}
	return c
}

// reallocate allocates the resources in the pod's spec if they have changed and the node has enough. An error is that of ctx.
func (w *worker) reallocate(ctx context.Context) error {
	w.mu.Lock()
	pod, allocated, since := w.pod, w.allocated, w.deferredSince
	w.mu.Unlock()
	if allocated.matches(pod) {
		if w.resize.pending != nil {
			w.setResizePending(pod, "", "")
			w.k.retryDeferredResizes() // it was considered before others
		}
		return nil
	}
	if message := w.k.infeasible(pod, allocated.applied(pod)); message != "" {
		w.setResizePending(pod, corev1.PodReasonInfeasible, message)
		return nil
	}
	if err := w.k.admission.lock(ctx); err != nil {
		return err
	}
	defer w.k.admission.unlock()
	node := w.k.Node()
	if node == nil {
		return nil
	}
	own := pendingResize{pod: pod, allocated: allocated.applied(pod), since: since}
	others, pending := w.k.otherPods(w.uid)
	if reasons := checkResize(own, pending, others, node); len(reasons) > 0 {
		w.setResizePending(pod, corev1.PodReasonDeferred, reasons[0].Message)
		return nil
	}
	w.allocate(allocationOf(pod))
	w.setResizePending(pod, "", "")
	if !own.increases() {
		w.k.retryDeferredResizes()
	}
	w.resize.progress = resizeCondition(corev1.PodResizeInProgress, nil, "", "", pod.Generation)
	w.k.podEvent(pod, corev1.EventTypeNormal, "ResizeStarted", "%s", resizeMessage(pod, pod.Generation, "", "Pod resize started"))
	return nil
}

// setResizePending sets the condition of a resize that is not allocated, and records an event when its reason is new; without a reason it is removed.
func (w *worker) setResizePending(pod *corev1.Pod, reason, message string) {
	old := w.resize.pending
	w.resize.pending = nil
	if reason != "" {
		w.resize.pending = resizeCondition(corev1.PodResizePending, old, reason, message, pod.Generation)
	}
	w.mu.Lock()
	w.infeasible, w.deferredSince = reason == corev1.PodReasonInfeasible, time.Time{}
	if reason == corev1.PodReasonDeferred {
		w.deferredSince = w.resize.pending.LastTransitionTime.Time
	}
	w.mu.Unlock()
	if reason != "" && (old == nil || old.Reason != reason || old.ObservedGeneration != pod.Generation) {
		w.k.podEvent(pod, corev1.EventTypeWarning, "Resize"+reason, "%s", resizeMessage(pod, pod.Generation, message, "Pod resize "+reason))
	}
}

// infeasible says why this node can never do the resize of a pod; empty: it may.
func (k *Kubelet) infeasible(pod, allocated *corev1.Pod) string {
	old := map[string]*corev1.Container{}
	for _, c := range container.All(&allocated.Spec) {
		old[c.Name] = c
	}
	for _, c := range container.All(&pod.Spec) {
		before := old[c.Name]
		isEqual := before == nil || before.Resources.Requests.Memory().Cmp(*c.Resources.Requests.Memory()) == 0
		if !isEqual && !restartsForMemory(before) && (k.Host.MaySwap(pod, c) || k.Host.MaySwap(allocated, before)) {
			return "In-place resize of containers with swap is not supported."
		}
	}
	return k.assignedInfeasible(pod, old)
}

// restartsForMemory reports whether a container is restarted when its memory is resized.
func restartsForMemory(c *corev1.Container) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.ResourceName == corev1.ResourceMemory && p.RestartPolicy == corev1.RestartContainer
	})
}

// resizeMessage is the message of events about a resize.
func resizeMessage(pod *corev1.Pod, generation int64, failure, text string) string {
	type amount struct {
		Name      string                      `json:"name,omitempty"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	summary := struct {
		Containers     []amount `json:"containers,omitempty"`
		InitContainers []amount `json:"initContainers,omitempty"`
		Generation     int64    `json:"generation"`
		Error          string   `json:"error,omitempty"`
	}{Generation: generation, Error: failure}
	for kind, c := range container.All(&pod.Spec) {
		switch kind {
		case container.Init:
			summary.InitContainers = append(summary.InitContainers, amount{c.Name, c.Resources})
		case container.Regular:
			summary.Containers = append(summary.Containers, amount{c.Name, c.Resources})
		}
	}
	encoded, err := json.Marshal(summary)
	if err != nil {
		return text
	}
	return text + ": " + string(encoded)
}

// resizeProgress updates the condition PodResizeInProgress, and records an event when a resize is complete.
func (w *worker) resizeProgress(pod *corev1.Pod, plan *Actions) {
	inProgress := len(plan.Resize) > 0 || plan.ResizePod
	switch {
	case inProgress && w.resize.progress == nil:
		w.resize.progress = resizeCondition(corev1.PodResizeInProgress, nil, "", "", pod.Generation)
	case !inProgress && w.resize.progress != nil:
		w.k.podEvent(pod, corev1.EventTypeNormal, "ResizeCompleted", "%s", resizeMessage(pod, w.resize.progress.ObservedGeneration, "", "Pod resize completed"))
		w.resize.progress = nil
	}
}

// readActuated reads the resources of running containers that this kubelet did not start from the runtime.
func (w *worker) readActuated(pod *corev1.Pod, runtime *cri.Pod) {
	if w.actuated == nil {
		w.actuated = map[string]corev1.ResourceRequirements{}
		w.resize.actuatedPod = pod.Spec.Resources.DeepCopy()
	}
	for kind, c := range container.All(&pod.Spec) {
		if _, known := w.actuated[c.Name]; known || kind == container.Ephemeral {
			continue
		}
		found := runtime.Container(c.Name)
		if found == nil || found.State != cri.Running {
			continue
		}
		has := *c.Resources.DeepCopy()
		set := func(list corev1.ResourceList, name corev1.ResourceName, q *resource.Quantity, minimum int64) {
			if old, ok := list[name]; ok && q != nil && (q.MilliValue() > minimum || old.MilliValue() > minimum) {
				list[name] = *q
			}
		}
		set(has.Limits, corev1.ResourceMemory, found.Resources.MemoryLimit, 0)
		set(has.Limits, corev1.ResourceCPU, found.Resources.CPULimit, 10)
		set(has.Requests, corev1.ResourceCPU, found.Resources.CPURequest, 2)
		w.actuated[c.Name] = has
	}
}

// setActuated records that the allocated resources of a container were applied.
func (w *worker) setActuated(c *corev1.Container) { w.actuated[c.Name] = *c.Resources.DeepCopy() }

// applyResize changes cgroup limits: those of the pod before its containers' when they grow, after them when they shrink, memory before
// CPU. Failures are retried at the next sync.
func (w *worker) applyResize(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, plan *Actions) {
	if err := w.resizeAll(ctx, pod, runtime, plan); err != nil {
		old := w.resize.progress
		w.resize.progress = resizeCondition(corev1.PodResizeInProgress, old, corev1.PodReasonError, err.Error(), pod.Generation)
		if old != nil {
			w.resize.progress.ObservedGeneration = old.ObservedGeneration
		}
		if old == nil || old.Message != err.Error() {
			w.k.podEvent(pod, corev1.EventTypeWarning, "ResizeError", "%s", resizeMessage(pod, w.resize.progress.ObservedGeneration, err.Error(), "Pod resize error"))
		}
	}
}

func (w *worker) resizeAll(ctx context.Context, pod *corev1.Pod, runtime *cri.Pod, plan *Actions) error {
	if err := w.k.Cgroups.Grow(pod); err != nil {
		return fmt.Errorf("resize pod cgroup: %w", err)
	}
	for _, r := range plan.Resize {
		if err := w.resizeOne(ctx, pod, r); err != nil {
			return err
		}
	}
	if err := w.k.Cgroups.Update(pod); err != nil {
		return fmt.Errorf("resize pod cgroup: %w", err)
	}
	w.resize.actuatedPod = pod.Spec.Resources.DeepCopy()
	if sandbox := runtime.Sandbox(); sandbox != "" {
		// Only runtimes that run pods in virtual machines need it; others may not implement it.
		if config, err := w.sandboxConfig(pod, plan.Attempt); err == nil {
			_ = w.k.Runtime.UpdatePodSandboxResources(ctx, sandbox, config)
		}
	}
	return nil
}

// resizeOne changes one resource of a container and leaves the other unchanged.
func (w *worker) resizeOne(ctx context.Context, pod *corev1.Pod, r Resize) error {
	has := w.actuated[r.Container.Name]
	target := r.Container.DeepCopy()
	other := corev1.ResourceCPU
	if r.Resource == corev1.ResourceCPU {
		other = corev1.ResourceMemory
	}
	keep := func(to *corev1.ResourceList, from corev1.ResourceList) {
		if q, ok := from[other]; ok {
			if *to == nil {
				*to = corev1.ResourceList{}
			}
			(*to)[other] = q
		} else {
			delete(*to, other)
		}
	}
	keep(&target.Resources.Limits, has.Limits)
	keep(&target.Resources.Requests, has.Requests)
	if err := w.checkMemoryUsage(ctx, r, &has, target); err != nil {
		return err
	}
	err := w.k.Runtime.UpdateContainerResources(ctx, r.ID, cri.ContainerResources(pod, target, w.k.hostForContainer(pod.UID, target.Name)))
	if err != nil {
		return fmt.Errorf("resize %s of container %s: %w", r.Resource, r.Container.Name, err)
	}
	w.actuated[r.Container.Name] = target.Resources
	return nil
}

// checkMemoryUsage returns an error if the new memory limit is below the usage of the container, which would be OOM-killed.
func (w *worker) checkMemoryUsage(ctx context.Context, r Resize, has *corev1.ResourceRequirements, target *corev1.Container) error {
	limit := target.Resources.Limits.Memory().Value()
	if r.Resource != corev1.ResourceMemory || limit == 0 {
		return nil
	}
	if old := has.Limits.Memory().Value(); old != 0 && limit >= old {
		return nil
	}
	stats, err := w.k.Runtime.ContainerStats(ctx, r.ID)
	if err != nil || stats.MemoryUsage == nil {
		return nil // the usage is unknown
	}
	if used := *stats.MemoryUsage; used >= uint64(limit) {
		return fmt.Errorf("cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)", r.Container.Name, limit, used)
	}
	return nil
}

// podResources are the pod-level resources in the status.
func podResources(pod *corev1.Pod, actuated *corev1.ResourceRequirements) (*corev1.ResourceRequirements, corev1.ResourceList) {
	options := resourcehelper.PodResourcesOptions{}
	requests := resourcehelper.PodRequests(pod, options)
	r := &corev1.ResourceRequirements{Requests: requests, Limits: resourcehelper.PodLimits(pod, options)}
	if actuated != nil {
		for name, q := range actuated.Limits {
			if r.Limits == nil {
				r.Limits = corev1.ResourceList{}
			}
			r.Limits[name] = q
		}
	}
	return r, requests
}
