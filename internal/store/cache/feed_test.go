package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

// shaky is a store whose watch can be interrupted or delayed, and that can be replaced by another store.
type shaky struct {
	store.Store
	mu     sync.Mutex
	cut    context.CancelFunc
	broken bool
	onList func() // called before each list; nil: nothing
}

func (s *shaky) inner() store.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Store
}

func (s *shaky) Current(ctx context.Context) (store.Revision, error) {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken {
		return 0, store.ErrUnavailable
	}
	return s.inner().Current(ctx)
}

func (s *shaky) List(ctx context.Context, prefix, from string, limit int, at store.Revision) ([]store.KeyValue, store.Revision, int64, error) {
	s.mu.Lock()
	onList := s.onList
	s.mu.Unlock()
	if onList != nil {
		onList()
	}
	return s.inner().List(ctx, prefix, from, limit, at)
}

// beforeList sets what is called before each list.
func (s *shaky) beforeList(call func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onList = call
}

func (s *shaky) Watch(ctx context.Context, prefix string, after store.Revision) store.Watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	inner, cut := context.WithCancel(ctx)
	s.cut = cut
	return &shakyWatch{Watch: s.Store.Watch(inner, prefix, after), ctx: ctx}
}

// shakyWatch returns an error when it was interrupted.
type shakyWatch struct {
	store.Watch
	ctx context.Context
}

func (w *shakyWatch) Err() error {
	if err := w.Watch.Err(); err != nil || w.ctx.Err() != nil {
		return err
	}
	return store.ErrUnavailable
}

// breakFeed ends the watch feed until it is repaired.
func (s *shaky) breakFeed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
	s.cut()
}

func (s *shaky) repair() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = false
}

// story runs a test in a synctest bubble with a cache of a shaky store and one pod in it.
func story(t *testing.T, test func(t *testing.T, s *shaky, c *Cache, pods *Table)) {
	synctest.Test(t, func(t *testing.T) {
		s := &shaky{Store: memory.New()}
		c := New(s, discardLog())
		pods := c.Add(podResource())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		<-c.Ready()
		synctest.Wait()
		test(t, s, c, pods)
		cancel()
		<-ended
	})
}

