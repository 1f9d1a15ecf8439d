package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skiff/internal/store"
	"skiff/internal/store/etcd"
)

// copyDatabase writes the database of a store to a file.
func copyDatabase(t *testing.T, s *etcd.Store) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "database"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.WriteDatabase(t.Context(), file), file.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

// restored restores a database and opens it.
func restored(t *testing.T, database string) *etcd.Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := etcd.Restore(etcd.Restoration{Database: database, DataDir: dir, Log: discardLog()}); err != nil {
		t.Fatal(err)
	}
	return open(t, etcd.Config{DataDir: dir})
}

func mustCreate(t *testing.T, s *etcd.Store, key, value string) store.Revision {
	t.Helper()
	revision, err := s.Create(t.Context(), key, []byte(value), 0)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func TestRestore(t *testing.T) {
	ctx := t.Context()
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	for i := range 1000 {
		mustCreate(t, s, fmt.Sprintf("/registry/a/%04d", i), fmt.Sprint(i))
	}
	first := mustCreate(t, s, "/registry/b", "old")
	second, err := s.Update(ctx, "/registry/b", []byte("new"), 0, first)
	if err != nil {
		t.Fatal(err)
	}
	deleted := mustCreate(t, s, "/registry/deleted", "x")
	last, err := s.Delete(ctx, "/registry/deleted", deleted)
	if err != nil {
		t.Fatal(err)
	}
	copied := copyDatabase(t, s)
	later := mustCreate(t, s, "/registry/later", "x")

	found, err := etcd.Inspect(copied)
	if err != nil || found.Revision != last || found.Records != last-1 || found.Hash == 0 {
		t.Errorf("inspected: %+v, %v; the revision is %d", found, err, last)
	}
	if info, err := os.Stat(copied); err != nil || found.Bytes != info.Size() {
		t.Errorf("%d bytes, inspected %d, %v", info.Size(), found.Bytes, err)
	}

	after := restored(t, copied)
	kvs, revision, _, err := after.List(ctx, "/registry/", "", 0, 0)
	if err != nil || len(kvs) != 1001 {
		t.Fatalf("%d keys, %v", len(kvs), err)
	}
	if b := kvs[1000]; b.Key != "/registry/b" || string(b.Value) != "new" || b.Modified != second {
		t.Errorf("%+v, want revision %d", b, second)
	}
	// No revision means two states: all that clients know are in the past, and compacted.
	if revision <= later {
		t.Errorf("the revision is %d, clients have seen %d", revision, later)
	}
	for _, known := range []store.Revision{first, last, later, revision - 2} {
		watch := after.Watch(ctx, "/registry/", known)
		for range watch.Batches() {
			t.Errorf("a watch after revision %d, which is not of this state, has events", known)
		}
		if !errors.Is(watch.Err(), store.ErrCompacted) {
			t.Errorf("a watch after revision %d: %v", known, watch.Err())
		}
	}
	next := mustCreate(t, after, "/registry/next", "x")
	if next != revision+1 {
		t.Errorf("the next revision after %d is %d", revision, next)
	}
	// A conditional update with a revision from before the snapshot works.
	if _, err := after.Update(ctx, "/registry/b", []byte("newer"), 0, second); err != nil {
		t.Error(err)
	}
	if err := after.Healthy(ctx); err != nil {
		t.Error(err)
	}
}

// A restored store survives a restart, and can be copied and restored again.
func TestRestoreTwice(t *testing.T) {
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	mustCreate(t, s, "/registry/a", "1")
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := etcd.Restore(etcd.Restoration{Database: copyDatabase(t, s), DataDir: dir, Log: discardLog()}); err != nil {
		t.Fatal(err)
	}
	once := open(t, etcd.Config{DataDir: dir})
	revision := mustCreate(t, once, "/registry/b", "2")
	if err := once.Close(); err != nil {
		t.Fatal(err)
	}
	once = open(t, etcd.Config{DataDir: dir})
	if current, err := once.Current(t.Context()); err != nil || current != revision {
		t.Errorf("after a restart the revision is %d, %v, want %d", current, err, revision)
	}
	twice := restored(t, copyDatabase(t, once))
	kvs, again, _, err := twice.List(t.Context(), "/registry/", "", 0, 0)
	if err != nil || len(kvs) != 2 || again <= revision {
		t.Errorf("%d keys at revision %d, %v", len(kvs), again, err)
	}
}

// Two clusters that are restored from the same copy, one after the other, have no revision in common: clients of the first one may go on with the second.
func TestRestoreSameCopyTwice(t *testing.T) {
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	mustCreate(t, s, "/registry/a", "1")
	copied := copyDatabase(t, s)
	content, err := os.ReadFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	known := mustCreate(t, restored(t, copied), "/registry/b", "of the first")
	if err := os.WriteFile(copied, content, 0o600); err != nil {
		t.Fatal(err)
	}
	second := restored(t, copied)
	if current, err := second.Current(t.Context()); err != nil || current <= known {
		t.Fatalf("the revision is %d, %v, clients have seen %d", current, err, known)
	}
	watch := second.Watch(t.Context(), "/registry/", known)
	for range watch.Batches() {
		t.Error("a watch from a revision of the first cluster has events")
	}
	if !errors.Is(watch.Err(), store.ErrCompacted) {
		t.Errorf("a watch from a revision of the first cluster: %v", watch.Err())
	}
}

// A key with a lease expires in the restored store too.
func TestRestoreLease(t *testing.T) {
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	if _, err := s.Create(t.Context(), "/registry/event", []byte("x"), time.Second); err != nil {
		t.Fatal(err)
	}
	after := restored(t, copyDatabase(t, s))
	for {
		if _, err := after.Get(t.Context(), "/registry/event"); errors.Is(err, store.ErrNotFound) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A copy that is made while others write is the state at one revision.
func TestWriteDatabaseIsConsistent(t *testing.T) {
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	written := make(chan struct{}, 1)
	go func() {
		for i := 0; ; i++ {
			_, err := s.Create(ctx, fmt.Sprintf("/registry/%08d", i), []byte("x"), 0)
			if ctx.Err() != nil {
				done <- nil
				return
			}
			if err != nil {
				done <- err
				return
			}
			select {
			case written <- struct{}{}:
			default:
			}
		}
	}()
	<-written
	copied := copyDatabase(t, s)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	found, err := etcd.Inspect(copied)
	if err != nil || found.Records != found.Revision-1 {
		t.Errorf("%+v, %v", found, err)
	}
	kvs, _, _, err := restored(t, copied).List(t.Context(), "/registry/", "", 0, 0)
	if err != nil || int64(len(kvs)) != found.Records {
		t.Errorf("%d keys, %v, want %d", len(kvs), err, found.Records)
	}
}

func TestWriteDatabaseStops(t *testing.T) {
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	mustCreate(t, s, "/registry/a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.WriteDatabase(ctx, failOnWrite{t}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	address := "unix://" + t.TempDir() + "/socket"
	open(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{address}})
	remote := open(t, etcd.Config{Servers: []string{address}})
	if err := remote.WriteDatabase(t.Context(), failOnWrite{t}); !errors.Is(err, etcd.ErrNotEmbedded) || remote.DatabaseBytes() != 0 {
		t.Errorf("error %v", err)
	}
}

type failOnWrite struct{ t *testing.T }

func (w failOnWrite) Write([]byte) (int, error) {
	w.t.Error("something was written")
	return 0, errors.New("unexpected")
}

func TestInspectRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "database")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Inspect(path); err == nil {
		t.Error("a file that is not a database is accepted")
	}
	if _, err := etcd.Inspect(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestRestoreKeepsDirectory(t *testing.T) {
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	copied := copyDatabase(t, s)
	if err := etcd.Restore(etcd.Restoration{Database: copied, DataDir: t.TempDir(), Log: discardLog()}); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a directory that exists: %v", err)
	}
	if _, err := os.Stat(copied); err != nil {
		t.Error(err)
	}
}
