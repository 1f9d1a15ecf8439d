package cache

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skiff/internal/store"
)

// state is a table at one point in time: immutable except for previous.
type state struct {
	tree    tree
	history history
	// revision is the revision of this table's last change.
	revision store.Revision
	// exactSince: the trees of revisions since this one can be made by undoing events.
	exactSince store.Revision
	// previous is set from the time the state is installed until its revision is published (see published).
	previous atomic.Pointer[state]
	memoized memoized
}

// Table holds the objects of one resource.
type Table struct {
	cache    *Cache
	resource Resource
	state    atomic.Pointer[state]
	whole    scopeWatchers // of the whole table
	// users counts the calls of Acquire without Release.
	users atomic.Int64
	// retired: another table is in its place, and its cursors end. removed: it receives no more events.
	retired, removed atomic.Bool
	// endedAt is the revision of the cache when the table was removed: the last one that it has. Zero before.
	endedAt atomic.Int64
	// replaces is the table with the same prefix that this one replaces, until that one is removed. It changes with cache.mu held.
	replaces atomic.Pointer[Table]
	// replacedAt is the revision before requests found another table in this one's place; zero: they find this one.
	replacedAt atomic.Int64
	// encrypted: the store could not decrypt a value.
	encrypted atomic.Bool
	// evictedTo is the revision of the newest event whose values were evicted.
	evictedTo atomic.Int64
	// received counts the events of the watch feed.
	received atomic.Int64

	// Guarded by cache.mu.
	expiry        *time.Timer // removes a retired table that still has users
	loaded        bool
	backlog       []store.Event // events received while the table was being loaded
	next          *edit         // the batch being applied
	after         history       // history including the batch being applied
	last          store.Revision
	inexactBefore store.Revision // the batch skips the states of the table before this revision
	batchStart    int64          // the position of the batch's first event
	held          heldValues
	scopes        scopes

	writes  writes
	rewinds rewinds
}

func newTable(c *Cache, r Resource) *Table {
	t := &Table{cache: c, resource: r}
	t.whole.table = t
	t.whole.heldFrom.Store(notHeld)
	t.state.Store(&state{})
	return t
}

// published returns the newest state that is not ahead of the cache's revision, and that revision. A state is installed
// before its revision is published, so a state that is not ahead has every change up to the revision and none after it.
// The revision of a table that was removed is that of its removal.
func (t *Table) published() (*state, store.Revision) {
	if !t.cache.isReady.Load() {
		return &state{}, 0
	}
	for {
		revision := t.cache.revision.Load()
		s := t.state.Load()
		if s.revision <= revision {
			return s, t.lastRevision(revision)
		}
		// A batch is installed but not yet published; the previous state is still current.
		if s = s.previous.Load(); s != nil && s.revision <= revision {
			return s, t.lastRevision(revision)
		}
	}
}

// lastRevision is the newest revision that the table has, given one that the cache has published. It is stored before a later one is published.
func (t *Table) lastRevision(published store.Revision) store.Revision {
	if ended := t.endedAt.Load(); ended > 0 {
		return min(published, ended)
	}
	return published
}

// Get returns the newest entry of a key, nil when there is none.
func (t *Table) Get(key string) *Entry {
	s, _ := t.published()
	return s.tree.get(key)
}

// LastChange is the revision of the table's last visible change.
func (t *Table) LastChange() store.Revision {
	s, _ := t.published()
	return s.revision
}

// Snapshot returns the current entries.
func (t *Table) Snapshot() Snapshot {
	s, revision := t.published()
	return s.snapshot(revision)
}

func (s *state) snapshot(revision store.Revision) Snapshot {
	return Snapshot{tree: s.tree, revision: revision, memoized: &s.memoized}
}

// Received is how many events the watch feed has delivered for the table.
func (t *Table) Received() int64 { return t.received.Load() }

// Resource returns the resource that the table was made for.
func (t *Table) Resource() Resource { return t.resource }

// Snapshot is all entries of a table at one revision.
type Snapshot struct {
	tree     tree
	revision store.Revision
	memoized *memoized // nil for a past state
}

// EmptySnapshot has no entries, only a revision: that of a list read with ListAt.
func EmptySnapshot(revision store.Revision) Snapshot { return Snapshot{revision: revision} }

