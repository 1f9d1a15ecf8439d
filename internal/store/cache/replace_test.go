package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"skiff/internal/kind"
	"skiff/internal/store/memory"
)

// A replaced table serves those who have acquired it: writes, reads and lists of the past. It is removed after the last of them.
func TestRetiredTable(t *testing.T) {
	ctx := context.Background()
	c, tables := start(t, memory.New(), podResource())
	old := tables[0]
	for range 2 {
		if !old.Acquire() {
			t.Fatal("not acquired")
		}
	}
	first := must(old.Create(ctx, podKey("ns", "a"), newPod("ns", "a"), 0))
	next := c.Replace(old, podResource())
	if !old.Acquire() {
		t.Error("a table cannot be acquired before it is retired")
	}
	old.Release()
	cursor := must(old.Watch(first.Revision(), Scope{}))
	c.Retire(old, time.Hour)
	if old.Acquire() {
		t.Error("a retired table was acquired")
	}
	if _, _, err := cursor.Poll(); !errors.Is(err, ErrRemoved) {
		t.Errorf("cursor of a retired table: %v", err)
	}
	if _, err := old.Watch(first.Revision(), Scope{}); !errors.Is(err, ErrRemoved) {
		t.Errorf("watch of a retired table: %v", err)
	}
	must(next.Create(ctx, podKey("ns", "b"), newPod("ns", "b"), 0))
	written := must(old.Create(ctx, podKey("ns", "c"), newPod("ns", "c"), 0))
	for _, table := range []*Table{old, next} {
		if found := table.Get(written.Key()); found == nil || found.Revision() != written.Revision() || table.Snapshot().Len("") != 3 {
			t.Errorf("a table has %d objects", table.Snapshot().Len(""))
		}
		if page := must(table.ListAt(ctx, podPrefix, "", 0, first.Revision())); len(page.Entries) != 1 {
			t.Errorf("%d objects at a past revision", len(page.Entries))
		}
	}
	old.Release()
	if next.replaces.Load() != old {
		t.Fatal("the table was removed before its last user")
	}
	old.Release()
	if next.replaces.Load() != nil || !old.removed.Load() {
		t.Error("the table was not removed after its last user")
	}
	if _, err := old.Create(ctx, podKey("ns", "d"), newPod("ns", "d"), 0); !errors.Is(err, ErrReplaced) {
		t.Errorf("write to a removed table: %v", err)
	}
	if old.Acquire() || old.users.Load() >= 0 {
		t.Error("a removed table was acquired")
	}
}

// A table that was replaced updates nothing that was written afterwards: its codec may drop what was written.
func TestSupersededTable(t *testing.T) {
	ctx := context.Background()
	c, tables := start(t, memory.New(), podResource())
	old := tables[0]
	before, both := must(old.Create(ctx, podKey("ns", "before"), newPod("ns", "before"), 0)), must(old.Create(ctx, podKey("ns", "both"), newPod("ns", "both"), 0))
	next := c.Replace(old, podResource())
	old.Supersede(true)
	changed := func(name string) kind.Object {
		pod := newPod("ns", name)
		pod.SetLabels(map[string]string{"changed": "true"})
		return pod
	}
	both = must(next.Update(ctx, both.Key(), changed("both"), 0, both.Revision()))
	if _, err := old.Update(ctx, both.Key(), newPod("ns", "both"), 0, both.Revision()); !errors.Is(err, ErrReplaced) {
		t.Errorf("update of what the other table has written: %v", err)
	}
	must(old.Update(ctx, before.Key(), changed("before"), 0, before.Revision()))
	must(old.Create(ctx, podKey("ns", "after"), newPod("ns", "after"), 0))
	old.Supersede(false)
	if _, err := old.Create(ctx, podKey("ns", "late"), newPod("ns", "late"), 0); !errors.Is(err, ErrReplaced) {
		t.Errorf("write after the last one: %v", err)
	}
}

// The number of retired tables and their time are bounded. Removing a table removes those that it replaces.
func TestRetiredTablesAreBounded(t *testing.T) {
	c, tables := start(t, memory.New(), podResource())
	var retired []*Table
	current := tables[0]
	for range maxRetired + 2 {
		current.Acquire()
		next := c.Replace(current, podResource())
		c.Retire(current, time.Hour)
		retired = append(retired, current)
		current = next
	}
	for i, table := range retired {
		if want := i < 2; table.removed.Load() != want {
			t.Errorf("table %d of %d: removed is %v", i, len(retired), !want)
		}
	}
	// From the middle: the older ones still follow the store.
	retired[3].Release()
	written := must(current.Create(context.Background(), podKey("ns", "a"), newPod("ns", "a"), 0))
	for i, want := range []bool{false, false, true, false, true} {
		if got := retired[i].Get(written.Key()) != nil; got != want {
			t.Errorf("table %d has the write: %v", i, got)
		}
	}
	current.Acquire()
	next := c.Replace(current, podResource())
	c.Retire(current, time.Millisecond)
	for !current.removed.Load() {
		time.Sleep(time.Millisecond)
	}
	if retired[2].removed.Load() || retired[4].removed.Load() {
		t.Error("tables were removed before their time")
	}
	c.Remove(next)
	for i, table := range append(retired, current, next) {
		if !table.removed.Load() {
			t.Errorf("table %d was not removed", i)
		}
	}
	if _, err := retired[4].Create(context.Background(), podKey("ns", "b"), newPod("ns", "b"), 0); !errors.Is(err, ErrRemoved) {
		t.Errorf("write to a removed resource: %v", err)
	}
	for _, i := range []int{0, 1, 2, 4} {
		retired[i].Release()
	}
	if added := c.Add(podResource()); added.Get(written.Key()) == nil {
		t.Error("the table that was added again is empty")
	}
}

