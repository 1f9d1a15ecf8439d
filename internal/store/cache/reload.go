package cache

import (
	"cmp"
	"context"
	"slices"
	"time"

	"skiff/internal/store"
)

// reload lists all tables when the watch feed has lost changes, and turns the differences into events, so that watchers
// need not start over. The states in between are not known: several writes of an object become one event, and a deletion
// gets the revision of the list.
func (c *Cache) reload(ctx context.Context) error {
	revision, err := c.store.Current(ctx)
	if err != nil {
		return err
	}
	lists := map[*Table][]*Entry{}
	for !c.installReloaded(lists, revision) {
		for t := range c.allTables() {
			if _, listed := lists[t]; listed {
				continue
			}
			if lists[t], _, err = c.list(ctx, t, revision); err != nil {
				return err
			}
		}
	}
	return nil
}

// installReloaded installs the lists, unless a table has none: one that was loaded meanwhile, or that was not found because the table that
// replaces it was removed.
func (c *Cache) installReloaded(lists map[*Table][]*Entry, revision store.Revision) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.allTables() {
		if _, listed := lists[t]; t.loaded && !listed {
			return false
		}
	}
	c.generation++
	c.unclaimed.drop()
	reached := c.revision.Load()
	now := time.Now()
	for t := range c.allTables() {
		entries := lists[t]
		t.backlog = nil
		switch {
		case !t.loaded:
			// loadWhileRunning checks the generation and starts over.
		case revision < reached:
			// The store was restored to an older state. No cursor is valid after that.
			t.replace(entries, revision)
		default:
			t.reconcile(entries, revision, now)
		}
	}
	if revision < reached {
		c.pastRevisions = nil
		c.horizon.Store(0)
		c.log.Warn("store was restored to an older state, all watches start over", "from", reached, "to", revision)
	}
	c.publish(revision, now)
	for t := range c.allTables() {
		t.wakeAll()
		t.wakeWriters(true)
	}
	return true
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
			// Deleted and created again: the deletion was some time before.
			events = append(events, store.Event{KeyValue: store.KeyValue{Key: entry.key, Modified: entry.revision - 1}, Deleted: true})
		}
		events = append(events, store.Event{KeyValue: store.KeyValue{Key: entry.key, Value: entry.Stored(), Modified: entry.revision}})
	}
	slices.SortStableFunc(events, func(a, b store.Event) int { return cmp.Compare(a.Modified, b.Modified) })
	if len(events) > 0 {
		t.inexactBefore = revision
	}
	for _, event := range events {
		t.stage(event, now)
	}
}

// sameObject reports whether two states are of the same object, not of two objects with the same name. It does not wait for
// a KMS plugin: objects that could not be decrypted are taken for the same.
func sameObject(a, b *Entry) bool {
	if a.encrypted() || b.encrypted() {
		return true
	}
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
