package cache

import (
	"cmp"
	"context"
	"fmt"

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

// Cursor is a watcher's position in a table's history, or in the part of it that is in the cursor's scope. It must be used
// by one goroutine at a time.
type Cursor struct {
	table    *Table
	scope    Scope
	watchers *scopeWatchers // nil until the cursor is placed
	position int64          // in history; unplaced until the cache is loaded
	// A cursor of a scope reads history up to joined, and from there on the events of the scope, of which number is the next.
	joined, number int64
	// after is the revision up to which the cursor has delivered everything.
	after store.Revision
	// published is the revision of the table at the last Poll.
	published store.Revision
}

const unplaced = -1

// Position is where a cursor is among the events of its table, or of its scope. Cursors of the same table and scope that are at
// the same position return the same events next.
type Position struct {
	index int64 // of the next event
	after store.Revision
}

// Compare returns -1 if events between p and other are still to be returned at p, 1 if they are at other, 0 if there are none.
func (p Position) Compare(other Position) int { return cmp.Compare(p.index, other.index) }

// Position returns the cursor's position. ok is false if it has none that can be compared with others: it has not reached the
// events of its scope, or waits for a revision in the future.
func (c *Cursor) Position() (p Position, ok bool) {
	p = Position{index: c.position, after: c.after}
	if c.scope.By != WholeTable {
		p.index = c.number
	}
	return p, c.position != unplaced && c.position >= c.joined && c.after <= c.published
}

// MoveTo moves the cursor to the position of another one of the same table and scope, whose events its watcher has received.
// Both must have positions that can be compared.
func (c *Cursor) MoveTo(p Position) {
	if c.scope.By == WholeTable {
		c.position = p.index
	} else {
		c.number = p.index
	}
	c.after = max(c.after, p.after)
	c.published = max(c.published, p.after)
}

// ExpiredError is returned by Watch for a revision that history no longer contains. It is an ErrExpired.
type ExpiredError struct {
	Requested store.Revision
	Oldest    store.Revision // from which a watch could start
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("too old resource version: %d (%d)", e.Requested, e.Oldest)
}

func (e *ExpiredError) Unwrap() error { return ErrExpired }

// Watch returns a cursor to the changes after a revision, or an *ExpiredError when history no longer contains them; before
// the cache is loaded Poll returns that error instead. A revision in the future is waited for. A Watch from the revision of
// a Snapshot returns every later change in the scope exactly once. At its beginning it may return others too.
func (t *Table) Watch(after store.Revision, scope Scope) (*Cursor, error) {
	if t.retired.Load() {
		return nil, ErrRemoved
	}
	if scope.By == ByIndex && t.resource.Index == nil {
		panic("cache: " + t.resource.Name + " has no indexed field")
	}
	c := &Cursor{table: t, scope: scope, position: unplaced, after: after}
	if err := c.place(); err != nil {
		return nil, err
	}
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
		return &ExpiredError{Requested: c.after, Oldest: s.history.floor}
	}
	c.position = s.history.after(c.after)
	c.table.join(c)
	return nil
}

// Poll returns the available events, possibly none, and the revision up to which the watcher has then received
// everything. The events must not be changed. After an error the cursor must not be used again, but must be closed.
func (c *Cursor) Poll() (events []Event, reached store.Revision, err error) {
	if c.table.retired.Load() {
		return nil, c.after, ErrRemoved
	}
	if c.position == unplaced {
		if err := c.place(); err != nil || c.position == unplaced {
			return nil, c.after, err
		}
	}
	s, published := c.table.published()
	c.published = published
	h := &s.history
	if c.scope.By == WholeTable {
		events, err = c.pollTable(h, published)
	} else {
		events, err = c.pollScope(h, published)
	}
	return events, c.after, err
}

// pollTable reads history.
func (c *Cursor) pollTable(h *history, published store.Revision) ([]Event, error) {
	if c.position < h.start {
		return nil, ErrExpired
	}
	c.skipKnown(h)
	events := h.slice(c.position, min(c.position+pollLimit, max(c.position, c.watchers.heldFrom.Load())))
	c.position += int64(len(events))
	if c.position == h.end {
		c.after = max(c.after, published)
	} else {
		c.after = max(c.after, h.at(c.position).Revision-1)
	}
	return events, nil
}

// skipKnown skips the events that the watcher already has, because the cache was behind the cursor's revision.
func (c *Cursor) skipKnown(h *history) {
	for c.position < h.end && h.at(c.position).Revision <= c.after {
		c.position++
	}
}

// pollScope reads history up to where the cursor joined its scope, then the events of the scope.
func (c *Cursor) pollScope(h *history, published store.Revision) (events []Event, err error) {
	for c.position < c.joined && len(events) == 0 {
		if c.position < h.start {
			return nil, ErrExpired
		}
		read := h.slice(c.position, min(c.position+pollLimit, c.joined))
		c.position += int64(len(read))
		for i := range read {
			if read[i].Revision > c.after && c.scope.contains(&read[i]) {
				events = append(events, read[i])
			}
		}
		c.after = max(c.after, read[len(read)-1].Revision)
	}
	if len(events) > 0 {
		return events, nil
	}
	events, more, err := c.watchers.read(c, h)
	if err == nil && !more {
		c.after = max(c.after, published)
	}
	return events, err
}

// Changed returns a channel that is closed at the next change in the cursor's scope. Call it before Poll, to miss no change.
func (c *Cursor) Changed() <-chan struct{} {
	if c.watchers == nil {
		return c.table.whole.next() // all are woken when the cache is loaded
	}
	return c.watchers.next()
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
func (c *Cursor) Close() {
	if c.watchers != nil {
		c.table.leave(c)
	}
}
