package cleanup

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
)

// The period of discovery, the least delay that batches discovery after changes of CRDs and APIServices, and the timeout for the initial
// lists: an unavailable API group must not block all others.
const (
	discoveryPeriod   = 30 * time.Second
	discoveryDebounce = 200 * time.Millisecond
	firstListTimeout  = 30 * time.Second
)

// monitor is the metadata informer of one resource.
type monitor struct {
	cancel context.CancelFunc
	synced func() bool
}

// ignoredResources are frequent resources without owners and dependents.
var ignoredResources = map[schema.GroupResource]bool{{Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true}

// Run monitors all resources, including those added later, until ctx is done.
func (g *garbageCollector) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for first := true; ; first = false {
		started := time.Now()
		g.syncMonitors(ctx, &running)
		debounce := debounceAfter(time.Since(started))
		if first {
			g.waitForSync(ctx)
			close(g.synced)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(discoveryPeriod):
		case <-g.rediscover:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(debounce):
			}
		}
	}
}

// debounceAfter returns the delay that batches discovery after changes. Discovery costs more the more resources there are, and while definitions are
// created it would be repeated all the time: it takes a tenth of it at most.
func debounceAfter(took time.Duration) time.Duration {
	return min(max(discoveryDebounce, 9*took), discoveryPeriod)
}

// syncMonitors starts and stops monitors, so that there is one for every resource.
func (g *garbageCollector) syncMonitors(ctx context.Context, running *sync.WaitGroup) {
	resources, err := g.resources(ctx)
	if err != nil && ctx.Err() == nil {
		g.setup.Log.Warn("failed to discover some API groups", "error", err)
	}
	if len(resources) == 0 {
		return
	}
	failed, _ := discovery.GroupDiscoveryFailedErrorGroups(err)
	desired, changed := map[schema.GroupVersionResource]bool{}, false
	for _, r := range resources {
		if ignoredResources[r.GroupResource()] || !r.can("delete", "list", "watch") {
			continue
		}
		desired[r.GroupVersionResource] = true
		if g.monitors[r.GroupVersionResource] == nil {
			g.monitors[r.GroupVersionResource] = g.startMonitor(ctx, r, running)
			changed = true
		}
	}
	for gvr, m := range g.monitors {
		// Keep the monitors of groups whose discovery failed.
		if unavailable := failed[gvr.GroupVersion()] != nil && m.synced(); !desired[gvr] && !unavailable {
			m.cancel()
			delete(g.monitors, gvr)
			changed = true
		}
	}
	if changed {
		g.mapper.Reset()
		g.enqueueUnknownKinds()
	}
}

func (g *garbageCollector) waitForSync(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstListTimeout)
	defer cancel()
	var synced []cache.InformerSynced
	for _, m := range g.monitors {
		synced = append(synced, m.synced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) && ctx.Err() == context.DeadlineExceeded {
		g.setup.Log.Warn("failed to list all resources in time, continuing without them")
	}
}

// startMonitor starts an informer that updates the graph.
func (g *garbageCollector) startMonitor(ctx context.Context, r resource, running *sync.WaitGroup) *monitor {
	apiVersion := r.GroupVersion().String()
	onResourceChange := func() {}
	if r.kind == "CustomResourceDefinition" || r.kind == "APIService" {
		onResourceChange = g.requestDiscovery
	}
	observe := func(m *metav1.PartialObjectMetadata) {
		g.enqueueWork(g.observe(identity{apiVersion: apiVersion, kind: r.kind, namespace: m.Namespace, name: m.Name, uid: m.UID}, m))
		onResourceChange()
	}
	informer := newMonitor(g.metadataClient, r.GroupVersionResource, metadataHandler{
		onAdd:    observe,
		onUpdate: observe,
		onDelete: func(m *metav1.PartialObjectMetadata) { g.enqueueWork(g.objectDeleted(m.UID)); onResourceChange() },
	})
	ctx, cancel := context.WithCancel(ctx)
	running.Go(func() { informer.RunWithContext(ctx) })
	return &monitor{cancel: cancel, synced: informer.HasSynced}
}

// metadataHandler handles changes; any function may be nil.
type metadataHandler struct {
	onAdd, onUpdate, onDelete func(*metav1.PartialObjectMetadata)
	// onNotServed is called when the server does not serve the resource, again and again until the monitor is stopped.
	onNotServed func(ctx context.Context)
}

// checkServed calls onNotServed if a list or watch failed because the server does not serve the resource.
func (h *metadataHandler) checkServed(ctx context.Context, err error) {
	if h.onNotServed != nil && apierrors.IsNotFound(err) {
		h.onNotServed(ctx)
	}
}

// newMonitor creates a metadata informer of one resource.
func newMonitor(c *metadataClient, gvr schema.GroupVersionResource, h metadataHandler) cache.Controller {
	objects := c.in(gvr, "")
	handle := func(f func(*metav1.PartialObjectMetadata), obj any) {
		// A deletion that the watch missed arrives as a tombstone with the last known state.
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok && f != nil {
			f(m)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				list, err := objects.List(ctx, options)
				h.checkServed(ctx, err)
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				events, err := objects.Watch(ctx, options)
				h.checkServed(ctx, err)
				return events, err
			},
		}, c.metadata),
		ObjectType: &metav1.PartialObjectMetadata{},
		Transform:  stripToOwnership,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { handle(h.onAdd, obj) },
			UpdateFunc: func(_, obj any) { handle(h.onUpdate, obj) },
			DeleteFunc: func(obj any) { handle(h.onDelete, obj) },
		},
	})
	return informer
}

// requestDiscovery triggers discovery soon.
func (g *garbageCollector) requestDiscovery() {
	select {
	case g.rediscover <- struct{}{}:
	default:
	}
}

// stripToOwnership drops unused metadata to save memory: all objects of the cluster are cached.
func stripToOwnership(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers, DeletionTimestamp: m.DeletionTimestamp,
	}}, nil
}
