// Package storetest is the test suite that every store must pass: the contract of package store as code.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"skiff/internal/store"
)

// Run tests stores made by open, which closes them when its test ends. A store may have a history, but no keys.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	tests := []struct {
		name string
		test func(t *testing.T, s *suite)
	}{
		{"Create", testCreate},
		{"Update", testUpdate},
		{"Delete", testDelete},
		{"Revisions", testRevisions},
		{"List", testList},
		{"ListPages", testListPages},
		{"ListOldRevision", testListOldRevision},
		{"ListMany", testListMany},
		{"Compact", testCompact},
		{"WatchOrderedUniqueReliable", testWatchOrder},
		{"WatchResumable", testWatchResumable},
		{"WatchBookmarkable", testWatchBookmarkable},
		{"WatchAtomic", testWatchAtomic},
		{"WatchPrefix", testWatchPrefix},
		{"WatchFuture", testWatchFuture},
		{"WatchPast", testWatchPast},
		{"WatchPastOnce", testWatchPastOnce},
		{"WatchCompacted", testWatchCompacted},
		{"WatchSlowReader", testWatchSlowReader},
		{"WatchCancelled", testWatchCancelled},
		{"TTL", testTTL},
		{"TTLEndsWithWrite", testTTLEndsWithWrite},
		{"Cancelled", testCancelled},
		{"Healthy", testHealthy},
		{"Closed", testClosed},
		{"ConcurrentUpdates", testConcurrentUpdates},
		{"WatchIsListPlusEvents", testWatchIsListPlusEvents},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			t.Cleanup(cancel)
			test.test(t, &suite{t: t, ctx: ctx, store: open(t)})
		})
	}
}

// suite is one test's store with methods that fail the test.
type suite struct {
	t     *testing.T
	ctx   context.Context
	store store.Store
}

func (s *suite) create(key, value string) store.Revision {
	s.t.Helper()
	revision, err := s.store.Create(s.ctx, key, []byte(value), 0)
	if err != nil {
		s.t.Fatalf("Create(%s): %v", key, err)
	}
	return revision
}

func (s *suite) update(key, value string, expected store.Revision) store.Revision {
	s.t.Helper()
	revision, err := s.store.Update(s.ctx, key, []byte(value), 0, expected)
	if err != nil {
		s.t.Fatalf("Update(%s): %v", key, err)
	}
	return revision
}

func (s *suite) delete(key string, expected store.Revision) store.Revision {
	s.t.Helper()
	revision, err := s.store.Delete(s.ctx, key, expected)
	if err != nil {
		s.t.Fatalf("Delete(%s): %v", key, err)
	}
	return revision
}

// list returns the keys and values as text.
func (s *suite) list(prefix, from string, limit int, at store.Revision) (found []string, remaining int64) {
	s.t.Helper()
	kvs, read, remaining, err := s.store.List(s.ctx, prefix, from, limit, at)
	if err != nil {
		s.t.Fatalf("List(%q, %q, %d, %d): %v", prefix, from, limit, at, err)
	}
	if at != 0 && read != at {
		s.t.Fatalf("List at %d says it read at %d", at, read)
	}
	for _, kv := range kvs {
		found = append(found, kv.Key+"="+string(kv.Value))
	}
	return found, remaining
}

func (s *suite) current() store.Revision {
	s.t.Helper()
	revision, err := s.store.Current(s.ctx)
	if err != nil {
		s.t.Fatalf("Current: %v", err)
	}
	return revision
}

func (s *suite) equal(what string, got, want any) {
	s.t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		s.t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

func (s *suite) fails(what string, err, want error) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// conflict checks that err is a conflict with the given state; revision 0 means that the key does not exist.
func (s *suite) conflict(what string, err error, key, value string, revision store.Revision) {
	s.t.Helper()
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) {
		s.t.Errorf("%s: got error %v, want a conflict", what, err)
		return
	}
	got := conflict.Current
	if got.Key != key || string(got.Value) != value || got.Modified != revision {
		s.t.Errorf("%s: conflict with %q=%q at %d, want %q=%q at %d", what, got.Key, got.Value, got.Modified, key, value, revision)
	}
}

