package cache

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Scope is the part of a table that a watcher selects from. An event wakes only the watchers of the scopes that it is in,
// so that its cost does not grow with the watchers of other nodes, namespaces and objects.
type Scope struct {
	By ScopeType
	// Value is a key, a namespace's prefix of keys, or a value of the indexed field.
	Value string
}

// ScopeType says how a scope divides a table.
type ScopeType uint8

const (
	// WholeTable has all events.
	WholeTable ScopeType = iota
	// ByNamespace has the events of keys with a namespace's prefix.
	ByNamespace
	// ByKey has the events of one key.
	ByKey
	// ByIndex has the events of objects that have a value of the indexed field, or had it before the event.
	ByIndex

	scopeTypes
)

// contains reports whether an event is in the scope.
func (s Scope) contains(event *Event) bool {
	switch s.By {
	case ByNamespace:
		return namespacePrefix(event.Entry.key) == s.Value
	case ByKey:
		return event.Entry.key == s.Value
	case ByIndex:
		value, before, known := event.indexValues()
		return !known || value == s.Value || before == s.Value
	}
	return true
}

// namespacePrefix is a key without the name.
func namespacePrefix(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// indexValues returns the values of the indexed field after and before the event. known is false when they cannot be read
// from the stored bytes; the event then is in every scope.
func (e *Event) indexValues() (value, before string, known bool) {
	value, known = e.Entry.indexValue()
	if !known || e.Old == nil || e.Type == Deleted {
		return value, value, known
	}
	before, known = e.Old.indexValue()
	return value, before, known
}

// scopeWatchers are the watchers of one scope, and the events in it. The events of the whole table are its history.
type scopeWatchers struct {
	table *Table
	scope Scope
	// changed is closed at the next event in the scope; nil if nothing waits.
	changed atomic.Pointer[chan struct{}]
	// heldFrom is the position from which events are held back until the next wake; notHeld when none are.
	heldFrom atomic.Int64

	// Guarded by cache.mu.
	cursors       int       // open ones
	woken         time.Time // when watchers were last woken
	wakeScheduled bool      // a timer will wake them
	changedFrom   int64     // the position of the first event in the batch being applied; notHeld if there is none

	mu sync.Mutex
	// positions are those of the events since there are watchers. The first has the number firstNumber.
	positions   []int64
	firstNumber int64
}

// scopes are the scopes of a table that have watchers, besides the whole table. cache.mu guards them.
type scopes struct {
	all map[Scope]*scopeWatchers
	// count counts them by type.
	count [scopeTypes]int
	// changed are those with events in the batch being applied.
	changed []*scopeWatchers
}

func newScopeWatchers(t *Table, scope Scope) *scopeWatchers {
	w := &scopeWatchers{table: t, scope: scope, changedFrom: notHeld}
	w.heldFrom.Store(notHeld)
	return w
}

// join adds a cursor to the watchers of its scope.
func (t *Table) join(c *Cursor) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	c.watchers = &t.whole
	if c.scope.By != WholeTable {
		if t.scopes.all == nil {
			t.scopes.all = map[Scope]*scopeWatchers{}
		}
		if c.watchers = t.scopes.all[c.scope]; c.watchers == nil {
			c.watchers = newScopeWatchers(t, c.scope)
			t.scopes.all[c.scope] = c.watchers
			t.scopes.count[c.scope.By]++
		}
		c.joined = t.state.Load().history.end
		c.number = c.watchers.end()
	}
	c.watchers.cursors++
}

// leave removes a cursor. The last one of a scope removes the scope.
func (t *Table) leave(c *Cursor) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	w := c.watchers
	if w.cursors--; w.cursors == 0 && w != &t.whole {
		delete(t.scopes.all, w.scope)
		t.scopes.count[w.scope.By]--
	}
}

// end is the number of the next event.
func (w *scopeWatchers) end() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.firstNumber + int64(len(w.positions))
}

// addToScopes adds the event at a position to the scopes that it is in. cache.mu must be held.
func (t *Table) addToScopes(event *Event, position int64) {
	if len(t.scopes.all) == 0 {
		return
	}
	if t.scopes.count[ByKey] > 0 {
		t.addToScope(Scope{ByKey, event.Entry.key}, position)
	}
	if t.scopes.count[ByNamespace] > 0 {
		t.addToScope(Scope{ByNamespace, namespacePrefix(event.Entry.key)}, position)
	}
	if t.scopes.count[ByIndex] == 0 {
		return
	}
	value, before, known := event.indexValues()
	if !known {
		for scope, w := range t.scopes.all {
			if scope.By == ByIndex {
				w.add(position)
			}
		}
		return
	}
	t.addToScope(Scope{ByIndex, value}, position)
	if before != value {
		t.addToScope(Scope{ByIndex, before}, position)
	}
}

