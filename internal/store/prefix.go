package store

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"
)

// DefaultPrefix begins the keys of all objects.
const DefaultPrefix = "/registry"

// WithPrefix returns a store that keeps the keys that begin with DefaultPrefix under another prefix of the inner store. It returns inner
// itself for DefaultPrefix.
func WithPrefix(inner Store, prefix string) Store {
	prefix = CleanPrefix(prefix)
	if prefix == DefaultPrefix {
		return inner
	}
	p := &prefixed{Store: inner, prefix: prefix}
	if decrypter, ok := inner.(Decrypter); ok {
		return &prefixedDecrypter{prefixed: p, decrypter: decrypter}
	}
	return p
}

// CleanPrefix is a prefix with a leading and without a trailing slash; "" for "/".
func CleanPrefix(prefix string) string { return strings.TrimSuffix(path.Join("/", prefix), "/") }

// prefixed is a Store whose keys have another prefix in the inner store.
type prefixed struct {
	Store
	prefix string
}

// inner is a key or prefix of the inner store; "" is no key.
func (p *prefixed) inner(key string) string {
	if rest, ok := strings.CutPrefix(key, DefaultPrefix); ok {
		return p.prefix + rest
	}
	return key
}

// outer is the key of a key of the inner store.
func (p *prefixed) outer(key string) string {
	if rest, ok := strings.CutPrefix(key, p.prefix); ok {
		return DefaultPrefix + rest
	}
	return key
}

// outerError is an error of the inner store with the outer key.
func (p *prefixed) outerError(err error) error {
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		current := conflict.Current
		current.Key = p.outer(current.Key)
		return &ConflictError{Current: current}
	}
	return err
}

// Create implements Store.
func (p *prefixed) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (Revision, error) {
	revision, err := p.Store.Create(ctx, p.inner(key), value, ttl)
	return revision, p.outerError(err)
}

// Update implements Store.
func (p *prefixed) Update(ctx context.Context, key string, value []byte, ttl time.Duration, expected Revision) (Revision, error) {
	revision, err := p.Store.Update(ctx, p.inner(key), value, ttl, expected)
	return revision, p.outerError(err)
}

// Delete implements Store.
func (p *prefixed) Delete(ctx context.Context, key string, expected Revision) (Revision, error) {
	revision, err := p.Store.Delete(ctx, p.inner(key), expected)
	return revision, p.outerError(err)
}

// Get implements Store.
func (p *prefixed) Get(ctx context.Context, key string) (KeyValue, error) {
	kv, err := p.Store.Get(ctx, p.inner(key))
	kv.Key = p.outer(kv.Key)
	return kv, p.outerError(err)
}

// List implements Store.
func (p *prefixed) List(ctx context.Context, prefix, from string, limit int, at Revision) ([]KeyValue, Revision, int64, error) {
	kvs, read, remaining, err := p.Store.List(ctx, p.inner(prefix), p.inner(from), limit, at)
	for i := range kvs {
		kvs[i].Key = p.outer(kvs[i].Key)
	}
	return kvs, read, remaining, err
}

// Watch implements Store.
func (p *prefixed) Watch(ctx context.Context, prefix string, after Revision) Watch {
	w := &prefixedWatch{inner: p.Store.Watch(ctx, p.inner(prefix), after), batches: make(chan Batch)}
	go func() {
		defer close(w.batches)
		for batch := range w.inner.Batches() {
			for i := range batch.Events {
				batch.Events[i].Key = p.outer(batch.Events[i].Key)
			}
			select {
			case w.batches <- batch:
			case <-ctx.Done():
				for range w.inner.Batches() { // a batch after the one that was not delivered would leave a gap
				}
				return
			}
		}
	}()
	return w
}

// prefixedWatch is a watch of a prefixed store.
type prefixedWatch struct {
	inner   Watch
	batches chan Batch
}

// Batches implements Watch.
func (w *prefixedWatch) Batches() <-chan Batch { return w.batches }

// Err implements Watch.
func (w *prefixedWatch) Err() error { return w.inner.Err() }

// prefixedDecrypter is a prefixed store that encrypts values. The encryption is bound to the key of the inner store, as upstream's is.
type prefixedDecrypter struct {
	*prefixed
	decrypter Decrypter
}

// Decrypt implements Decrypter.
func (p *prefixedDecrypter) Decrypt(ctx context.Context, key string, value []byte) ([]byte, error) {
	plain, err := p.decrypter.Decrypt(ctx, p.inner(key), value)
	var failed *EncryptionError
	if errors.As(err, &failed) && failed.Key != "" {
		return plain, &EncryptionError{Key: key, Err: failed.Err}
	}
	return plain, err
}

// Stale implements Decrypter.
func (p *prefixedDecrypter) Stale(ctx context.Context, key string) (bool, error) {
	return p.decrypter.Stale(ctx, p.inner(key))
}
