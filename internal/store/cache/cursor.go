package cache

import (
	"context"

	"skiff/internal/store"
)

// EventType says what happened to an object.
type EventType uint8

const (
	Added EventType = iota + 1
	Modified
	Deleted
)

func (t EventType) String() string {
	switch t {
	case Added:
		return "ADDED"
	case Modified:
		return "MODIFIED"
	case Deleted:
		return "DELETED"
	}
	return "UNKNOWN"
}

// Event is one change of a table. For a deletion Entry is the last state with the revision of the deletion, and Old is the
// entry that was deleted.
type Event struct {
	Entry, Old *Entry
	Revision   store.Revision
	Type       EventType
}

// pollLimit is about how many events a cursor hands out at once.
const pollLimit = 256

// Cursor is a place in a table's history from which a watcher reads on. It costs the table nothing. It is for one
// goroutine at a time.
type Cursor struct {
	table    *Table
	position int64 // unplaced until the cache is loaded
	// after is the revision up to which the cursor has nothing more to deliver.
	after store.Revision
}

const unplaced = -1

// Watch returns a cursor to the changes after a revision, ErrExpired when history no longer reaches back that
// far; before the cache is loaded that error comes later, with Poll. A revision yet to come is waited for. After a Snapshot,
// Watch of its revision sees every later change exactly once.
func (t *Table) Watch(after store.Revision) (*Cursor, error) {
	if t.removed.Load() {
		return nil, ErrRemoved
	}
	c := &Cursor{table: t, position: unplaced, after: after}
	if err := c.place(); err != nil {
		return nil, err
	}
	t.watchers.Add(1)
	return c, nil
}

// place finds the cursor's place in history, which has none before the cache is loaded.
func (c *Cursor) place() error {
	select {
	case <-c.table.cache.ready:
	default:
		return nil
	}
	s, _ := c.table.published()
	if c.after < s.history.floor {
		return ErrExpired
	}
	c.position = s.history.after(c.after)
	return nil
}

// Poll returns the events that are there, none when there are none, and the revision up to which the watcher has
// then seen everything. The events must not be changed. After an error the cursor is of no more use.
func (c *Cursor) Poll() (events []Event, reached store.Revision, err error) {
	if c.table.removed.Load() {
		return nil, c.after, ErrRemoved
	}
	if c.position == unplaced {
		if err := c.place(); err != nil || c.position == unplaced {
			return nil, c.after, err
		}
	}
	s, published := c.table.published()
	h := &s.history
	if c.position < h.start {
		return nil, c.after, ErrExpired
	}
	// The cache may not have come to where the cursor begins; then these events are old news to the watcher.
	for c.position < h.end && h.at(c.position).Revision <= c.after {
		c.position++
	}
	events = h.slice(c.position, min(c.position+pollLimit, max(c.position, c.table.held.Load())))
	c.position += int64(len(events))
	if c.position == h.end {
		c.after = max(c.after, published)
	} else {
		c.after = max(c.after, h.at(c.position).Revision-1)
	}
	return events, c.after, nil
}

// Changed returns a channel that is closed at the table's next change. To miss nothing, take it before Poll.
func (c *Cursor) Changed() <-chan struct{} {
	for {
		if waiting := c.table.changed.Load(); waiting != nil {
			return *waiting
		}
		waiting := make(chan struct{})
		if c.table.changed.CompareAndSwap(nil, &waiting) {
			return waiting
		}
	}
}

// Next is Poll that waits until there are events, or returns the error of ctx when that ends.
func (c *Cursor) Next(ctx context.Context) (events []Event, reached store.Revision, err error) {
	for {
		changed := c.Changed()
		events, reached, err = c.Poll()
		if len(events) > 0 || err != nil {
			return events, reached, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, reached, ctx.Err()
		case <-c.table.cache.done:
			return nil, reached, store.ErrUnavailable
		}
	}
}

// Close ends the cursor. It must be called once: the table counts who watches it.
func (c *Cursor) Close() { c.table.watchers.Add(-1) }
