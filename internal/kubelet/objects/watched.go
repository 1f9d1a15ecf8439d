package objects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// syncTimeout is how long a reader waits for an object that was not read yet.
const syncTimeout = 3 * time.Second

// watchedKind are the objects of one kind that pods reference.
type watchedKind[T kind.Object] struct {
	dependencies
	resource  client.Resource[T]
	name      string // singular, as upstream's messages have it
	immutable func(T) bool

	mu         sync.Mutex
	entries    map[types.NamespacedName]*entry[T]
	references map[types.UID]map[types.NamespacedName]bool
}

// entry is one object. It lives as long as a pod references it.
type entry[T kind.Object] struct {
	pods    map[types.UID]bool
	stop    context.CancelFunc // set once the watch has started
	removed bool

	synced    chan struct{} // closed by the first response
	hasSynced bool
	found     bool
	object    T
	failure   error // why there is no response yet
}

func newWatchedKind[T kind.Object](r client.Resource[T], name string, immutable func(T) bool, d dependencies) *watchedKind[T] {
	return &watchedKind[T]{
		dependencies: d, resource: r, name: name, immutable: immutable,
		entries: map[types.NamespacedName]*entry[T]{}, references: map[types.UID]map[types.NamespacedName]bool{},
	}
}

// set replaces the objects a pod references.
func (w *watchedKind[T]) set(uid types.UID, namespace string, objects map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, now := w.references[uid], map[types.NamespacedName]bool{}
	for name := range objects {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		now[key] = true
		if before[key] {
			continue
		}
		e := w.entries[key]
		if e == nil {
			e = &entry[T]{pods: map[types.UID]bool{}, synced: make(chan struct{})}
			w.entries[key] = e
			w.goroutines.start(func(ctx context.Context) { w.watch(ctx, key, e) })
		}
		e.pods[uid] = true
	}
	for key := range before {
		if now[key] {
			continue
		}
		e := w.entries[key]
		delete(e.pods, uid)
		if len(e.pods) == 0 {
			e.removed = true
			if e.stop != nil {
				e.stop()
			}
			delete(w.entries, key)
		}
	}
	if w.references[uid] = now; len(now) == 0 {
		delete(w.references, uid)
	}
}

// get returns an object. If the watch has not observed it, it is read from the server: a pod may arrive before the watch
// event of an object created just before it.
func (w *watchedKind[T]) get(key types.NamespacedName) (T, error) {
	var none T
	w.mu.Lock()
	e := w.entries[key]
	w.mu.Unlock()
	if e == nil {
		return none, fmt.Errorf("object %q/%q not registered", key.Namespace, key.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), syncTimeout)
	defer cancel()
	select {
	case <-e.synced:
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		err := errors.New("timed out waiting for the condition")
		if e.failure != nil {
			err = fmt.Errorf("%w: %w", err, e.failure)
		}
		return none, fmt.Errorf("failed to sync %s cache: %w", w.name, err)
	}
	w.mu.Lock()
	object, found := e.object, e.found
	w.mu.Unlock()
	if found {
		return object, nil
	}
	object, err := w.resource.Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return none, apierrors.NewNotFound(schema.GroupResource{Resource: w.name}, key.Name)
	}
	if err != nil {
		return none, err
	}
	return object, nil
}

// watch watches one object until no pod references it.
func (w *watchedKind[T]) watch(ctx context.Context, key types.NamespacedName, e *entry[T]) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	e.stop = cancel
	removed := e.removed
	w.mu.Unlock()
	if removed {
		return
	}
	match := client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", key.Name)}
	w.resource.Follow(ctx, key.Namespace, match, client.FollowHandler[T]{
		Replace: func(objects []T) bool {
			if len(objects) == 0 {
				w.update(e, *new(T), false)
				return true
			}
			w.update(e, objects[0], true)
			return !w.immutable(objects[0])
		},
		Apply: func(object T, deleted bool) bool {
			w.update(e, object, !deleted)
			return deleted || !w.immutable(object)
		},
		Fail: func(err error) {
			w.mu.Lock()
			e.failure = err
			w.mu.Unlock()
			w.log.Debug("failed to watch object", "kind", w.name, "namespace", key.Namespace, "name", key.Name, "error", err)
		},
	})
}

// update stores the server's response and notifies the pods if it is a change. The first response is not: readers wait
// for it.
func (w *watchedKind[T]) update(e *entry[T], object T, found bool) {
	w.mu.Lock()
	changed := e.hasSynced && (found != e.found || found && object.GetResourceVersion() != e.object.GetResourceVersion())
	e.object, e.found, e.failure = object, found, nil
	if !e.hasSynced {
		e.hasSynced = true
		close(e.synced)
	}
	var notify []types.UID
	if changed {
		for uid := range e.pods {
			notify = append(notify, uid)
		}
	}
	w.mu.Unlock()
	for _, uid := range notify {
		w.changed(uid)
	}
}
