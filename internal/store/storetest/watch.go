package storetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skiff/internal/store"
)

// watcher reads a watch and checks the invariants of all watches with every batch.
type watcher struct {
	*suite
	watch   store.Watch
	prefix  string
	reached store.Revision
	pending []store.Event
}

func (s *suite) watch(prefix string, after store.Revision) *watcher {
	return &watcher{suite: s, watch: s.store.Watch(s.ctx, prefix, after), prefix: prefix, reached: after}
}

// next waits for a batch; it returns false when the watch has ended.
func (w *watcher) next() (store.Batch, bool) {
	w.t.Helper()
	select {
	case batch, open := <-w.watch.Batches():
		if open {
			w.check(batch)
		}
		return batch, open
	case <-time.After(20 * time.Second):
		w.t.Fatalf("no batch after revision %d", w.reached)
	}
	return store.Batch{}, false
}

// check: revisions never decrease, and no event is a duplicate or has another prefix.
func (w *watcher) check(batch store.Batch) {
	w.t.Helper()
	if batch.Revision <= w.reached {
		w.t.Errorf("batch of revision %d after %d", batch.Revision, w.reached)
	}
	last := w.reached
	for i, event := range batch.Events {
		if event.Modified <= w.reached || event.Modified < last || event.Modified > batch.Revision {
			w.t.Errorf("event of revision %d after %d in a batch from %d to %d", event.Modified, last, w.reached, batch.Revision)
		}
		if i > 0 && event.Modified == last && event.Key == batch.Events[i-1].Key {
			w.t.Errorf("event of %s at %d is a duplicate", event.Key, event.Modified)
		}
		if !strings.HasPrefix(event.Key, w.prefix) {
			w.t.Errorf("event of %s in a watch of %s", event.Key, w.prefix)
		}
		if event.Deleted && len(event.Value) > 0 {
			w.t.Errorf("deletion of %s carries a value", event.Key)
		}
		last = event.Modified
	}
	w.reached = batch.Revision
}

// take waits for n events.
func (w *watcher) take(n int) []store.Event {
	w.t.Helper()
	for len(w.pending) < n {
		batch, open := w.next()
		if !open {
			w.t.Fatalf("the watch ended after %d of %d events: %v", len(w.pending), n, w.watch.Err())
		}
		w.pending = append(w.pending, batch.Events...)
	}
	taken := w.pending[:n:n]
	w.pending = w.pending[n:]
	return taken
}

// until waits until the watch has reached a revision and returns the events.
func (w *watcher) until(revision store.Revision) []store.Event {
	w.t.Helper()
	for w.reached < revision {
		batch, open := w.next()
		if !open {
			w.t.Fatalf("the watch ended at %d before %d: %v", w.reached, revision, w.watch.Err())
		}
		w.pending = append(w.pending, batch.Events...)
	}
	events := w.pending
	w.pending = nil
	return events
}

// drain reads until the watch ends.
func (w *watcher) drain() {
	w.t.Helper()
	for {
		if _, open := w.next(); !open {
			return
		}
	}
}

func text(events []store.Event) (lines []string) {
	for _, event := range events {
		line := event.Key + "=" + string(event.Value)
		if event.Deleted {
			line = event.Key + " deleted"
		}
		lines = append(lines, line)
	}
	return lines
}

func testWatchOrder(_ *testing.T, s *suite) {
	start := s.current()
	live := s.watch("/registry/", start)
	a := s.create("/registry/a", "1")
	b := s.create("/registry/b", "1")
	a = s.update("/registry/a", "2", a)
	s.delete("/registry/b", b)
	s.create("/registry/b", "2")
	end := s.delete("/registry/a", a)
	want := "[/registry/a=1 /registry/b=1 /registry/a=2 /registry/b deleted /registry/b=2 /registry/a deleted]"
	s.equal("watch while it happens", text(live.take(6)), want)
	s.equal("watch afterwards", text(s.watch("/registry/", start).until(end)), want)
}

