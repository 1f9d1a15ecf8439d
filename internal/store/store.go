// Package store keeps encoded objects under keys with revisions. It is what the API server needs of etcd and no more:
// linearizable single-key writes guarded by revision, consistent lists, and one ordered stream of changes.
//
// Two implementations, etcd and memory, pass one suite (storetest). Package cache stands in front of a Store and serves
// all reads of the API from memory; nobody but cache talks to a Store while the server runs.
package store

import (
	"context"
	"errors"
	"time"
)

// Revision counts the writes of the whole store. It is what clients see as resourceVersion.
type Revision = int64

// KeyValue is one stored object, as its last write left it. Value must not be changed.
type KeyValue struct {
	Key   string
	Value []byte
	// Modified is the revision of the last write.
	Modified Revision
}

// Event is one change. For a deletion Value is empty and Modified is the revision of the deletion.
type Event struct {
	KeyValue
	Deleted bool
}

// Batch is what a watch delivers: all events up to and including Revision that were not delivered before, in order.
// Events of one transaction are never split over batches. A batch without events is progress: the store has reached Revision.
type Batch struct {
	Events   []Event
	Revision Revision
}

var (
	// ErrNotFound: no object has the key.
	ErrNotFound = errors.New("key not found")
	// ErrExists: Create found an object under the key.
	ErrExists = errors.New("key already exists")
	// ErrCompacted: the revision asked for is no longer kept.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFuture: the revision asked for has not happened yet.
	ErrFuture = errors.New("revision is in the future")
	// ErrUnavailable: the store cannot answer now (no leader, no space, shutting down); the write may or may not have happened.
	ErrUnavailable = errors.New("store unavailable")
	// ErrTooLarge: the value is larger than the store takes. Nothing was written.
	ErrTooLarge = errors.New("value is too large for the store")
)

// ConflictError is returned by Update and Delete when another writer came first. Current is the object as it is now;
// it has a zero Modified when the key is gone.
type ConflictError struct {
	Current KeyValue
}

func (e *ConflictError) Error() string {
	return "key " + e.Current.Key + " was written by someone else"
}

// Store is implemented by store/etcd and store/memory. All methods are safe for concurrent use.
//
// Writes are linearizable and durable before they return. A method returns when its context is cancelled; a write whose
// context was cancelled may still have happened.
type Store interface {
	// Create writes a new key. ttl 0 means for ever.
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (Revision, error)
	// Update overwrites a key whose last write was at expected.
	Update(ctx context.Context, key string, value []byte, ttl time.Duration, expected Revision) (Revision, error)
	// Delete removes a key whose last write was at expected.
	Delete(ctx context.Context, key string, expected Revision) (Revision, error)
	// Get reads one key, linearizably.
	Get(ctx context.Context, key string) (KeyValue, error)
	// List reads keys in order, those with the prefix and not before from (when it is not empty), at most limit (0: all),
	// as of revision at (0: now, linearizably). It returns the revision of the read and how many keys remain beyond limit.
	List(ctx context.Context, prefix, from string, limit int, at Revision) (kvs []KeyValue, read Revision, remaining int64, err error)
	// Watch streams every change below prefix with a revision greater than after, without gap or repetition. The channel is
	// closed when ctx ends or the stream breaks; Err of the watch then tells why (ErrCompacted when history is gone).
	// Progress batches arrive at least about once a second while nothing changes below the prefix but the store moves on.
	Watch(ctx context.Context, prefix string, after Revision) Watch
	// Current asks for the store's newest revision, linearizably.
	Current(ctx context.Context) (Revision, error)
	// Compact forgets history before the revision.
	Compact(ctx context.Context, before Revision) error
	// Shared reports whether other processes may write to the same store, so that Current must be asked before a consistent read.
	Shared() bool
	// Healthy returns nil when the store can take writes.
	Healthy(ctx context.Context) error
	Close() error
}

// Watch is a running stream of changes.
type Watch interface {
	Batches() <-chan Batch
	// Err is valid after Batches was closed; nil means the context ended it.
	Err() error
}
