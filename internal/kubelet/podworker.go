package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/status"
	"skiff/internal/podstate"
)

// stage is the stage of a pod's life on this node. It never goes back.
type stage int

const (
	syncing stage = iota
	terminating
	terminated
)

// The bounds of the retry backoff of a worker.
const (
	firstRetry = 500 * time.Millisecond
	maxRetry   = 10 * time.Second
	// startRetry is the delay before the start of a container is retried.
	startRetry = 10 * time.Second
)

// eviction is a request of the kubelet itself to terminate a pod.
type eviction struct {
	status.Reason
	grace  *int64
	target *corev1.PodCondition
}

// worker manages one pod on this node until it is removed.
type worker struct {
	k         *Kubelet
	uid       types.UID
	createdAt time.Time
	wake      chan struct{}
	// released is closed when the pod has terminated and its containers, volumes and cgroup are released.
	released chan struct{}

	mu  sync.Mutex
	pod *corev1.Pod
	// removed is set when the pod's source has removed it. It is never unset.
	removed bool
	// successor is the pod to start when this one is removed: the source has it again, with the same UID.
	successor *corev1.Pod
	evicted   *eviction
	// cancelSync interrupts a sync when the pod must terminate; cancelKill interrupts a kill when its grace period was shortened.
	cancelSync, cancelKill context.CancelFunc
	killGrace              int64
	stage                  stage
	// rejected is set if the pod was not admitted.
	rejected bool
	// changed is set if the pod was updated since the last sync.
	changed bool
	// allocated are the resources allocated to the pod; nil until it is admitted.
	allocated *allocation
	// infeasible is set if this node can never do the requested resize, deferredSince if it waits for resources.
	infeasible    bool
	deferredSince time.Time

	// oldMirror is the mirror pod of the pod that this one is the successor of. It is set before the worker runs.
	oldMirror types.UID

	// The fields below are used by the worker's goroutine only.
	synced, startRecorded bool
	restarts              *restarts
	// failed are the reasons why containers are waiting, by name.
	failed   map[string]status.Reason
	actuated map[string]corev1.ResourceRequirements
	resize   resizeState
	retry    time.Duration
	// lastEvents has the text of the last event of each kind, so that it is not repeated at every sync.
	lastEvents map[string]string
	prepared   bool
	cleaned    bool
	cgroup     string
	lastError  string
}

func newWorker(k *Kubelet, pod *corev1.Pod) *worker {
	return &worker{
		k: k, uid: pod.UID, createdAt: time.Now(), pod: pod, wake: make(chan struct{}, 1), released: make(chan struct{}), restarts: newRestarts(k.MaxContainerRestartPeriod),
		failed: map[string]status.Reason{}, lastEvents: map[string]string{},
	}
}

func (w *worker) olderThan(other *worker) bool {
	return other == nil || w.createdAt.Before(other.createdAt)
}

// wakeUp makes the worker sync its pod.
func (w *worker) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update replaces the pod by a newer version. A static pod whose manifest has changed, or that its source had removed, terminates first.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	if w.removed || isManifestChanged(w.pod, pod) {
		w.removed, w.successor = true, pod
	} else {
		w.pod, w.changed = pod, true
	}
	w.interrupt()
	w.mu.Unlock()
	w.wakeUp()
}

// replaceOldManifest terminates a static pod, to start it again, if it was started from another manifest with the same UID before a restart of
// the kubelet.
func (w *worker) replaceOldManifest(runtime *cri.Pod) bool {
	if len(runtime.Sandboxes) == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	started := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: runtime.Sandboxes[0].Annotations}}
	if w.removed || !isManifestChanged(started, w.pod) {
		return false
	}
	w.removed, w.successor = true, w.pod
	return true
}

// remove records that the pod's source has removed it.
func (w *worker) remove() {
	w.mu.Lock()
	w.removed, w.successor = true, nil
	w.interrupt()
	w.mu.Unlock()
	w.wakeUp()
}

func (w *worker) evict(e *eviction) {
	w.mu.Lock()
	if w.evicted == nil {
		w.evicted = e
	}
	w.interrupt()
	w.mu.Unlock()
	w.wakeUp()
}

