// Package controller is the reconcile loop that all controllers share.
//
// A controller implements Observe, which gathers the cached state of one key into a view, and Reconcile, a pure function that
// turns the view into a Plan: creates, updates, patches, deletes, a status and events, as data. This package provides the rest:
// the workqueue, in which a key is never processed by two workers at once, rate-limited retries, requeues (Plan.RequeueAfter),
// spacing of syncs of large objects, slow-start batches of creates, leader election and metrics. A controller that does not fit a plan implements Syncer itself and
// may still apply plans with Setup.Apply.
//
// A key is not synced again before the informers have observed what was last written for it. So Reconcile can trust its view: a
// controller never creates a pod twice because its cache was stale, and needs no expectations. This holds for writes of a Plan
// and for those reported to Setup.RecordWrite and Setup.RecordDelete.
//
// docs/add-a-controller.md shows how to write one.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// Key identifies a unit of work, nearly always an object of the controller's primary type.
type Key = types.NamespacedName

// KeyOf returns the key of an object.
func KeyOf(obj kind.Object) Key { return Key{Namespace: obj.GetNamespace(), Name: obj.GetName()} }

// Definition describes a controller. The list of them is in package controllers.
type Definition struct {
	// Name is upstream's name of the controller, as --controllers has it: "replicaset-controller".
	Name string
	// Aliases are older names that --controllers accepts too: "replicaset".
	Aliases []string
	// Component is the source of the controller's events. Default: Name.
	Component string
	// Queue is the name of the queue in the workqueue_* metrics. Default: Name.
	Queue string
	// Workers is the number of keys synced concurrently. Default: 1.
	Workers int
	// MaxBackoff is the longest delay of a key that failed. Default: 1000 s.
	MaxBackoff time.Duration
	// DisabledByDefault: "*" in --controllers does not enable the controller, only its name does.
	DisabledByDefault bool
	// New constructs the controller and registers its informers, indexes and event handlers. It must start nothing and read nothing.
	New func(*Setup) (Syncer, error)
}

// Syncer reconciles one key: it moves the actual state towards the desired state.
type Syncer interface {
	// Sync is never called concurrently for the same key. When it returns an error, the key is requeued with exponential
	// backoff. When the object no longer exists, Sync cleans up and returns nil.
	Sync(ctx context.Context, key Key) error
}

// SyncFunc adapts a function to a Syncer.
type SyncFunc func(ctx context.Context, key Key) error

// Sync calls the function.
func (f SyncFunc) Sync(ctx context.Context, key Key) error { return f(ctx, key) }

// Background is implemented by a Syncer that also runs work not driven by keys, such as a ticker. Run is called concurrently with
// the workers once the informers have synced, and returns when ctx is done. If it fails earlier, the loop stops with its error.
type Background interface {
	Run(ctx context.Context) error
}

// Reconciler is a controller in its usual form. NewSyncer makes a Syncer of it.
type Reconciler[View any] interface {
	// Observe gathers the view of a key from the informers. It returns false when the object no longer exists.
	Observe(key Key) (view View, ok bool)
	// Reconcile decides what to do. It is pure: no clock, no I/O, and it must not modify the objects of the view, which are shared.
	Reconcile(view View) Plan
}

// ApplyObserver is implemented by a Reconciler that measures its syncs.
type ApplyObserver[View any] interface {
	// Applied is called after the plan of a view was applied, with the result.
	Applied(view View, plan Plan, err error)
}

// NewSyncer returns a Syncer that observes a key, reconciles it and applies the plan.
func NewSyncer[View any](s *Setup, reconciler Reconciler[View]) Syncer {
	observer, _ := reconciler.(ApplyObserver[View])
	return SyncFunc(func(ctx context.Context, key Key) error {
		view, ok := reconciler.Observe(key)
		if !ok {
			s.SpaceSyncs(key, 0)
			return nil
		}
		if sized, ok := any(view).(Sized); ok {
			s.SpaceSyncs(key, sized.Size())
		}
		plan := reconciler.Reconcile(view)
		err := s.Apply(ctx, key, plan)
		if observer != nil {
			observer.Applied(view, plan, err)
		}
		return err
	})
}

// initialEventsDelay is the delay after which a key is tried again that was enqueued before the handlers had all initial events.
const initialEventsDelay = 50 * time.Millisecond

// AfterInitialEvents returns a Syncer that postpones keys until hasSynced, which client.Informer.AddEventHandlerWithSync returned. It is
// for controllers whose decisions depend on state that their handlers keep about all objects.
func AfterInitialEvents(s *Setup, hasSynced func() bool, syncer Syncer) Syncer {
	return SyncFunc(func(ctx context.Context, key Key) error {
		if !hasSynced() {
			s.EnqueueAfter(key, initialEventsDelay)
			return nil
		}
		return syncer.Sync(ctx, key)
	})
}

// Setup is what Definition.New gets: the dependencies of a controller and access to its queue.
type Setup struct {
	Client    *client.Client
	Informers *client.Informers
	Events    client.EventRecorder
	Log       *slog.Logger

	loop *Loop
}

// Enqueue adds the key to the queue. A key that is queued already is not added again.
func (s *Setup) Enqueue(key Key) { s.loop.enqueue(key, 0) }

// EnqueueAfter adds the key to the queue after the delay.
func (s *Setup) EnqueueAfter(key Key, delay time.Duration) { s.loop.enqueue(key, delay) }

// SpaceSyncs delays the next sync of the key in proportion to the number of objects that this sync examines. NewSyncer calls it if the
// view is Sized.
func (s *Setup) SpaceSyncs(key Key, objects int) { s.loop.spacing.record(key, objects, time.Now()) }

// RecordWrite notes that obj, as the server returned it, was written for the key. Call it while the key is being synced.
func (s *Setup) RecordWrite(key Key, obj kind.Object) { s.loop.pending.recordWrite(key, obj) }

// RecordDelete notes that obj was deleted for the key. Call it while the key is being synced.
func (s *Setup) RecordDelete(key Key, obj kind.Object) { s.loop.pending.recordDelete(key, obj) }

// Watch enqueues the keys that depend on an object of type T whenever it is added, updated or deleted. An update enqueues the keys
// of the old and of the new object, so that a former owner is synced too.
func Watch[T kind.Object](s *Setup, keys func(obj T) []Key) error {
	enqueue := func(obj T) {
		for _, key := range keys(obj) {
			s.Enqueue(key)
		}
	}
	informer := client.InformerFor[T](s.Informers)
	if err := informer.AddEventHandler(enqueue, func(old, obj T) { enqueue(old); enqueue(obj) }, enqueue); err != nil {
		return fmt.Errorf("watch %T: %w", *new(T), err)
	}
	return nil
}

// WatchPrimary enqueues the key of every object of type T that changes: T is the type the controller reconciles.
func WatchPrimary[T kind.Object](s *Setup) error {
	return Watch(s, func(obj T) []Key { return []Key{KeyOf(obj)} })
}
