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
	// relistWithEvents is how often everything is looked at when the runtime tells what happens: a safety net.
	relistWithEvents = 5 * time.Minute
	// relistWithoutEvents is how often, when it does not.
	relistWithoutEvents = time.Second
	// retryEvents is how long a runtime that is away is left alone.
	retryEvents = 500 * time.Millisecond
)

// Watcher tells whose pods have changed.
type Watcher struct {
	Runtime Runtime
	// Changed is called for a pod whose sandbox or containers have changed. It must not block.
	Changed func(uid types.UID)
	// Healthy is called with the result of every listing, so that the node can say whether its runtime answers.
	Healthy func(err error)
	// Relisted, if set, is told how long a listing took.
	Relisted func(took time.Duration)
	Log      *slog.Logger

	known map[string]seenState
}

// seenState is what a listing said of a sandbox or container.
type seenState struct {
	uid   types.UID
	state int32
}

// Run watches until ctx ends. A runtime that sends events is listed only to make sure; one that does not is listed every second.
// After each interruption everything is listed, so that nothing that happened meanwhile is missed.
func (w *Watcher) Run(ctx context.Context) error {
	w.known = map[string]seenState{}
	events := make(chan *runtimeapi.ContainerEventResponse, 256)
	interrupted, connected := make(chan error, 1), make(chan struct{}, 1)
	stream := func() {
		interrupted <- w.Runtime.GetContainerEvents(ctx, events, func(runtimeapi.RuntimeService_GetContainerEventsClient) {
			select {
			case connected <- struct{}{}:
			default:
			}
		})
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(stream)
	// Until the stream stands, listing must do.
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
			w.tell(event)
		case err := <-interrupted:
			if status.Code(err) == codes.Unimplemented {
				w.Log.Info("the container runtime does not send events; it is listed every second instead")
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
			w.relist(ctx)
			timer.Reset(period)
		}
	}
}

// relistOnly serves runtimes that have no events.
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

// tell passes an event on.
func (w *Watcher) tell(event *runtimeapi.ContainerEventResponse) {
	if uid := event.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		w.Changed(types.UID(uid))
		return
	}
	// The sandbox is gone already; the containers still know whose they were.
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

// relist compares everything the runtime has with what it had at the last listing.
func (w *Watcher) relist(ctx context.Context) {
	began := time.Now()
	now := make(map[string]seenState, len(w.known))
	sandboxes, err := w.Runtime.ListPodSandbox(ctx, nil)
	if err == nil {
		var containers []*runtimeapi.Container
		containers, err = w.Runtime.ListContainers(ctx, nil)
		for _, s := range sandboxes {
			now[s.Id] = seenState{types.UID(s.GetMetadata().GetUid()), int32(s.State)}
		}
		for _, c := range containers {
			now[c.Id] = seenState{types.UID(c.Labels[LabelPodUID]), int32(c.State)}
		}
	}
	if ctx.Err() != nil {
		return
	}
	if w.Healthy != nil {
		w.Healthy(err)
	}
	if err != nil {
		return
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
}
