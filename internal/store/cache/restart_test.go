package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

// events returns the events of a watch after a revision.
func events(t *testing.T, table *Table, after store.Revision) []string {
	t.Helper()
	cursor, err := table.Watch(after, Scope{})
	if err != nil {
		t.Fatalf("Watch(%d): %v", after, err)
	}
	var all []string
	for {
		events, _, err := cursor.Poll()
		if err != nil {
			t.Fatalf("Poll after %d: %v", after, err)
		}
		if len(events) == 0 {
			return all
		}
		all = append(all, lines(events)...)
	}
}

// A new cache of an existing store has the same objects, history and old states.
func TestRestart(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		s := open(t)
		ctx := context.Background()
		var before Snapshot
		var first, middle store.Revision
		var history []string
		t.Run("first", func(t *testing.T) {
			c, tables := start(t, s, podResource())
			first = c.Revision()
			churn(t, c, tables[0], 2, 50)
			middle = c.Revision()
			churn(t, c, tables[0], 2, 50)
			// Keys outside /registry/ advance the revision too, without an event for the cache.
			if _, err := s.Create(ctx, "/elsewhere", nil, 0); err != nil {
				t.Fatal(err)
			}
			before = tables[0].Snapshot()
			history = events(t, tables[0], first)
		})
		t.Run("second", func(t *testing.T) {
			begin := time.Now()
			c, tables := start(t, s, podResource())
			if took := time.Since(begin); took > 700*time.Millisecond {
				t.Errorf("loading took %v: it waited for something to happen", took)
			}
			if current, err := s.Current(ctx); err != nil || c.Revision() < current {
				t.Errorf("ready at %d, the store is at %d, %v", c.Revision(), current, err)
			}
			if after := tables[0].Snapshot(); !maps.Equal(content(before), content(after)) {
				t.Errorf("a new cache shows %v, the old one showed %v", content(after), content(before))
			}
			if again := events(t, tables[0], first); !slices.Equal(again, history) {
				t.Errorf("history is %v, it was %v", again, history)
			}
			for revision := first; revision <= before.Revision(); revision += 7 {
				snapshot, err := tables[0].SnapshotAt(revision)
				if want := listed(t, s, revision); err != nil || !maps.Equal(content(snapshot), want) {
					t.Errorf("at %d: %v, %v; want %v", revision, content(snapshot), err, want)
				}
			}
		})
		if err := s.Compact(ctx, middle); err != nil {
			t.Fatal(err)
		}
		_, tables := start(t, s, podResource())
		if _, err := tables[0].Watch(middle-1, Scope{}); !errors.Is(err, ErrExpired) || !errors.Is(err, store.ErrCompacted) {
			t.Errorf("watch of what was compacted: %v", err)
		}
		if _, err := tables[0].SnapshotAt(middle - 1); !errors.Is(err, ErrExpired) {
			t.Errorf("list of what was compacted: %v", err)
		}
		again := events(t, tables[0], middle)
		if want := history[len(history)-len(again):]; len(again) == 0 || !slices.Equal(again, want) {
			t.Errorf("history since the compaction is %v, it was %v", again, want)
		}
	})
}

// Only the last maxReplay revisions are read.
func TestRestartReplayLimit(t *testing.T) {
	s := memory.New()
	key := podKey("default", "a")
	revision := putBehind(t, s, "a", "a")
	found, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for range maxReplay + 100 {
		if revision, err = s.Update(t.Context(), key, found.Value, 0, revision); err != nil {
			t.Fatal(err)
		}
	}
	c, tables := start(t, s, podResource())
	if _, err := tables[0].Watch(revision-maxReplay-1, Scope{}); !errors.Is(err, ErrExpired) {
		t.Errorf("history reaches back too far: %v", err)
	}
	if got := events(t, tables[0], revision-maxReplay); len(got) != maxReplay || c.Revision() != revision {
		t.Errorf("%d events up to %d, want %d up to %d", len(got), c.Revision(), maxReplay, revision)
	}
}

// lagging is a store whose changes are delivered late.
type lagging struct {
	store.Store
	lag time.Duration
}

type laggingWatch struct {
	store.Watch
	batches chan store.Batch
}

func (w *laggingWatch) Batches() <-chan store.Batch { return w.batches }

func (s *lagging) Watch(ctx context.Context, prefix string, after store.Revision) store.Watch {
	w := &laggingWatch{Watch: s.Store.Watch(ctx, prefix, after), batches: make(chan store.Batch)}
	go func() {
		defer close(w.batches)
		for batch := range w.Watch.Batches() {
			time.Sleep(s.lag)
			select {
			case w.batches <- batch:
			case <-ctx.Done():
			}
		}
	}()
	return w
}

