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

// sink takes what follow reads. replace and apply return false when nothing more can change.
type sink[T kind.Object] struct {
	replace func(objects []T) bool
	apply   func(object T, deleted bool) bool
	fail    func(error)
}

// Waits between attempts to reach the server.
const (
	firstWait = 100 * time.Millisecond
	longest   = 10 * time.Second
)

// follow lists what matches and then takes in every change, until ctx ends or the sink has enough.
func follow[T kind.Object](ctx context.Context, r client.Resource[T], namespace string, match client.Selector, s sink[T]) {
	wait := firstWait
	for ctx.Err() == nil {
		started := time.Now()
		more, err := once(ctx, r, namespace, match, s)
		if !more || ctx.Err() != nil {
			return
		}
		if err != nil {
			s.fail(err)
		}
		// A watch that lasted is no failure: servers end them now and then.
		if time.Since(started) > longest {
			wait = firstWait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, longest)
	}
}

// once is one list and the watch behind it.
func once[T kind.Object](ctx context.Context, r client.Resource[T], namespace string, match client.Selector, s sink[T]) (more bool, err error) {
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

// consume takes events until the watch ends. It returns the revision to go on from, "" when the server says that there is none.
func consume[T kind.Object](ctx context.Context, events watch.Interface, s sink[T]) (more bool, last string) {
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