func (t *Table) addToScope(scope Scope, position int64) {
	if w := t.scopes.all[scope]; w != nil {
		w.add(position)
	}
}

// add adds an event of the batch being applied. cache.mu must be held.
func (w *scopeWatchers) add(position int64) {
	t := w.table
	if w.changedFrom == notHeld {
		w.changedFrom = position
		t.scopes.changed = append(t.scopes.changed, w)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.positions) == cap(w.positions) {
		w.dropBefore(t.after.start)
	}
	w.positions = append(w.positions, position)
}

// trim drops the positions before the start of history.
func (w *scopeWatchers) trim(start int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropBefore(start)
	if cap(w.positions) > 4*len(w.positions) {
		w.positions = slices.Clone(w.positions)
	}
}

// dropBefore drops the positions before start. mu must be held.
func (w *scopeWatchers) dropBefore(start int64) {
	dropped, _ := slices.BinarySearch(w.positions, start)
	w.positions = slices.Delete(w.positions, 0, dropped)
	w.firstNumber += int64(dropped)
}

// reset drops all positions; every cursor of the scope expires.
func (w *scopeWatchers) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firstNumber += int64(len(w.positions)) + 1
	w.positions = nil
}

// read returns the events at the cursor and moves it. h is the history of the published state.
func (w *scopeWatchers) read(c *Cursor, h *history) (events []Event, more bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.number < w.firstNumber {
		return nil, false, ErrExpired
	}
	end := min(h.end, w.heldFrom.Load())
	for _, position := range w.positions[c.number-w.firstNumber:] {
		if position >= h.end {
			break // not published yet
		}
		if position < h.start {
			return nil, false, ErrExpired
		}
		event := h.at(position)
		// A revision is never split.
		if position >= end || len(events) >= pollLimit && event.Revision != events[len(events)-1].Revision {
			c.after = max(c.after, event.Revision-1)
			return events, true, nil
		}
		c.number++
		if event.Revision > c.after {
			events = append(events, *event)
		}
	}
	return events, false, nil
}

// The first change after an idle time wakes watchers at once. Under load each wake-up costs every watcher a write to its
// connection, about ten microseconds, and a short delay puts several events into one write. The delay grows with the
// number of watchers, so that waking them never takes more than a fraction of the CPU. Events are held back during the
// delay from all watchers: watchers that receive the same batches send the same bytes, which are encoded once.
const (
	batchDelayPerWatcher = 50 * time.Microsecond
	maxBatchDelay        = 10 * time.Millisecond
	notHeld              = math.MaxInt64
)

// wakeBatched wakes the watchers now or after a delay. from is the position of the first new event. cache.mu must be held.
func (w *scopeWatchers) wakeBatched(now time.Time, from int64) {
	if w.cursors == 0 || w.wakeScheduled {
		return // no watchers, or a wake-up is already scheduled
	}
	delay := min(time.Duration(w.cursors)*batchDelayPerWatcher, maxBatchDelay)
	if rest := delay - now.Sub(w.woken); rest > 0 && rest <= delay {
		w.wakeScheduled = true
		w.heldFrom.Store(from)
		time.AfterFunc(rest, func() {
			w.table.cache.mu.Lock()
			defer w.table.cache.mu.Unlock()
			w.wakeScheduled, w.woken = false, time.Now()
			w.wake()
		})
		return
	}
	w.woken = now
	w.wake()
}

// wake wakes the watchers.
func (w *scopeWatchers) wake() {
	w.heldFrom.Store(notHeld)
	if w.changed.Load() == nil {
		return
	}
	if waiting := w.changed.Swap(nil); waiting != nil {
		close(*waiting)
	}
}

// next returns a channel that is closed at the next event in the scope.
func (w *scopeWatchers) next() <-chan struct{} {
	for {
		if waiting := w.changed.Load(); waiting != nil {
			return *waiting
		}
		waiting := make(chan struct{})
		if w.changed.CompareAndSwap(nil, &waiting) {
			return waiting
		}
	}
}

// wakeChanged wakes the watchers of the scopes with new events; from is the position of the table's first new event.
// cache.mu must be held.
func (t *Table) wakeChanged(now time.Time, from int64) {
	t.whole.wakeBatched(now, from)
	for _, w := range t.scopes.changed {
		w.wakeBatched(now, w.changedFrom)
		w.changedFrom = notHeld
	}
	clear(t.scopes.changed)
	t.scopes.changed = t.scopes.changed[:0]
}

// wakeAll wakes all watchers of the table. cache.mu must be held.
func (t *Table) wakeAll() {
	t.whole.wake()
	for _, w := range t.scopes.all {
		w.wake()
	}
}
