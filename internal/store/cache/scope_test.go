package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// podOn changes the node of a pod, and creates it if necessary.
func podOn(t testing.TB, pods *Table, namespace, name, node string) *Entry {
	t.Helper()
	pod := newPod(namespace, name)
	pod.Spec.NodeName = node
	key := podKey(namespace, name)
	var entry *Entry
	var err error
	if old := pods.Get(key); old != nil {
		pod.Annotations = map[string]string{"before": fmt.Sprint(old.Revision())}
		entry, err = pods.Update(context.Background(), key, pod, 0, old.Revision())
	} else {
		entry, err = pods.Create(context.Background(), key, pod, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// An event wakes the watchers of its own node, namespace and key, and of the whole table, and no other of thousands.
func TestEventWakesOnlyItsScopes(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		podOn(t, pods, "ns-0", "pod-0", "node-0")
		podOn(t, pods, "ns-1", "pod-0", "node-0")
		type watcher struct {
			scope   Scope
			cursor  *Cursor
			changed <-chan struct{}
		}
		var watchers []*watcher
		watch := func(scope Scope) {
			cursor, err := pods.Watch(c.Revision(), scope)
			if err != nil {
				t.Fatal(err)
			}
			watchers = append(watchers, &watcher{scope: scope, cursor: cursor})
		}
		for i := range 1000 {
			watch(Scope{ByIndex, fmt.Sprint("node-", i)})
			watch(Scope{ByNamespace, podPrefix + fmt.Sprint("ns-", i, "/")})
			watch(Scope{ByKey, podKey("ns-0", fmt.Sprint("pod-", i))})
		}
		watch(Scope{})
		for _, test := range []struct {
			what  string
			write func()
			want  map[Scope]bool
		}{
			{"update", func() { podOn(t, pods, "ns-0", "pod-0", "node-0") }, map[Scope]bool{
				{}: true, {ByIndex, "node-0"}: true, {ByNamespace, podPrefix + "ns-0/"}: true, {ByKey, podKey("ns-0", "pod-0")}: true,
			}},
			{"change of the field", func() { podOn(t, pods, "ns-1", "pod-0", "node-7") }, map[Scope]bool{
				{}: true, {ByIndex, "node-0"}: true, {ByIndex, "node-7"}: true, {ByNamespace, podPrefix + "ns-1/"}: true,
			}},
			{"delete", func() {
				key := podKey("ns-1", "pod-0")
				if _, err := pods.Delete(t.Context(), key, pods.Get(key).Revision()); err != nil {
					t.Fatal(err)
				}
			}, map[Scope]bool{{}: true, {ByIndex, "node-7"}: true, {ByNamespace, podPrefix + "ns-1/"}: true}},
			{"create without a node", func() { podOn(t, pods, "other", "pod", "") }, map[Scope]bool{{}: true}},
		} {
			time.Sleep(time.Second)
			for _, w := range watchers {
				w.changed = w.cursor.Changed()
				if _, _, err := w.cursor.Poll(); err != nil {
					t.Fatal(err)
				}
			}
			test.write()
			time.Sleep(maxBatchDelay)
			synctest.Wait()
			for _, w := range watchers {
				woken := isClosed(w.changed)
				events, reached, err := w.cursor.Poll()
				if woken != test.want[w.scope] || (len(events) == 1) != woken || err != nil || reached != c.Revision() {
					t.Errorf("%s: %v was woken: %v, has %d events up to %d of %d, %v", test.what, w.scope, woken, len(events), reached, c.Revision(), err)
				}
			}
		}
		for _, w := range watchers {
			w.cursor.Close()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(pods.scopes.all) != 0 || pods.scopes.count != [scopeTypes]int{} || pods.whole.cursors != 0 {
			t.Errorf("%d scopes remain", len(pods.scopes.all))
		}
	})
}

// A cursor of a scope returns what a cursor of the table returns for that scope, from wherever it starts.
func TestScopeHasTheTablesEvents(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		c, tables := start(t, open(t), podResource())
		pods := tables[0]
		begin := c.Revision()
		scopesOf := []Scope{{ByIndex, "node-0"}, {ByIndex, ""}, {ByNamespace, podPrefix + "ns-1/"}, {ByKey, podKey("ns-2", "pod-2")}}
		type reader struct {
			scope  Scope
			from   store.Revision
			cursor *Cursor
			got    []store.Revision
		}
		var readers []*reader
		poll := func(r *reader) {
			for {
				events, reached, err := r.cursor.Poll()
				if err != nil {
					t.Fatal(err)
				}
				for _, event := range events {
					r.got = append(r.got, event.Revision)
					if event.Revision > reached {
						t.Errorf("event %d, but everything up to %d was delivered", event.Revision, reached)
					}
				}
				if len(events) == 0 {
					return
				}
			}
		}
		random := rand.New(rand.NewPCG(1, 2))
		for i := range 300 {
			namespace, name := fmt.Sprint("ns-", random.IntN(3)), fmt.Sprint("pod-", random.IntN(4))
			switch key := podKey(namespace, name); {
			case random.IntN(4) > 0 || pods.Get(key) == nil:
				podOn(t, pods, namespace, name, []string{"", "node-0", "node-1"}[random.IntN(3)])
			default:
				if _, err := pods.Delete(t.Context(), key, pods.Get(key).Revision()); err != nil {
					t.Fatal(err)
				}
			}
			if i%10 == 0 {
				from := begin + store.Revision(random.Int64N(int64(c.Revision()-begin)+1))
				scope := scopesOf[random.IntN(len(scopesOf))]
				cursor, err := pods.Watch(from, scope)
				if err != nil {
					t.Fatal(err)
				}
				defer cursor.Close()
				readers = append(readers, &reader{scope: scope, from: from, cursor: cursor})
			}
			if len(readers) > 0 {
				poll(readers[random.IntN(len(readers))])
			}
		}
		time.Sleep(2 * maxBatchDelay)
		all, err := pods.Watch(begin, Scope{})
		if err != nil {
			t.Fatal(err)
		}
		defer all.Close()
		var events []Event
		for more, _, _ := all.Poll(); len(more) > 0; more, _, _ = all.Poll() {
			events = append(events, more...)
		}
		for _, r := range readers {
			for deadline := time.Now().Add(30 * time.Second); r.cursor.after < c.Revision() && time.Now().Before(deadline); {
				poll(r)
			}
			var want []store.Revision
			for i := range events {
				if events[i].Revision > r.from && r.scope.contains(&events[i]) {
					want = append(want, events[i].Revision)
				}
			}
			if fmt.Sprint(r.got) != fmt.Sprint(want) {
				t.Errorf("%v from %d: got %v, want %v", r.scope, r.from, r.got, want)
			}
		}
	})
}

