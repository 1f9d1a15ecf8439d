package objects

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// handler processes what watchObjects reads. replace and apply return false to stop the watch.
type handler[T kind.Object] struct {
	replace func(objects []T) bool
	apply   func(object T, deleted bool) bool
	fail    func(error)
}

// Delays between attempts to reach the server.
const (
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = 10 * time.Second
)

// watchObjects lists the matching objects and then watches them, until ctx is done or the handler stops it.
func watchObjects[T kind.Object](ctx context.Context, r client.Resource[T], namespace string, match client.Selector, s handler[T]) {
	wait := minRetryDelay
	for ctx.Err() == nil {
		started := time.Now()
		more, err := listAndWatch(ctx, r, namespace, match, s)
		if !more || ctx.Err() != nil {
			return
		}
		if err != nil {
			s.fail(err)
		}
		// A watch that lasted is not a failure: servers close watches from time to time.
		if time.Since(started) > maxRetryDelay {
			wait = minRetryDelay
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, maxRetryDelay)
	}
}

// listAndWatch is one list and the watch from its revision.
func listAndWatch[T kind.Object](ctx context.Context, r client.Resource[T], namespace string, match client.Selector, s handler[T]) (more bool, err error) {
	objects, revision, err := r.List(ctx, namespace, match)
	if err != nil {
		return true, fmt.Errorf("list: %w", err)
	}
	if !s.replace(objects) {
		return false, nil
	}
	for {
		events, err := r.Watch(ctx, namespace, match, revision)
		if err != nil {
			return true, fmt.Errorf("watch: %w", err)
		}
		more, last := consume(ctx, events, s)
		events.Stop()
		if !more {
			return false, nil
		}
		if last == "" || last == revision {
			return true, nil
		}
		revision = last
	}
}

// consume processes events until the watch ends. It returns the revision to resume from, "" if the list has to be
// repeated.
func consume[T kind.Object](ctx context.Context, events watch.Interface, s handler[T]) (more bool, last string) {
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return false, ""
		case event, open = <-events.ResultChan():
		}
		if !open {
			return true, last
		}
		if event.Type == watch.Error {
			return true, ""
		}
		accessor, err := meta.Accessor(event.Object)
		if err != nil {
			return true, ""
		}
		last = accessor.GetResourceVersion()
		if object, ok := event.Object.(T); ok && event.Type != watch.Bookmark {
			if !s.apply(object, event.Type == watch.Deleted) {
				return false, ""
			}
		}
	}
}
