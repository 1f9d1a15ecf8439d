package cache

import (
	"cmp"
	"context"
	"slices"
	"time"

	"skiff/internal/store"
)

// reload finds out by listing what the feed can no longer tell, and hands the difference to watchers as events, so that
// they need not start over. What lies between the two revisions is not known exactly: several writes of an object
// appear as one, and a deletion gets the revision of the list.
func (c *Cache) reload(ctx context.Context) error {
	revision, err := c.store.Current(ctx)
	if err != nil {
		return err
	}
	tables := *c.tables.Load()
	lists := make(map[*Table][]*Entry, len(tables))
	for _, t := range tables {
		if lists[t], _, err = c.list(ctx, t, revision); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.unclaimed.drop()
	reached := c.revision.Load()
	now := time.Now()
	for _, t := range *c.tables.Load() {
		entries, listed := lists[t]
		t.backlog = nil
		switch {
		case !t.loaded || !listed:
			// Whoever loads it sees the new generation and starts again.
		case revision < reached:
			// The store was put back to an older state. No cursor can make sense of that.
			t.replace(entries, revision)
		default:
			t.reconcile(entries, revision, now)
		}
	}
	if revision < reached {
		c.marks = nil
		c.horizon.Store(0)
		c.log.Warn("the store went back to an older state, all watches start over", "from", reached, "to", revision)
	}
	c.publish(revision, now)
	for _, t := range *c.tables.Load() {
		t.wake()
		t.wakeWriters(true)
	}
	return nil
}

// reconcile stages the events that lead from the table's tree to the entries listed at a revision.
func (t *Table) reconcile(entries []*Entry, revision store.Revision, now time.Time) {
	var events []store.Event
	listed := newTree(entries)
	before := t.state.Load().tree
	before.ascend("", func(old *Entry) bool {
		if listed.get(old.key) == nil {
			events = append(events, store.Event{KeyValue: store.KeyValue{Key: old.key, Modified: revision}, Deleted: true})
		}
		return true
	})
	for _, entry := range entries {
		old := before.get(entry.key)
		if old != nil && old.revision == entry.revision {
			continue
		}
		if old != nil && !sameObject(old, entry) {
			// Deleted and created again: the deletion came some time before.
			events = append(events, store.Event{KeyValue: store.KeyValue{Key: entry.key, Modified: entry.revision - 1}, Deleted: true})
		}
		events = append(events, store.Event{KeyValue: store.KeyValue{Key: entry.key, Value: entry.stored, Modified: entry.revision}})
	}
	slices.SortStableFunc(events, func(a, b store.Event) int { return cmp.Compare(a.Modified, b.Modified) })
	if len(events) > 0 {
		t.inexact = revision
	}
	for _, event := range events {
		t.stage(event, now)
	}
}

// sameObject reports whether two states belong to one object, not to two that had the same name one after the other.
func sameObject(a, b *Entry) bool {
	before, err := a.Object()
	if err != nil {
		return true
	}
	after, err := b.Object()
	if err != nil {
		return true
	}
	return before.GetUID() == after.GetUID()
}
