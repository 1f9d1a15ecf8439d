package store_test

import (
	"context"
	"testing"

	"skiff/internal/store"
	"skiff/internal/store/memory"
	"skiff/internal/store/storetest"
)

func TestPrefix(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return store.WithPrefix(memory.New(), "/other/cluster") })
}

// Clusters with different prefixes share a store without seeing each other's keys.
func TestPrefixes(t *testing.T) {
	shared := memory.New()
	for _, test := range []struct{ prefix, key string }{
		{"/registry", "/registry/a"}, {"other/", "/other/a"}, {"/registry/nested/", "/registry/nested/a"}, {"/", "/a"},
	} {
		s := store.WithPrefix(shared, test.prefix)
		if _, err := s.Create(context.Background(), "/registry/a", []byte(test.prefix), 0); err != nil {
			t.Fatalf("prefix %q: %v", test.prefix, err)
		}
		kv, err := s.Get(context.Background(), "/registry/a")
		if err != nil || kv.Key != "/registry/a" || string(kv.Value) != test.prefix {
			t.Errorf("prefix %q: read %q = %q, error %v", test.prefix, kv.Key, kv.Value, err)
		}
		if kv, err := shared.Get(context.Background(), test.key); err != nil || string(kv.Value) != test.prefix {
			t.Errorf("prefix %q: %s is %q, error %v", test.prefix, test.key, kv.Value, err)
		}
	}
}

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

// A watch whose context is done may lose its last batches, but none before one that it delivers.
func TestEndedWatchHasNoGap(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		last := store.Revision(0)
		for batch := range store.WithPrefix(endedStore{}, "/other").Watch(ctx, "/registry/", 0).Batches() {
			if batch.Revision != last+1 {
				t.Fatalf("after revision %d came %d", last, batch.Revision)
			}
			last = batch.Revision
		}
	}
}
