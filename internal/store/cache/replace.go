package cache

import (
	"iter"
	"math"
	"time"
)

// A table is replaced when its objects are decoded differently from now on: the definition of a custom resource has changed. Requests that
// have begun with the old table finish with it: until the last of them has ended, both tables follow the store. The cursors of the
// old table end at once, because a watcher must not see objects of two definitions.

// maxRetired bounds the replaced tables with one prefix that still have users. Each holds all objects once more.
const maxRetired = 3

// noUsers is the count of users of a table that was removed because nobody used it.
const noUsers = math.MinInt64 / 2

// Replace makes a table in the place of another one with the same prefix. It returns when the new table is loaded, as Add does. The old table
// goes on as before until it is retired.
func (c *Cache) Replace(old *Table, r Resource) *Table {
	t := newTable(c, r)
	t.replaces.Store(old)
	if c.register(t) {
		c.loadWhileRunning(t)
	}
	return t
}

// Acquire keeps a table up to date until Release, even if it is replaced meanwhile. It returns false for a table that was already retired
// or removed.
func (t *Table) Acquire() bool {
	if t.users.Add(1) > 0 && !t.retired.Load() {
		return true
	}
	t.Release()
	return false
}

// Release undoes Acquire. The last user of a retired table removes it.
func (t *Table) Release() {
	if t.users.Add(-1) != 0 || !t.retired.Load() {
		return
	}
	c := t.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeUnused(t)
}

// Supersede is called before requests find the table that replaces this one. Objects that are written from now on may have content that this
// table's codec drops, so they are not updated here: such updates fail with ErrReplaced. Without writes, so do all writes that have not begun.
func (t *Table) Supersede(writes bool) {
	t.replacedAt.Store(t.cache.Revision())
	if !writes {
		t.writes.close(ErrReplaced)
	}
}

// Retire ends the cursors of a table that was replaced with ErrRemoved. The table is removed when it has no more users, after the given time at
// the latest. It must not be found any more when Retire is called.
func (c *Cache) Retire(t *Table, limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.retired.Store(true)
	t.wakeAll()
	if c.removeUnused(t) {
		return
	}
	t.expiry = time.AfterFunc(limit, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.removeReplaced(t)
	})
	c.boundRetired(t.resource.Prefix)
}

// removeUnused removes a retired table that has no users. mu must be held.
func (c *Cache) removeUnused(t *Table) bool {
	unused := t.users.CompareAndSwap(0, noUsers)
	if unused {
		c.removeReplaced(t)
	}
	return unused
}

// boundRetired removes the oldest replaced table if there are too many. mu must be held.
func (c *Cache) boundRetired(prefix string) {
	count, last := -1, c.tables.find(prefix)
	for t := last; t != nil; t = t.replaces.Load() {
		count, last = count+1, t
	}
	if count > maxRetired {
		c.removeReplaced(last)
	}
}

// removeReplaced removes a table that another one replaces. Its writes fail with ErrReplaced. mu must be held.
func (c *Cache) removeReplaced(t *Table) {
	for newer := c.tables.find(t.resource.Prefix); newer != nil; newer = newer.replaces.Load() {
		if newer.replaces.Load() == t {
			newer.replaces.Store(t.replaces.Load())
			t.end(ErrReplaced)
			return
		}
	}
}

// Remove removes a table, and those that it replaces. Their cursors and writes end with ErrRemoved; the objects in the store are kept.
func (c *Cache) Remove(t *Table) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tables.find(t.resource.Prefix) != t {
		return
	}
	c.tables.set(t.resource.Prefix, nil)
	c.unclaimed.drop() // the events of this table are not among the unclaimed ones
	for next := t; next != nil; next = t {
		t = next.replaces.Load()
		next.end(ErrRemoved)
	}
}

// end ends a table that receives no more events. Later writes fail with reason. cache.mu must be held.
func (t *Table) end(reason error) {
	t.replaces.Store(nil)
	t.endedAt.Store(t.cache.Revision())
	t.retired.Store(true)
	t.removed.Store(true)
	if t.expiry != nil {
		t.expiry.Stop()
	}
	t.hold(-t.held.bytes)
	t.wakeAll()
	t.writes.close(reason)
	t.wakeWriters(true)
}

// allTables are the tables, and the replaced ones that still follow the store.
func (c *Cache) allTables() iter.Seq[*Table] {
	return func(yield func(*Table) bool) {
		for _, t := range c.tables.all() {
			for ; t != nil; t = t.replaces.Load() {
				if !yield(t) {
					return
				}
			}
		}
	}
}