// A cursor whose scope has no events does not expire when the rest of the table moves on; one that does not read does.
func TestScopeExpires(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		value := must((&podCodec{}).Encode(newPod("default", "a"))) // on node-1
		idle, _ := pods.Watch(c.Revision(), Scope{ByIndex, "node-2"})
		defer idle.Close()
		slow, _ := pods.Watch(c.Revision(), Scope{ByIndex, "node-1"})
		defer slow.Close()
		write := func(n int) {
			for i := range n {
				revision := c.Revision() + 1
				key := podKey("default", fmt.Sprint(i%100))
				c.apply(store.Batch{Revision: revision, Events: []store.Event{{KeyValue: store.KeyValue{Key: key, Value: value, Modified: revision}}}})
			}
		}
		write(historyMaxFresh + 2*chunkEvents)
		if _, _, err := slow.Poll(); err != ErrExpired {
			t.Errorf("the slow watcher: %v", err)
		}
		kept := func() int {
			slow.watchers.mu.Lock()
			defer slow.watchers.mu.Unlock()
			return len(slow.watchers.positions)
		}
		if kept() > 2*historyMaxFresh {
			t.Errorf("%d positions are kept", kept())
		}
		if events, reached, err := idle.Poll(); len(events) != 0 || reached != c.Revision() || err != nil {
			t.Errorf("the idle watcher has %d events up to %d: %v", len(events), reached, err)
		}
		time.Sleep(historyAge + 2*memoEpoch)
		if kept() > historyMin+2*chunkEvents {
			t.Errorf("%d positions are kept of %d events", kept(), historyMin)
		}
	})
}

// An event whose index value cannot be read reaches the watchers of all values.
func TestUnknownIndexValue(t *testing.T) {
	_, tables := start(t, &encrypting{Store: memory.New()}, podResource())
	pods := tables[0]
	cursor, err := pods.Watch(pods.cache.Revision(), Scope{ByIndex, "node-9"})
	if err != nil {
		t.Fatal(err)
	}
	defer cursor.Close()
	value := append([]byte(nil), testPrefix...)
	value = append(value, must((&podCodec{}).Encode(newPod("ns", "a")))...)
	if _, err := pods.cache.store.Create(t.Context(), podKey("ns", "a"), value, 0); err != nil {
		t.Fatal(err)
	}
	events, _, err := cursor.Next(t.Context())
	if err != nil || len(events) != 1 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	if obj := must(events[0].Entry.Object()).(*corev1.Pod); obj.Spec.NodeName != "node-1" {
		t.Error(obj)
	}
	if events[0].Entry.encrypted() {
		t.Error("the decrypted value was not kept")
	}
}

// Watches of a table whose history was lost expire in all scopes.
func TestScopesAreResetWithHistory(t *testing.T) {
	story(t, func(t *testing.T, s *shaky, c *Cache, pods *Table) {
		for i := range 5 {
			mustCreate(t, pods, fmt.Sprint(i))
		}
		cursor, _ := pods.Watch(c.Revision(), Scope{ByIndex, "node-1"})
		defer cursor.Close()
		changed := cursor.Changed()
		other := memory.New()
		putBehind(t, other, "restored", "x")
		s.mu.Lock()
		s.Store = other
		s.cut()
		s.mu.Unlock()
		<-changed
		if _, _, err := cursor.Poll(); err != ErrExpired {
			t.Errorf("a watch continues after the store was restored: %v", err)
		}
	})
}
