// Package store keeps encoded objects under keys with revisions. It is the part of etcd that the API server needs:
// linearizable single-key writes guarded by revision, consistent lists, and one ordered stream of changes.
//
// Two implementations, etcd and memory, pass the same test suite (storetest). Package cache serves all reads of the API
// from memory; while the server runs, only the cache uses the Store.
package store

import (
	"context"
	"errors"
	"time"
)

// Revision counts the writes to the whole store. Clients see it as resourceVersion.
type Revision = int64

// KeyValue is one stored object, as of its last write. Value must not be changed.
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
	// ErrNotFound: the key does not exist.
	ErrNotFound = errors.New("key not found")
	// ErrExists: Create found that the key exists.
	ErrExists = errors.New("key already exists")
	// ErrCompacted: the requested revision has been compacted.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFuture: the requested revision is newer than the store's.
	ErrFuture = errors.New("revision is in the future")
	// ErrUnavailable: the store cannot respond now (no leader, shutting down); the write may or may not have happened.
	ErrUnavailable = errors.New("store unavailable")
	// ErrNoSpace: the store has no space for the write. Nothing was written. The error is a NoSpaceError.
	ErrNoSpace = errors.New("no space in the store")
	// ErrTooLarge: the value exceeds the store's limit. Nothing was written.
	ErrTooLarge = errors.New("value is too large for the store")
)

// ConflictError is returned by Update and Delete when the key was written since the expected revision. Current is the
// current object; its Modified is zero when the key no longer exists.
type ConflictError struct {
	Current KeyValue
}

func (e *ConflictError) Error() string {
	return "key " + e.Current.Key + " was modified by another writer"
}

// Store is implemented by store/etcd and store/memory. All methods are safe for concurrent use.
//
// Writes are linearizable and durable before they return. A method returns when its context is cancelled; a write whose
// context was cancelled may still have happened.
type Store interface {
	// Create writes a new key. ttl 0 means that it does not expire.
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (Revision, error)
	// Update overwrites a key whose last write was at expected.
	Update(ctx context.Context, key string, value []byte, ttl time.Duration, expected Revision) (Revision, error)
	// Delete removes a key whose last write was at expected.
	Delete(ctx context.Context, key string, expected Revision) (Revision, error)
	// Get reads one key, linearizably.
	Get(ctx context.Context, key string) (KeyValue, error)
	// List reads in order the keys that have the prefix and are not before from (if not empty), at most limit (0: all),
	// as of revision at (0: now, linearizably). It returns the revision of the read and how many keys remain beyond limit.
	List(ctx context.Context, prefix, from string, limit int, at Revision) (kvs []KeyValue, read Revision, remaining int64, err error)
	// Watch streams every change below prefix with a revision greater than after, without gaps or duplicates. The channel
	// is closed when ctx is done or the stream breaks; Err of the watch then returns the reason (ErrCompacted when history is
	// gone). While only keys outside the prefix change, progress batches arrive about once a second.
	Watch(ctx context.Context, prefix string, after Revision) Watch
	// Current reads the store's newest revision, linearizably.
	Current(ctx context.Context) (Revision, error)
	// Compact discards history before the revision.
	Compact(ctx context.Context, before Revision) error
	// Shared reports whether other processes may write to the store, so that a consistent read must call Current first.
	Shared() bool
	// Healthy returns nil when the store serves reads. It may have no space for writes.
	Healthy(ctx context.Context) error
	Close() error
}

// NoSpaceError is an ErrNoSpace that says what is full and what to do about it.
type NoSpaceError struct{ Message string }

func (e *NoSpaceError) Error() string { return ErrNoSpace.Error() + ": " + e.Message }

// Is makes errors.Is find ErrNoSpace.
func (e *NoSpaceError) Is(target error) bool { return target == ErrNoSpace }

// ForDeletion marks the updates of an object that is being deleted. Without them the deletion could not go on, so a store that has no space for
// other writes accepts them as long as it can.
func ForDeletion(ctx context.Context) context.Context {
	return context.WithValue(ctx, forDeletion{}, true)
}

// IsForDeletion reports whether ForDeletion has marked the context.
func IsForDeletion(ctx context.Context) bool { return ctx.Value(forDeletion{}) != nil }

type forDeletion struct{}

// Watch is a running stream of changes.
type Watch interface {
	Batches() <-chan Batch
	// Err is valid after Batches was closed; nil means that the watch was stopped because its context is done.
	Err() error
}
