package cache

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skiff/internal/kind"
	"skiff/internal/store"
)

// Conflict is returned by Update and Delete when the object's revision is not the expected one. Current is the current
// object, nil when it was deleted.
type Conflict struct {
	Current *Entry
}

func (c *Conflict) Error() string {
	if c.Current == nil {
		return "object was deleted"
	}
	return "object " + c.Current.key + " was modified by another writer"
}

// Create stores a new object under a key, or returns store.ErrExists. From the call on the object is shared and
// read-only; its resourceVersion is set before any other reader gets it.
func (t *Table) Create(ctx context.Context, key string, obj kind.Object, ttl time.Duration) (*Entry, error) {
	value, err := t.resource.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	return t.write(ctx, &write{key: key, value: value, object: obj}, func() (store.Revision, error) {
		return t.cache.store.Create(ctx, key, value, ttl)
	})
}

// Update overwrites the object whose revision is expected, or returns a *Conflict. An update that does not change the
// stored bytes is not written and returns the current entry, unless the value must be encrypted anew. The object is
// shared as with Create.
func (t *Table) Update(ctx context.Context, key string, obj kind.Object, ttl time.Duration, expected store.Revision) (*Entry, error) {
	if at := t.replacedAt.Load(); at > 0 && expected > at {
		return nil, ErrReplaced
	}
	value, err := t.resource.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	if current := t.Get(key); current != nil && current.revision == expected && current.hasValue(value) && !t.stale(ctx, key) {
		if t.cache.store.Shared() {
			// The cache may lag behind a write of another server, which makes this a conflict.
			found, err := t.cache.store.Get(ctx, key)
			if errors.Is(err, store.ErrNotFound) {
				return nil, &Conflict{}
			}
			if err != nil {
				return nil, fmt.Errorf("update %s: %w", key, err)
			}
			if found.Modified != expected {
				return nil, &Conflict{Current: t.current(found)}
			}
		}
		return current, nil
	}
	marked := ctx
	if obj.GetDeletionTimestamp() != nil {
		marked = store.ForDeletion(ctx)
	}
	return t.write(ctx, &write{key: key, value: value, object: obj}, func() (store.Revision, error) {
		return t.cache.store.Update(marked, key, value, ttl, expected)
	})
}

// stale reports whether an unchanged value should be written to encrypt it anew. If that cannot be determined, it is written.
func (t *Table) stale(ctx context.Context, key string) bool {
	decrypter, ok := t.cache.store.(store.Decrypter)
	if !ok {
		return false
	}
	stale, err := decrypter.Stale(ctx, key)
	return stale || err != nil
}

// Delete removes the object whose revision is expected and returns its last state with the revision of the deletion, or
// a *Conflict.
func (t *Table) Delete(ctx context.Context, key string, expected store.Revision) (*Entry, error) {
	w := &write{key: key}
	if current := t.Get(key); current != nil && current.revision == expected {
		w.deleted = current
	}
	return t.write(ctx, w, func() (store.Revision, error) {
		return t.cache.store.Delete(ctx, key, expected)
	})
}

// write is an in-flight write: sent to the store, not yet received by the watch feed.
type write struct {
	key    string
	value  []byte      // nil for a deletion
	object kind.Object // value is its encoding
	// deleted is what a deletion removes; nil if the cache does not have it.
	deleted *Entry

	// Guarded by writes.mu.
	next       *write
	events     []Event // received for the key since the write began
	objectUsed bool    // an entry uses the object

	// arrived receives a value when the cache has published an event for the key.
	arrived chan struct{}
}

// writes are the in-flight writes of a table, by key.
type writes struct {
	count  atomic.Int32
	mu     sync.Mutex
	byKey  map[string]*write
	closed error // why no more writes begin
	// arrived are the writes with events in the batch being applied; only the watch feed uses it.
	arrived []*write
}