func mustCreate(t *testing.T, pods *Table, name string) *Entry {
	t.Helper()
	entry, err := pods.Create(t.Context(), podKey("default", name), newPod("default", name), 0)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// putBehind writes to the store directly.
func putBehind(t *testing.T, s store.Store, name string, uid types.UID) store.Revision {
	t.Helper()
	pod := newPod("default", name)
	pod.UID = uid
	value, err := (&podCodec{}).Encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	revision, err := s.Create(t.Context(), podKey("default", name), value, 0)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func lines(events []Event) (found []string) {
	for _, event := range events {
		found = append(found, fmt.Sprintf("%s %s %d", event.Type, event.Entry.Key()[len(podPrefix+"default/"):], event.Revision))
	}
	return found
}

func TestBrokenFeedIsTakenUpAgain(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		cursor, err := pods.Watch(c.Revision(), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		mustCreate(t, pods, "a") // 2
		s.breakFeed()
		putBehind(t, s.Store, "b", "b") // 3
		s.Store.Create(t.Context(), "/elsewhere", nil, 0)
		synctest.Wait()
		if pods.Get(podKey("default", "b")) != nil {
			t.Error("a broken feed delivers")
		}
		s.repair()
		mustCreate(t, pods, "c") // 5: waits for the watch feed
		events, reached, err := cursor.Poll()
		if got, want := fmt.Sprint(lines(events)), "[ADDED a 2 ADDED b 3 ADDED c 5]"; got != want || reached != 5 || err != nil {
			t.Errorf("got %s up to %d, %v; want %s", got, reached, err, want)
		}
	})
}

func TestLostHistoryIsFoundByListing(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		a := mustCreate(t, pods, "a") // 2
		b := mustCreate(t, pods, "b") // 3
		mustCreate(t, pods, "same")   // 4
		d := mustCreate(t, pods, "d") // 5
		before := c.Revision()
		cursor, _ := pods.Watch(before, Scope{})
		s.breakFeed()
		inner := s.inner()
		// a is updated, b deleted, d deleted and created again, e created, f created and deleted.
		value := slices.Clone(a.Stored())
		if _, err := inner.Update(t.Context(), a.Key(), value, 0, a.Revision()); err != nil { // 6
			t.Fatal(err)
		}
		inner.Delete(t.Context(), b.Key(), b.Revision()) // 7
		inner.Delete(t.Context(), d.Key(), d.Revision()) // 8
		putBehind(t, inner, "d", "another")              // 9
		putBehind(t, inner, "e", "e")                    // 10
		f := putBehind(t, inner, "f", "f")               // 11
		last, _ := inner.Delete(t.Context(), podKey("default", "f"), f)
		if err := inner.Compact(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		s.repair()
		if err := c.WaitFor(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		events, reached, err := cursor.Poll()
		want := "[MODIFIED a 6 DELETED d 8 ADDED d 9 ADDED e 10 DELETED b 12]"
		if got := fmt.Sprint(lines(events)); got != want || reached != 12 || err != nil {
			t.Errorf("got %s up to %d, %v; want %s", got, reached, err, want)
		}
		if !maps.Equal(content(pods.Snapshot()), listed(t, inner, 0)) {
			t.Errorf("the cache shows %v", content(pods.Snapshot()))
		}
		for revision, want := range map[store.Revision]error{last: nil, last - 1: ErrExpired, last + 1: ErrFuture} {
			if _, err := pods.SnapshotAt(revision); !errors.Is(err, want) {
				t.Errorf("SnapshotAt(%d): %v, want %v", revision, err, want)
			}
		}
		mustCreate(t, pods, "g") // 13
		time.Sleep(maxBatchDelay)
		if events, _, _ := cursor.Poll(); fmt.Sprint(lines(events)) != "[ADDED g 13]" {
			t.Errorf("afterwards: %v", lines(events))
		}
	})
}

// A deletion that the watch feed has skipped returns what was deleted.
func TestSkippedDeletion(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		a := mustCreate(t, pods, "a") // 2
		s.breakFeed()
		synctest.Wait()
		type result struct {
			*Entry
			error
		}
		ended := make(chan result)
		go func() {
			entry, err := pods.Delete(t.Context(), a.Key(), a.Revision()) // 3
			ended <- result{entry, err}
		}()
		synctest.Wait()
		inner := s.inner()
		if err := inner.Compact(t.Context(), putBehind(t, inner, "b", "b")); err != nil { // 4
			t.Fatal(err)
		}
		s.repair()
		deleted := <-ended
		if deleted.error != nil {
			t.Fatal(deleted.error)
		}
		obj, err := deleted.Object()
		if err != nil || obj.GetUID() != "default.a" || obj.GetResourceVersion() != "3" || deleted.Revision() != 3 {
			t.Errorf("%v at %d, %v", obj, deleted.Revision(), err)
		}
	})
}

func TestStoreWentBack(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		for i := range 5 {
			mustCreate(t, pods, fmt.Sprint(i))
		}
		time.Sleep(2 * historyAge) // old revisions of the horizon must not apply to the restored store
		cursor, _ := pods.Watch(c.Revision(), Scope{})
		other := memory.New()
		putBehind(t, other, "restored", "x") // 2
		s.mu.Lock()
		s.Store = other
		s.cut()
		s.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if _, _, err := cursor.Poll(); !errors.Is(err, ErrExpired) {
			t.Errorf("a watch continues after the store was restored: %v", err)
		}
		if c.Revision() != 2 || !maps.Equal(content(pods.Snapshot()), listed(t, other, 0)) {
			t.Errorf("the cache is at %d with %v", c.Revision(), content(pods.Snapshot()))
		}
		if entry := mustCreate(t, pods, "new"); entry.Revision() != 3 {
			t.Errorf("created at %d, want 3", entry.Revision())
		}
		if snapshot, err := pods.SnapshotAt(2); err != nil || snapshot.Len("") != 1 {
			t.Errorf("the restored state: %d objects, %v", snapshot.Len(""), err)
		}
	})
}

