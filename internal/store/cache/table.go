package cache

import (
	"bytes"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skiff/internal/store"
)

// state is what a table was at one moment: immutable but for previous.
type state struct {
	tree    tree
	history history
	// revision is that of the last change of this table.
	revision store.Revision
	// exact: trees of revisions since this one can be had by undoing events.
	exact store.Revision
	// previous is set from the moment the state is installed until its revision is published (see published).
	previous atomic.Pointer[state]
	views    views
}

// Table holds the objects of one resource.
type Table struct {
	cache    *Cache
	resource Resource
	state    atomic.Pointer[state]
	// changed is closed when the state changes, if anybody asked for it.
	changed atomic.Pointer[chan struct{}]
	// held is the position from which on events wait for the next waking; notHeld when none do.
	held     atomic.Int64
	watchers atomic.Int64 // open cursors
	removed  atomic.Bool

	// Guarded by cache.mu.
	loaded  bool
	backlog []store.Event // what the feed brought while the table was being loaded
	next    *edit         // the batch being applied
	after   history       // history with the batch being applied
	last    store.Revision
	inexact store.Revision // the batch skips states of the table before this revision
	woken   time.Time      // when watchers were last woken
	waking  bool           // they will be woken soon
	told    int64          // the end of history at the last change

	writes  writes
	rewinds rewinds
}

func newTable(c *Cache, r Resource) *Table {
	t := &Table{cache: c, resource: r}
	t.held.Store(notHeld)
	t.state.Store(&state{})
	return t
}

// published returns the newest state that is not ahead of the cache's revision, and that revision. The state is then
// exactly that of the revision: a state is installed before its revision is published, so a state found not to be ahead
// holds every change up to the revision and none after it.
func (t *Table) published() (*state, store.Revision) {
	if !t.cache.opened.Load() {
		return &state{}, 0
	}
	for {
		revision := t.cache.revision.Load()
		s := t.state.Load()
		if s.revision <= revision {
			return s, revision
		}
		// A batch is between installing and publishing; what was before it still holds.
		if s = s.previous.Load(); s != nil && s.revision <= revision {
			return s, revision
		}
	}
}

// Get returns the newest entry of a key, nil when there is none.
func (t *Table) Get(key string) *Entry {
	s, _ := t.published()
	return s.tree.get(key)
}

// LastChange is the revision of the table's last change that readers can see.
func (t *Table) LastChange() store.Revision {
	s, _ := t.published()
	return s.revision
}

// Snapshot returns everything as it is now.
func (t *Table) Snapshot() Snapshot {
	s, revision := t.published()
	return s.snapshot(revision)
}

func (s *state) snapshot(revision store.Revision) Snapshot {
	return Snapshot{tree: s.tree, revision: revision, views: &s.views}
}

// Resource returns what the table was made of.
func (t *Table) Resource() Resource { return t.resource }

// Snapshot is all entries of a table at one revision.
type Snapshot struct {
	tree     tree
	revision store.Revision
	views    *views // nil when the snapshot is of no state that lists will find again
}

// Revision at which the snapshot was taken, which may be later than any of its entries.
func (s Snapshot) Revision() store.Revision { return s.revision }

// Get returns the entry of a key, nil when there is none.
func (s Snapshot) Get(key string) *Entry { return s.tree.get(key) }

// Len counts the entries whose keys have the prefix; "" counts all. It does not walk over them.
func (s Snapshot) Len(prefix string) int {
	if prefix == "" {
		return s.tree.len()
	}
	return s.tree.count(prefix)
}

// LenFrom counts the entries whose keys have the prefix and are not before from: what remains of a list.
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

// Ascend yields the entries whose keys have the prefix ("" is all), in order, beginning at from if that is not before
// the prefix, until yield returns false.
func (s Snapshot) Ascend(prefix, from string, yield func(*Entry) bool) {
	s.tree.ascend(max(prefix, from), func(e *Entry) bool {
		return strings.HasPrefix(e.key, prefix) && yield(e)
	})
}