func (t *Table) write(ctx context.Context, w *write, do func() (store.Revision, error)) (*Entry, error) {
	// Only keys of the table reach it by the watch feed; a write of another key would wait forever.
	if !strings.HasPrefix(w.key, t.resource.Prefix) {
		return nil, fmt.Errorf("key %s does not belong to the table of %s", w.key, t.resource.Prefix)
	}
	w.arrived = make(chan struct{}, 1)
	if err := t.writes.begin(w); err != nil {
		return nil, err
	}
	defer t.writes.end(w)

	revision, err := do()
	if err != nil {
		return nil, t.writeError(ctx, err)
	}
	for t.cache.Revision() < revision {
		select {
		case <-w.arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s was written at revision %d: %w: %w", w.key, revision, ErrTimeout, ctx.Err())
		case <-t.cache.done:
			return nil, fmt.Errorf("%s was written at revision %d, but the cache has stopped: %w", w.key, revision, store.ErrUnavailable)
		}
		if t.removed.Load() {
			// No more events arrive here. The table that replaces this one must have the write before it returns.
			if err := t.cache.WaitFor(ctx, revision); err != nil {
				return nil, fmt.Errorf("%s was written at revision %d: %w", w.key, revision, err)
			}
		}
	}
	return t.written(w, revision), nil
}

// writeError returns the error of a failed write. After a conflict, the client's next read must return the state that
// caused it; the read itself does not query a store that is not shared.
func (t *Table) writeError(ctx context.Context, err error) error {
	var conflict *store.ConflictError
	isConflict := errors.As(err, &conflict)
	if (isConflict || errors.Is(err, store.ErrExists)) && !t.cache.store.Shared() {
		revision, err := t.cache.store.Current(ctx)
		if err != nil {
			return err
		}
		if err := t.cache.WaitFor(ctx, revision); err != nil {
			return err
		}
	}
	if isConflict {
		return &Conflict{Current: t.current(conflict.Current)}
	}
	return err
}

// written returns the entry that the write made.
func (t *Table) written(w *write, revision store.Revision) *Entry {
	t.writes.mu.Lock()
	defer t.writes.mu.Unlock()
	for _, event := range w.events {
		if event.Revision == revision {
			return event.Entry
		}
	}
	// The watch feed lost history and skipped this write. It was stored nevertheless.
	if w.deleted != nil {
		return w.deleted.at(revision)
	}
	entry := t.entry(w.key, w.value, revision)
	if w.object != nil && !w.objectUsed {
		w.object.SetResourceVersion(strconv.FormatInt(revision, 10))
		entry.setObject(w.object)
	}
	return entry
}

// current returns the entry of the store's current value of a key, the cached one if it is the same.
func (t *Table) current(kv store.KeyValue) *Entry {
	if kv.Modified == 0 {
		return nil
	}
	if cached := t.Get(kv.Key); cached != nil && cached.revision == kv.Modified {
		return cached
	}
	return t.entry(kv.Key, kv.Value, kv.Modified)
}

// begin adds a write. A write that begins before close is woken after it.
func (ws *writes) begin(w *write) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed != nil {
		return ws.closed
	}
	if ws.byKey == nil {
		ws.byKey = map[string]*write{}
	}
	w.next = ws.byKey[w.key]
	ws.byKey[w.key] = w
	ws.count.Add(1)
	return nil
}

// close makes later writes fail.
func (ws *writes) close(reason error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = reason
}

func (ws *writes) end(w *write) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.count.Add(-1)
	first := ws.byKey[w.key]
	if first == w {
		if w.next == nil {
			delete(ws.byKey, w.key)
		} else {
			ws.byKey[w.key] = w.next
		}
		return
	}
	for ; first.next != w; first = first.next {
	}
	first.next = w.next
}

// deliver gives the writers of a key the event before any reader can see it. A writer of the same bytes provides its
// object as the decoded object of the entry.
func (ws *writes) deliver(event Event) {
	if ws.count.Load() == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := ws.byKey[event.Entry.key]; w != nil; w = w.next {
		w.events = append(w.events, event)
		ws.arrived = append(ws.arrived, w)
		if w.object != nil && !w.objectUsed && event.Type != Deleted && event.Entry.hasValue(w.value) {
			w.objectUsed = true
			w.object.SetResourceVersion(strconv.FormatInt(event.Revision, 10))
			event.Entry.setObject(w.object)
		}
	}
}

// wakeWriters wakes the writers that received an event, or all.
func (t *Table) wakeWriters(all bool) {
	ws := &t.writes
	if !all && len(ws.arrived) == 0 {
		return
	}
	if all {
		ws.mu.Lock()
		for _, w := range ws.byKey {
			for ; w != nil; w = w.next {
				ws.arrived = append(ws.arrived, w)
			}
		}
		ws.mu.Unlock()
	}
	for _, w := range ws.arrived {
		select {
		case w.arrived <- struct{}{}:
		default:
		}
	}
	clear(ws.arrived)
	ws.arrived = ws.arrived[:0]
}
