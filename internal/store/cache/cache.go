// Package cache serves every read of the API from memory: gets, lists at the newest and at recent revisions, and watches.
//
// Invariants:
//   - One watch feed (an etcd watch of /registry/) applies all changes in revision order. Applying a batch installs the
//     new trees and appends the events, then publishes the new revision; a reader that sees revision R sees all changes ≤ R.
//   - An Entry never changes. Its decoded object and encodings are made at most once and shared; they are read-only.
//   - A write returns after the watch feed has reached it: every client reads its own writes.
//   - A watcher is a cursor into its table's history, or into the events of one scope (a node, a namespace, an object). It
//     never blocks the watch feed; a watcher that falls too far behind gets ErrExpired.
//   - An event costs the watchers of its scopes only, and history is bounded without regard to who writes (see evict.go).
//
// Readers take no locks. A table's state (tree and history) is one immutable value behind an atomic pointer; the revision
// of the whole cache is an atomic number. Only the watch feed changes them, in an order that readers rely on (see
// Table.published).
package cache

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"skiff/internal/kind"
	"skiff/internal/store"
)

// root is the prefix of all objects in the store.
const root = "/registry/"

var (
	// ErrExpired: history no longer contains the requested revision.
	ErrExpired = fmt.Errorf("too old for the cache: %w", store.ErrCompacted)
	// ErrFuture: the cache has not reached the requested revision.
	ErrFuture = fmt.Errorf("not in the cache yet: %w", store.ErrFuture)
	// ErrTimeout: the cache did not reach a revision before the context was done. A write that fails with it has happened.
	ErrTimeout = errors.New("cache did not reach the revision in time")
	// ErrRemoved: the table was removed; its watches end.
	ErrRemoved = errors.New("resource is no longer served")
	// ErrAbandoned: what was to be derived from an object was not, because the request that needed it has ended. Others who wait for it derive
	// it themselves.
	ErrAbandoned = errors.New("request has ended")
	// ErrReplaced: the table was replaced, and a write that began with it cannot finish with it any more. A new attempt uses the other table.
	ErrReplaced = errors.New("resource was replaced")
)

// Codec decodes and encodes stored objects.
type Codec interface {
	// Decode sets the object's resourceVersion to the revision. The object must not share memory with value, unless read-only.
	Decode(value []byte, revision store.Revision) (kind.Object, error)
	// Encode leaves the resourceVersion out.
	Encode(obj kind.Object) ([]byte, error)
}

// Resource describes the content of a table.
type Resource struct {
	// Name is for messages and metrics.
	Name string
	// Prefix of the keys, "/registry/pods/".
	Prefix string
	Codec  Codec
	// Fields returns the values for field selectors of each object; nil when there are none.
	Fields func(ctx context.Context, objs []kind.Object) ([]map[string]string, error)
	// Index reads the indexed field (see ByIndex) from stored bytes, without decoding the object: the watch feed calls it. It
	// returns false when the bytes are not those of an object, encrypted ones for example. nil when there is no such field.
	Index func(stored []byte) (string, bool)
}

// Cache holds all tables and keeps them up to date.
type Cache struct {
	store store.Store
	log   *slog.Logger

	ready   chan struct{} // closed when the cache has reached the revision that was current at load
	isReady atomic.Bool   // ready is closed
	done    chan struct{} // closed when Run has returned

	// revision is published after everything up to it is in the tables.
	revision atomic.Int64
	waiters  waiters
	barrier  barrier

	// Memos (encodings, labels) that were not used during a whole epoch are dropped.
	epoch     atomic.Uint32
	memoBytes atomic.Int64
	memoFull  chan struct{}

	// horizon is the oldest revision at which lists are served from memory: the revision of historyAge ago. The store may have
	// compacted older ones.
	horizon atomic.Int64

	mu      sync.Mutex // held to change the tables
	tables  tables
	running bool
	target  store.Revision // the store's revision when the tables were loaded
	// generation counts how often history was lost; the load of a table must start over when it changes.
	generation    int
	pastRevisions []revisionAt // the revisions since the horizon
	unclaimed     unclaimed
	changed       []*Table // tables changed by the batch being applied
	heldBytes     int      // of the values that only history references, of all tables

	panics atomic.Int64
}

// New returns an empty cache of the store. It reads nothing before Run. log may be nil.
func New(s store.Store, log *slog.Logger) *Cache {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{
		store:    s,
		log:      log,
		ready:    make(chan struct{}),
		done:     make(chan struct{}),
		memoFull: make(chan struct{}, 1),
	}
	c.tables.byPrefix = map[string]*Table{}
	c.barrier.current = s.Current
	return c
}

// Add makes a table. Before Run it returns at once and Run loads the table; later it returns when the table is loaded, or
// when the cache ends. It panics if the prefix already has a table.
func (c *Cache) Add(r Resource) *Table {
	t := newTable(c, r)
	if c.register(t) {
		c.loadWhileRunning(t)
	}
	return t
}

// register adds a table that is not loaded, and reports whether it must be loaded now.
func (c *Cache) register(t *Table) (running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	prefix := t.resource.Prefix
	if c.tables.find(prefix) != t.replaces.Load() {
		panic("cache: two tables for " + prefix)
	}
	c.tables.set(prefix, t)
	return c.running
}

// Ready is closed when the cache has everything that was in the store when it was loaded. Until then it looks empty:
// Sync and WaitFor wait for it, and cursors get their position then.
func (c *Cache) Ready() <-chan struct{} { return c.ready }

