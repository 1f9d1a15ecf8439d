package encryption

import (
	"bytes"
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/store"
)

// Store encrypts the values of another store.
type Store struct {
	store.Store
	encryption *Encryption
	// resource returns the resource that a key belongs to.
	resource func(key string) schema.GroupResource
}

// Wrap encrypts what is written to inner and decrypts what is read from it.
func (e *Encryption) Wrap(inner store.Store, resource func(key string) schema.GroupResource) *Store {
	return &Store{Store: inner, encryption: e, resource: resource}
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Decrypter = (*Store)(nil)
)

func (s *Store) transformerOf(key string) transformer {
	return s.encryption.transformers.Load().forResource(s.resource(key))
}

// Create implements store.Store.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	encrypted, err := s.transformerOf(key).encrypt(ctx, value, []byte(key))
	if err != nil {
		return 0, &store.EncryptionError{Err: err}
	}
	return s.Store.Create(ctx, key, encrypted, ttl)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, key string, value []byte, ttl time.Duration, expected store.Revision) (store.Revision, error) {
	encrypted, err := s.transformerOf(key).encrypt(ctx, value, []byte(key))
	if err != nil {
		return 0, &store.EncryptionError{Err: err}
	}
	revision, err := s.Store.Update(ctx, key, encrypted, ttl, expected)
	return revision, s.conflict(ctx, err)
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string, expected store.Revision) (store.Revision, error) {
	revision, err := s.Store.Delete(ctx, key, expected)
	return revision, s.conflict(ctx, err)
}

// conflict decrypts the current value of a conflict.
func (s *Store) conflict(ctx context.Context, err error) error {
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) {
		return err
	}
	decrypted := *conflict
	s.decryptOrKeep(ctx, &decrypted.Current)
	return &decrypted
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KeyValue, error) {
	kv, err := s.Store.Get(ctx, key)
	if err == nil {
		s.decryptOrKeep(ctx, &kv)
	}
	return kv, err
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix, from string, limit int, at store.Revision) ([]store.KeyValue, store.Revision, int64, error) {
	kvs, read, remaining, err := s.Store.List(ctx, prefix, from, limit, at)
	ctx = withPluginCalls(ctx, callUnlessFailed)
	for i := range kvs {
		s.decryptOrKeep(ctx, &kvs[i])
	}
	return kvs, read, remaining, err
}

// untrustedPlaintext is prepended, in memory only, to a plaintext value of a resource that must be encrypted: a writer
// to the store that has no key must not be able to forge objects.
var untrustedPlaintext = []byte("k8s:enc:untrusted:")

// decryptOrKeep decrypts a value. A value that cannot be decrypted stays encrypted; Decrypt tries again.
func (s *Store) decryptOrKeep(ctx context.Context, kv *store.KeyValue) {
	if len(kv.Value) == 0 {
		return // a deletion
	}
	plain, _, err := s.transformerOf(kv.Key).decrypt(ctx, kv.Value, []byte(kv.Key))
	switch {
	case err == nil:
		kv.Value = plain
	case !store.IsEncrypted(kv.Value):
		kv.Value = append(untrustedPlaintext[:len(untrustedPlaintext):len(untrustedPlaintext)], kv.Value...)
	}
}

// Decrypt implements store.Decrypter.
func (s *Store) Decrypt(ctx context.Context, key string, value []byte) ([]byte, error) {
	plain, _, err := s.transformerOf(key).decrypt(ctx, bytes.TrimPrefix(value, untrustedPlaintext), []byte(key))
	if err != nil {
		return nil, &store.EncryptionError{Key: key, Err: err}
	}
	return plain, nil
}

// Stale implements store.Decrypter. It reads the stored value.
func (s *Store) Stale(ctx context.Context, key string) (bool, error) {
	t := s.transformerOf(key)
	if _, plain := t.(identity); plain {
		return false, nil
	}
	kv, err := s.Store.Get(ctx, key)
	if err != nil {
		return false, err
	}
	_, stale, err := t.decrypt(ctx, kv.Value, []byte(key))
	if err != nil {
		return false, &store.EncryptionError{Err: err}
	}
	return stale, nil
}

// Watch implements store.Store. A value whose key the KMS plugin has not decrypted yet is delivered encrypted.
func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) store.Watch {
	inner := s.Store.Watch(ctx, prefix, after)
	w := &watch{Watch: inner, batches: make(chan store.Batch)}
	go func() {
		defer close(w.batches)
		decrypting := withPluginCalls(ctx, callInBackground)
		for batch := range inner.Batches() {
			for i := range batch.Events {
				s.decryptOrKeep(decrypting, &batch.Events[i].KeyValue)
			}
			select {
			case w.batches <- batch:
			case <-ctx.Done():
				for range inner.Batches() { // a batch after the one that was not delivered would leave a gap
				}
				return
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
