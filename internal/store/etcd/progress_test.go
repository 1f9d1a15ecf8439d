package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"skiff/internal/store"
	"skiff/internal/store/etcd"
)

// Watches that start in the past at the same time do not take another's progress notification for their own: none skips an event.
func TestConcurrentWatchesSkipNothing(t *testing.T) {
	const keys, watchers, rounds = 40, 8, 25
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	address := "unix://" + t.TempDir() + "/socket"
	open(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{address}})
	s := open(t, etcd.Config{Servers: []string{address}})
	var first, last store.Revision
	for i := range keys {
		revision, err := s.Create(ctx, fmt.Sprintf("/registry/%d", i), []byte("v"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = revision
		}
		last = revision
	}
	var group errgroup.Group
	for range watchers {
		group.Go(func() error {
			for round := range rounds {
				if err := countEvents(ctx, s, first-1, last, keys); err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// countEvents watches from a revision until another is reached, and fails unless it gets the number of events in between.
func countEvents(ctx context.Context, s *etcd.Store, after, until store.Revision, want int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := s.Watch(ctx, "/registry/", after)
	events := 0
	for batch := range w.Batches() {
		events += len(batch.Events)
		if batch.Revision < until {
			continue
		}
		if events != want {
			return fmt.Errorf("%d events until revision %d, want %d", events, batch.Revision, want)
		}
		return nil
	}
	return fmt.Errorf("the watch ended after %d events: %w", events, w.Err())
}
