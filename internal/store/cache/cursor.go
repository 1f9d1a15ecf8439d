package cache

import (
	"context"

	"skiff/internal/store"
)

// EventType is the type of a change.
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

// pollLimit is about how many events Poll returns at once.
const pollLimit = 256

// Cursor is a watcher's position in a table's history. It costs the table nothing. It must be used by one goroutine at a
// time.
type Cursor struct {
	table    *Table
	position int64 // unplaced until the cache is loaded
	// after is the revision up to which the cursor has delivered everything.
	after store.Revision
}

const unplaced = -1

// Watch returns a cursor to the changes after a revision, or ErrExpired when history no longer contains them; before the
// cache is loaded Poll returns that error instead. A revision in the future is waited for. A Watch from the revision of a
// Snapshot returns every later change exactly once.
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

// place sets the cursor's position in history. Before the cache is loaded it stays unplaced.
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

// Poll returns the available events, possibly none, and the revision up to which the watcher has then received
// everything. The events must not be changed. After an error the cursor must not be used again.
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
	// The cache may have been behind the cursor's revision; skip the events that the watcher already has.
	for c.position < h.end && h.at(c.position).Revision <= c.after {
		c.position++
	}
	events = h.slice(c.position, min(c.position+pollLimit, max(c.position, c.table.heldFrom.Load())))
	c.position += int64(len(events))
	if c.position == h.end {
		c.after = max(c.after, published)
	} else {
		c.after = max(c.after, h.at(c.position).Revision-1)
	}
	return events, c.after, nil
}

// Changed returns a channel that is closed at the table's next change. Call it before Poll, to miss no change.
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

// Next polls until there are events, or returns the error of ctx.
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

// Close ends the cursor. It must be called once: the table counts its watchers.
func (c *Cursor) Close() { c.table.watchers.Add(-1) }