// A watch from any revision gets exactly the later events.
func testWatchResumable(_ *testing.T, s *suite) {
	start := s.current()
	last := store.Revision(0)
	for i := range 20 {
		last = s.create(fmt.Sprintf("/registry/%d", i), "v")
	}
	all := s.watch("/registry/", start).until(last)
	for i, event := range all {
		rest := s.watch("/registry/", event.Modified)
		if event.Modified == last {
			last = s.create("/registry/last", "v")
			s.equal("watch from the end", text(rest.until(last)), "[/registry/last=v]")
			continue
		}
		s.equal(fmt.Sprint("watch after ", event.Modified), text(rest.until(last)), text(all[i+1:]))
	}
}

// An idle watch gets progress when other keys change.
func testWatchBookmarkable(t *testing.T, s *suite) {
	w := s.watch("/registry/", s.current())
	revision := s.create("elsewhere", "v")
	if events := w.until(revision); len(events) > 0 {
		t.Errorf("events of elsewhere: %v", text(events))
	}
	after := s.create("/registry/a", "v")
	s.equal("event after progress", text(w.until(after)), "[/registry/a=v]")
}

// The changes of one transaction (here: the expiry of several keys) come in one batch.
func testWatchAtomic(t *testing.T, s *suite) {
	start := s.current()
	const keys = 30
	for i := range keys {
		if _, err := s.store.Create(s.ctx, fmt.Sprintf("/registry/%d", i), nil, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	w := s.watch("/registry/", start)
	deletions := 0
	for deletions < keys {
		batch, open := w.next() // checks that no later batch has events of a revision already reached
		if !open {
			t.Fatal(w.watch.Err())
		}
		for _, event := range batch.Events {
			if event.Deleted {
				deletions++
			}
		}
	}
	found, _ := s.list("/registry/", "", 0, 0)
	s.equal("list", found, "[]")
}

func testWatchPrefix(_ *testing.T, s *suite) {
	w := s.watch("/registry/pods/", s.current())
	s.create("/registry/pod", "v")
	s.create("/registry/pods/a", "v")
	s.create("/registry/podsx/a", "v")
	s.create("/registry/pods0", "v")
	last := s.create("/registry/pods/b", "v")
	s.equal("events", text(w.until(last)), "[/registry/pods/a=v /registry/pods/b=v]")
}

func testWatchFuture(_ *testing.T, s *suite) {
	start := s.current()
	w := s.watch("/registry/", start+2)
	s.create("/registry/1", "v")
	s.create("/registry/2", "v")
	s.create("/registry/3", "v")
	s.equal("events", text(w.take(1)), "[/registry/3=v]")
}

// A watch from an old revision catches up soon, even if the last changes had another prefix: a starting server waits for
// it.
func testWatchPast(t *testing.T, s *suite) {
	const n = 2500
	start := s.current()
	written := make([]store.Revision, n)
	s.parallel(50, n, func(i int) { written[i] = s.create(fmt.Sprintf("/registry/%d", i), "v") })
	for i := range n / 10 {
		s.delete(fmt.Sprintf("/registry/%d", i), written[i])
	}
	for i := range 20 {
		s.create(fmt.Sprintf("/elsewhere/%d", i), "v")
	}
	begin := time.Now()
	events := s.watch("/registry/", start).until(s.current())
	took := time.Since(begin)
	if len(events) != n+n/10 {
		t.Errorf("%d events, want %d", len(events), n+n/10)
	}
	for i, event := range events[n:] {
		if !event.Deleted || event.Key != fmt.Sprintf("/registry/%d", i) {
			t.Errorf("deletion %d is %+v", i, event)
		}
	}
	if took > 700*time.Millisecond {
		t.Errorf("it took %v: the watch waited for something to happen", took)
	}
}

// Changes that are being written from memory to disk are delivered once.
func testWatchPastOnce(_ *testing.T, s *suite) {
	start := s.current()
	for i := range 4 {
		for j := range 5 {
			key := fmt.Sprintf("/registry/%d-%d", i, j)
			s.create(key, "v")
			if _, err := s.store.Get(s.ctx, key); err != nil {
				s.t.Fatal(err)
			}
		}
		for range 4 {
			if events := s.watch("/registry/", start).until(s.current()); len(events) != (i+1)*5 {
				s.t.Fatalf("%d events of %d", len(events), (i+1)*5)
			}
			time.Sleep(35 * time.Millisecond)
		}
	}
}

func testWatchCompacted(t *testing.T, s *suite) {
	start := s.current()
	s.create("/registry/1", "v")
	middle := s.create("/registry/2", "v")
	last := s.create("/registry/3", "v")
	if err := s.store.Compact(s.ctx, last); err != nil {
		t.Fatal(err)
	}
	for _, after := range []store.Revision{start, start + 1} {
		w := s.watch("/registry/", after)
		w.drain()
		s.fails("watch of forgotten history", w.watch.Err(), store.ErrCompacted)
	}
	s.equal("watch of what is left", text(s.watch("/registry/", middle).until(last)), "[/registry/3=v]")
	after := s.watch("/registry/", last)
	revision := s.create("/registry/4", "v")
	s.equal("watch from the end", text(after.until(revision)), "[/registry/4=v]")
}

// A slow reader blocks nothing and misses nothing.
func testWatchSlowReader(_ *testing.T, s *suite) {
	start := s.current()
	slow := s.watch("/registry/", start)
	const writes = 3000
	s.parallel(4, writes, func(i int) { s.create(fmt.Sprintf("/registry/%d", i), "v") })
	s.equal("events", len(slow.until(start+writes)), writes)
}

func testWatchCancelled(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(s.ctx)
	w := &watcher{suite: s, watch: s.store.Watch(ctx, "/registry/", s.current()), prefix: "/registry/"}
	cancel()
	w.drain()
	if err := w.watch.Err(); err != nil {
		t.Errorf("a watch ended by its context says %v", err)
	}
}

// parallel calls do for 0 to n from several goroutines.
func (s *suite) parallel(goroutines, n int, do func(i int)) {
	var wait sync.WaitGroup
	for g := range goroutines {
		wait.Go(func() {
			for i := g; i < n; i += goroutines {
				do(i)
			}
		})
	}
	wait.Wait()
}

// No concurrent increment is lost.
func testConcurrentUpdates(t *testing.T, s *suite) {
	s.create("/registry/counter", "0")
	const goroutines, each = 8, 20
	s.parallel(goroutines, goroutines*each, func(int) {
		for {
			kv, err := s.store.Get(s.ctx, "/registry/counter")
			if err != nil {
				t.Error(err)
				return
			}
			var n int
			fmt.Sscan(string(kv.Value), &n)
			if _, err := s.store.Update(s.ctx, kv.Key, fmt.Append(nil, n+1), 0, kv.Modified); err == nil {
				return
			}
		}
	})
	found, _ := s.list("/registry/", "", 0, 0)
	s.equal("counter", found, fmt.Sprintf("[/registry/counter=%d]", goroutines*each))
}

// The list at the start of a watch plus its events equals the list at each later revision.
func testWatchIsListPlusEvents(t *testing.T, s *suite) {
	for i := range 10 {
		s.create(fmt.Sprintf("/registry/%d", i), "start")
	}
	kvs, start, _, err := s.store.List(s.ctx, "/registry/", "", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := s.watch("/registry/", start)
	s.parallel(6, 600, func(i int) {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		key := fmt.Sprintf("/registry/%d", random.IntN(20))
		kv, err := s.store.Get(s.ctx, key)
		switch {
		case err != nil:
			s.store.Create(s.ctx, key, fmt.Append(nil, i), 0)
		case random.IntN(3) == 0:
			s.store.Delete(s.ctx, key, kv.Modified)
		default:
			s.store.Update(s.ctx, key, fmt.Append(nil, i), 0, kv.Modified)
		}
	})
	state := map[string]string{}
	for _, kv := range kvs {
		state[kv.Key] = string(kv.Value)
	}
	events := w.until(s.current())
	for i, event := range events {
		if event.Deleted {
			if _, there := state[event.Key]; !there {
				t.Errorf("%s is deleted at %d but was not there", event.Key, event.Modified)
			}
			delete(state, event.Key)
		} else {
			state[event.Key] = string(event.Value)
		}
		if i%25 != 0 && i != len(events)-1 {
			continue
		}
		var want []string
		for _, key := range slices.Sorted(maps.Keys(state)) {
			want = append(want, key+"="+state[key])
		}
		found, _ := s.list("/registry/", "", 0, event.Modified)
		s.equal(fmt.Sprint("list at ", event.Modified), found, want)
	}
}
