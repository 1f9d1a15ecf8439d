package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

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

// A full store refuses writes but not deletions, and accepts writes again when those have freed space. It does not wait for the next
// compaction.
func TestQuota(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var log lockedBuffer
	s := open(t, etcd.Config{DataDir: t.TempDir(), QuotaBytes: 8 << 20, CompactionInterval: time.Hour, Log: slog.New(slog.NewTextHandler(&log, nil))})
	value := bytes.Repeat([]byte("v"), 1<<20)
	var revisions []store.Revision
	var full error
	logged := func(text string) int { return strings.Count(log.String(), text) }
	// The first refusal may come with much of the file unused, and be revoked by a defragmentation.
	for (full == nil || logged("etcd database is nearly full") == 0) && len(revisions) < 20 && ctx.Err() == nil {
		var revision store.Revision
		if revision, full = s.Create(ctx, fmt.Sprint("/registry/", len(revisions)), value, 0); full == nil {
			revisions = append(revisions, revision)
		}
		time.Sleep(20 * time.Millisecond) // the size is updated when the file is written
	}
	if !errors.Is(full, store.ErrNoSpace) || !strings.Contains(full.Error(), "raise --etcd-quota-backend-bytes") {
		t.Fatalf("%d MB in a store of 8 MB: %v", len(revisions), full)
	}
	// It serves reads.
	if err := s.Healthy(ctx); err != nil {
		t.Errorf("a full store is not healthy: %v", err)
	}
	if kv, err := s.Get(ctx, "/registry/0"); err != nil || len(kv.Value) != len(value) {
		t.Errorf("read from a full store: %d bytes, %v", len(kv.Value), err)
	}
	// An update is refused too, unless a defragmentation has just freed space.
	revision, err := s.Update(ctx, "/registry/0", value, 0, revisions[0])
	switch {
	case err == nil:
		revisions[0] = revision
	case !errors.Is(err, store.ErrNoSpace):
		t.Errorf("an update of a full store: %v", err)
	}
	// A deletion that takes an update, such as one with a grace period, goes on.
	if revisions[0], err = s.Update(store.ForDeletion(ctx), "/registry/0", value, 0, revisions[0]); err != nil {
		t.Fatalf("an update for a deletion: %v", err)
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
	// Each change is logged once. A defragmentation between two deletions can free space that the next write uses up.
	for logged("etcd has space again") != logged("no space in etcd, rejecting writes") && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	rejecting, accepting := logged("no space in etcd, rejecting writes"), logged("etcd has space again")
	if rejecting != accepting || rejecting == 0 || rejecting > len(revisions) || logged("etcd database is nearly full") == 0 {
		t.Errorf("%d times without space, %d times with space again:\n%s", rejecting, accepting, log.String())
	}
}

// lockedBuffer is a buffer for several writers.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// An alarm that another client of the embedded etcd has raised is disarmed when there is space.
func TestAlarmIsDisarmed(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address := "unix://" + t.TempDir() + "/socket"
	s := open(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{address}})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	remote := open(t, etcd.Config{Servers: []string{address}})
	status, err := client.Status(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	// The client's own request to activate an alarm is that of a server that is out of space.
	alarm := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: pb.AlarmType_NOSPACE}
	if _, err := pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(ctx, alarm); err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Create(ctx, "/registry/remote", []byte("v"), 0); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("a remote etcd without space: %v", err)
	}
	if err := s.Healthy(ctx); err != nil {
		t.Errorf("a store with the alarm is not healthy: %v", err)
	}
	if _, err := s.Create(ctx, "/registry/embedded", []byte("v"), 0); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("an embedded etcd with the alarm: %v", err)
	}
	for {
		_, err := s.Create(ctx, "/registry/new", []byte("v"), 0)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the alarm is not disarmed: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// The sizes of the database are metrics, of an embedded and of a remote etcd.
func TestSizeMetrics(t *testing.T) {
	address := "unix://" + t.TempDir() + "/socket"
	for _, config := range []etcd.Config{{DataDir: t.TempDir(), Listen: []string{address}, QuotaBytes: 100 << 20}, {Servers: []string{address}}} {
		registry := prometheus.NewRegistry()
		registry.MustRegister(open(t, config))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, family := range families {
			values[family.GetName()] = family.Metric[0].GetGauge().GetValue()
		}
		total := values["apiserver_storage_size_bytes"]
		if total < 4096 || values["etcd_mvcc_db_total_size_in_bytes"] != total || values["etcd_mvcc_db_total_size_in_use_in_bytes"] > total ||
			values["etcd_server_quota_backend_bytes"] < 100<<20 {
			t.Errorf("%v", values)
		}
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
