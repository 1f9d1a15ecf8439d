package encryption

import (
	"bytes"
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/store"
)

// Store is a store whose values are sealed in another.
type Store struct {
	store.Store
	encryption *Encryption
	// resource names the resource that a key belongs to.
	resource func(key string) schema.GroupResource
}

// Wrap seals what is written to inner and opens what is read from it.
func (e *Encryption) Wrap(inner store.Store, resource func(key string) schema.GroupResource) *Store {
	return &Store{Store: inner, encryption: e, resource: resource}
}

var (
	_ store.Store  = (*Store)(nil)
	_ store.Opener = (*Store)(nil)
)

func (s *Store) of(key string) transformer { return s.encryption.rules.Load().of(s.resource(key)) }

// Create implements store.Store.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	sealed, err := s.of(key).seal(ctx, value, []byte(key))
	if err != nil {
		return 0, &store.SealError{Err: err}
	}
	return s.Store.Create(ctx, key, sealed, ttl)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, key string, value []byte, ttl time.Duration, expected store.Revision) (store.Revision, error) {
	sealed, err := s.of(key).seal(ctx, value, []byte(key))
	if err != nil {
		return 0, &store.SealError{Err: err}
	}
	revision, err := s.Store.Update(ctx, key, sealed, ttl, expected)
	return revision, s.conflict(ctx, err)
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string, expected store.Revision) (store.Revision, error) {
	revision, err := s.Store.Delete(ctx, key, expected)
	return revision, s.conflict(ctx, err)
}

// conflict opens the value that another writer left.
func (s *Store) conflict(ctx context.Context, err error) error {
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) {
		return err
	}
	opened := *conflict
	s.openOrLeave(ctx, &opened.Current)
	return &opened
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KeyValue, error) {
	kv, err := s.Store.Get(ctx, key)
	if err == nil {
		s.openOrLeave(ctx, &kv)
	}
	return kv, err
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, from string, limit int, at store.Revision) ([]store.KeyValue, store.Revision, int64, error) {
	kvs, read, remaining, err := s.Store.List(ctx, prefix, from, limit, at)
	ctx = context.WithValue(ctx, hasty{}, true)
	for i := range kvs {
		s.openOrLeave(ctx, &kvs[i])
	}
	return kvs, read, remaining, err
}

// unwanted stands, in memory only, before a plain value where plain values are not to be believed: who can write to the store
// but has no key must not be able to make objects up.
var unwanted = []byte("k8s:enc:unwanted:")

// openOrLeave opens a value. What cannot be opened is left sealed; who needs it tries again.
func (s *Store) openOrLeave(ctx context.Context, kv *store.KeyValue) {
	if len(kv.Value) == 0 {
		return // a deletion
	}
	plain, _, err := s.of(kv.Key).open(ctx, kv.Value, []byte(kv.Key))
	switch {
	case err == nil:
		kv.Value = plain
	case !store.Sealed(kv.Value):
		kv.Value = append(unwanted[:len(unwanted):len(unwanted)], kv.Value...)
	}
}

// Open implements store.Opener.
func (s *Store) Open(ctx context.Context, key string, value []byte) ([]byte, error) {
	plain, _, err := s.of(key).open(ctx, bytes.TrimPrefix(value, unwanted), []byte(key))
	if err != nil {
		return nil, &store.SealError{Key: key, Err: err}
	}
	return plain, nil
}

// Stale implements store.Opener: it reads the value as it is.
func (s *Store) Stale(ctx context.Context, key string) (bool, error) {
	t := s.of(key)
	if _, plain := t.(identity); plain {
		return false, nil
	}
	kv, err := s.Store.Get(ctx, key)
	if err != nil {
		return false, err
	}
	_, stale, err := t.open(ctx, kv.Value, []byte(key))
	if err != nil {
		return false, &store.SealError{Err: err}
	}
	return stale, nil
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) store.Watch {
	inner := s.Store.Watch(ctx, prefix, after)
	w := &watch{Watch: inner, batches: make(chan store.Batch)}
	go func() {
		defer close(w.batches)
		hurried := context.WithValue(ctx, hasty{}, true)
		for batch := range inner.Batches() {
			for i := range batch.Events {
				s.openOrLeave(hurried, &batch.Events[i].KeyValue)
			}
			select {
			case w.batches <- batch:
			case <-ctx.Done():
			}
		}
	}()
	return w
}

type watch struct {
	store.Watch
	batches chan store.Batch
}

// Batches implements store.Watch.
func (w *watch) Batches() <-chan store.Batch { return w.batches }
