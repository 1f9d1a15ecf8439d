// Package cache serves every read of the API from memory: gets, lists at the newest and at recent revisions, and watches.
//
// Invariants, on which everything above relies:
//   - One feed (a watch of the store below /registry/) applies all changes in revision order. Applying a batch installs
//     the new trees and appends the events, then publishes the new revision; whoever sees revision R sees all changes ≤ R.
//   - An Entry never changes. Its decoded object and encodings are made at most once and shared by everyone; they are read-only.
//   - A writer returns after the feed has reached its own write: everybody reads their own writes.
//   - A watcher is a cursor into its table's log. It never holds the feed back; too slow a watcher gets ErrExpired.
//
// Readers take no locks. A table's state (tree and log) is one immutable value behind an atomic pointer; the revision of
// the whole cache is an atomic number. The feed alone changes them, in an order that readers can rely on (see Table.published).
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skiff/internal/kind"
	"skiff/internal/store"
)

// root is the directory of the store that holds all objects.
const root = "/registry/"

var (
	// ErrExpired: history no longer reaches back to the revision asked for.
	ErrExpired = fmt.Errorf("too old for the cache: %w", store.ErrCompacted)
	// ErrFuture: the cache has not reached the revision asked for.
	ErrFuture = fmt.Errorf("not in the cache yet: %w", store.ErrFuture)
	// ErrTimeout: the cache did not reach a revision while the context lasted. A write that fails so has happened.
	ErrTimeout = errors.New("cache did not reach the revision in time")
	// ErrRemoved: the table was removed; its watches end.
	ErrRemoved = errors.New("resource is no longer served")
)

// Codec turns stored bytes into objects and back.
type Codec interface {
	// Decode sets the object's resourceVersion to the revision. The object must not share memory with value, unless read-only.
	Decode(value []byte, revision store.Revision) (kind.Object, error)
	// Encode leaves the resourceVersion out.
	Encode(obj kind.Object) ([]byte, error)
}

// Resource says what a table holds.
type Resource struct {
	// Name is for messages and metrics.
	Name string
	// Prefix of the keys, "/registry/pods/".
	Prefix string
	Codec  Codec
	// Fields returns what field selectors can ask for; nil when there is nothing.
	Fields func(obj kind.Object) map[string]string
}

// Cache holds all tables and follows the store.
type Cache struct {
	store store.Store
	log   *slog.Logger

	ready  chan struct{} // closed when the cache has reached what was current when it was loaded
	opened atomic.Bool   // ready is closed
	done   chan struct{} // closed when Run has ended

	// revision is published after everything up to it is in the tables.
	revision atomic.Int64
	waiters  waiters
	barrier  barrier

	// Memos (encodings, labels) that nobody asked for during a whole epoch are dropped.
	epoch     atomic.Uint32
	memoBytes atomic.Int64
	full      chan struct{}

	// horizon is the oldest revision of which lists are served, as the store would serve them: that of historyAge ago.
	horizon atomic.Int64

	mu sync.Mutex // held to change the tables
	// tables by prefix. The map is replaced, never changed, so that it can be read without mu.
	tables  atomic.Pointer[map[string]*Table]
	running bool
	target  store.Revision // what was current when the tables were loaded
	// generation counts the times history was lost; whoever loads a table meanwhile must start again.
	generation int
	marks      []mark // the revisions of the time since the horizon
	unclaimed  unclaimed
	touched    []*Table // scratch of apply
}

// New returns an empty cache of the store. It reads nothing before Run. log may be nil.
func New(s store.Store, log *slog.Logger) *Cache {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{
		store: s,
		log:   log,
		ready: make(chan struct{}),
		done:  make(chan struct{}),
		full:  make(chan struct{}, 1),
	}
	c.tables.Store(&map[string]*Table{})
	c.barrier.current = s.Current
	return c
}

// Add makes a table. Before Run it returns at once and Run loads the table; later it returns when the table is loaded, or
// when the cache ends. Adding a prefix twice is a programmer's mistake.
func (c *Cache) Add(r Resource) *Table {
	t := newTable(c, r)
	c.mu.Lock()
	tables := maps.Clone(*c.tables.Load())
	if tables[r.Prefix] != nil {
		c.mu.Unlock()
		panic("cache: two tables for " + r.Prefix)
	}
	tables[r.Prefix] = t
	c.tables.Store(&tables)
	running := c.running
	c.mu.Unlock()
	if running {
		c.loadLate(t)
	}
	return t
}

// Remove forgets a table. Its cursors end with ErrRemoved; the objects in the store stay.
func (c *Cache) Remove(t *Table) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (*c.tables.Load())[t.resource.Prefix] != t {
		return
	}
	tables := maps.Clone(*c.tables.Load())
	delete(tables, t.resource.Prefix)
	c.tables.Store(&tables)
	t.removed.Store(true)
	c.unclaimed.drop() // what this table saw is not there
	t.wake()
	t.wakeWriters(true)
}

