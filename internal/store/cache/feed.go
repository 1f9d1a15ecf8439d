package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"skiff/internal/store"
)

// Run loads all tables as they were some time ago and follows the store from there until ctx ends: so watchers who come
// back after a restart of the server find the history they need. A broken feed is taken up where it broke off; when the store
// has forgotten that place, the difference is found by listing and given to watchers as events.
func (c *Cache) Run(ctx context.Context) error {
	defer close(c.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tidied := make(chan struct{})
	go func() {
		defer close(tidied)
		c.tidy(ctx)
	}()
	defer func() { cancel(); <-tidied }()

	if !c.insist(ctx, "load", c.load) {
		return nil
	}
	for ctx.Err() == nil {
		err := c.follow(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, store.ErrCompacted):
			c.log.Warn("the store has forgotten changes that the cache has not seen, listing everything", "revision", c.Revision())
			c.insist(ctx, "list", c.reload)
		default:
			c.log.Warn("feed of changes broke off, taking it up again", "revision", c.Revision(), "error", err)
			pause(ctx, retryPause)
		}
	}
	return nil
}

const retryPause = 200 * time.Millisecond

// insist tries again until it succeeds or ctx ends.
func (c *Cache) insist(ctx context.Context, what string, try func(context.Context) error) bool {
	for ctx.Err() == nil {
		err := try(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			c.log.Warn("cannot "+what+" the store's objects, trying again", "error", err)
			pause(ctx, retryPause)
		}
	}
	return false
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// reach is how many revisions back the cache begins. More would serve watchers who were away for longer; reading them costs
// about as much as listing as many objects, and start-up waits for it.
const reach = 4096

// load fills the tables for the first time, all at one revision, from where the feed leads to the present.
func (c *Cache) load(ctx context.Context) error {
	current, err := c.store.Current(ctx)
	if err != nil {
		return err
	}
	revision, err := c.oldest(ctx, current)
	if err != nil {
		return err
	}
	lists := map[*Table][]*Entry{}
	for !c.begin(lists, revision, current) {
		for _, t := range *c.tables.Load() {
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

// oldest finds the first of the last revisions, not more than reach before the current one, that the store has not
// compacted away.
func (c *Cache) oldest(ctx context.Context, current store.Revision) (store.Revision, error) {
	// No key lies below this prefix, and so nothing but the revision is judged.
	const nowhere = root + "\xff"
	low, high := max(1, current-reach), current
	for middle := low; low < high; middle = (low + high) / 2 {
		switch _, _, _, err := c.store.List(ctx, nowhere, "", 1, middle); {
		case errors.Is(err, store.ErrCompacted):
			low = middle + 1
		case err != nil:
			return 0, fmt.Errorf("look for the oldest revision: %w", err)
		default:
			high = middle
		}
	}
	return low, nil
}

// begin installs the lists that were read, unless a table was added meanwhile that is not among them.
func (c *Cache) begin(lists map[*Table][]*Entry, revision, current store.Revision) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	tables := *c.tables.Load()
	for _, t := range tables {
		if _, listed := lists[t]; !listed {
			return false
		}
	}
	for _, t := range tables {
		t.replace(lists[t], revision)
		t.loaded = true
	}
	c.running, c.target = true, current
	c.unclaimed = unclaimed{from: revision, until: time.Now().Add(claimTime)}
	c.publish(revision, time.Now())
	return true
}

// open lets readers in, once the cache has reached what was current when it was loaded. It is called with mu held.
func (c *Cache) open() {
	if c.opened.Load() || !c.running || c.Revision() < c.target {
		return
	}
	c.opened.Store(true)
	close(c.ready)
	for _, t := range *c.tables.Load() {
		t.wake()
		t.wakeWriters(true)
	}
}

// listPage is how many objects are read at once.
const listPage = 2000

// list reads a table as of a revision, or as of now when that is 0.
func (c *Cache) list(ctx context.Context, t *Table, at store.Revision) ([]*Entry, store.Revision, error) {
	var entries []*Entry
	from := ""
	for {
		kvs, read, remaining, err := c.store.List(ctx, t.resource.Prefix, from, listPage, at)
		if err != nil {
			return nil, 0, fmt.Errorf("list %s: %w", t.resource.Prefix, err)
		}
		entries = slices.Grow(entries, len(kvs)+int(min(remaining, listPage)))
		tables := *c.tables.Load()
		for _, kv := range kvs {
			// A deeper table's objects lie below this one's prefix too.
			if owner := c.route(tables, kv.Key); owner == t || owner == nil {
				entries = append(entries, t.entry(kv.Key, kv.Value, kv.Modified))
			}
		}
		if remaining == 0 {
			return entries, read, nil
		}
		at, from = read, kvs[len(kvs)-1].Key+"\x00"
	}
}

// follow applies what the store's watch brings until it breaks.
func (c *Cache) follow(ctx context.Context) error {
	// A store that is behind the cache was put back to an older state; what the cache shows never happened there.
	current, err := c.store.Current(ctx)
	if err != nil {
		return err
	}
	if current < c.Revision() {
		return fmt.Errorf("store went back from revision %d to %d: %w", c.Revision(), current, store.ErrCompacted)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := c.store.Watch(ctx, root, c.Revision())
	for batch := range watch.Batches() {
		c.apply(batch)
	}
	return watch.Err()
}

// apply brings the tables from one revision to the next.
func (c *Cache) apply(batch store.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reached := c.revision.Load()
	if batch.Revision <= reached {
		return
	}
	now := time.Now()
	tables := *c.tables.Load()
	for _, event := range batch.Events {
		t := c.route(tables, event.Key)
		switch {
		case event.Modified <= reached:
		case t == nil:
			c.unclaimed.add(event)
		case t.loaded:
			t.stage(event, now)
		default:
			t.backlog = append(t.backlog, event)
		}
	}
	c.publish(batch.Revision, now)
}

// publish makes what was staged visible: first the tables, then the revision. It is called with mu held.
func (c *Cache) publish(revision store.Revision, now time.Time) {
	for _, t := range c.touched {
		t.install(now)
	}
	c.revision.Store(revision)
	for _, t := range c.touched {
		t.state.Load().previous.Store(nil)
		t.wakeWriters(false)
		t.wakePaced(now)
	}
	clear(c.touched)
	c.touched = c.touched[:0]
	c.waiters.wake(revision)
	c.open()
}