// run starts a cache in a synctest bubble; it stops with the test.
func run(t *testing.T, s store.Store, resources ...Resource) (*Cache, []*Table) {
	c := New(s, discardLog())
	var tables []*Table
	for _, r := range resources {
		tables = append(tables, c.Add(r))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return c, tables
}

// Readers and watchers that arrive before the cache is loaded wait for it.
func TestBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lagging{Store: memory.New(), lag: 3 * time.Second}
		a := putBehind(t, s.Store, "a", "a")
		b := putBehind(t, s.Store, "b", "b")
		if err := s.Compact(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		c, tables := run(t, s, podResource())
		pods := tables[0]
		early, err := pods.Watch(a, Scope{})
		if err != nil {
			t.Fatal(err)
		}
		expired, err := pods.Watch(a-1, Scope{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if entry := pods.Get(podKey("default", "a")); entry != nil || pods.Snapshot().Len("") > 0 {
			t.Error("a cache that is not loaded shows the past")
		}
		if got, _, err := early.Poll(); len(got) > 0 || err != nil {
			t.Errorf("a cache that is not loaded delivers %v, %v", lines(got), err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Sync(short); !errors.Is(err, ErrTimeout) {
			t.Errorf("Sync before the cache is loaded: %v", err)
		}
		if err := c.WaitFor(short, 0); !errors.Is(err, ErrTimeout) {
			t.Errorf("WaitFor before the cache is loaded: %v", err)
		}
		if revision, err := c.Sync(t.Context()); revision != b || err != nil {
			t.Errorf("Sync returns %d, %v; want %d", revision, err, b)
		}
		if got, _, err := early.Next(t.Context()); fmt.Sprint(lines(got)) != "[ADDED b 3]" || err != nil {
			t.Errorf("the watcher who waited got %v, %v", lines(got), err)
		}
		if _, _, err := expired.Poll(); !errors.Is(err, ErrExpired) {
			t.Errorf("a watch from an expired revision: %v", err)
		}
	})
}

// A writer that got a conflict can read the state that caused it.
func TestConflictIsReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lagging{Store: memory.New(), lag: time.Second}
		_, tables := run(t, s, podResource())
		pods := tables[0]
		a := putBehind(t, s.Store, "a", "a")
		_, err := pods.Create(t.Context(), podKey("default", "a"), newPod("default", "a"), 0)
		if entry := pods.Get(podKey("default", "a")); !errors.Is(err, store.ErrExists) || entry == nil {
			t.Errorf("Create: %v, then Get shows %v", err, entry)
		}
		if _, err := s.Store.Delete(t.Context(), podKey("default", "a"), a); err != nil {
			t.Fatal(err)
		}
		var conflict *Conflict
		_, err = pods.Update(t.Context(), podKey("default", "a"), newPod("default", "changed"), 0, a)
		if entry := pods.Get(podKey("default", "a")); !errors.As(err, &conflict) || conflict.Current != nil || entry != nil {
			t.Errorf("Update: %v, then Get shows %v", err, entry)
		}
	})
}

// A table added shortly after the start has the same history as if it had been there from the start; one added later has not.
func TestAddedTableHasHistory(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration
		also  Resource // a table that exists from the start
		drop  bool     // and is removed
		has   bool
	}{
		{name: "soon", after: time.Second, has: true},
		{name: "late", after: unclaimedLifetime + 2*memoEpoch},
		{name: "claimed by another", also: Resource{Prefix: "/registry/", Codec: &podCodec{}}},
		{name: "claimed by one that is gone", also: podResource(), drop: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New()
				a := putBehind(t, s, "a", "a")
				putBehind(t, s, "b", "b")
				other := []Resource{test.also}
				if test.also.Prefix == "" {
					other = nil
				}
				c, tables := run(t, s, other...)
				<-c.Ready()
				if test.drop {
					c.Remove(tables[0])
				}
				putBehind(t, s, "c", "c")
				time.Sleep(test.after)
				pods := c.Add(podResource())
				if !maps.Equal(content(pods.Snapshot()), listed(t, s, 0)) {
					t.Errorf("the table shows %v", content(pods.Snapshot()))
				}
				if _, err := pods.Watch(a, Scope{}); !test.has {
					if !errors.Is(err, ErrExpired) {
						t.Errorf("history that cannot be complete: %v", err)
					}
					return
				}
				putBehind(t, s, "d", "d")
				synctest.Wait()
				if got := fmt.Sprint(events(t, pods, a)); got != "[ADDED b 3 ADDED c 4 ADDED d 5]" {
					t.Errorf("history is %s", got)
				}
			})
		})
	}
}
