package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// firstAnswer is how long a reader waits for an object nobody has read yet.
const firstAnswer = 3 * time.Second

// family is all objects of one kind that pods name.
type family[T kind.Object] struct {
	resource  client.Resource[T]
	what      string // the kind in messages
	loops     *loops
	changed   func(types.UID)
	immutable func(T) bool
	log       *slog.Logger

	mu      sync.Mutex
	entries map[types.NamespacedName]*entry[T]
	named   map[types.UID]map[types.NamespacedName]bool
}

// entry is one object. It lives as long as a pod names it.
type entry[T kind.Object] struct {
	pods map[types.UID]bool
	end  context.CancelFunc // set once it is watched
	gone bool

	answered chan struct{} // closed by the first answer
	known    bool
	found    bool
	object   T
	failure  error // why there is no answer yet
}

func newFamily[T kind.Object](r client.Resource[T], what string, l *loops, changed func(types.UID), log *slog.Logger, immutable func(T) bool) *family[T] {
	return &family[T]{
		resource: r, what: what, loops: l, changed: changed, immutable: immutable, log: log,
		entries: map[types.NamespacedName]*entry[T]{}, named: map[types.UID]map[types.NamespacedName]bool{},
	}
}

// set makes a pod name exactly these objects.
func (f *family[T]) set(uid types.UID, namespace string, objects map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, now := f.named[uid], map[types.NamespacedName]bool{}
	for name := range objects {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		now[key] = true
		if before[key] {
			continue
		}
		e := f.entries[key]
		if e == nil {
			e = &entry[T]{pods: map[types.UID]bool{}, answered: make(chan struct{})}
			f.entries[key] = e
			f.loops.start(func(ctx context.Context) { f.follow(ctx, key, e) })
		}
		e.pods[uid] = true
	}
	for key := range before {
		if now[key] {
			continue
		}
		e := f.entries[key]
		delete(e.pods, uid)
		if len(e.pods) == 0 {
			e.gone = true
			if e.end != nil {
				e.end()
			}
			delete(f.entries, key)
		}
	}
	if f.named[uid] = now; len(now) == 0 {
		delete(f.named, uid)
	}
}

// get returns an object, or the reason there is none. What the watch has not seen is asked for once more: a pod may arrive before
// the object that was created ahead of it.
func (f *family[T]) get(key types.NamespacedName) (T, error) {
	var none T
	f.mu.Lock()
	e := f.entries[key]
	f.mu.Unlock()
	if e == nil {
		return none, fmt.Errorf("object %q/%q not registered", key.Namespace, key.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), firstAnswer)
	defer cancel()
	select {
	case <-e.answered:
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		err := errors.New("timed out waiting for the condition")
		if e.failure != nil {
			err = fmt.Errorf("%w: %w", err, e.failure)
		}
		return none, fmt.Errorf("failed to sync %s cache: %w", f.what, err)
	}
	f.mu.Lock()
	object, found := e.object, e.found
	f.mu.Unlock()
	if found {
		return object, nil
	}
	object, err := f.resource.Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return none, apierrors.NewNotFound(schema.GroupResource{Resource: f.what}, key.Name)
	}
	if err != nil {
		return none, err
	}
	return object, nil
}

// follow watches one object until nobody names it.
func (f *family[T]) follow(ctx context.Context, key types.NamespacedName, e *entry[T]) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	e.end = cancel
	gone := e.gone
	f.mu.Unlock()
	if gone {
		return
	}
	match := client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", key.Name)}
	follow(ctx, f.resource, key.Namespace, match, sink[T]{
		replace: func(objects []T) bool {
			if len(objects) == 0 {
				f.answer(e, *new(T), false)
				return true
			}
			f.answer(e, objects[0], true)
			return !f.immutable(objects[0])
		},
		apply: func(object T, deleted bool) bool {
			f.answer(e, object, !deleted)
			return deleted || !f.immutable(object)
		},
		fail: func(err error) {
			f.mu.Lock()
			e.failure = err
			f.mu.Unlock()
			f.log.Debug("object is not read", "kind", f.what, "namespace", key.Namespace, "name", key.Name, "error", err)
		},
	})
}

// answer takes in what the server said, and tells the pods if it is news. The first answer is none: whoever wants it waits for it.
func (f *family[T]) answer(e *entry[T], object T, found bool) {
	f.mu.Lock()
	news := e.known && (found != e.found || found && object.GetResourceVersion() != e.object.GetResourceVersion())
	e.object, e.found, e.failure = object, found, nil
	if !e.known {
		e.known = true
		close(e.answered)
	}
	var tell []types.UID
	if news {
		for uid := range e.pods {
			tell = append(tell, uid)
		}
	}
	f.mu.Unlock()
	for _, uid := range tell {
		f.changed(uid)
	}
}
