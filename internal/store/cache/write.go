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

// Conflict is returned by Update and Delete when another writer came first. Current is the object as it is now, nil
// when it is gone.
type Conflict struct {
	Current *Entry
}

func (c *Conflict) Error() string {
	if c.Current == nil {
		return "object is gone"
	}
	return "object " + c.Current.key + " was written by someone else"
}

// Create stores a new object under a key. The error is store.ErrExists when there is one already. From the call
// on the object is shared and read-only; its resourceVersion is set before anyone else sees it.
func (t *Table) Create(ctx context.Context, key string, obj kind.Object, ttl time.Duration) (*Entry, error) {
	value, err := t.resource.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	return t.write(ctx, &write{key: key, value: value, object: obj}, func() (store.Revision, error) {
		return t.cache.store.Create(ctx, key, value, ttl)
	})
}

// Update overwrites the object whose revision is expected; a *Conflict says that it is another by now. Writing what
// is stored already changes nothing and returns the entry there is, unless it would be sealed otherwise now. The object passed
// becomes shared as with Create.
func (t *Table) Update(ctx context.Context, key string, obj kind.Object, ttl time.Duration, expected store.Revision) (*Entry, error) {
	value, err := t.resource.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	if current := t.Get(key); current != nil && current.revision == expected && current.holds(value) && !t.stale(ctx, key) {
		if t.cache.store.Shared() {
			// The cache may lag behind another server's write, and then this is a conflict after all.
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
	return t.write(ctx, &write{key: key, value: value, object: obj}, func() (store.Revision, error) {
		return t.cache.store.Update(ctx, key, value, ttl, expected)
	})
}

// stale reports whether a value should be written again although it has not changed. When nobody can tell, writing does no harm.
func (t *Table) stale(ctx context.Context, key string) bool {
	opener, ok := t.cache.store.(store.Opener)
	if !ok {
		return false
	}
	stale, err := opener.Stale(ctx, key)
	return stale || err != nil
}

// Delete removes the object whose revision is expected and returns its last state with the revision of the deletion; a
// *Conflict says that the object is another by now.
func (t *Table) Delete(ctx context.Context, key string, expected store.Revision) (*Entry, error) {
	return t.write(ctx, &write{key: key}, func() (store.Revision, error) {
		return t.cache.store.Delete(ctx, key, expected)
	})
}

// write is one write on its way through the store and back by the feed.
type write struct {
	key    string
	value  []byte      // nil for a deletion
	object kind.Object // what value was encoded from

	// Guarded by writes.mu.
	next    *write
	seen    []Event // what the feed brought for the key since the write began
	adopted bool    // the object belongs to an entry now

	// arrived gets a token when the cache has published something for the key.
	arrived chan struct{}
}

// writes are those under way in a table, by key.
type writes struct {
	count atomic.Int32
	mu    sync.Mutex
	byKey map[string]*write
	// arrived are the writes for which the batch being applied brings something; the feed alone uses it.
	arrived []*write
}

func (t *Table) write(ctx context.Context, w *write, do func() (store.Revision, error)) (*Entry, error) {
	// The feed brings only what belongs to the table; the write of anything else would wait for it in vain.
	switch {
	case !strings.HasPrefix(w.key, t.resource.Prefix):
		return nil, fmt.Errorf("key %s does not belong to the table of %s", w.key, t.resource.Prefix)
	case t.removed.Load():
		return nil, ErrRemoved
	}
	w.arrived = make(chan struct{}, 1)
	t.writes.begin(w)
	defer t.writes.end(w)

	revision, err := do()
	if err != nil {
		return nil, t.refused(ctx, err)
	}
	for t.cache.Revision() < revision {
		select {
		case <-w.arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s was written at revision %d: %w: %w", w.key, revision, ErrTimeout, ctx.Err())
		case <-t.cache.done:
			return nil, fmt.Errorf("%s was written at revision %d, but the cache has ended: %w", w.key, revision, store.ErrUnavailable)
		}
		if t.removed.Load() {
			break
		}
	}
	return t.written(w, revision), nil
}

// refused returns the error of a write that the store did not take. Whoever hears that another writer came first must find
// that one's work with the next read, which asks the store only when it is shared.
func (t *Table) refused(ctx context.Context, err error) error {
	var conflict *store.ConflictError
	late := errors.As(err, &conflict)
	if (late || errors.Is(err, store.ErrExists)) && !t.cache.store.Shared() {
		revision, err := t.cache.store.Current(ctx)
		if err != nil {
			return err
		}
		if err := t.cache.WaitFor(ctx, revision); err != nil {
			return err
		}
	}
	if late {
		return &Conflict{Current: t.current(conflict.Current)}
	}
	return err
}

// written returns the entry that the write made.
func (t *Table) written(w *write, revision store.Revision) *Entry {
	t.writes.mu.Lock()
	defer t.writes.mu.Unlock()
	for _, event := range w.seen {
		if event.Revision == revision {
			return event.Entry
		}
	}
	// The feed lost history just now and never brought this very write. It happened all the same.
	entry := t.entry(w.key, w.value, revision)
	if w.object != nil && !w.adopted {
		w.object.SetResourceVersion(strconv.FormatInt(revision, 10))
		entry.adopt(w.object)
	}
	return entry
}

// current makes an entry of what the store says a key is now, the cached one if that is it.
func (t *Table) current(kv store.KeyValue) *Entry {
	if kv.Modified == 0 {
		return nil
	}
	if cached := t.Get(kv.Key); cached != nil && cached.revision == kv.Modified {
		return cached
	}
	return t.entry(kv.Key, kv.Value, kv.Modified)
}

func (ws *writes) begin(w *write) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.byKey == nil {
		ws.byKey = map[string]*write{}
	}
	w.next = ws.byKey[w.key]
	ws.byKey[w.key] = w
	ws.count.Add(1)
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

// saw tells the writers of a key what the feed brings for it, before anyone else can see it. The writer of just these
// bytes has the object of them at hand, and so nobody needs to decode them.
func (ws *writes) saw(event Event) {
	if ws.count.Load() == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := ws.byKey[event.Entry.key]; w != nil; w = w.next {
		w.seen = append(w.seen, event)
		ws.arrived = append(ws.arrived, w)
		if w.object != nil && !w.adopted && event.Type != Deleted && event.Entry.holds(w.value) {
			w.adopted = true
			w.object.SetResourceVersion(strconv.FormatInt(event.Revision, 10))
			event.Entry.adopt(w.object)
		}
	}
}

// wakeWriters lets those writers look at the revision who were brought something, or all.
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
