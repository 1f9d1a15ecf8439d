// Package memory is a Store in memory, for tests. It shows in few lines what the etcd store guarantees: every write gets
// the next revision, and history can be read and watched until it is compacted.
package memory

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/google/btree"

	"skiff/internal/store"
)

// version is the state of a key after one write.
type version struct {
	value    []byte
	revision store.Revision
	deleted  bool
}

// record is a key with its versions that have not been compacted, oldest first.
type record struct {
	key      string
	versions []version
	expiry   *time.Timer
}

// at returns the version at the revision, nil when the key did not exist.
func (r *record) at(revision store.Revision) *version {
	n := sort.Search(len(r.versions), func(i int) bool { return r.versions[i].revision > revision })
	if n == 0 || r.versions[n-1].deleted {
		return nil
	}
	return &r.versions[n-1]
}

// Store implements store.Store.
type Store struct {
	mu      sync.Mutex
	records *btree.BTreeG[*record]
	current store.Revision
	// compacted is the oldest revision that can be listed.
	compacted store.Revision
	// log has every event from compacted on, in order of revision.
	log []store.Event
	// changed is closed and replaced when anything above changes.
	changed chan struct{}
	closed  bool
}

var _ store.Store = (*Store)(nil)

// New returns an empty store. Like a new etcd it is at revision 1.
func New() *Store {
	return &Store{
		records: btree.NewG(32, func(a, b *record) bool { return a.key < b.key }),
		current: 1,
		changed: make(chan struct{}),
	}
}

func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if s.newest(key) != nil {
		return 0, fmt.Errorf("create %s: %w", key, store.ErrExists)
	}
	return s.write(key, version{value: value}, ttl), nil
}

func (s *Store) Update(ctx context.Context, key string, value []byte, ttl time.Duration, expected store.Revision) (store.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.expect(ctx, key, expected); err != nil {
		return 0, err
	}
	return s.write(key, version{value: value}, ttl), nil
}

func (s *Store) Delete(ctx context.Context, key string, expected store.Revision) (store.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.expect(ctx, key, expected); err != nil {
		return 0, err
	}
	return s.write(key, version{deleted: true}, 0), nil
}

func (s *Store) Get(ctx context.Context, key string) (store.KeyValue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.KeyValue{}, err
	}
	found := s.newest(key)
	if found == nil {
		return store.KeyValue{}, fmt.Errorf("get %s: %w", key, store.ErrNotFound)
	}
	return store.KeyValue{Key: key, Value: found.value, Modified: found.revision}, nil
}

func (s *Store) List(ctx context.Context, prefix, from string, limit int, at store.Revision) ([]store.KeyValue, store.Revision, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, 0, 0, err
	}
	switch {
	case at == 0:
		at = s.current
	case at > s.current:
		return nil, 0, 0, fmt.Errorf("list %s at %d: %w", prefix, at, store.ErrFuture)
	case at < s.compacted:
		return nil, 0, 0, fmt.Errorf("list %s at %d: %w", prefix, at, store.ErrCompacted)
	}
	var kvs []store.KeyValue
	var remaining int64
	s.records.AscendGreaterOrEqual(&record{key: max(prefix, from)}, func(r *record) bool {
		if !strings.HasPrefix(r.key, prefix) {
			return false
		}
		found := r.at(at)
		switch {
		case found == nil:
		case limit > 0 && len(kvs) == limit:
			remaining++
		default:
			kvs = append(kvs, store.KeyValue{Key: r.key, Value: found.value, Modified: found.revision})
		}
		return true
	})
	return kvs, at, remaining, nil
}

func (s *Store) Current(ctx context.Context) (store.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.usable(ctx)
}

func (s *Store) Compact(ctx context.Context, before store.Revision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	if before > s.current {
		return fmt.Errorf("compact to %d: %w", before, store.ErrFuture)
	}
	if before <= s.compacted {
		return nil
	}
	s.compacted = before
	keep := sort.Search(len(s.log), func(i int) bool { return s.log[i].Modified >= before })
	s.log = append([]store.Event(nil), s.log[keep:]...)

	var compacted []*record
	s.records.Ascend(func(r *record) bool {
		// The version at the compacted revision stays readable; a deletion before it leaves nothing.
		n := sort.Search(len(r.versions), func(i int) bool { return r.versions[i].revision > before })
		if n > 0 && !r.versions[n-1].deleted {
			n--
		}
		r.versions = append([]version(nil), r.versions[n:]...)
		if len(r.versions) == 0 {
			compacted = append(compacted, r)
		}
		return true
	})
	for _, r := range compacted {
		s.records.Delete(r)
	}
	s.broadcast()
	return nil
}

// Shared is false: no other process can write to this memory.
func (s *Store) Shared() bool { return false }

func (s *Store) Healthy(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usable(ctx)
}

// Close ends every watch and rejects further calls.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.records.Ascend(func(r *record) bool {
		if r.expiry != nil {
			r.expiry.Stop()
		}
		return true
	})
	s.broadcast()
	return nil
}

// usable must be called with mu held.
func (s *Store) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return fmt.Errorf("memory store is closed: %w", store.ErrUnavailable)
	}
	return nil
}

// newest must be called with mu held.
func (s *Store) newest(key string) *version {
	r, ok := s.records.Get(&record{key: key})
	if !ok {
		return nil
	}
	return r.at(s.current)
}

// expect must be called with mu held.
func (s *Store) expect(ctx context.Context, key string, expected store.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	found := s.newest(key)
	if found == nil {
		return &store.ConflictError{Current: store.KeyValue{Key: key}}
	}
	if found.revision != expected {
		return &store.ConflictError{Current: store.KeyValue{Key: key, Value: found.value, Modified: found.revision}}
	}
	return nil
}

// write gives the version the next revision. mu must be held, and the caller has checked the write.
func (s *Store) write(key string, v version, ttl time.Duration) store.Revision {
	s.current++
	revision := s.current
	v.revision = revision
	r, ok := s.records.Get(&record{key: key})
	if !ok {
		r = &record{key: key}
		s.records.ReplaceOrInsert(r)
	}
	r.versions = append(r.versions, v)
	if r.expiry != nil {
		r.expiry.Stop()
		r.expiry = nil
	}
	if ttl > 0 {
		r.expiry = time.AfterFunc(ttl, func() { s.expire(key, revision) })
	}
	s.log = append(s.log, store.Event{
		KeyValue: store.KeyValue{Key: key, Value: v.value, Modified: revision},
		Deleted:  v.deleted,
	})
	s.broadcast()
	return revision
}

// expire deletes the key unless it was written again since.
func (s *Store) expire(key string, written store.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if found := s.newest(key); found != nil && found.revision == written {
		s.write(key, version{deleted: true}, 0)
	}
}

// broadcast wakes the watches. mu must be held.
func (s *Store) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}
