package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/store"
	"skiff/internal/store/etcd"
	"skiff/internal/store/memory"
)

// onEveryStore runs a test on a cache of each type of store.
func onEveryStore(t *testing.T, test func(t *testing.T, open func(t *testing.T) store.Store)) {
	t.Run("memory", func(t *testing.T) {
		test(t, func(t *testing.T) store.Store { return memory.New() })
	})
	openEtcd := func(t *testing.T, config etcd.Config) store.Store {
		config.Log = discardLog()
		s, err := etcd.Open(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	t.Run("etcd", func(t *testing.T) {
		test(t, func(t *testing.T) store.Store { return openEtcd(t, etcd.Config{DataDir: t.TempDir()}) })
	})
	t.Run("remote", func(t *testing.T) {
		test(t, func(t *testing.T) store.Store {
			address := "unix://" + t.TempDir() + "/socket"
			openEtcd(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{address}})
			return openEtcd(t, etcd.Config{Servers: []string{address}})
		})
	})
}

// content is a snapshot as a map from key to revision.
func content(s Snapshot) map[string]store.Revision {
	found := map[string]store.Revision{}
	s.Ascend("", "", func(e *Entry) bool { found[e.Key()] = e.Revision(); return true })
	return found
}

// listed is the store's own list.
func listed(t *testing.T, s store.Store, at store.Revision) map[string]store.Revision {
	t.Helper()
	kvs, _, _, err := s.List(context.Background(), podPrefix, "", 0, at)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]store.Revision{}
	for _, kv := range kvs {
		found[kv.Key] = kv.Modified
	}
	return found
}

// churn writes to the table from several goroutines and checks that each reads its own writes.
func churn(t *testing.T, c *Cache, pods *Table, goroutines, writes int) {
	ctx := context.Background()
	var wait sync.WaitGroup
	for g := range goroutines {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 2))
			for i := range writes {
				name := fmt.Sprint("pod-", random.IntN(40))
				key := podKey("default", name)
				pod := newPod("default", name)
				pod.Spec.NodeName = fmt.Sprintf("node-%d-%d", g, i)
				old := pods.Get(key)
				var entry *Entry
				var err error
				switch {
				case old == nil:
					entry, err = pods.Create(ctx, key, pod, 0)
				case random.IntN(4) == 0:
					entry, err = pods.Delete(ctx, key, old.Revision())
				default:
					entry, err = pods.Update(ctx, key, pod, 0, old.Revision())
				}
				var conflict *Conflict
				if errors.As(err, &conflict) || errors.Is(err, store.ErrExists) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if c.Revision() < entry.Revision() {
					t.Errorf("write at %d returned when the cache was at %d", entry.Revision(), c.Revision())
				}
				if now := pods.Get(key); now != nil && now.Revision() < entry.Revision() {
					t.Errorf("%s is at %d after a write at %d", key, now.Revision(), entry.Revision())
				}
			}
		})
	}
	wait.Wait()
}

// follow applies a cursor's events to a list, checking each, until the revision is reached.
func follow(t *testing.T, cursor *Cursor, state map[string]store.Revision, from, until store.Revision, each func(store.Revision, map[string]store.Revision)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	last := from
	for last < until {
		events, reached, err := cursor.Next(ctx)
		if err != nil {
			t.Errorf("at %d of %d: %v", last, until, err)
			return
		}
		for i, event := range events {
			if event.Revision <= last || (i > 0 && event.Revision < events[i-1].Revision) || event.Revision != event.Entry.Revision() {
				t.Errorf("event of %d (entry %d) after %d", event.Revision, event.Entry.Revision(), last)
			}
			key := event.Entry.Key()
			before, there := state[key]
			if there == (event.Type == Added) || (there && event.Old.Revision() != before) {
				t.Errorf("%s of %s, which was at %d", event.Type, key, before)
			}
			state[key] = event.Revision
			if event.Type == Deleted {
				delete(state, key)
			}
			if each != nil && (i == len(events)-1 || events[i+1].Revision > event.Revision) {
				each(event.Revision, state)
			}
		}
		if reached < events[len(events)-1].Revision {
			t.Errorf("reached %d after an event of %d", reached, events[len(events)-1].Revision)
		}
		last = events[len(events)-1].Revision
	}
}