func testCreate(t *testing.T, s *suite) {
	for _, test := range []struct{ key, value string }{
		{"/registry/a", "1"},
		{"/registry/empty", ""},
		{"/registry/ü/\xff", "\x00k8s"},
	} {
		revision := s.create(test.key, test.value)
		kv, err := s.store.Get(s.ctx, test.key)
		if err != nil {
			t.Fatal(err)
		}
		if kv.Key != test.key || string(kv.Value) != test.value || kv.Modified != revision {
			t.Errorf("created %q=%q at %d, got %q=%q at %d", test.key, test.value, revision, kv.Key, kv.Value, kv.Modified)
		}
	}
	_, err := s.store.Create(s.ctx, "/registry/a", []byte("2"), 0)
	s.fails("second Create", err, store.ErrExists)
	_, err = s.store.Get(s.ctx, "/registry/none")
	s.fails("Get of an absent key", err, store.ErrNotFound)
}

func testUpdate(t *testing.T, s *suite) {
	first := s.create("/registry/a", "1")
	second := s.update("/registry/a", "2", first)
	if second <= first {
		t.Errorf("update at %d after create at %d", second, first)
	}
	_, err := s.store.Update(s.ctx, "/registry/a", []byte("3"), 0, first)
	s.conflict("Update of an old state", err, "/registry/a", "2", second)
	_, err = s.store.Update(s.ctx, "/registry/b", []byte("3"), 0, first)
	s.conflict("Update of an absent key", err, "/registry/b", "", 0)
	_, err = s.store.Update(s.ctx, "/registry/b", []byte("3"), 0, 0)
	s.conflict("Update of an absent key at revision 0", err, "/registry/b", "", 0)
	found, _ := s.list("/registry/", "", 0, 0)
	s.equal("list", found, "[/registry/a=2]")
}

func testDelete(_ *testing.T, s *suite) {
	first := s.create("/registry/a", "1")
	second := s.update("/registry/a", "2", first)
	_, err := s.store.Delete(s.ctx, "/registry/a", first)
	s.conflict("Delete of an old state", err, "/registry/a", "2", second)
	third := s.delete("/registry/a", second)
	s.equal("current", s.current(), third)
	_, err = s.store.Delete(s.ctx, "/registry/a", second)
	s.conflict("Delete of an absent key", err, "/registry/a", "", 0)
	_, err = s.store.Get(s.ctx, "/registry/a")
	s.fails("Get", err, store.ErrNotFound)
	if fourth := s.create("/registry/a", "3"); fourth <= third {
		s.t.Errorf("created again at %d after deletion at %d", fourth, third)
	}
}

// Every write gets the next revision; calls that do not write leave it unchanged.
func testRevisions(_ *testing.T, s *suite) {
	start := s.current()
	a := s.create("/registry/a", "1")
	s.equal("first write", a, start+1)
	s.store.Create(s.ctx, "/registry/a", nil, 0)
	s.store.Update(s.ctx, "/registry/a", nil, 0, a-1)
	s.store.Delete(s.ctx, "/registry/b", a)
	s.store.Get(s.ctx, "/registry/a")
	s.equal("after writes that failed", s.current(), start+1)
	a = s.update("/registry/a", "1", a)
	s.equal("write of the same value", a, start+2)
	s.equal("deletion", s.delete("/registry/a", a), start+3)
	s.equal("current", s.current(), start+3)
}

func testList(_ *testing.T, s *suite) {
	for _, key := range []string{"/registry/pods/b/1", "/registry/pods/a/1", "/registry/pods/a/2", "/registry/podsecurity/x", "/registry/pod", "other"} {
		s.create(key, "v")
	}
	for _, test := range []struct {
		prefix, from string
		limit        int
		want         string
		remaining    int64
	}{
		{"/registry/pods/", "", 0, "[/registry/pods/a/1=v /registry/pods/a/2=v /registry/pods/b/1=v]", 0},
		{"/registry/pods/a/", "", 0, "[/registry/pods/a/1=v /registry/pods/a/2=v]", 0},
		{"/registry/pods/", "", 1, "[/registry/pods/a/1=v]", 2},
		{"/registry/pods/", "", 3, "[/registry/pods/a/1=v /registry/pods/a/2=v /registry/pods/b/1=v]", 0},
		{"/registry/pods/", "/registry/pods/a/1\x00", 1, "[/registry/pods/a/2=v]", 1},
		{"/registry/pods/", "/registry/pods/a/3", 5, "[/registry/pods/b/1=v]", 0},
		{"/registry/pods/", "/registry/a", 1, "[/registry/pods/a/1=v]", 2},
		{"/registry/pods/", "/registry/zzz", 1, "[]", 0},
		{"/registry/none/", "", 10, "[]", 0},
		{"", "p", 0, "[]", 0},
		{"", "", 0, "[/registry/pod=v /registry/pods/a/1=v /registry/pods/a/2=v /registry/pods/b/1=v /registry/podsecurity/x=v other=v]", 0},
	} {
		found, remaining := s.list(test.prefix, test.from, test.limit, 0)
		what := fmt.Sprintf("List(%q, %q, %d)", test.prefix, test.from, test.limit)
		s.equal(what, found, test.want)
		s.equal(what+" remaining", remaining, test.remaining)
	}
}

