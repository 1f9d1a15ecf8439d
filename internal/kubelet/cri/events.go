package cri

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// relistWithEvents is the relist period while the event stream is connected, in case an event was missed.
	relistWithEvents = 5 * time.Minute
	// relistWithoutEvents is the relist period without an event stream.
	relistWithoutEvents = time.Second
	// relistAfterFailure is the delay before a failed listing is repeated.
	relistAfterFailure = time.Second
	// retryEvents is the delay before a broken event stream is opened again.
	retryEvents = 500 * time.Millisecond
)

// Watcher reports which pods have changed in the runtime.
type Watcher struct {
	Runtime *Runtime
	// Changed is called for a pod whose sandbox or containers have changed. It must not block.
	Changed func(uid types.UID)
	// Healthy, if set, is called with the result of every listing.
	Healthy func(err error)
	// Relisted, if set, is called with the duration of every successful listing.
	Relisted func(took time.Duration)
	Log      *slog.Logger

	// known is the result of the last listing, by the ID of a sandbox or container.
	known map[string]observed
}

// observed is the state of a sandbox or container in a listing. A sandbox that is ready is Running, one that is not is Exited.
type observed struct {
	uid   types.UID
	state State
}

// Run watches until ctx is done. A runtime that sends events is listed every few minutes; one that does not is listed every second. Each
// time the event stream breaks or connects everything is listed, so that no change is missed. A listing that fails is soon repeated: until then the
// runtime counts as unhealthy.
func (w *Watcher) Run(ctx context.Context) error {
	w.known = map[string]observed{}
	events := make(chan *runtimeapi.ContainerEventResponse, 256)
	interrupted, connected := make(chan error, 1), make(chan struct{}, 1)
	stream := func() {
		interrupted <- w.Runtime.api.GetContainerEvents(ctx, events, func() {
			select {
			case connected <- struct{}{}:
			default:
			}
		})
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(stream)
	// Until the stream is connected, only listing finds changes.
	period := relistWithoutEvents
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-connected:
			period = relistWithEvents
			timer.Reset(0)
		case event := <-events:
			w.handle(event)
		case err := <-interrupted:
			if status.Code(err) == codes.Unimplemented {
				w.Log.Info("container runtime does not support events, falling back to relisting", "period", relistWithoutEvents)
				return w.relistOnly(ctx)
			}
			period = relistWithoutEvents
			timer.Reset(0)
			running.Go(func() {
				select {
				case <-time.After(retryEvents):
					stream()
				case <-ctx.Done():
				}
			})
		case <-timer.C:
			if w.relist(ctx) {
				timer.Reset(period)
			} else {
				timer.Reset(relistAfterFailure)
			}
		}
	}
}

// relistOnly watches a runtime that does not implement events.
func (w *Watcher) relistOnly(ctx context.Context) error {
	ticker := time.NewTicker(relistWithoutEvents)
	defer ticker.Stop()
	for {
		w.relist(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// handle reports the pod that an event is about.
func (w *Watcher) handle(event *runtimeapi.ContainerEventResponse) {
	if uid := event.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		w.Changed(types.UID(uid))
		return
	}
	// The sandbox has been removed already; the labels of its containers have the pod's UID.
	for _, c := range event.GetContainersStatuses() {
		if uid := c.GetLabels()[LabelPodUID]; uid != "" {
			w.Changed(types.UID(uid))
			return
		}
	}
	if old, ok := w.known[event.GetContainerId()]; ok {
		w.Changed(old.uid)
	}
}

// relist lists all sandboxes and containers and reports the pods that differ from the last listing. It returns false if they could not be listed.
func (w *Watcher) relist(ctx context.Context) bool {
	began := time.Now()
	now := make(map[string]observed, len(w.known))
	sandboxes, err := w.Runtime.ListPodSandboxes(ctx, "")
	if err == nil {
		var containers []*Container
		containers, err = w.Runtime.ListContainers(ctx, "")
		for _, s := range sandboxes {
			state := Exited
			if s.Ready {
				state = Running
			}
			now[s.ID] = observed{s.UID, state}
		}
		for _, c := range containers {
			now[c.ID] = observed{types.UID(c.Labels[LabelPodUID]), c.State}
		}
	}
	if ctx.Err() != nil {
		return false
	}
	if w.Healthy != nil {
		w.Healthy(err)
	}
	if err != nil {
		return false
	}
	if w.Relisted != nil {
		w.Relisted(time.Since(began))
	}
	changed := map[types.UID]bool{}
	for id, s := range now {
		if old, ok := w.known[id]; !ok || old != s {
			changed[s.uid] = true
		}
	}
	for id, old := range w.known {
		if _, ok := now[id]; !ok {
			changed[old.uid] = true
		}
	}
	w.known = now
	for uid := range changed {
		w.Changed(uid)
	}
	return true
}
