package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"skiff/internal/store"
	"skiff/internal/store/etcd"
)

func TestDataSurvives(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, etcd.Config{DataDir: dir})
	revision, err := s.Create(ctx, "/registry/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, etcd.Config{DataDir: dir})
	kv, err := s.Get(ctx, "/registry/a")
	if err != nil || kv.Modified != revision || string(kv.Value) != "1" {
		t.Errorf("after a restart: %v, %v", kv, err)
	}
	if _, err := s.Update(ctx, "/registry/a", []byte("2"), 0, revision); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the data directory is %v, %v", info.Mode(), err)
	}
}

// A completed write is on disk: a copy of the files has it.
func TestDataSurvivesPowerCut(t *testing.T) {
	ctx := context.Background()
	dir, copied := t.TempDir(), t.TempDir()
	s := open(t, etcd.Config{DataDir: dir})
	for i := range 100 {
		if _, err := s.Create(ctx, fmt.Sprint("/registry/", i), []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	after := open(t, etcd.Config{DataDir: copied})
	kvs, revision, _, err := after.List(ctx, "/registry/", "", 0, 0)
	if err != nil || len(kvs) != 100 || revision != 101 {
		t.Errorf("%d of 100 writes survive, at revision %d, %v", len(kvs), revision, err)
	}
}

func TestDirInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, etcd.Config{DataDir: dir})
	if _, err := etcd.Open(context.Background(), etcd.Config{DataDir: dir, Log: discardLog()}); err == nil {
		t.Error("two stores share a directory")
	}
}

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]etcd.Config{
		"nothing":       {},
		"both":          {DataDir: t.TempDir(), Servers: []string{"http://localhost:1"}},
		"a file":        {DataDir: file},
		"plain http":    {DataDir: t.TempDir(), Listen: []string{"http://127.0.0.1:0"}},
		"no such files": {Servers: []string{"https://localhost:1"}, CertFile: "/none", KeyFile: "/none"},
	} {
		config.Log = discardLog()
		if s, err := etcd.Open(context.Background(), config); err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

func TestTooLarge(t *testing.T) {
	ctx := context.Background()
	s := open(t, etcd.Config{DataDir: t.TempDir()})
	_, err := s.Create(ctx, "/registry/a", make([]byte, 2<<20), 0)
	if !errors.Is(err, store.ErrTooLarge) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Create(ctx, "/registry/a", make([]byte, 1<<20), 0); err != nil {
		t.Error(err)
	}
}

// A full store refuses writes but not deletions, and accepts writes again when those have freed space.
func TestQuota(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := open(t, etcd.Config{DataDir: t.TempDir(), QuotaBytes: 8 << 20, CompactionInterval: 100 * time.Millisecond})
	value := bytes.Repeat([]byte("v"), 1<<20)
	var revisions []store.Revision
	var full error
	for i := 0; full == nil && i < 20; i++ {
		var revision store.Revision
		if revision, full = s.Create(ctx, fmt.Sprint("/registry/", i), value, 0); full == nil {
			revisions = append(revisions, revision)
		}
		time.Sleep(20 * time.Millisecond) // the size is updated when the file is written
	}
	if !errors.Is(full, store.ErrUnavailable) {
		t.Fatalf("%d MB in a store of 8 MB: %v", len(revisions), full)
	}
	if err := s.Healthy(ctx); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a full store says it is healthy: %v", err)
	}
	for i, revision := range revisions {
		if _, err := s.Delete(ctx, fmt.Sprint("/registry/", i), revision); err != nil {
			t.Fatalf("a full store refuses deletions: %v", err)
		}
	}
	for {
		_, err := s.Create(ctx, "/registry/new", value, 0)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the store stays full: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := s.Healthy(ctx); err != nil {
		t.Error(err)
	}
}

// Watches and lists continue while the file is defragmented and history is compacted.
func TestCompactionLoop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := open(t, etcd.Config{DataDir: t.TempDir(), CompactionInterval: 50 * time.Millisecond})
	first, err := s.Create(ctx, "/registry/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(ctx, "/registry/a", []byte("2"), 0, first); err != nil {
		t.Fatal(err)
	}
	for {
		_, _, _, err := s.List(ctx, "/registry/", "", 0, first)
		if errors.Is(err, store.ErrCompacted) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	kvs, _, _, err := s.List(ctx, "/registry/", "", 0, 0)
	if err != nil || len(kvs) != 1 || string(kvs[0].Value) != "2" {
		t.Errorf("compaction left %v, %v", kvs, err)
	}
}