// Revision of the snapshot, which may be later than that of any entry.
func (s Snapshot) Revision() store.Revision { return s.revision }

// Get returns the entry of a key, nil when there is none.
func (s Snapshot) Get(key string) *Entry { return s.tree.get(key) }

// Len counts the entries whose keys have the prefix; "" counts all. It does not iterate over them.
func (s Snapshot) Len(prefix string) int {
	if prefix == "" {
		return s.tree.len()
	}
	return s.tree.count(prefix)
}

// LenFrom counts the entries whose keys have the prefix and are not before from: the remaining items of a list.
func (s Snapshot) LenFrom(prefix, from string) int {
	if from <= prefix {
		return s.Len(prefix)
	}
	end := prefixEnd(prefix)
	if end == "" {
		return s.tree.len() - s.tree.rank(from)
	}
	return max(0, s.tree.rank(end)-s.tree.rank(from))
}

// Ascend yields the entries whose keys have the prefix ("" is all), in order, starting at from if that is not before
// the prefix, until yield returns false.
func (s Snapshot) Ascend(prefix, from string, yield func(*Entry) bool) {
	s.tree.ascend(max(prefix, from), func(e *Entry) bool {
		return strings.HasPrefix(e.key, prefix) && yield(e)
	})
}

// stage adds an event to the batch being applied. cache.mu must be held.
func (t *Table) stage(event store.Event, now time.Time) {
	if t.next == nil {
		s := t.state.Load()
		t.next = s.tree.edit()
		t.after = s.history
		t.cache.changed = append(t.cache.changed, t)
	}
	if event.Deleted {
		old := t.next.delete(event.Key)
		if old == nil {
			// Created and deleted while the table did not follow the store. Watchers get no event; a write may wait for it.
			t.writes.deliver(Event{Type: Deleted, Entry: t.entry(event.Key, nil, event.Modified), Revision: event.Modified})
			return
		}
		t.record(Event{Type: Deleted, Entry: old.at(event.Modified), Old: old, Revision: event.Modified}, now)
		return
	}
	entry := t.entry(event.Key, event.Value, event.Modified)
	old := t.next.set(entry)
	kind := Added
	if old != nil {
		kind = Modified
		entry.key = old.key // equal; keeps one string instead of two
	}
	t.record(Event{Type: kind, Entry: entry, Old: old, Revision: event.Modified}, now)
}

func (t *Table) record(event Event, now time.Time) {
	t.writes.deliver(event)
	t.addToScopes(&event, t.after.end)
	t.after = t.after.append(event, now)
	t.hold(event.onlyInHistory())
	t.last = event.Revision
}

// install makes the staged batch the table's state. cache.mu must be held; publish must follow.
func (t *Table) install(now time.Time) {
	before := t.state.Load()
	after, freed := t.after.trim(now)
	t.hold(-freed)
	t.batchStart = before.history.end
	s := &state{
		tree:       t.next.done(),
		history:    after,
		revision:   max(t.last, before.revision),
		exactSince: max(before.exactSince, t.inexactBefore),
	}
	s.previous.Store(before)
	t.state.Store(s)
	t.next, t.after, t.inexactBefore = nil, history{}, 0
}

// replace makes the entries the table's state at a revision, without history.
func (t *Table) replace(entries []*Entry, revision store.Revision) {
	s := &state{
		tree:       newTree(entries),
		history:    t.state.Load().history.reset(revision),
		revision:   revision,
		exactSince: revision,
	}
	t.state.Store(s)
	t.last = revision
	t.rewinds.reset()
	t.hold(-t.held.bytes)
	t.evictedTo.Store(0)
	for _, w := range t.scopes.all {
		w.reset()
	}
}

// trim drops history beyond its bounds. cache.mu must be held.
func (t *Table) trim(now time.Time) {
	t.rewinds.trim(now)
	before := t.state.Load()
	trimmed, freed := before.history.trim(now)
	for _, w := range t.scopes.all {
		w.trim(trimmed.start)
	}
	if trimmed.start == before.history.start {
		return
	}
	t.hold(-freed)
	t.state.Store(&state{tree: before.tree, history: trimmed, revision: before.revision, exactSince: before.exactSince})
}

