package storetest

import (
	"context"
	"testing"

	"skiff/internal/store"
)

// endedStore has a watch that has ended, with all of its batches still to be received.
type endedStore struct{ store.Store }

func (endedStore) Watch(context.Context, string, store.Revision) store.Watch {
	const count = 20
	batches := make(chan store.Batch, count)
	for revision := range store.Revision(count) {
		batches <- store.Batch{Revision: revision + 1}
	}
	close(batches)
	return endedWatch(batches)
}

type endedWatch chan store.Batch

func (w endedWatch) Batches() <-chan store.Batch { return w }
func (w endedWatch) Err() error                  { return nil }

// RunEndedWatch tests a store that passes on the watches of another, which wrap is given: a watch whose context is done may lose its last batches, but
// none before one that it delivers.
func RunEndedWatch(t *testing.T, wrap func(store.Store) store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		last := store.Revision(0)
		for batch := range wrap(endedStore{}).Watch(ctx, "/registry/", 0).Batches() {
			if batch.Revision != last+1 {
				t.Fatalf("after revision %d came %d", last, batch.Revision)
			}
			last = batch.Revision
		}
	}
}
