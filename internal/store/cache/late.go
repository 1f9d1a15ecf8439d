package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"skiff/internal/store"
)

// unclaimed keeps what the feed brought for no table since the tables were loaded, because the tables of custom resources
// are made a moment later, when their definitions have been read, and their watchers want history too.
type unclaimed struct {
	from   store.Revision // all events after this one are here; 0 when they no longer are
	until  time.Time
	events []store.Event
}

const (
	claimTime    = time.Minute
	maxUnclaimed = 2 * reach
)

func (u *unclaimed) add(event store.Event) {
	if u.from == 0 {
		return
	}
	if u.events = append(u.events, event); len(u.events) > maxUnclaimed {
		u.drop()
	}
}

func (u *unclaimed) trim(now time.Time) {
	if now.After(u.until) {
		u.drop()
	}
}

func (u *unclaimed) drop() { *u = unclaimed{} }

// nested reports whether another table claimed the objects of this one before it was there.
func (c *Cache) nested(t *Table) bool {
	for prefix := range *c.tables.Load() {
		if prefix != t.resource.Prefix && strings.HasPrefix(t.resource.Prefix, prefix) {
			return true
		}
	}
	return false
}

// loadLate loads a table while the feed is running: what the feed brings meanwhile waits in the table's backlog. Shortly
// after the start the table begins where the others began.
func (c *Cache) loadLate(t *Table) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	c.insist(ctx, "load", func(ctx context.Context) error {
		c.mu.Lock()
		generation := c.generation
		if t.removed.Load() || t.loaded {
			c.mu.Unlock()
			return nil
		}
		from := c.unclaimed.from
		if c.nested(t) {
			from = 0
		}
		c.mu.Unlock()
		entries, revision, err := c.list(ctx, t, from)
		if err != nil {
			if errors.Is(err, store.ErrCompacted) {
				c.mu.Lock()
				c.unclaimed.drop()
				c.mu.Unlock()
			}
			return err
		}
		if err := c.WaitFor(ctx, revision); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.generation != generation || from > 0 && c.unclaimed.from != from {
			return fmt.Errorf("history was lost while %s was loaded", t.resource.Prefix)
		}
		t.replace(entries, revision)
		now := time.Now()
		if from > 0 {
			tables := *c.tables.Load()
			for _, event := range c.unclaimed.events {
				if c.route(tables, event.Key) == t {
					t.stage(event, now)
				}
			}
		}
		for _, event := range t.backlog {
			if event.Modified > revision {
				t.stage(event, now)
			}
		}
		t.backlog, t.loaded = nil, true
		c.publish(c.revision.Load(), now)
		t.wakeWriters(true)
		return nil
	})
}
