package cache

// historyBudget bounds the values that only the history of all tables together references: those of replaced and deleted
// entries. When it is exceeded, the table that holds most of them evicts its oldest ones, so that a kind with large or
// many writes does not take the memory of the others. The events stay; a reader that needs an evicted value gets it from
// the store, which keeps it at least as long as history keeps the event.
const historyBudget = 32 << 20

// evictStep is how much one table evicts before the largest is determined again.
const evictStep = historyBudget / 64

// heldValues are the values that only a table's history references. cache.mu guards them.
type heldValues struct {
	bytes int
	// next is the position of the first event whose values were not evicted.
	next int64
}

// hold counts bytes that only history references; a negative number when it no longer does. cache.mu must be held.
func (t *Table) hold(bytes int) {
	t.held.bytes += bytes
	t.cache.heldBytes += bytes
}

// evictValues evicts until the budget is met. mu must be held.
func (c *Cache) evictValues() {
	for c.heldBytes > historyBudget {
		var largest *Table
		for t := range c.allTables() {
			if largest == nil || t.held.bytes > largest.held.bytes {
				largest = t
			}
		}
		if largest == nil || largest.evictOldest(evictStep) == 0 {
			return
		}
	}
}

// evictOldest evicts the oldest values, at least the given number of bytes if there are as many, and returns how many
// bytes it evicted. cache.mu must be held.
func (t *Table) evictOldest(bytes int) (evicted int) {
	h := t.state.Load().history
	position := max(t.held.next, h.start)
	for ; position < h.end && evicted < bytes; position++ {
		event := h.at(position)
		size := event.onlyInHistory()
		h.chunkOf(position).bytes -= size
		evicted += size
		event.evictValues()
		t.evictedTo.Store(event.Revision)
	}
	t.held.next = position
	t.hold(-evicted)
	return evicted
}

// evictValues evicts the values that only this event references. The store has them until the event.
func (e *Event) evictValues() {
	if e.Old == nil {
		return
	}
	e.Old.evict(e.Old.revision, e.Revision-1)
	if e.Type == Deleted {
		e.Entry.evict(e.Old.revision, e.Revision-1)
	}
}