// interrupt cancels the worker's current operation if the pod must terminate now, or sooner than before. The caller holds mu.
func (w *worker) interrupt() {
	if !w.ending() {
		return
	}
	if w.cancelSync != nil {
		w.cancelSync()
	}
	if w.cancelKill != nil && w.grace() < w.killGrace {
		w.cancelKill()
	}
}

// ending reports whether the pod must terminate. The caller holds mu.
func (w *worker) ending() bool {
	return w.removed || w.evicted != nil || w.pod.DeletionTimestamp != nil || podstate.IsTerminal(w.pod)
}

// minGrace is the shortest grace period in seconds, and that of a force-deleted pod.
const minGrace = 1

// grace is the grace period of the pod in seconds. The caller holds mu.
func (w *worker) grace() int64 {
	grace := int64(30)
	switch {
	case w.pod.DeletionGracePeriodSeconds != nil:
		grace = *w.pod.DeletionGracePeriodSeconds
	case w.pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *w.pod.Spec.TerminationGracePeriodSeconds
	}
	if w.evicted != nil && w.evicted.grace != nil {
		grace = min(grace, *w.evicted.grace)
	}
	if w.removed && !podstate.IsStatic(w.pod) {
		grace = minGrace // force-deleted
	}
	return max(grace, minGrace)
}

// current is the newest version of the pod.
func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// active returns the pod with its allocated resources, or nil if it is not admitted or has terminated.
func (w *worker) active() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.activePod()
}

// activePod is active for callers that hold mu.
func (w *worker) activePod() *corev1.Pod {
	switch {
	case w.stage == terminated || w.rejected:
		return nil
	case w.allocated != nil:
		return w.allocated.applied(w.pod)
	case w.pod.Status.Phase == corev1.PodRunning:
		return w.pod // after a restart of the kubelet, its resources count before its first sync
	}
	return nil
}

// isRemoved reports whether the pod's source has removed it.
func (w *worker) isRemoved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.removed
}

// run syncs the pod until it is removed or ctx is done.
func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		operation, began := w.operation(), time.Now()
		next, done := w.step(ctx)
		w.k.Metrics.PodSynced(operation, began)
		if done {
			w.k.forget(w)
			return
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// step performs one sync of the pod's current stage. next is when to sync again if nothing wakes the worker, zero for never; done reports
// that the pod is removed from the node and from its source.
func (w *worker) step(ctx context.Context) (next time.Time, done bool) {
	w.mu.Lock()
	if w.stage == syncing && w.ending() {
		w.stage = terminating
	}
	stage := w.stage
	w.mu.Unlock()
	var err error
	ctx, span := w.startSpan(ctx, stage)
	defer func() { endSpan(span, err) }()
	switch stage {
	case syncing:
		var over bool
		next, over, err = w.sync(ctx)
		if over && err == nil {
			w.mu.Lock()
			w.stage = terminating
			w.mu.Unlock()
			return time.Now(), false
		}
	case terminating:
		if err = w.terminate(ctx); err == nil {
			w.mu.Lock()
			w.stage = terminated
			w.mu.Unlock()
			return time.Now(), false
		}
	case terminated:
		done, err = w.cleanUp(ctx)
	}
	if err != nil && ctx.Err() == nil {
		return w.retryAfter(err), false
	}
	if err == nil {
		w.retry, w.lastError = 0, ""
	}
	return next, done
}

// retryAfter returns when to retry after an error, with exponential backoff.
func (w *worker) retryAfter(err error) time.Time {
	if errors.Is(err, context.Canceled) {
		return time.Now()
	}
	if w.retry == 0 {
		w.retry = firstRetry
	}
	if text := err.Error(); text != w.lastError {
		w.lastError = text
		w.k.Log.Warn("failed to sync pod", "pod", describe(w.current()), "error", err)
	}
	delay := w.retry + rand.N(w.retry/2)
	w.retry = min(2*w.retry, maxRetry)
	return time.Now().Add(delay)
}

// eventOnce calls record unless the last call with the same key had the same text.
func (w *worker) eventOnce(key, text string, record func()) {
	if w.lastEvents[key] != text {
		w.lastEvents[key] = text
		record()
	}
}

// wrapped wraps an error, if any, with the operation that failed.
func wrapped(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
