package cache

import (
	"iter"
	"strings"
	"sync"
)

// tables are the tables of a cache by prefix. There may be as many as custom resource definitions, so adding one must not cost more than the others
// have cost. They change while Cache.mu is held.
type tables struct {
	mu       sync.RWMutex
	byPrefix map[string]*Table
}

// find returns the table with a prefix, nil if there is none.
func (t *tables) find(prefix string) *Table {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byPrefix[prefix]
}

// set sets the table with a prefix; nil removes it.
func (t *tables) set(prefix string, table *Table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if table == nil {
		delete(t.byPrefix, prefix)
	} else {
		t.byPrefix[prefix] = table
	}
}

// all returns all tables.
func (t *tables) all() []*Table {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]*Table, 0, len(t.byPrefix))
	for _, table := range t.byPrefix {
		all = append(all, table)
	}
	return all
}

// route returns the table of a key: the one with the longest matching prefix.
func (t *tables) route(key string) (found *Table) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for prefix := range prefixesOf(key) {
		if table := t.byPrefix[prefix]; table != nil {
			found = table
		}
	}
	return found
}

// nests reports whether a table has a prefix that the given one begins with.
func (t *tables) nests(prefix string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for shorter := range prefixesOf(strings.TrimSuffix(prefix, "/")) {
		if t.byPrefix[shorter] != nil {
			return true
		}
	}
	return false
}

// prefixesOf are the possible prefixes of a key, the shortest first.
func prefixesOf(key string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := len(root) - 1; i < len(key); {
			if !yield(key[:i+1]) {
				return
			}
			next := strings.IndexByte(key[i+1:], '/')
			if next < 0 {
				return
			}
			i += 1 + next
		}
	}
}