// A write waits for the watch feed only until its context is done.
func TestWritersDoNotHang(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		entry := mustCreate(t, pods, "a")
		s.breakFeed()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		_, err := pods.Create(ctx, podKey("default", "b"), newPod("default", "b"), 0)
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 3*time.Second {
			t.Errorf("Create: %v after %v", err, time.Since(begin))
		}
		if err := c.WaitFor(ctx, 3); !errors.Is(err, ErrTimeout) {
			t.Errorf("WaitFor: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { _, err := pods.Delete(ctx, entry.Key(), entry.Revision()); ended <- err }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Delete: %v", err)
		}
		s.repair()
		time.Sleep(time.Second)
		if pods.Get(entry.Key()) != nil || pods.Get(podKey("default", "b")) == nil {
			t.Error("what was written while the feed was broken is missing")
		}
	})
}

func TestWaitFor(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		reached := make(chan error, 1)
		revision := c.Revision() + 2
		go func() { reached <- c.WaitFor(t.Context(), revision) }()
		mustCreate(t, pods, "a")
		synctest.Wait()
		select {
		case err := <-reached:
			t.Fatalf("WaitFor returned early: %v", err)
		default:
		}
		mustCreate(t, pods, "b")
		if err := <-reached; err != nil {
			t.Error(err)
		}
	})
}

func TestSlowWatcherExpires(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		slow, _ := pods.Watch(c.Revision(), Scope{})
		quick, _ := pods.Watch(c.Revision(), Scope{})
		seen := 0
		value, _ := (&podCodec{}).Encode(newPod("default", "a"))
		for i := range historyMaxFresh + 2*chunkEvents {
			c.apply(store.Batch{Revision: c.Revision() + 1, Events: []store.Event{{
				KeyValue: store.KeyValue{Key: podKey("default", fmt.Sprint(i%100)), Value: value, Modified: c.Revision() + 1},
			}}})
			if i%100 == 0 {
				time.Sleep(maxBatchDelay)
				events, _, err := quick.Poll()
				if err != nil {
					t.Fatal(err)
				}
				seen += len(events)
			}
		}
		time.Sleep(maxBatchDelay)
		for {
			events, _, err := quick.Poll()
			if err != nil {
				t.Fatal(err)
			}
			if len(events) == 0 {
				break
			}
			seen += len(events)
		}
		if seen != historyMaxFresh+2*chunkEvents {
			t.Errorf("the quick watcher saw %d", seen)
		}
		if _, _, err := slow.Poll(); !errors.Is(err, ErrExpired) {
			t.Errorf("the slow watcher: %v", err)
		}
		if _, err := pods.SnapshotAt(2); !errors.Is(err, ErrExpired) {
			t.Errorf("SnapshotAt: %v", err)
		}
	})
}

// History of an idle table expires, and unused memos are dropped.
func TestSweep(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		begin := c.Revision()
		for i := range 4 * historyMin {
			mustCreate(t, pods, fmt.Sprint(i))
		}
		entry := pods.Get(podKey("default", "7"))
		made := 0
		ask := func() {
			entry.Encoding(EncodingID{"v1", "json"}, func(*Entry) ([]byte, error) { made++; return make([]byte, 1000), nil })
		}
		ask()
		if c.memoBytes.Load() != 1000 {
			t.Errorf("%d bytes counted", c.memoBytes.Load())
		}
		time.Sleep(memoEpoch)
		ask()
		if made != 1 {
			t.Error("a used memo was dropped")
		}
		time.Sleep(3 * memoEpoch)
		if c.memoBytes.Load() != 0 || entry.memos.Load() != nil {
			t.Errorf("%d bytes are kept", c.memoBytes.Load())
		}
		if _, err := pods.Watch(begin, Scope{}); err != nil {
			t.Errorf("history expired too early: %v", err)
		}
		time.Sleep(historyAge)
		if _, err := pods.Watch(begin, Scope{}); !errors.Is(err, ErrExpired) {
			t.Errorf("history never goes: %v", err)
		}
		if _, err := pods.Watch(c.Revision()-historyMin, Scope{}); err != nil {
			t.Errorf("nothing is left of history: %v", err)
		}
		entry.Encoding(EncodingID{"v1", "huge"}, func(*Entry) ([]byte, error) { return make([]byte, memoBudget+1), nil })
		synctest.Wait()
		if c.memoBytes.Load() != 0 {
			t.Errorf("%d bytes are kept over the budget", c.memoBytes.Load())
		}
	})
}