// A write that begins while its table is removed fails, or returns when it is stored. None waits for an event that nobody delivers.
func TestWriteWhileRemoved(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, tables := start(t, memory.New(), podResource())
	current := tables[0]
	for i := range 200 {
		next := c.Replace(current, podResource())
		var wait sync.WaitGroup
		var count atomic.Int32
		for g := range 4 {
			wait.Go(func() {
				key := podKey("ns", fmt.Sprintf("%d-%d", i, g))
				for {
					created, err := current.Create(ctx, key, newPod("ns", "a"), 0)
					if err == nil {
						count.Add(1)
						_, err = current.Delete(ctx, key, created.Revision())
					}
					if errors.Is(err, ErrReplaced) {
						return
					}
					if err != nil {
						t.Errorf("write during the removal of the table: %v", err)
						return
					}
				}
			})
		}
		for count.Load() < 20 && !t.Failed() {
			runtime.Gosched()
		}
		c.Retire(current, time.Hour)
		wait.Wait()
		if t.Failed() {
			return
		}
		current = next
	}
}

// When history is lost, a retired table is listed again like the others, and the writes to it return.
func TestRetiredTableWithoutHistory(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		mustCreate(t, pods, "a")
		pods.Acquire()
		next := c.Replace(pods, podResource())
		c.Retire(pods, time.Hour)
		s.breakFeed()
		synctest.Wait()
		written := make(chan *Entry)
		go func() { written <- mustCreate(t, pods, "b") }()
		synctest.Wait()
		last := putBehind(t, s.inner(), "c", "c")
		if err := s.inner().Compact(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		s.repair()
		if entry := <-written; entry.Key() != podKey("default", "b") {
			t.Errorf("written: %s", entry.Key())
		}
		for _, table := range []*Table{pods, next} {
			if !maps.Equal(content(table.Snapshot()), listed(t, s.inner(), 0)) {
				t.Errorf("a table has %v", content(table.Snapshot()))
			}
		}
		pods.Release()
	})
}

// A table that was removed has the state of its last event. Its lists must not claim a later one: a watch from there would miss changes.
func TestRevisionOfRemovedTable(t *testing.T) {
	ctx := context.Background()
	c, tables := start(t, memory.New(), podResource())
	old := tables[0]
	last := must(old.Create(ctx, podKey("ns", "a"), newPod("ns", "a"), 0))
	old.Acquire()
	next := c.Replace(old, podResource())
	c.Retire(old, time.Hour)
	c.Remove(next)
	added := c.Add(podResource())
	missed := must(added.Create(ctx, podKey("ns", "b"), newPod("ns", "b"), 0))
	if snapshot := old.Snapshot(); snapshot.Len("") != 1 || snapshot.Revision() < last.Revision() || snapshot.Revision() >= missed.Revision() {
		t.Errorf("%d objects at revision %d; the second was written at %d", snapshot.Len(""), snapshot.Revision(), missed.Revision())
	}
	if _, err := old.SnapshotAt(missed.Revision()); !errors.Is(err, ErrFuture) {
		t.Errorf("the state at a revision after the end of the table: %v", err)
	}
	old.Release()
}

// When history is lost, all retired tables are listed again, also the one behind a table that is removed meanwhile.
func TestRetiredTableRemovedWhileListed(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, oldest *Table) {
		mustCreate(t, oldest, "a")
		oldest.Acquire()
		middle := c.Replace(oldest, podResource())
		c.Retire(oldest, time.Hour)
		middle.Acquire()
		newest := c.Replace(middle, podResource())
		c.Retire(middle, time.Hour)
		s.breakFeed()
		synctest.Wait()
		putBehind(t, s.inner(), "b", "b")
		last := putBehind(t, s.inner(), "c", "c")
		if err := s.inner().Compact(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		lists := 0
		s.beforeList(func() {
			if lists++; lists == 2 {
				middle.Release() // the second table is being listed
			}
		})
		s.repair()
		if err := c.WaitFor(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		if !middle.removed.Load() {
			t.Fatal("the second table was not removed while it was listed")
		}
		for i, table := range []*Table{newest, oldest} {
			if !maps.Equal(content(table.Snapshot()), listed(t, s.inner(), 0)) {
				t.Errorf("table %d has %v", i, content(table.Snapshot()))
			}
		}
		oldest.Release()
	})
}
