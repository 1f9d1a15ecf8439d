// Package controller is the loop all controllers share, written once.
//
// A controller watches objects, decides what should change and changes it. Its own code is the middle part: Observe turns
// what the informers know about one key into a view, and Reconcile, a pure function, turns the view into a Plan: creates,
// updates, patches, deletes, a status and events, as data. Everything else is here: a queue that holds every key once, workers
// of which never two have the same key, backoff for keys that fail, a second look later (Plan.RequeueAfter), creates in
// batches that grow while they succeed, leadership, metrics. What does not fit a plan implements Syncer itself and may still
// hand parts of its work to Setup.Apply.
//
// The promise that lets Reconcile trust its view: a key is not looked at again before the informers have taken in what was
// last written for it. A controller never creates a pod twice because it did not see the first one yet, and needs no
// expectations of its own. This holds for writes through a Plan or Setup.Wrote and Setup.Deleted.
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

// Key names what a controller looks at: nearly always an object of its main type.
type Key = types.NamespacedName

// KeyOf returns the key of an object.
func KeyOf(obj kind.Object) Key { return Key{Namespace: obj.GetNamespace(), Name: obj.GetName()} }

// Definition is a row in the list of controllers.
type Definition struct {
	// Name is upstream's name of the controller, as --controllers has it: "replicaset-controller".
	Name string
	// Aliases are older names that still mean it: "replicaset".
	Aliases []string
	// Component signs the controller's events. Default: Name.
	Component string
	// Queue is the name of the queue in the workqueue_* metrics. Default: Name.
	Queue string
	// Workers is how many keys are worked on at once. Default: 1.
	Workers int
	// Off: "*" does not enable it, only its name does.
	Off bool
	// New wires the controller: it asks for informers, indexes and handlers. It must start nothing and read nothing.
	New func(*Setup) (Syncer, error)
}

// Syncer brings the world of one key into the state it should have.
type Syncer interface {
	// Sync is never called for one key by two workers at once. When it returns an error, the key comes again after a
	// backoff that grows with every failure. When the object is gone, Sync cleans up and returns nil.
	Sync(ctx context.Context, key Key) error
}

// SyncFunc is a Syncer made of a function.
type SyncFunc func(ctx context.Context, key Key) error

// Sync calls the function.
func (f SyncFunc) Sync(ctx context.Context, key Key) error { return f(ctx, key) }

// Background is implemented by a Syncer that has work of its own besides its keys, such as a clock that ticks. Run starts
// when the informers have synced, beside the workers, and returns when ctx ends. If it fails before, the loop ends with its error.
type Background interface {
	Run(ctx context.Context) error
}

// Planner is a controller in the ordinary form.
type Planner[View any] interface {
	// Observe gathers what Reconcile must know from informers. It returns false when there is nothing to do: the object is gone.
	Observe(key Key) (view View, ok bool)
	// Reconcile decides. It is pure: no clock, no I/O, and it does not change the view's objects, which are shared.
	Reconcile(view View) Plan
}

// Planned makes a Syncer of a Planner.
func Planned[View any](s *Setup, p Planner[View]) Syncer {
	return SyncFunc(func(ctx context.Context, key Key) error {
		view, ok := p.Observe(key)
		if !ok {
			return nil
		}
		return s.Apply(ctx, key, p.Reconcile(view))
	})
}

// Setup is what a controller is given to wire itself.
type Setup struct {
	Client    *client.Client
	Informers *client.Informers
	Events    client.Recorder
	Log       *slog.Logger

	loop *Loop
}

// Enqueue asks for a look at the key, now. Handlers call it; a key that waits already is not added again.
func (s *Setup) Enqueue(key Key) { s.loop.enqueue(key, 0) }

// EnqueueAfter asks for a look at the key after a while.
func (s *Setup) EnqueueAfter(key Key, delay time.Duration) { s.loop.enqueue(key, delay) }

// Wrote notes that obj, as the server answered, was written for the key. Call it while the key is being synced.
func (s *Setup) Wrote(key Key, obj kind.Object) { s.loop.ledger.wrote(key, obj) }

// Deleted notes that the deletion of obj was asked for the key. Call it while the key is being synced.
func (s *Setup) Deleted(key Key, obj kind.Object) { s.loop.ledger.deleted(key, obj) }

// Watch enqueues, for every change of an object of type T, the keys that depend on it. A change of an object is told with its
// old and its new form, so that an owner that lost the object hears of it too.
func Watch[T kind.Object](s *Setup, keys func(obj T) []Key) error {
	enqueue := func(obj T) {
		for _, key := range keys(obj) {
			s.Enqueue(key)
		}
	}
	informer := client.InformerFor[T](s.Informers)
	if err := informer.Handle(enqueue, func(old, obj T) { enqueue(old); enqueue(obj) }, enqueue); err != nil {
		return fmt.Errorf("watch %T: %w", *new(T), err)
	}
	return nil
}

// WatchOwn enqueues every object of type T itself.
func WatchOwn[T kind.Object](s *Setup) error {
	return Watch(s, func(obj T) []Key { return []Key{KeyOf(obj)} })
}