// A list at an old revision expires when the store would have compacted it, even if its table did not change.
func TestSnapshotsEnd(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		mustCreate(t, pods, "a")
		revision := c.Revision()
		if _, err := s.Store.Create(t.Context(), "/registry/unknown/a", nil, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(historyAge - time.Second)
		if _, err := pods.SnapshotAt(revision); err != nil {
			t.Errorf("it ends early: %v", err)
		}
		time.Sleep(2 * memoEpoch)
		if _, err := pods.SnapshotAt(revision); !errors.Is(err, ErrExpired) {
			t.Errorf("it never ends: %v", err)
		}
		if _, err := pods.SnapshotAt(c.Revision()); err != nil {
			t.Errorf("the newest revision: %v", err)
		}
	})
}

// Watchers are woken by the first change at once and by the following changes together after a delay that grows with the
// number of watchers.
func TestWakeBatching(t *testing.T) {
	for watchers, want := range map[int]string{
		1:   "[1 after 0s 1 after 1ms 1 after 2ms 1 after 3ms 1 after 4ms 1 after 1.005s]",
		41:  "[1 after 0s 2 after 2.05ms 2 after 4.1ms 1 after 1.005s]",
		100: "[1 after 0s 4 after 5ms 1 after 1.005s]",
		999: "[1 after 0s 4 after 10ms 1 after 1.005s]",
	} {
		t.Run(fmt.Sprint(watchers), func(t *testing.T) { testPace(t, watchers, want) })
	}
}

func testPace(t *testing.T, watchers int, want string) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		for range watchers - 1 {
			other, _ := pods.Watch(c.Revision(), Scope{})
			defer other.Close()
		}
		cursor, _ := pods.Watch(c.Revision(), Scope{})
		defer cursor.Close()
		var batches []string
		var done sync.WaitGroup
		begin := time.Now()
		done.Go(func() {
			for n := 0; n < 6; {
				events, _, err := cursor.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				n += len(events)
				batches = append(batches, fmt.Sprint(len(events), " after ", time.Since(begin)))
			}
		})
		synctest.Wait()
		for i := range 5 {
			mustCreate(t, pods, fmt.Sprint(i))
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		mustCreate(t, pods, "late")
		done.Wait()
		if got := fmt.Sprint(batches); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// Held-back events are delivered to no watcher before the next wake-up.
func TestHeldEvents(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		early, _ := pods.Watch(c.Revision(), Scope{})
		defer early.Close()
		late, _ := pods.Watch(c.Revision(), Scope{})
		defer late.Close()
		poll := func(cursor *Cursor, want string, wantReached store.Revision) {
			t.Helper()
			events, reached, err := cursor.Poll()
			if fmt.Sprint(lines(events)) != want || reached != wantReached || err != nil {
				t.Errorf("got %v up to %d, %v, want %s up to %d", lines(events), reached, err, want, wantReached)
			}
		}
		mustCreate(t, pods, "a") // 2
		poll(early, "[ADDED a 2]", 2)
		mustCreate(t, pods, "b") // 3
		mustCreate(t, pods, "c") // 4
		poll(early, "[]", 2)
		poll(late, "[ADDED a 2]", 2)
		if late.after > 2 || c.Revision() != 4 {
			t.Errorf("a bookmark would say %d", late.after)
		}
		fresh, _ := pods.Watch(c.Revision(), Scope{})
		defer fresh.Close()
		poll(fresh, "[]", 4)
		time.Sleep(2 * batchDelayPerWatcher)
		synctest.Wait()
		poll(early, "[ADDED b 3 ADDED c 4]", 4)
		poll(late, "[ADDED b 3 ADDED c 4]", 4)
	})
}