// Revision is the revision that the cache has reached.
func (c *Cache) Revision() store.Revision { return c.revision.Load() }

// WaitFor returns when the cache has reached the revision, or ErrTimeout when the context is done first.
func (c *Cache) WaitFor(ctx context.Context, revision store.Revision) error {
	if err := c.waitReady(ctx); err != nil {
		return fmt.Errorf("wait for revision %d: %w", revision, err)
	}
	if c.Revision() >= revision {
		return nil
	}
	w := c.waiters.add(revision)
	defer c.waiters.remove(w)
	if c.Revision() < revision { // it may have been reached before the waiter was added
		select {
		case <-w.reached:
		case <-ctx.Done():
			return fmt.Errorf("wait for revision %d at %d: %w: %w", revision, c.Revision(), ErrTimeout, ctx.Err())
		case <-c.done:
			return fmt.Errorf("wait for revision %d: cache has stopped: %w", revision, store.ErrUnavailable)
		}
	}
	return nil
}

// waitReady returns when the cache is loaded, or ErrTimeout when the context is done first.
func (c *Cache) waitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	default:
	}
	select {
	case <-c.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cache is not loaded: %w: %w", ErrTimeout, ctx.Err())
	case <-c.done:
		return fmt.Errorf("cache has stopped: %w", store.ErrUnavailable)
	}
}

// Sync makes the next read consistent: when it returns, the cache has every write that completed before the call. If
// no other process writes to the store that always holds, because writes wait for the cache.
func (c *Cache) Sync(ctx context.Context) (store.Revision, error) {
	if err := c.waitReady(ctx); err != nil {
		return 0, err
	}
	if !c.store.Shared() {
		return c.Revision(), nil
	}
	revision, err := c.barrier.read(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the store's revision: %w", err)
	}
	if err := c.WaitFor(ctx, revision); err != nil {
		return 0, err
	}
	return c.Revision(), nil
}

// memoBudget bounds the size of all encodings. When it is exceeded all are dropped at once, so that memory stays bounded;
// clients that repeatedly list more than that pay for encoding.
const (
	memoBudget = 64 << 20
	memoEpoch  = 15 * time.Second
)

// addMemoBytes counts the bytes that an entry now keeps.
func (c *Cache) addMemoBytes(bytes int) {
	if c.memoBytes.Add(int64(bytes)) > memoBudget {
		select {
		case c.memoFull <- struct{}{}:
		default:
		}
	}
}

// sweepPeriodically drops memos and history that are no longer needed, while the cache runs.
func (c *Cache) sweepPeriodically(ctx context.Context) {
	ticker := time.NewTicker(memoEpoch)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			now := time.Now()
			c.sweep(false)
			c.trim(now)
			c.moveHorizon(now)
		case <-c.memoFull:
			c.sweep(c.memoBytes.Load() > memoBudget)
		case <-ctx.Done():
			return
		}
	}
}

// sweep begins a new epoch and drops the memos not used in the last one, or all of them.
func (c *Cache) sweep(all bool) {
	epoch := c.epoch.Add(1)
	before := c.memoBytes.Load()
	kept := 0
	for t := range c.allTables() {
		kept += t.dropMemos(epoch, all)
	}
	// Entries that were dropped took their memos along without being counted; this corrects the count.
	c.memoBytes.Add(int64(kept) - before)
}

// trim drops history that became too old in tables without writes.
func (c *Cache) trim(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.allTables() {
		t.trim(now)
	}
	c.unclaimed.trim(now)
}

// revisionAt is the revision of the cache at a time.
type revisionAt struct {
	at       time.Time
	revision store.Revision
}

// moveHorizon leaves lists of revisions older than historyAge to the store, which may have compacted them. The trees of
// tables with few changes could serve older revisions, but a revision expires for all kinds at the same time.
func (c *Cache) moveHorizon(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pastRevisions = append(c.pastRevisions, revisionAt{now, c.Revision()})
	passed := 0
	for passed < len(c.pastRevisions) && now.Sub(c.pastRevisions[passed].at) >= historyAge {
		c.horizon.Store(c.pastRevisions[passed].revision)
		passed++
	}
	c.pastRevisions = slices.Delete(c.pastRevisions, 0, passed)
}

// waiters are the callers that wait for a revision, the lowest first.
type waiters struct {
	count atomic.Int32
	mu    sync.Mutex
	heap  waiterHeap
}

type waiter struct {
	revision store.Revision
	reached  chan struct{}
	index    int // in the heap; removed when it is woken
}

const removed = -1

func (w *waiters) add(revision store.Revision) *waiter {
	added := &waiter{revision: revision, reached: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	heap.Push(&w.heap, added)
	w.count.Add(1)
	return added
}

func (w *waiters) remove(waiting *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waiting.index != removed {
		heap.Remove(&w.heap, waiting.index)
		w.count.Add(-1)
	}
}

// wake wakes those whose revision is reached. It does not visit the others.
func (w *waiters) wake(revision store.Revision) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.heap) > 0 && w.heap[0].revision <= revision {
		waiting := heap.Pop(&w.heap).(*waiter)
		w.count.Add(-1)
		close(waiting.reached)
	}
}

// waiterHeap implements heap.Interface.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].revision < h[j].revision }

func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *waiterHeap) Push(added any) {
	waiting := added.(*waiter)
	waiting.index = len(*h)
	*h = append(*h, waiting)
}

// Pop implements heap.Interface.
func (h *waiterHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	last.index = removed
	return last
}
