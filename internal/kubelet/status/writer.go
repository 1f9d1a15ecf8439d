package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/util/workqueue"

	"skiff/internal/client"
	"skiff/internal/container"
	"skiff/internal/podstate"
)

// writers is the number of concurrent writes.
const writers = 16

// Writer writes the statuses of this node's pods to the API. For each pod it has the latest status and the pod in the API, and sends the
// difference as a patch. The pod in the API is the newest version from the node's watch and from its own writes, so nothing has to be read
// before a write.
type Writer struct {
	pods  client.Resource[*corev1.Pod]
	log   *slog.Logger
	queue workqueue.TypedRateLimitingInterface[types.UID]

	mu      sync.Mutex
	entries map[types.UID]*entry
}

// entry is one pod. For a static pod api is its mirror pod.
type entry struct {
	api    *corev1.Pod
	status *corev1.PodStatus
	// mayRun is set while containers may be running. Then the pod cannot be reported in a terminal phase.
	mayRun bool
	// finished is set when the pod's resources on the node are released.
	finished bool
}

// NewWriter makes a writer. Nothing is sent before Run.
func NewWriter(c *client.Client, log *slog.Logger) *Writer {
	return &Writer{
		pods: client.For[*corev1.Pod](c), log: log, entries: map[types.UID]*entry{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](20*time.Millisecond, 10*time.Second)),
	}
}

// Run writes statuses until ctx is done.
func (w *Writer) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for w.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	running.Wait()
	return nil
}

func (w *Writer) next(ctx context.Context) bool {
	uid, shutdown := w.queue.Get()
	if shutdown {
		return false
	}
	defer w.queue.Done(uid)
	if err := w.send(ctx, uid); err != nil && ctx.Err() == nil {
		w.log.Warn("a pod's status could not be written", "uid", uid, "error", err)
		w.queue.AddRateLimited(uid)
		return true
	}
	w.queue.Forget(uid)
	return true
}

// Get returns the latest status of a pod.
func (w *Writer) Get(uid types.UID) (*corev1.PodStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entries[uid]; e != nil && e.status != nil {
		return e.status, true
	}
	return nil, false
}

// Set sets the status of a pod. mayRun reports whether its containers may still be running. It does not block.
func (w *Writer) Set(uid types.UID, status *corev1.PodStatus, mayRun bool) {
	if w.set(uid, status, mayRun) {
		w.queue.Add(uid)
	}
}

// deferDelay is how long SetDeferred delays a write.
const deferDelay = 200 * time.Millisecond

// SetDeferred is Set for a status that is about to be replaced: it is written only if no other follows within deferDelay.
func (w *Writer) SetDeferred(uid types.UID, status *corev1.PodStatus, mayRun bool) {
	if w.set(uid, status, mayRun) {
		w.queue.AddAfter(uid, deferDelay)
	}
}

// set reports whether the status has changed.
func (w *Writer) set(uid types.UID, status *corev1.PodStatus, mayRun bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(uid)
	if e.finished {
		return false
	}
	news := e.status == nil || e.mayRun != mayRun || !equality.Semantic.DeepEqual(e.status, status)
	e.status, e.mayRun = status, mayRun
	return news
}

// Finish reports that a pod is terminated and its resources on the node are released. If it has a deletion timestamp it is now deleted
// from the API.
func (w *Writer) Finish(pod *corev1.Pod) {
	w.mu.Lock()
	e := w.entry(pod.UID)
	status := e.status
	if status == nil {
		status = &pod.Status
	}
	e.status, e.mayRun, e.finished = final(pod, status), false, true
	w.mu.Unlock()
	w.queue.Add(pod.UID)
}

// Observe records a pod in the API. uid is that of the pod on this node: for a mirror pod, that of its static pod.
func (w *Writer) Observe(uid types.UID, api *corev1.Pod) {
	w.mu.Lock()
	e := w.entry(uid)
	e.update(api)
	send := e.status != nil
	w.mu.Unlock()
	if send {
		w.queue.Add(uid)
	}
}

// Forget removes a pod that was deleted from the API.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.entries, uid)
}

func (w *Writer) entry(uid types.UID) *entry {
	e := w.entries[uid]
	if e == nil {
		e = &entry{mayRun: true}
		w.entries[uid] = e
	}
	return e
}

// update keeps the newer of two versions of the pod in the API.
func (e *entry) update(api *corev1.Pod) {
	if e.api == nil || e.api.UID != api.UID || revision(api) >= revision(e.api) {
		e.api = api
	}
}

func revision(pod *corev1.Pod) uint64 {
	n, _ := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	return n
}