func TestFutureWatch(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		cursor, err := pods.Watch(c.Revision()+2, Scope{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			mustCreate(t, pods, fmt.Sprint(i))
		}
		time.Sleep(maxBatchDelay)
		if events, reached, err := cursor.Poll(); fmt.Sprint(lines(events)) != "[ADDED 2 4 ADDED 3 5]" || reached != 5 || err != nil {
			t.Errorf("got %v up to %d, %v", lines(events), reached, err)
		}
		s.Store.Create(t.Context(), "/registry/unknown/a", nil, 0)
		synctest.Wait()
		if events, reached, err := cursor.Poll(); len(events) != 0 || reached != 6 || err != nil {
			t.Errorf("a bookmark says %v, %d, %v", events, reached, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, reached, err := cursor.Next(ctx); !errors.Is(err, context.DeadlineExceeded) || reached != 6 {
			t.Errorf("Next: %d, %v", reached, err)
		}
	})
}

// A cursor that is moved to the position of another continues as that one does.
func TestPosition(t *testing.T) {
	for _, scope := range []Scope{{}, {ByNamespace, podPrefix + "default/"}} {
		story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
			create := func(namespace, name string) {
				if _, err := pods.Create(t.Context(), podKey(namespace, name), newPod(namespace, name), 0); err != nil {
					t.Fatal(err)
				}
				time.Sleep(maxBatchDelay)
				synctest.Wait()
			}
			watch := func(after store.Revision) *Cursor {
				cursor, err := pods.Watch(after, scope)
				if err != nil {
					t.Fatal(err)
				}
				return cursor
			}
			poll := func(cursor *Cursor, want string) {
				t.Helper()
				events, reached, err := cursor.Poll()
				if fmt.Sprint(lines(events)) != want || reached != c.Revision() || err != nil {
					t.Errorf("got %v up to %d, %v, want %s", lines(events), reached, err, want)
				}
			}
			position := func(cursor *Cursor) Position {
				t.Helper()
				p, ok := cursor.Position()
				if !ok {
					t.Error("the cursor has no position")
				}
				return p
			}
			start := c.Revision()
			create("default", "a")
			late, early := watch(start), watch(c.Revision())
			defer late.Close()
			defer early.Close()
			if _, ok := late.Position(); ok {
				t.Error("a cursor that has not been polled has a position")
			}
			poll(late, "[ADDED a 2]")
			poll(late, "[]")
			poll(early, "[]")
			if position(late).Compare(position(early)) != 0 {
				t.Error("cursors that have returned the same events differ")
			}
			create("default", "b")
			create("another", "c")
			poll(early, map[ScopeType]string{WholeTable: "[ADDED b 3 ADDED c 4]", ByNamespace: "[ADDED b 3]"}[scope.By])
			if position(late).Compare(position(early)) != -1 || position(early).Compare(position(late)) != 1 {
				t.Error("a cursor that has returned more is not ahead")
			}
			late.MoveTo(position(early))
			poll(late, "[]")
			create("default", "d")
			poll(late, "[ADDED d 5]")
			poll(early, "[ADDED d 5]")
			future := watch(c.Revision() + 2)
			defer future.Close()
			if _, _, err := future.Poll(); err != nil {
				t.Fatal(err)
			}
			if _, ok := future.Position(); ok {
				t.Error("a cursor that waits for a revision has a position")
			}
		})
	}
}

func TestViewsGoWithTheState(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		made := 0
		view := func(snapshot Snapshot) int {
			value, err := snapshot.Memoize("count", func() (any, error) { made++; return snapshot.Len(""), nil })
			if err != nil {
				t.Fatal(err)
			}
			return value.(int)
		}
		mustCreate(t, pods, "a")
		before := pods.Snapshot()
		if got := view(before) + view(pods.Snapshot()); got != 2 || made != 1 {
			t.Errorf("two reads of one state: counted %d, made %d", got, made)
		}
		mustCreate(t, pods, "b")
		if got := view(pods.Snapshot()); got != 2 || made != 2 {
			t.Errorf("after a change: counted %d, made %d", got, made)
		}
		if got := view(before); got != 1 || made != 2 {
			t.Errorf("the state before: counted %d, made %d", got, made)
		}
		c.sweep(false)
		if got := view(pods.Snapshot()); got != 2 || made != 3 {
			t.Errorf("after a sweep: counted %d, made %d", got, made)
		}
		failed := errors.New("no")
		if _, err := pods.Snapshot().Memoize("fails", func() (any, error) { return nil, failed }); err != failed {
			t.Errorf("got %v", err)
		}
		if _, err := pods.Snapshot().Memoize("fails", func() (any, error) { return 1, nil }); err != nil {
			t.Errorf("an error was remembered: %v", err)
		}
	})
}