// A snapshot plus the events after it is the snapshot at every later revision; watches from any time get the same events.
func TestWatchIsListPlusEvents(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		s := open(t)
		c, tables := start(t, s, podResource())
		pods := tables[0]
		first := pods.Snapshot()
		var wait sync.WaitGroup
		stop := make(chan struct{})
		// Watches that start during the writes.
		type begun struct {
			cursor *Cursor
			state  map[string]store.Revision
			from   store.Revision
		}
		var watchers []begun
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
					snapshot := pods.Snapshot()
					cursor, err := pods.Watch(snapshot.Revision(), Scope{})
					if err != nil {
						t.Error(err)
						return
					}
					if len(watchers) < 50 {
						watchers = append(watchers, begun{cursor, content(snapshot), snapshot.Revision()})
					}
				}
			}
		})
		churn(t, c, pods, 6, 100)
		close(stop)
		wait.Wait()
		end := pods.Snapshot()
		last := pods.state.Load().revision

		cursor, err := pods.Watch(first.Revision(), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		follow(t, cursor, content(first), first.Revision(), last, func(revision store.Revision, state map[string]store.Revision) {
			if n++; n%10 != 0 && revision != last {
				return
			}
			if want := listed(t, s, revision); !maps.Equal(state, want) {
				t.Errorf("events up to %d lead to %v, the store says %v", revision, state, want)
			}
			snapshot, err := pods.SnapshotAt(revision)
			if err != nil || snapshot.Revision() != revision || !maps.Equal(content(snapshot), state) {
				t.Errorf("SnapshotAt(%d) is %v, %v; want %v", revision, content(snapshot), err, state)
			}
		})
		for _, w := range watchers {
			follow(t, w.cursor, w.state, w.from, last, nil)
			if w.from < last && !maps.Equal(w.state, content(end)) {
				t.Errorf("watcher from %d ends with %v, want %v", w.from, w.state, content(end))
			}
		}
	})
}

// Reads of several tables never go back in time: a reader of a revision in one table sees all earlier changes in the others.
func TestTablesAgree(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		other := podResource()
		other.Prefix = "/registry/services/specs/"
		c, tables := start(t, open(t), podResource(), other)
		pods, services := tables[0], tables[1]
		ctx, cancel := context.WithCancel(context.Background())
		var wait sync.WaitGroup
		wait.Go(func() {
			// The service is always written after the pod.
			pod, service := newPod("default", "a"), newPod("default", "a")
			p, err1 := pods.Create(ctx, podPrefix+"default/a", pod, 0)
			s, err2 := services.Create(ctx, other.Prefix+"default/a", service, 0)
			for i := 0; i < 100 && err1 == nil && err2 == nil; i++ {
				pod, service = pod.DeepCopy(), service.DeepCopy()
				pod.Spec.NodeName, service.Spec.NodeName = fmt.Sprint(i), fmt.Sprint(i)
				p, err1 = pods.Update(ctx, p.Key(), pod, 0, p.Revision())
				s, err2 = services.Update(ctx, s.Key(), service, 0, s.Revision())
			}
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
			}
			cancel()
		})
		for ctx.Err() == nil {
			s := services.Snapshot()
			p := pods.Snapshot()
			if p.Revision() < s.Revision() || c.Revision() < p.Revision() {
				t.Fatalf("read %d, then %d, then the cache is at %d", s.Revision(), p.Revision(), c.Revision())
			}
			service, pod := s.Get(other.Prefix+"default/a"), p.Get(podPrefix+"default/a")
			if service == nil {
				continue
			}
			if pod == nil || pod.Revision() < service.Revision()-1 {
				t.Fatalf("service of %d is there without its pod", service.Revision())
			}
		}
		wait.Wait()
	})
}

// A table added during writes misses no change.
func TestAddWhileRunning(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		s := open(t)
		ctx := context.Background()
		c, _ := start(t, s)
		stop := make(chan struct{})
		var wait sync.WaitGroup
		codec := &podCodec{}
		for g := range 3 {
			wait.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					name := fmt.Sprintf("%d-%d", g, i)
					value, _ := codec.Encode(newPod("default", name))
					if _, err := s.Create(ctx, podKey("default", name), value, 0); err != nil {
						t.Error(err)
					}
					time.Sleep(50 * time.Microsecond) // history must contain what the test reads
				}
			})
		}
		for range 5 {
			time.Sleep(5 * time.Millisecond)
			pods := c.Add(podResource())
			snapshot := pods.Snapshot()
			if want := listed(t, s, snapshot.Revision()); !maps.Equal(content(snapshot), want) {
				t.Errorf("the new table has %d objects at %d, the store %d", snapshot.Len(""), snapshot.Revision(), len(want))
			}
			cursor, err := pods.Watch(snapshot.Revision(), Scope{})
			if err != nil {
				t.Fatal(err)
			}
			follow(t, cursor, content(snapshot), snapshot.Revision(), snapshot.Revision()+20, nil)
			c.Remove(pods)
			if _, _, err := cursor.Poll(); !errors.Is(err, ErrRemoved) {
				t.Errorf("cursor of a removed table: %v", err)
			}
		}
		close(stop)
		wait.Wait()
	})
}