// stage applies an event to the batch being made. It is called with cache.mu held.
func (t *Table) stage(event store.Event, now time.Time) {
	if t.next == nil {
		s := t.state.Load()
		t.next = s.tree.edit()
		t.after = s.history
		t.cache.touched = append(t.cache.touched, t)
	}
	if event.Deleted {
		old := t.next.delete(event.Key)
		if old == nil {
			// It came and went while the table did not look. Watchers never heard of it; a writer still waits for it.
			t.writes.saw(Event{Type: Deleted, Entry: t.entry(event.Key, nil, event.Modified), Revision: event.Modified})
			return
		}
		t.record(Event{Type: Deleted, Entry: t.entry(old.key, old.stored, event.Modified), Old: old, Revision: event.Modified}, now)
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
	t.writes.saw(event)
	t.after = t.after.append(event, now)
	t.last = event.Revision
}

// install makes the staged batch the table's state. It is called with cache.mu held; publish must follow.
func (t *Table) install(now time.Time) {
	before := t.state.Load()
	s := &state{
		tree:     t.next.done(),
		history:  t.after.trim(now),
		revision: max(t.last, before.revision),
		exact:    max(before.exact, t.inexact),
	}
	s.previous.Store(before)
	t.state.Store(s)
	t.next, t.after, t.inexact = nil, history{}, 0
}

// replace makes the entries the table's state at a revision, with no history.
func (t *Table) replace(entries []*Entry, revision store.Revision) {
	s := &state{
		tree:     newTree(entries),
		history:  t.state.Load().history.reset(revision),
		revision: revision,
		exact:    revision,
	}
	t.state.Store(s)
	t.last = revision
	t.rewinds.reset()
}

// The first change after a quiet moment is told at once. Under load each waking costs every watcher a write to its
// connection, some ten microseconds, and waiting a little brings several events into one write: the more watchers there
// are, the longer, so that telling them never takes more than a part of the machine. Until then the events are held back
// from those too who come by just now: watchers who take the same steps send the same bytes, which are then made once.
const (
	pacePerWatcher = 50 * time.Microsecond
	paceMax        = 10 * time.Millisecond
	notHeld        = math.MaxInt64
)

// wakePaced tells those who wait for the table that its state changed, now or soon. It is called with cache.mu held.
func (t *Table) wakePaced(now time.Time) {
	before := t.told
	t.told = t.state.Load().history.end
	watchers := t.watchers.Load()
	if watchers == 0 || t.waking {
		return // nobody watches, or all will be woken
	}
	pace := min(time.Duration(watchers)*pacePerWatcher, paceMax)
	if rest := pace - now.Sub(t.woken); rest > 0 && rest <= pace {
		t.waking = true
		t.held.Store(before)
		time.AfterFunc(rest, func() {
			t.cache.mu.Lock()
			defer t.cache.mu.Unlock()
			t.waking, t.woken = false, time.Now()
			t.wake()
		})
		return
	}
	t.woken = now
	t.wake()
}

// wake tells those who wait for the table that its state changed.
func (t *Table) wake() {
	t.held.Store(notHeld)
	if t.changed.Load() == nil {
		return
	}
	if waiting := t.changed.Swap(nil); waiting != nil {
		close(*waiting)
	}
}

// trim drops history that is out of bounds. It is called with cache.mu held.
func (t *Table) trim(now time.Time) {
	t.rewinds.trim(now)
	before := t.state.Load()
	trimmed := before.history.trim(now)
	if trimmed.start == before.history.start {
		return
	}
	t.state.Store(&state{tree: before.tree, history: trimmed, revision: before.revision, exact: before.exact})
}

// forget drops memos of all entries, those that only history holds included.
func (t *Table) forget(epoch uint32, all bool) (kept int) {
	s := t.state.Load()
	s.views.forget()
	s.tree.ascend("", func(e *Entry) bool {
		kept += e.forget(epoch, all)
		return true
	})
	for position := s.history.start; position < s.history.end; position++ {
		event := s.history.at(position)
		// The newest entry of a key was visited with the tree; visiting it twice would count it twice.
		if event.Type == Deleted {
			kept += event.Entry.forget(epoch, all)
		}
		if event.Old != nil {
			kept += event.Old.forget(epoch, all)
		}
	}
	return kept
}

func (t *Table) entry(key string, stored []byte, revision store.Revision) *Entry {
	return &Entry{table: t, key: key, hash: maphash.String(keySeed, key), stored: stored, revision: revision}
}

// rewinds keeps the trees of a few old revisions that were asked for, because a list goes on page by page at
// the revision of its first page.
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
)

// SnapshotAt returns everything as it was at a revision: ErrExpired when history does not reach back, ErrFuture when the
// revision is yet to come.
func (t *Table) SnapshotAt(revision store.Revision) (Snapshot, error) {
	s, newest := t.published()
	switch {
	case revision > newest:
		return Snapshot{}, ErrFuture
	case revision < t.cache.horizon.Load():
		return Snapshot{}, ErrExpired
	case revision >= s.revision:
		return s.snapshot(revision), nil
	case revision < max(s.exact, s.history.floor):
		return Snapshot{}, ErrExpired
	}
	return Snapshot{tree: t.rewinds.to(revision, s), revision: revision}, nil
}

// to undoes events, newest first, until the tree is that of the revision.
func (r *rewinds) to(revision store.Revision, s *state) tree {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	nearest := rewind{tree: s.tree, revision: s.revision}
	for i := range r.kept {
		if kept := &r.kept[i]; kept.revision >= revision && kept.revision <= nearest.revision && kept.revision >= s.exact {
			kept.used = now
			nearest = *kept
		}
	}
	if nearest.revision == revision {
		return nearest.tree
	}
	undo := nearest.tree.edit()
	for position := s.history.after(nearest.revision) - 1; position >= s.history.start; position-- {
		event := s.history.at(position)
		if event.Revision <= revision {
			break
		}
		if event.Old == nil {
			undo.delete(event.Entry.key)
		} else {
			undo.set(event.Old)
		}
	}
	rewound := rewind{tree: undo.done(), revision: revision, used: now}
	if len(r.kept) < maxRewinds {
		r.kept = append(r.kept, rewound)
		return rewound.tree
	}
	oldest := 0
	for i := range r.kept {
		if r.kept[i].used.Before(r.kept[oldest].used) {
			oldest = i
		}
	}
	r.kept[oldest] = rewound
	return rewound.tree
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

// holds reports whether an entry holds the value.
func (e *Entry) holds(value []byte) bool { return bytes.Equal(e.stored, value) }
