package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"skiff/internal/store"
)

// unclaimed keeps the events of no table since the tables were loaded. The tables of custom resources are added a little
// later, when their definitions have been read, and their watchers need history too.
type unclaimed struct {
	from   store.Revision // it has all events after this one; 0 when it no longer does
	until  time.Time
	events []store.Event
	bytes  int // of the events' values
}

const (
	unclaimedLifetime = time.Minute
	maxUnclaimed      = 2 * maxReplay
	maxUnclaimedBytes = 16 << 20
)

func (u *unclaimed) add(event store.Event) {
	if u.from == 0 {
		return
	}
	u.events = append(u.events, event)
	u.bytes += len(event.Value)
	if len(u.events) > maxUnclaimed || u.bytes > maxUnclaimedBytes {
		u.drop()
	}
}

func (u *unclaimed) trim(now time.Time) {
	if now.After(u.until) {
		u.drop()
	}
}

func (u *unclaimed) drop() { *u = unclaimed{} }

// loadWhileRunning loads a table while the watch feed runs: the events received meanwhile wait in the table's backlog.
// Shortly after the start the table begins at the same revision as the others.
func (c *Cache) loadWhileRunning(t *Table) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	c.retry(ctx, "load", func(ctx context.Context) error {
		c.mu.Lock()
		generation := c.generation
		if t.removed.Load() || t.loaded {
			c.mu.Unlock()
			return nil
		}
		from := c.unclaimed.from
		if t.replaces.Load() != nil || c.tables.nests(t.resource.Prefix) {
			from = 0 // the events were another table's
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
			return fmt.Errorf("history was lost while loading %s", t.resource.Prefix)
		}
		t.replace(entries, revision)
		now := time.Now()
		if from > 0 {
			for _, event := range c.unclaimed.events {
				if strings.HasPrefix(event.Key, t.resource.Prefix) && c.tables.route(event.Key) == t {
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
