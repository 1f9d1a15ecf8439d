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

func TestEndedWatchHasNoGap(t *testing.T) {
	storetest.RunEndedWatch(t, func(s store.Store) store.Store { return store.WithPrefix(s, "/other") })
}
