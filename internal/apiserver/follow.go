package apiserver

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/kind"
)

// The time between two attempts to follow a resource, after the first and after many failures.
const (
	minFollowRetry = 100 * time.Millisecond
	maxFollowRetry = 10 * time.Second
)

// FollowHandler receives the objects of a resource without namespaces, in the order of their changes, from one goroutine.
type FollowHandler[T kind.Object] struct {
	// Apply receives objects that were added or changed.
	Apply func(obj T)
	// Remove receives the names of objects that were deleted, also while they were not followed. The UID is that of the deleted object, or empty if the
	// deletion was not observed.
	Remove func(name string, uid types.UID)
	// Synced is called when all objects that exist have been applied, and the others removed, at first and after each interruption.
	Synced func()
	// Fail receives errors, and the time until the next attempt.
	Fail func(err error, retry time.Duration)
}

// Follow applies the objects that exist and all changes until ctx is done. It is for the parts of the server that act on configuration
// objects.
func Follow[T kind.Object](ctx context.Context, l *Local, gvr schema.GroupVersionResource, h FollowHandler[T]) {
	names := map[string]bool{}
	for retry := minFollowRetry; ; retry = min(2*retry, maxFollowRetry) {
		followed, err := follow(ctx, l, gvr, &h, names)
		if ctx.Err() != nil {
			return
		}
		if followed {
			retry = minFollowRetry
		}
		if err != nil {
			h.Fail(err, retry)
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return
		}
	}
}

// follow applies objects until the watch ends. It reports whether it got all that exist. names are those of the objects that were applied and not
// removed.
func follow[T kind.Object](ctx context.Context, l *Local, gvr schema.GroupVersionResource, h *FollowHandler[T], names map[string]bool) (followed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	initial := true
	w, err := l.Watch(ctx, gvr, "", &internalversion.ListOptions{SendInitialEvents: &initial})
	if err != nil {
		return false, err
	}
	defer w.Stop()
	existing := map[string]bool{}
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Bookmark:
			if initial {
				for name := range names {
					if !existing[name] {
						delete(names, name)
						h.Remove(name, "")
					}
				}
				h.Synced()
				initial, existing = false, nil
			}
		case watch.Error:
			return !initial, apierrors.FromObject(event.Object)
		default:
			obj, ok := event.Object.(T)
			if !ok {
				return !initial, fmt.Errorf("watch returned a %T", event.Object)
			}
			if initial {
				existing[obj.GetName()] = true
			}
			if event.Type == watch.Deleted {
				delete(names, obj.GetName())
				h.Remove(obj.GetName(), obj.GetUID())
			} else {
				names[obj.GetName()] = true
				h.Apply(obj)
			}
		}
	}
	return !initial, nil
}