// A table is replaced during writes: both tables have all changes, and writers of the old one are not disturbed.
func TestReplaceWhileRunning(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		s := open(t)
		c, tables := start(t, s, podResource())
		var table atomic.Pointer[Table]
		table.Store(tables[0])
		stop := make(chan struct{})
		var wait sync.WaitGroup
		for g := range 3 {
			wait.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					name := fmt.Sprintf("%d-%d", g, i)
					used := table.Load()
					for !used.Acquire() { // it was replaced since it was loaded
						used = table.Load()
					}
					written, err := used.Create(context.Background(), podKey("default", name), newPod("default", name), 0)
					if err != nil {
						t.Error(err)
						return
					}
					if found := used.Get(podKey("default", name)); found == nil || found.Revision() != written.Revision() {
						t.Errorf("%s was written at %d and is not in the table", name, written.Revision())
					}
					used.Release()
					if found := table.Load().Get(podKey("default", name)); found == nil || found.Revision() != written.Revision() {
						t.Errorf("%s was written at %d and is not in the table", name, written.Revision())
					}
					time.Sleep(50 * time.Microsecond) // history must contain what the test reads
				}
			})
		}
		for range 5 {
			old := table.Load()
			cursor, err := old.Watch(old.Snapshot().Revision(), Scope{})
			if err != nil {
				t.Fatal(err)
			}
			replaced := c.Replace(old, podResource())
			// Until it is removed, the old table follows the store too.
			reached := c.Revision()
			for after := old.Snapshot(); after.Revision() < reached+5; after = old.Snapshot() {
				time.Sleep(time.Millisecond)
			}
			snapshot := old.Snapshot()
			if want := listed(t, s, snapshot.Revision()); !maps.Equal(content(snapshot), want) {
				t.Errorf("the old table has %d objects at %d, the store %d", snapshot.Len(""), snapshot.Revision(), len(want))
			}
			table.Store(replaced)
			c.Retire(old, time.Hour)
			if _, _, err := cursor.Poll(); !errors.Is(err, ErrRemoved) {
				t.Errorf("cursor of a replaced table: %v", err)
			}
			snapshot = replaced.Snapshot()
			if want := listed(t, s, snapshot.Revision()); !maps.Equal(content(snapshot), want) {
				t.Errorf("the new table has %d objects at %d, the store %d", snapshot.Len(""), snapshot.Revision(), len(want))
			}
		}
		close(stop)
		wait.Wait()
		if old := table.Load().replaces.Load(); old != nil {
			t.Error("a replaced table without users was not removed")
		}
	})
}

func TestTTL(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		ctx := context.Background()
		_, tables := start(t, open(t), podResource())
		pods := tables[0]
		cursor, _ := pods.Watch(pods.Snapshot().Revision(), Scope{})
		if _, err := pods.Create(ctx, podKey("default", "a"), newPod("default", "a"), time.Second); err != nil {
			t.Fatal(err)
		}
		var types []EventType
		for len(types) < 2 {
			events, _, err := cursor.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, event := range events {
				types = append(types, event.Type)
			}
		}
		if !slices.Equal(types, []EventType{Added, Deleted}) || pods.Get(podKey("default", "a")) != nil {
			t.Errorf("got %v", types)
		}
	})
}

// With another writer on the same store a consistent read waits for that writer's completed writes.
func TestSync(t *testing.T) {
	address := "unix://" + t.TempDir() + "/socket"
	inside, err := etcd.Open(context.Background(), etcd.Config{DataDir: t.TempDir(), Listen: []string{address}, Log: discardLog()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	outside, err := etcd.Open(context.Background(), etcd.Config{Servers: []string{address}, Log: discardLog()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outside.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, one := start(t, inside, podResource())
	reader, two := start(t, outside, podResource())
	for i := range 50 {
		pod := newPod("default", fmt.Sprint(i))
		entry, err := one[0].Create(ctx, podKey("default", pod.Name), pod, 0)
		if err != nil {
			t.Fatal(err)
		}
		revision, err := reader.Sync(ctx)
		if err != nil || revision < entry.Revision() || two[0].Get(entry.Key()) == nil {
			t.Fatalf("a consistent read at %d (%v) misses the write at %d", revision, err, entry.Revision())
		}
		// Keys outside the tables advance the revision too.
		if i%10 == 0 {
			if _, err := inside.Create(ctx, fmt.Sprint("elsewhere", i), nil, 0); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if _, err := reader.Sync(ctx); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 700*time.Millisecond {
				t.Errorf("the barrier took %v: it waited for the next tick", took)
			}
		}
	}
	// An update without changes detects that another server wrote first.
	key := podKey("default", "0")
	seen := two[0].Get(key)
	changed := newPod("default", "0")
	changed.Spec.NodeName = "elsewhere"
	if _, err := one[0].Update(ctx, key, changed, 0, seen.Revision()); err != nil {
		t.Fatal(err)
	}
	var conflict *Conflict
	if _, err := two[0].Update(ctx, key, newPod("default", "0"), 0, seen.Revision()); !errors.As(err, &conflict) {
		t.Errorf("got %v, want a conflict", err)
	} else if obj, _ := conflict.Current.Object(); obj.(*corev1.Pod).Spec.NodeName != "elsewhere" {
		t.Errorf("conflict with %v", obj)
	}
}
