package client

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/kind"
)

// FollowHandler processes what Follow reads. Replace and Apply return false to stop it.
type FollowHandler[T kind.Object] struct {
	// Replace receives all matching objects, at first and whenever they had to be listed again.
	Replace func(objects []T) bool
	// Apply receives each change after that.
	Apply func(object T, deleted bool) bool
	// Fail receives errors. Follow tries again after them.
	Fail func(error)
}

// Delays between attempts to reach the server.
const (
	minFollowDelay = 100 * time.Millisecond
	maxFollowDelay = 10 * time.Second
)

// Follow lists the matching objects and then watches them, until ctx is done or the handler stops it. It is for a few objects of a kind;
// who needs all has an Informer.
func (r Resource[T]) Follow(ctx context.Context, namespace string, selector Selector, h FollowHandler[T]) {
	wait := minFollowDelay
	for ctx.Err() == nil {
		started := time.Now()
		more, err := r.listAndFollow(ctx, namespace, selector, h)
		if !more || ctx.Err() != nil {
			return
		}
		if err != nil {
			h.Fail(err)
		}
		// A watch that lasted is not a failure: servers close watches from time to time.
		if time.Since(started) > maxFollowDelay {
			wait = minFollowDelay
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, maxFollowDelay)
	}
}

// listAndFollow is one list and the watch from its revision.
func (r Resource[T]) listAndFollow(ctx context.Context, namespace string, selector Selector, h FollowHandler[T]) (more bool, err error) {
	objects, revision, err := r.List(ctx, namespace, selector)
	if err != nil {
		return true, fmt.Errorf("list: %w", err)
	}
	if !h.Replace(objects) {
		return false, nil
	}
	for {
		events, err := r.Watch(ctx, namespace, selector, revision)
		if err != nil {
			return true, fmt.Errorf("watch: %w", err)
		}
		more, last := consume(ctx, events, h)
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
func consume[T kind.Object](ctx context.Context, events watch.Interface, h FollowHandler[T]) (more bool, last string) {
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
			if !h.Apply(object, event.Type == watch.Deleted) {
				return false, ""
			}
		}
	}
}