// All pages of a list have the same revision, whatever is written meanwhile.
func testListPages(_ *testing.T, s *suite) {
	revisions := map[string]store.Revision{}
	for i := range 10 {
		key := fmt.Sprintf("/registry/%02d", i)
		revisions[key] = s.create(key, "old")
	}
	want, _ := s.list("/registry/", "", 0, 0)
	at := s.current()
	var got []string
	from := ""
	for page := 0; ; page++ {
		kvs, _, remaining, err := s.store.List(s.ctx, "/registry/", from, 3, at)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, kv := range kvs {
			got = append(got, kv.Key+"="+string(kv.Value))
		}
		s.equal("remaining", remaining, 10-len(got))
		if remaining == 0 {
			break
		}
		from = kvs[len(kvs)-1].Key + "\x00"
		s.create(fmt.Sprintf("/registry/%02dx", 9-page), "new")
		key := fmt.Sprintf("/registry/%02d", 9-page)
		if page%2 == 0 {
			s.update(key, "new", revisions[key])
		} else {
			s.delete(key, revisions[key])
		}
	}
	s.equal("pages", got, want)
}

func testListOldRevision(_ *testing.T, s *suite) {
	a1 := s.create("/registry/a", "1")
	b1 := s.create("/registry/b", "1")
	a2 := s.update("/registry/a", "2", a1)
	b2 := s.delete("/registry/b", b1)
	b3 := s.create("/registry/b", "3")
	for revision, want := range map[store.Revision]string{
		a1: "[/registry/a=1]",
		b1: "[/registry/a=1 /registry/b=1]",
		a2: "[/registry/a=2 /registry/b=1]",
		b2: "[/registry/a=2]",
		b3: "[/registry/a=2 /registry/b=3]",
	} {
		found, _ := s.list("/registry/", "", 0, revision)
		s.equal(fmt.Sprint("list at ", revision), found, want)
	}
	// One key is read at a revision as the first of those that have it as prefix.
	longer := s.create("/registry/b/longer", "x")
	for revision, want := range map[store.Revision]string{b1: "[/registry/b=1]", b2: "[]", longer: "[/registry/b=3]"} {
		found, _ := s.list("/registry/b", "", 1, revision)
		s.equal(fmt.Sprint("key at ", revision), found, want)
	}
	_, _, _, err := s.store.List(s.ctx, "/registry/", "", 0, longer+1)
	s.fails("List in the future", err, store.ErrFuture)
}

// A list that exceeds one response is complete, in order, and of one revision.
func testListMany(t *testing.T, s *suite) {
	const many = 1234
	s.parallel(8, many, func(i int) {
		s.create(fmt.Sprintf("/registry/%05d", i), fmt.Sprint(i))
	})
	kvs, _, remaining, err := s.store.List(s.ctx, "/registry/", "", 0, 0)
	if err != nil || remaining != 0 || len(kvs) != many {
		t.Fatalf("got %d keys, %d remaining, error %v", len(kvs), remaining, err)
	}
	for i, kv := range kvs {
		if kv.Key != fmt.Sprintf("/registry/%05d", i) || string(kv.Value) != fmt.Sprint(i) {
			t.Fatalf("key %d is %s=%s", i, kv.Key, kv.Value)
		}
	}
	kvs, _, remaining, err = s.store.List(s.ctx, "/registry/", "", 1000, 0)
	if err != nil || remaining != many-1000 || len(kvs) != 1000 {
		t.Fatalf("got %d keys of 1000, %d remaining, error %v", len(kvs), remaining, err)
	}
}