// route finds the table of a key: the one with the longest prefix.
func (c *Cache) route(tables map[string]*Table, key string) (found *Table) {
	for i := len(root) - 1; i < len(key); {
		if t := tables[key[:i+1]]; t != nil {
			found = t
		}
		next := strings.IndexByte(key[i+1:], '/')
		if next < 0 {
			break
		}
		i += 1 + next
	}
	return found
}

// Ready is closed when the cache shows everything that was in the store when it was loaded. Before, it looks empty:
// Sync and WaitFor wait for it, and a cursor finds its place then.
func (c *Cache) Ready() <-chan struct{} { return c.ready }

// Revision is what the cache has reached.
func (c *Cache) Revision() store.Revision { return c.revision.Load() }

// WaitFor returns when the cache has reached the revision, or ErrTimeout when the context ends before.
func (c *Cache) WaitFor(ctx context.Context, revision store.Revision) error {
	if err := c.waitReady(ctx); err != nil {
		return fmt.Errorf("wait for revision %d: %w", revision, err)
	}
	if c.Revision() >= revision {
		return nil
	}
	w := c.waiters.add(revision)
	defer c.waiters.remove(w)
	for c.Revision() < revision {
		select {
		case <-w.reached:
		case <-ctx.Done():
			return fmt.Errorf("wait for revision %d at %d: %w: %w", revision, c.Revision(), ErrTimeout, ctx.Err())
		case <-c.done:
			return fmt.Errorf("wait for revision %d: cache has ended: %w", revision, store.ErrUnavailable)
		}
	}
	return nil
}

// waitReady returns when the cache is loaded, or ErrTimeout when the context ends before.
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
		return fmt.Errorf("the cache is not loaded: %w: %w", ErrTimeout, ctx.Err())
	case <-c.done:
		return fmt.Errorf("the cache has ended: %w", store.ErrUnavailable)
	}
}

// Sync is the barrier of a consistent read: after it, the cache shows every write that was finished before the call. With
// nobody else writing to the store that is always so, because writers wait for the cache.
func (c *Cache) Sync(ctx context.Context) (store.Revision, error) {
	if err := c.waitReady(ctx); err != nil {
		return 0, err
	}
	if !c.store.Shared() {
		return c.Revision(), nil
	}
	revision, err := c.barrier.ask(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask the store for its revision: %w", err)
	}
	if err := c.WaitFor(ctx, revision); err != nil {
		return 0, err
	}
	return c.Revision(), nil
}

// memoBudget bounds the bytes of encodings kept. Beyond it all are dropped at once: whoever lists more than
// that many bytes again and again pays for encoding them, and memory stays bounded.
const (
	memoBudget = 64 << 20
	memoEpoch  = 15 * time.Second
)

// remembered counts bytes that an entry now keeps.
func (c *Cache) remembered(bytes int) {
	if c.memoBytes.Add(int64(bytes)) > memoBudget {
		select {
		case c.full <- struct{}{}:
		default:
		}
	}
}

// tidy drops memos and history that nobody needs any more, for as long as the cache runs.
func (c *Cache) tidy(ctx context.Context) {
	ticker := time.NewTicker(memoEpoch)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			now := time.Now()
			c.sweep(false)
			c.trim(now)
			c.moveHorizon(now)
		case <-c.full:
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
	for _, t := range *c.tables.Load() {
		kept += t.forget(epoch, all)
	}
	// Entries that went away took their memos along uncounted; the count is set right here.
	c.memoBytes.Add(int64(kept) - before)
}

// trim drops history that became too old in tables that nobody writes to.
func (c *Cache) trim(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range *c.tables.Load() {
		t.trim(now)
	}
	c.unclaimed.trim(now)
}

// mark is the revision that the cache had reached at a time.
type mark struct {
	at       time.Time
	revision store.Revision
}

// moveHorizon forgets, as compaction does in the store, what is older than history. The trees would allow lists of older
// revisions where little changed, but clients rely on an old list to end: by its error they learn to start anew.
func (c *Cache) moveHorizon(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marks = append(c.marks, mark{now, c.Revision()})
	passed := 0
	for passed < len(c.marks) && now.Sub(c.marks[passed].at) >= historyAge {
		c.horizon.Store(c.marks[passed].revision)
		passed++
	}
	c.marks = slices.Delete(c.marks, 0, passed)
}

// waiters are those who wait for a revision.
type waiters struct {
	count atomic.Int32
	mu    sync.Mutex
	all   map[*waiter]struct{}
}

type waiter struct {
	revision store.Revision
	reached  chan struct{}
}

func (w *waiters) add(revision store.Revision) *waiter {
	added := &waiter{revision: revision, reached: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*waiter]struct{}{}
	}
	w.all[added] = struct{}{}
	w.count.Add(1)
	return added
}

func (w *waiters) remove(removed *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, removed)
	w.count.Add(-1)
}

func (w *waiters) wake(revision store.Revision) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for waiting := range w.all {
		if waiting.revision <= revision {
			select {
			case waiting.reached <- struct{}{}:
			default:
			}
		}
	}
}
