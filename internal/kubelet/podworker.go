package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/status"
	"skiff/internal/podstate"
)

// stage is how far a pod has come on this node. It only grows.
type stage int

const (
	syncing stage = iota
	terminating
	terminated
)

// The waits after something failed.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 10 * time.Second
	// startRetry is how long a container that could not be started is left alone.
	startRetry = 10 * time.Second
)

// eviction is a wish to end a pod that is not its owner's.
type eviction struct {
	status.Reason
	grace  *int64
	target *corev1.PodCondition
}

// worker leads one pod through its life on this node.
type worker struct {
	k    *Kubelet
	uid  types.UID
	born time.Time
	wake chan struct{}
	// freed is closed when the pod has ended and holds nothing of the node any more.
	freed chan struct{}

	mu  sync.Mutex
	pod *corev1.Pod
	// gone says that the pod's source no longer has it.
	gone    bool
	evicted *eviction
	// cancelSync ends what the worker waits for while the pod should run; cancelKill ends a kill whose grace has become too long.
	cancelSync, cancelKill context.CancelFunc
	killGrace              int64
	stage                  stage
	// rejected says that the pod was never admitted.
	rejected bool
	// changed says that the pod was changed since the worker last looked.
	changed bool
	// allocated are the resources the pod was admitted with; nil until then.
	allocated *allocation

	// The rest belongs to the worker's goroutine.
	looked, counted bool
	restarts        *restarts
	failed          map[string]status.Reason
	actuated        map[string]corev1.ResourceRequirements
	resize          resizeState
	retry           time.Duration
	told            map[string]string // what events have said last, so that it is not said again
	prepared        bool
	cleaned         bool
	cgroup          string
	lastError       string
}

func newWorker(k *Kubelet, pod *corev1.Pod) *worker {
	return &worker{
		k: k, uid: pod.UID, born: time.Now(), pod: pod, wake: make(chan struct{}, 1), freed: make(chan struct{}), restarts: newRestarts(k.LongestRestartDelay),
		failed: map[string]status.Reason{}, told: map[string]string{},
	}
}

func (w *worker) olderThan(other *worker) bool { return other == nil || w.born.Before(other.born) }

// poke lets the worker look at its pod again.
func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update hands over a newer version of the pod.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod, w.changed = pod, true
	w.interrupt()
	w.mu.Unlock()
	w.poke()
}

// remove says that the pod's source no longer has it.
func (w *worker) remove() {
	w.mu.Lock()
	w.gone = true
	w.interrupt()
	w.mu.Unlock()
	w.poke()
}

func (w *worker) evict(e *eviction) {
	w.mu.Lock()
	if w.evicted == nil {
		w.evicted = e
	}
	w.interrupt()
	w.mu.Unlock()
	w.poke()
}

// interrupt ends what the worker is doing if the pod is to end sooner than it thought. mu is held.
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

// ending reports whether the pod is to end. mu is held.
func (w *worker) ending() bool {
	return w.gone || w.evicted != nil || w.pod.DeletionTimestamp != nil || podstate.IsTerminal(w.pod)
}

// minGrace is what a pod whose source is gone gets.
const minGrace = 1

// grace is how many seconds the pod's containers get to end. mu is held.
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
	if w.gone && !status.Static(w.pod) {
		grace = minGrace // it was deleted by force
	}
	return max(grace, minGrace)
}

// current is the newest version of the pod.
func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// active is the pod as it was admitted, or nil if it was not or has ended.
func (w *worker) active() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.stage == terminated || w.rejected:
		return nil
	case w.allocated != nil:
		return w.allocated.applied(w.pod)
	case w.pod.Status.Phase == corev1.PodRunning:
		return w.pod // after a restart of the kubelet: it holds its room before it has been looked at
	}
	return nil
}

// forsaken reports whether the pod's source no longer has it.
func (w *worker) forsaken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// run leads the pod to its end, or until ctx ends.
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

// step does what is to be done now. next is when to look again if nothing happens, zero for never; done says that the pod is gone
// from the node and from its source.
func (w *worker) step(ctx context.Context) (next time.Time, done bool) {
	w.mu.Lock()
	if w.stage == syncing && w.ending() {
		w.stage = terminating
	}
	stage := w.stage
	w.mu.Unlock()
	var err error
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

// retryAfter says when to try again what failed: soon at first, then ever later.
func (w *worker) retryAfter(err error) time.Time {
	if errors.Is(err, context.Canceled) {
		return time.Now()
	}
	if w.retry == 0 {
		w.retry = firstRetry
	}
	if text := err.Error(); text != w.lastError {
		w.lastError = text
		w.k.Log.Warn("a pod could not be brought to where it should be", "pod", describe(w.current()), "error", err)
	}
	delay := w.retry + rand.N(w.retry/2)
	w.retry = min(2*w.retry, lastRetry)
	return time.Now().Add(delay)
}

// tellOnce tells an event unless the same was the last to be told for its key.
func (w *worker) tellOnce(key, text string, tell func()) {
	if w.told[key] != text {
		w.told[key] = text
		tell()
	}
}

// wrapped adds what was being done.
func wrapped(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