// dropMemos drops the unused memos of all entries, including those that only history references.
func (t *Table) dropMemos(epoch uint32, all bool) (kept int) {
	s := t.state.Load()
	s.memoized.clear()
	s.tree.ascend("", func(e *Entry) bool {
		kept += e.dropMemos(epoch, all)
		return true
	})
	for position := s.history.start; position < s.history.end; position++ {
		event := s.history.at(position)
		// The newest entry of a key was visited with the tree; it must not be counted twice.
		if event.Type == Deleted {
			kept += event.Entry.dropMemos(epoch, all)
		}
		if event.Old != nil {
			kept += event.Old.dropMemos(epoch, all)
		}
	}
	return kept
}

// HasEncrypted reports whether the table may have entries that the store could not decrypt when it read them.
func (t *Table) HasEncrypted() bool { return t.encrypted.Load() }

func (t *Table) entry(key string, stored []byte, revision store.Revision) *Entry {
	if store.IsEncrypted(stored) {
		t.encrypted.Store(true)
	}
	e := &Entry{table: t, key: key, hash: maphash.String(keySeed, key), revision: revision}
	e.setStored(stored)
	return e
}

// at returns an entry with the same bytes at another revision, that of a deletion.
func (e *Entry) at(revision store.Revision) *Entry {
	same := &Entry{table: e.table, key: e.key, hash: e.hash, revision: revision, size: e.size}
	if data := e.data.Load(); data != nil {
		same.data.Store(data)
	} else {
		same.replacement.Store(e.replacement.Load())
	}
	return same
}

// rewinds keeps the trees of a few requested old revisions, because the pages of a list are all at the revision of the
// first.
type rewinds struct {
	mu   sync.Mutex
	kept []rewind
}

type rewind struct {
	tree     tree
	revision store.Revision
	used     time.Time
}

const (
	maxRewinds = 8
	rewindAge  = time.Minute
	// maxRewound is how many events are undone at most. Beyond that, reading the store costs no more.
	maxRewound = historyMax
)

// SnapshotAt returns the entries at a revision: ErrExpired when the cache cannot make that state any more, but the store may
// still have it (see ListAt), ErrFuture when the cache has not reached it.
func (t *Table) SnapshotAt(revision store.Revision) (Snapshot, error) {
	s, newest := t.published()
	switch {
	case revision > newest:
		return Snapshot{}, ErrFuture
	case revision < t.cache.horizon.Load():
		return Snapshot{}, ErrExpired
	case revision >= s.revision:
		return s.snapshot(revision), nil
	case revision < max(s.exactSince, s.history.floor, t.evictedTo.Load()):
		return Snapshot{}, ErrExpired
	}
	rewound, err := t.rewinds.to(revision, s)
	return Snapshot{tree: rewound, revision: revision}, err
}

// to undoes events, newest first, until the tree is that of the revision. It returns ErrExpired when they are too many.
func (r *rewinds) to(revision store.Revision, s *state) (tree, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	nearest := rewind{tree: s.tree, revision: s.revision}
	for i := range r.kept {
		if kept := &r.kept[i]; kept.revision >= revision && kept.revision <= nearest.revision && kept.revision >= s.exactSince {
			kept.used = now
			nearest = *kept
		}
	}
	if nearest.revision == revision {
		return nearest.tree, nil
	}
	first, end := s.history.after(revision), s.history.after(nearest.revision)
	if end-first > maxRewound {
		return tree{}, ErrExpired
	}
	undo := nearest.tree.edit()
	for position := end - 1; position >= first; position-- {
		event := s.history.at(position)
		if event.Old == nil {
			undo.delete(event.Entry.key)
		} else {
			undo.set(event.Old)
		}
	}
	rewound := rewind{tree: undo.done(), revision: revision, used: now}
	if len(r.kept) < maxRewinds {
		r.kept = append(r.kept, rewound)
		return rewound.tree, nil
	}
	oldest := 0
	for i := range r.kept {
		if r.kept[i].used.Before(r.kept[oldest].used) {
			oldest = i
		}
	}
	r.kept[oldest] = rewound
	return rewound.tree, nil
}

func (r *rewinds) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = nil
}

func (r *rewinds) trim(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := r.kept[:0]
	for _, kept := range r.kept {
		if now.Sub(kept.used) < rewindAge {
			fresh = append(fresh, kept)
		}
	}
	clear(r.kept[len(fresh):])
	r.kept = fresh
}
