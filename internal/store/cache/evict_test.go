package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

// incompressible returns a text of n characters that differs from call to call.
func incompressible(n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte('!' + rand.IntN('~'-'!'))
	}
	return string(text)
}

// writeLarge updates a pod with a large annotation, from an absent one on, n times.
func writeLarge(t *testing.T, pods *Table, prefix, name string, n int) {
	t.Helper()
	var last *Entry
	for i := range n {
		pod := newPod("default", name)
		pod.Labels["n"] = fmt.Sprint(i)
		pod.Annotations = map[string]string{"large": incompressible(256 << 10)}
		var err error
		if last == nil {
			last, err = pods.Create(t.Context(), prefix+"default/"+name, pod, 0)
		} else {
			last, err = pods.Update(t.Context(), last.Key(), pod, 0, last.Revision())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// heldBytes returns the bytes that only history references, in total and of the tables.
func heldBytes(c *Cache, tables ...*Table) (total int, held []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range tables {
		held = append(held, t.held.bytes)
	}
	return c.heldBytes, held
}

func evictAll(c *Cache, t *Table) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.evictOldest(1 << 30)
}

// Many writes of one large object neither end the watches of others nor take more memory than the budget.
func TestLargeWritesKeepHistory(t *testing.T) {
	c, tables := start(t, memory.New(), podResource())
	pods := tables[0]
	begin := c.Revision()
	mustCreate(t, pods, "small")
	const n = 3 * historyBudget / (256 << 10)
	writeLarge(t, pods, podPrefix, "large", n)
	if total, held := heldBytes(c, pods); total > historyBudget || total != held[0] {
		t.Errorf("history holds %d bytes, the table counts %d", total, held[0])
	}
	cursor, err := pods.Watch(begin, Scope{})
	if err != nil {
		t.Fatal(err)
	}
	defer cursor.Close()
	var events []Event
	for len(events) < n+1 {
		more, _, err := cursor.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, more...)
	}
	evicted := 0
	for i, event := range events[1:] {
		if event.Entry.Stored() == nil {
			evicted++
		}
		obj, err := event.Entry.Object()
		if err != nil {
			t.Fatal(err)
		}
		pod := obj.(*corev1.Pod)
		if pod.Labels["n"] != fmt.Sprint(i) || pod.ResourceVersion != fmt.Sprint(event.Revision) || len(pod.Annotations["large"]) != 256<<10 {
			t.Fatalf("event %d has labels %v at %s", i, pod.Labels, pod.ResourceVersion)
		}
		if labels := must(event.Entry.Labels()); labels["n"] != fmt.Sprint(i) {
			t.Fatalf("event %d has labels %v", i, labels)
		}
	}
	if evicted < n/2 || evicted == n {
		t.Errorf("%d of %d values were evicted", evicted, n)
	}
}

// The values of a deleted object are evicted with those of the entry before, and read back from before the deletion.
func TestEvictedDeletion(t *testing.T) {
	c, tables := start(t, memory.New(), podResource())
	pods := tables[0]
	created := mustCreate(t, pods, "a")
	deleted, err := pods.Delete(t.Context(), created.Key(), created.Revision())
	if err != nil {
		t.Fatal(err)
	}
	evictAll(c, pods)
	if total, _ := heldBytes(c); created.Stored() != nil || deleted.Stored() != nil || total != 0 {
		t.Errorf("%d bytes are held", total)
	}
	for _, e := range []*Entry{created, deleted} {
		e.object.Store(nil)
		if obj, err := e.Object(); err != nil || obj.GetName() != "a" || obj.GetResourceVersion() != fmt.Sprint(e.Revision()) {
			t.Errorf("%v %v", obj, err)
		}
		if value, ok := e.indexValue(); !ok || value != "node-1" {
			t.Errorf("indexed as %q %v", value, ok)
		}
	}
}

// brittle is a store whose lists fail when told.
type brittle struct {
	store.Store
	err error
}

func (s *brittle) List(ctx context.Context, prefix, from string, limit int, at store.Revision) ([]store.KeyValue, store.Revision, int64, error) {
	if s.err != nil {
		return nil, 0, 0, s.err
	}
	return s.Store.List(ctx, prefix, from, limit, at)
}

// An evicted value that cannot be read back is an error for everybody, and is read at the next attempt.
func TestEvictedValueIsNotReadable(t *testing.T) {
	s := &brittle{Store: memory.New()}
	c, tables := start(t, s, podResource())
	pods := tables[0]
	old := mustCreate(t, pods, "a")
	changed := newPod("default", "a")
	changed.Labels["app"] = "changed"
	updated, err := pods.Update(t.Context(), old.Key(), changed, 0, old.Revision())
	if err != nil {
		t.Fatal(err)
	}
	evictAll(c, pods)
	old.object.Store(nil)
	read := func() []error {
		_, err1 := old.Object()
		_, err2 := old.Labels()
		_, err3 := old.Fields(t.Context())
		_, err4 := old.Encoding(EncodingID{Format: "name"}, func(e *Entry) ([]byte, error) {
			obj, err := e.Object()
			if err != nil {
				return nil, err
			}
			return []byte(obj.GetName()), nil
		})
		return []error{err1, err2, err3, err4}
	}
	s.err = store.ErrUnavailable
	for i, err := range read() {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%d: %v", i, err)
		}
	}
	s.err = nil
	for i, err := range read() {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	old.object.Store(nil)
	old.dropMemos(0, true)
	if err := s.Compact(t.Context(), updated.Revision()); err != nil {
		t.Fatal(err)
	}
	for i, err := range read() {
		if !errors.Is(err, ErrExpired) {
			t.Errorf("%d after compaction: %v", i, err)
		}
	}
	if obj, err := updated.Object(); err != nil || obj.GetLabels()["app"] != "changed" {
		t.Errorf("the newest value: %v %v", obj, err)
	}
}

// The kind that writes most evicts its own values, not those of others.
func TestBudgetIsSharedFairly(t *testing.T) {
	other := podResource()
	other.Name, other.Prefix = "services", "/registry/services/specs/"
	c, tables := start(t, memory.New(), podResource(), other)
	pods, services := tables[0], tables[1]
	writeLarge(t, services, other.Prefix, "a", 9)
	writeLarge(t, pods, podPrefix, "large", 2*historyBudget/(256<<10))
	total, held := heldBytes(c, pods, services)
	if services.evictedTo.Load() != 0 {
		t.Error("the values of a kind with few writes were evicted")
	}
	if pods.evictedTo.Load() == 0 || total > historyBudget || total != held[0]+held[1] {
		t.Errorf("%v bytes of pods and services are held", held)
	}
	// A removed table frees its share.
	c.Remove(pods)
	if total, _ := heldBytes(c); total != held[1] {
		t.Errorf("%d bytes are held after the table was removed", total)
	}
}

// A state that history no longer has is read from the store until the store compacts it.
func TestListAt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, open func(t *testing.T) store.Store) {
		s := open(t)
		c, tables := start(t, s, podResource())
		pods := tables[0]
		for i := range 5 {
			mustCreate(t, pods, fmt.Sprint(i))
		}
		at := c.Revision()
		entry := pods.Get(podKey("default", "2"))
		if _, err := pods.Delete(t.Context(), entry.Key(), entry.Revision()); err != nil {
			t.Fatal(err)
		}
		evictAll(c, pods)
		if _, err := pods.SnapshotAt(at); !errors.Is(err, ErrExpired) {
			t.Errorf("a state with evicted values is served: %v", err)
		}
		page, err := pods.ListAt(t.Context(), podPrefix, "", 3, at)
		if err != nil || len(page.Entries) != 3 || page.Remaining != 2 || page.Entries[2].Key() != entry.Key() {
			t.Fatalf("%+v %v", page, err)
		}
		if obj, err := page.Entries[2].Object(); err != nil || obj.GetResourceVersion() != fmt.Sprint(entry.Revision()) {
			t.Errorf("%v %v", obj, err)
		}
		page, err = pods.ListAt(t.Context(), podPrefix, page.Next, 0, at)
		if err != nil || len(page.Entries) != 2 || page.Next != "" || page.Entries[0].Key() != podKey("default", "3") {
			t.Errorf("%+v %v", page, err)
		}
		if err := s.Compact(t.Context(), c.Revision()); err != nil {
			t.Fatal(err)
		}
		if _, err := pods.ListAt(t.Context(), podPrefix, "", 3, at); !errors.Is(err, ErrExpired) {
			t.Errorf("after compaction: %v", err)
		}
	})
}