func testCompact(_ *testing.T, s *suite) {
	a1 := s.create("/registry/a", "1")
	a2 := s.update("/registry/a", "2", a1)
	b1 := s.create("/registry/b", "1")
	b2 := s.delete("/registry/b", b1)
	c1 := s.create("/registry/c", "1")
	if err := s.store.Compact(s.ctx, b1); err != nil {
		s.t.Fatal(err)
	}
	for _, revision := range []store.Revision{a1, a2} {
		_, _, _, err := s.store.List(s.ctx, "/registry/", "", 0, revision)
		s.fails("List of a forgotten revision", err, store.ErrCompacted)
	}
	for revision, want := range map[store.Revision]string{
		b1: "[/registry/a=2 /registry/b=1]",
		b2: "[/registry/a=2]",
		c1: "[/registry/a=2 /registry/c=1]",
	} {
		found, _ := s.list("/registry/", "", 0, revision)
		s.equal(fmt.Sprint("list at ", revision), found, want)
	}
	if err := s.store.Compact(s.ctx, a2); err != nil {
		s.t.Errorf("Compact to what is forgotten already: %v", err)
	}
	s.fails("Compact to the future", s.store.Compact(s.ctx, c1+10), store.ErrFuture)
	if err := s.store.Compact(s.ctx, c1); err != nil {
		s.t.Fatal(err)
	}
	found, _ := s.list("/registry/", "", 0, 0)
	s.equal("list", found, "[/registry/a=2 /registry/c=1]")
	if _, err := s.store.Update(s.ctx, "/registry/a", []byte("3"), 0, a2); err != nil {
		s.t.Errorf("Update of an object whose last write is older than history: %v", err)
	}
}

func testTTL(t *testing.T, s *suite) {
	w := s.watch("/registry/", s.current())
	revision, err := s.store.Create(s.ctx, "/registry/short", []byte("v"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s.create("/registry/long", "v")
	if _, err := s.store.Get(s.ctx, "/registry/short"); err != nil {
		t.Errorf("it ended early: %v", err)
	}
	events := w.take(3)
	last := events[2]
	if !last.Deleted || last.Key != "/registry/short" || last.Modified <= revision {
		t.Errorf("got %v, want the deletion of the key", last)
	}
	_, err = s.store.Get(s.ctx, "/registry/short")
	s.fails("Get after its time", err, store.ErrNotFound)
	found, _ := s.list("/registry/", "", 0, 0)
	s.equal("list", found, "[/registry/long=v]")
}

// A write replaces the TTL.
func testTTLEndsWithWrite(t *testing.T, s *suite) {
	revision, err := s.store.Create(s.ctx, "/registry/a", []byte("1"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s.update("/registry/a", "2", revision)
	marker := s.watch("/registry/marker", s.current())
	if _, err := s.store.Create(s.ctx, "/registry/marker", nil, time.Second); err != nil {
		t.Fatal(err)
	}
	marker.take(2) // its creation and its expiry, which is after that of the first write
	found, _ := s.list("/registry/", "", 0, 0)
	s.equal("list", found, "[/registry/a=2]")
}

func testCancelled(t *testing.T, s *suite) {
	revision := s.create("/registry/a", "1")
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	calls := map[string]func() error{
		"Create":  func() error { _, err := s.store.Create(ctx, "/registry/b", nil, 0); return err },
		"Update":  func() error { _, err := s.store.Update(ctx, "/registry/a", nil, 0, revision); return err },
		"Delete":  func() error { _, err := s.store.Delete(ctx, "/registry/a", revision); return err },
		"Get":     func() error { _, err := s.store.Get(ctx, "/registry/a"); return err },
		"List":    func() error { _, _, _, err := s.store.List(ctx, "/registry/", "", 0, 0); return err },
		"Current": func() error { _, err := s.store.Current(ctx); return err },
		"Compact": func() error { return s.store.Compact(ctx, revision) },
		"Healthy": func() error { return s.store.Healthy(ctx) },
	}
	for name, call := range calls {
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			s.fails(name, err, context.Canceled)
		case <-time.After(10 * time.Second):
			t.Errorf("%s does not return", name)
		}
	}
}

func testHealthy(t *testing.T, s *suite) {
	if err := s.store.Healthy(s.ctx); err != nil {
		t.Error(err)
	}
}

func testClosed(t *testing.T, s *suite) {
	w := s.watch("/registry/", s.current())
	s.create("/registry/a", "1")
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	w.drain()
	if w.watch.Err() == nil {
		t.Error("the watch ended without an error")
	}
	if _, err := s.store.Create(s.ctx, "/registry/b", nil, 0); err == nil {
		t.Error("a closed store takes writes")
	}
}
