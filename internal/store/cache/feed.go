package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"skiff/internal/store"
)

// Run loads all tables as of some time ago and follows the store from there until ctx is done, so that watchers that
// reconnect after a restart of the server find the history they need. A broken watch feed resumes where it stopped. If
// the store has compacted that revision, the tables are listed again and the differences become events.
func (c *Cache) Run(ctx context.Context) error {
	defer close(c.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		c.sweepPeriodically(ctx)
	}()
	defer func() { cancel(); <-swept }()

	if !c.retry(ctx, "load", c.load) {
		return nil
	}
	for ctx.Err() == nil {
		err := c.follow(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, store.ErrCompacted):
			c.log.Warn("store compacted changes that the cache has not received, listing everything", "revision", c.Revision())
			c.retry(ctx, "list", c.reload)
		default:
			c.log.Warn("watch feed failed, resuming", "revision", c.Revision(), "error", err)
			sleep(ctx, retryInterval)
		}
	}
	return nil
}

const retryInterval = 200 * time.Millisecond

// retry calls try until it succeeds or ctx is done.
func (c *Cache) retry(ctx context.Context, what string, try func(context.Context) error) bool {
	for ctx.Err() == nil {
		err := try(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			c.log.Warn("failed to "+what+" objects, retrying", "error", err)
			sleep(ctx, retryInterval)
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// maxReplay is how many revisions back the cache begins. A larger value would serve watchers that were disconnected for
// longer; reading the revisions costs about as much as listing as many objects, and delays the start.
const maxReplay = 4096

// load fills all tables for the first time, at one past revision from which the watch feed continues.
func (c *Cache) load(ctx context.Context) error {
	current, err := c.store.Current(ctx)
	if err != nil {
		return err
	}
	revision, err := c.oldestRevision(ctx, current)
	if err != nil {
		return err
	}
	lists := map[*Table][]*Entry{}
	for !c.installLists(lists, revision, current) {
		for _, t := range c.tables.all() {
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

// oldestRevision returns the oldest revision that the store has not compacted, at most maxReplay before the current one.
func (c *Cache) oldestRevision(ctx context.Context, current store.Revision) (store.Revision, error) {
	// No key has this prefix, so the list only checks the revision.
	const emptyPrefix = root + "\xff"
	low, high := max(1, current-maxReplay), current
	for middle := low; low < high; middle = (low + high) / 2 {
		switch _, _, _, err := c.store.List(ctx, emptyPrefix, "", 1, middle); {
		case errors.Is(err, store.ErrCompacted):
			low = middle + 1
		case err != nil:
			return 0, fmt.Errorf("find the oldest revision: %w", err)
		default:
			high = middle
		}
	}
	return low, nil
}

// installLists installs the lists, unless a table was added meanwhile that has no list.
func (c *Cache) installLists(lists map[*Table][]*Entry, revision, current store.Revision) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	tables := c.tables.all()
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
	c.unclaimed = unclaimed{from: revision, until: time.Now().Add(unclaimedLifetime)}
	c.publish(revision, time.Now())
	return true
}

// setReady marks the cache ready once it has reached the revision that was current at load. mu must be held.
func (c *Cache) setReady() {
	if c.isReady.Load() || !c.running || c.Revision() < c.target {
		return
	}
	c.isReady.Store(true)
	close(c.ready)
	for t := range c.allTables() {
		t.wakeAll()
		t.wakeWriters(true)
	}
}

// listPage is how many objects are read at once.
const listPage = 2000

// list reads a table at a revision, 0 for now.
func (c *Cache) list(ctx context.Context, t *Table, at store.Revision) ([]*Entry, store.Revision, error) {
	var entries []*Entry
	from := ""
	for {
		kvs, read, remaining, err := c.store.List(ctx, t.resource.Prefix, from, listPage, at)
		if err != nil {
			return nil, 0, fmt.Errorf("list %s: %w", t.resource.Prefix, err)
		}
		entries = t.appendEntries(slices.Grow(entries, len(kvs)+int(min(remaining, listPage))), kvs)
		if remaining == 0 {
			return entries, read, nil
		}
		at, from = read, kvs[len(kvs)-1].Key+"\x00"
	}
}

// appendEntries makes entries of what was listed. The objects of a table with a longer prefix have this one's prefix too.
func (t *Table) appendEntries(to []*Entry, kvs []store.KeyValue) []*Entry {
	for _, kv := range kvs {
		if owner := t.cache.tables.route(kv.Key); owner == nil || owner.resource.Prefix == t.resource.Prefix {
			to = append(to, t.entry(kv.Key, kv.Value, kv.Modified))
		}
	}
	return to
}

// Page is what ListAt returns: entries in order.
type Page struct {
	Entries []*Entry
	// Next is the key from which to continue; empty when there are no more.
	Next string
	// Remaining is how many entries follow.
	Remaining int64
}

// ListAt reads from the store the entries at a past revision whose keys have the prefix and are not before from, at most
// limit or a page of the server's choice. It is for revisions that SnapshotAt does not have; ErrExpired means that the
// store has compacted the revision too.
func (t *Table) ListAt(ctx context.Context, prefix, from string, limit int, at store.Revision) (Page, error) {
	if limit <= 0 || limit > listPage {
		limit = listPage
	}
	kvs, _, remaining, err := t.cache.store.List(ctx, prefix, from, limit, at)
	if errors.Is(err, store.ErrCompacted) {
		return Page{}, ErrExpired
	}
	if err != nil {
		return Page{}, fmt.Errorf("list %s at revision %d: %w", prefix, at, err)
	}
	page := Page{Entries: t.appendEntries(make([]*Entry, 0, len(kvs)), kvs), Remaining: remaining}
	if remaining > 0 {
		page.Next = kvs[len(kvs)-1].Key + "\x00"
	}
	return page, nil
}

// follow applies the batches of a store watch until it breaks.
func (c *Cache) follow(ctx context.Context) error {
	// A store that is behind the cache was restored from a backup; the newest revisions of the cache do not exist there.
	current, err := c.store.Current(ctx)
	if err != nil {
		return err
	}
	if current < c.Revision() {
		return fmt.Errorf("store was restored from revision %d to %d: %w", c.Revision(), current, store.ErrCompacted)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := c.store.Watch(ctx, root, c.Revision())
	for batch := range watch.Batches() {
		c.apply(batch)
	}
	return watch.Err()
}

// apply applies a batch to the tables.
func (c *Cache) apply(batch store.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reached := c.revision.Load()
	if batch.Revision <= reached {
		return
	}
	now := time.Now()
	for _, event := range batch.Events {
		t := c.tables.route(event.Key)
		switch {
		case event.Modified <= reached:
			continue
		case t == nil:
			c.unclaimed.add(event)
			continue
		case t.loaded:
			t.received.Add(1)
			t.stage(event, now)
		default:
			t.received.Add(1)
			t.backlog = append(t.backlog, event)
		}
		for old := t.replaces.Load(); old != nil; old = old.replaces.Load() {
			if old.loaded {
				old.stage(event, now)
			}
		}
	}
	c.publish(batch.Revision, now)
}

// publish makes the staged changes visible: first the tables, then the revision. mu must be held.
func (c *Cache) publish(revision store.Revision, now time.Time) {
	for _, t := range c.changed {
		t.install(now)
	}
	c.revision.Store(revision)
	for _, t := range c.changed {
		t.state.Load().previous.Store(nil)
		t.wakeWriters(false)
		t.wakeChanged(now, t.batchStart)
	}
	clear(c.changed)
	c.changed = c.changed[:0]
	c.evictValues()
	c.waiters.wake(revision)
	c.setReady()
}