// send updates the status of a pod in the API, and deletes the pod when it is terminated.
func (w *Writer) send(ctx context.Context, uid types.UID) error {
	w.mu.Lock()
	e := w.entries[uid]
	if e == nil || e.api == nil || e.status == nil {
		w.mu.Unlock()
		return nil
	}
	api, status, mayRun, finished := e.api, e.status, e.mayRun, e.finished
	w.mu.Unlock()

	merged := merge(api, status, mayRun)
	if !equality.Semantic.DeepEqual(&api.Status, merged) {
		patch, err := statusPatch(api, merged)
		if err != nil {
			return err
		}
		written, err := w.pods.Patch(ctx, api.Namespace, api.Name, client.RawPatch(client.StrategicPatch, patch), client.WriteOptions{Subresource: "status"})
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			return nil // the pod was deleted or replaced
		case err != nil:
			return fmt.Errorf("patch status of pod %s/%s: %w", api.Namespace, api.Name, err)
		}
		w.mu.Lock()
		if e.api == api || e.api.UID == written.UID {
			e.update(written)
		}
		w.mu.Unlock()
		api = written
	}
	if !finished || api.DeletionTimestamp == nil || api.Annotations[corev1.MirrorPodAnnotationKey] != "" || !podstate.IsTerminal(api) {
		return nil
	}
	zero := int64(0)
	err := w.pods.Delete(ctx, api.Namespace, api.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &api.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", api.Namespace, api.Name, err)
	}
	return nil
}

// merge returns the status to write: the kubelet's, with the conditions of others kept.
func merge(api *corev1.Pod, status *corev1.PodStatus, mayRun bool) *corev1.PodStatus {
	merged := status.DeepCopy()
	ending := !podstate.IsTerminal(api) && podstate.IsPhaseTerminal(status.Phase)
	merged.Conditions = nil
	for _, c := range api.Status.Conditions {
		if !slices.Contains(owned, c.Type) {
			merged.Conditions = append(merged.Conditions, c)
		}
	}
	for _, c := range status.Conditions {
		switch {
		case slices.Contains(owned, c.Type):
			merged.Conditions = append(merged.Conditions, c)
		case c.Type == corev1.DisruptionTarget && ending && !mayRun:
			merged.Conditions = slices.DeleteFunc(merged.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type })
			merged.Conditions = append(merged.Conditions, c)
		}
	}
	old := &api.Status
	merged.ResourceClaimStatuses, merged.ExtendedResourceClaimStatus = old.ResourceClaimStatuses, old.ExtendedResourceClaimStatus
	merged.NodeAllocatableResourceClaimStatuses, merged.VolumeHealth = old.NodeAllocatableResourceClaimStatuses, old.VolumeHealth
	merged.NominatedNodeName = old.NominatedNodeName
	merged.ObservedGeneration = max(merged.ObservedGeneration, old.ObservedGeneration)
	if ending && mayRun {
		merged.Phase, merged.Reason, merged.Message = old.Phase, old.Reason, old.Message
	}
	if podstate.IsPhaseTerminal(old.Phase) {
		merged.Phase = old.Phase
	}
	if podstate.IsPhaseTerminal(merged.Phase) {
		reason := podFailed
		if merged.Phase == corev1.PodSucceeded {
			reason = podCompleted
		}
		for i := range merged.Conditions {
			c := &merged.Conditions[i]
			if (c.Type == corev1.PodReady || c.Type == corev1.ContainersReady) && c.Status == corev1.ConditionTrue {
				c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, ""
			}
		}
	}
	return merged
}

// statusPatch is a patch of the status that only applies to a pod with the same UID.
func statusPatch(api *corev1.Pod, status *corev1.PodStatus) ([]byte, error) {
	before, err1 := json.Marshal(&corev1.Pod{Status: api.Status})
	after, err2 := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: api.UID}, Status: *status})
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("create status patch: %w", err)
	}
	return patch, nil
}

// final is the status of a terminated pod: containers whose exit was not observed are reported as failed.
func final(pod *corev1.Pod, status *corev1.PodStatus) *corev1.PodStatus {
	last := status.DeepCopy()
	lost := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: StatusUnknown, Message: lostWhenEnded, ExitCode: killedCode}}
	if wasInitialized(pod, status) {
		for i := range last.ContainerStatuses {
			if last.ContainerStatuses[i].State.Terminated == nil {
				last.ContainerStatuses[i].State = lost
			}
		}
	}
	// All init containers up to the last one that was started, at least the first.
	tried := min(1, len(last.InitContainerStatuses))
	for i, s := range last.InitContainerStatuses {
		if s.State.Waiting == nil || s.LastTerminationState.Terminated != nil {
			tried = i + 1
		}
	}
	for i := range tried {
		if last.InitContainerStatuses[i].State.Terminated == nil {
			last.InitContainerStatuses[i].State = lost
		}
	}
	if !podstate.IsStatic(pod) && !podstate.IsPhaseTerminal(last.Phase) {
		last.Phase = corev1.PodFailed
	}
	return last
}

// wasInitialized reports whether regular containers of a pod may have run.
func wasInitialized(pod *corev1.Pod, status *corev1.PodStatus) bool {
	n := len(pod.Spec.InitContainers)
	if n == 0 {
		return true
	}
	for _, s := range status.ContainerStatuses {
		if s.State.Waiting == nil || s.LastTerminationState.Terminated != nil {
			return true
		}
	}
	c := &pod.Spec.InitContainers[n-1]
	s := find(status.InitContainerStatuses, c.Name)
	if s == nil {
		return false
	}
	if container.IsSidecar(c) {
		return s.State.Running != nil && s.Started != nil && *s.Started
	}
	end := s.State.Terminated
	if end == nil {
		end = s.LastTerminationState.Terminated
	}
	return end != nil && end.ExitCode == 0
}
