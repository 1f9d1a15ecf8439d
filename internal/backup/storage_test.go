package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func at(minute int) time.Time { return time.Date(2026, 5, 6, 7, minute, 0, 0, time.UTC) }

func TestNames(t *testing.T) {
	for _, test := range []struct{ prefix, server, want string }{
		{"manual", "host1", "manual-host1-20260506T070800.000Z.snapshot"},
		{"before-upgrade", "Node_A.example.com", "before-upgrade-node-a.example.com-20260506T070800.000Z.snapshot"},
		{"a", strings.Repeat("x", 300), "a-" + strings.Repeat("x", 100) + "-20260506T070800.000Z.snapshot"},
	} {
		name := newName(test.prefix, test.server, at(8))
		if name != test.want {
			t.Errorf("name %s, want %s", name, test.want)
		}
		prefix, created, ok := ParseName(name)
		if !ok || !created.Equal(at(8)) || prefix != namePrefix(test.prefix, test.server) {
			t.Errorf("%s: parsed as %q, %v, %v", name, prefix, created, ok)
		}
	}
	for _, name := range []string{"", "x.snapshot", "../x-20260506T070800.000Z.snapshot", "a/x-20260506T070800.000Z.snapshot", "x-20260506T070800.000Z.snapshot.tmp",
		"x-20261306T070800.000Z.snapshot", ".x-20260506T070800.000Z.snapshot", "X-20260506T070800.000Z.snapshot"} {
		if _, _, ok := ParseName(name); ok {
			t.Errorf("%q is the name of a snapshot", name)
		}
	}
	for prefix, valid := range map[string]bool{"manual": true, "a": true, "v1-2": true, "": false, "-a": false, "a-": false, "A": false, "a/b": false, "scheduled": false, "scheduled-web": false, "scheduled2": true, strings.Repeat("a", 41): false} {
		if err := ValidatePrefix(prefix); (err == nil) != valid {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

// testStorage is the suite that every Storage must pass.
func testStorage(t *testing.T, storage Storage) {
	ctx := t.Context()
	if entries, err := storage.List(ctx); err != nil || len(entries) != 0 {
		t.Fatalf("an empty storage has %v, %v", entries, err)
	}
	contents := map[string][]byte{}
	for minute, size := range map[int]int{2: 10, 1: 0, 3: 100_000} {
		name := newName("manual", "host", at(minute))
		contents[name] = randomBytes(size)
		if size == 0 {
			contents[name] = []byte("x")
		}
		if err := storage.Put(ctx, name, iotest.OneByteReader(bytes.NewReader(contents[name]))); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := storage.List(ctx)
	if err != nil || len(entries) != 3 || !slices.IsSortedFunc(entries, func(a, b Entry) int { return a.Created.Compare(b.Created) }) {
		t.Fatalf("list: %v, %v", entries, err)
	}
	for _, e := range entries {
		content, err := readAll(t, storage, e.Name)
		if err != nil || !bytes.Equal(content, contents[e.Name]) || e.Bytes != int64(len(content)) {
			t.Errorf("%s: %d bytes, listed %d, %v", e.Name, len(content), e.Bytes, err)
		}
	}
	missing := newName("manual", "host", at(50))
	if _, err := storage.Open(ctx, missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open a missing snapshot: %v", err)
	}
	if err := storage.Delete(ctx, missing); err != nil {
		t.Errorf("delete a missing snapshot: %v", err)
	}
	broken := newName("manual", "host", at(51))
	if err := storage.Put(ctx, broken, io.MultiReader(strings.NewReader("a part"), iotest.ErrReader(errors.New("broken")))); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("put of a broken reader: %v", err)
	}
	for _, bad := range []string{"../x", "x", ""} {
		_, err := storage.Open(ctx, bad)
		if putErr := storage.Put(ctx, bad, strings.NewReader("")); err == nil || putErr == nil || storage.Delete(ctx, bad) == nil {
			t.Errorf("name %q is accepted", bad)
		}
	}
	if err := storage.Delete(ctx, entries[0].Name); err != nil {
		t.Fatal(err)
	}
	if left, err := storage.List(ctx); err != nil || len(left) != 2 || left[0] != entries[1] {
		t.Errorf("after the deletion of the first: %v, %v", left, err)
	}
}

func readAll(t *testing.T, storage Storage, name string) ([]byte, error) {
	t.Helper()
	opened, err := storage.Open(t.Context(), name)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return io.ReadAll(opened)
}

func TestDirectory(t *testing.T) {
	dir := Directory(filepath.Join(t.TempDir(), "new", "snapshots"))
	testStorage(t, dir)
	for path, mode := range map[string]os.FileMode{string(dir): 0o700, filepath.Join(string(dir), newName("manual", "host", at(3))): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	name := newName("manual", "host", at(3))
	if err := dir.Put(t.Context(), name, strings.NewReader("other")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second snapshot with the same name: %v", err)
	}
}

// What a killed process has left is removed, but not what another process is writing, nor other files.
func TestDirectoryRemovesUnfinished(t *testing.T) {
	dir := Directory(t.TempDir())
	write := func(name string, age time.Duration) {
		path := filepath.Join(string(dir), name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Now(), time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	old, recent := newName("manual", "host", at(1))+unfinished, newName("manual", "host", at(2))+unfinished
	write(old, 2*staleAfter)
	write(recent, time.Hour)
	write("other.tmp", 2*staleAfter)
	name := newName("manual", "host", at(3))
	if err := dir.Put(t.Context(), name, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(string(dir))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{recent, name, "other.tmp"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("left are %v, want %v (%v)", names, want, err)
	}
	if listed, err := dir.List(t.Context()); err != nil || len(listed) != 1 {
		t.Errorf("listed: %v, %v", listed, err)
	}
}

// Two processes that save a snapshot with one name: the second leaves what the first is writing.
func TestDirectoryLeavesOthersUnfinished(t *testing.T) {
	dir := Directory(t.TempDir())
	name := newName("manual", "host", at(1))
	path := filepath.Join(string(dir), name+unfinished)
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.Put(t.Context(), name, strings.NewReader("other")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a snapshot that is being written: %v", err)
	}
	if left, err := os.ReadFile(path); err != nil || string(left) != "half" {
		t.Errorf("what the other process writes: %q, %v", left, err)
	}
}

// readerFunc is called for each read.
type readerFunc func(to []byte) (int, error)

func (f readerFunc) Read(to []byte) (int, error) { return f(to) }

// A directory that is moved while a snapshot is written to it cannot be synced by its name. Then there is no snapshot.
func TestDirectoryNotSynced(t *testing.T) {
	parent := t.TempDir()
	dir, moved := Directory(filepath.Join(parent, "snapshots")), filepath.Join(parent, "moved")
	err := dir.Put(t.Context(), newName("manual", "host", at(1)), readerFunc(func([]byte) (int, error) {
		if err := os.Rename(string(dir), moved); err != nil {
			return 0, err
		}
		return 0, io.EOF
	}))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that was moved: %v", err)
	}
	if left, err := os.ReadDir(moved); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestPrune(t *testing.T) {
	for _, test := range []struct {
		prefix string
		keep   int
		want   []int // minutes of those that are left
	}{
		{"", 10, []int{1, 2, 3, 4, 5}},
		{"", 2, []int{4, 5}},
		{"", 1, []int{5}},
		{"scheduled-host", 1, []int{1, 4, 5}},
		{"scheduled-host", 3, []int{1, 2, 3, 4, 5}},
		{"scheduled", 1, []int{1, 2, 3, 4, 5}},
	} {
		t.Run(fmt.Sprintf("%s %d", test.prefix, test.keep), func(t *testing.T) {
			dir := Directory(t.TempDir())
			for minute, name := range []string{"manual host", "scheduled host", "scheduled host", "scheduled host", "scheduled other"} {
				prefix, server, _ := strings.Cut(name, " ")
				if err := dir.Put(t.Context(), newName(prefix, server, at(minute+1)), strings.NewReader("x")); err != nil {
					t.Fatal(err)
				}
			}
			deleted, err := Prune(t.Context(), dir, Pruning{Keep: test.keep, Prefix: test.prefix})
			if err != nil || len(deleted) != 5-len(test.want) {
				t.Errorf("deleted %v, %v", deleted, err)
			}
			entries, err := dir.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var left []int
			for _, e := range entries {
				left = append(left, e.Created.Minute())
			}
			if !slices.Equal(left, test.want) {
				t.Errorf("left are those of minutes %v, want %v", left, test.want)
			}
		})
	}
}

// The last snapshot is never deleted.
func TestPruneKeepsOne(t *testing.T) {
	dir := Directory(t.TempDir())
	if err := dir.Put(t.Context(), newName("manual", "host", at(1)), strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	for _, keep := range []int{0, -1} {
		if deleted, err := Prune(t.Context(), dir, Pruning{Keep: keep}); err == nil || len(deleted) > 0 {
			t.Errorf("%d are to be kept: deleted %v, %v", keep, deleted, err)
		}
	}
	if entries, err := dir.List(t.Context()); err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// Snapshots from the future were saved while the clock was wrong. They are older than those that were saved after it was set right.
func TestPruneAfterWrongClock(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	for _, test := range []struct {
		name  string
		saved int // the index of the one that was just saved; -1: none
		ages  []time.Duration
		want  []int // indexes of those that are left of the first, the others are deleted
	}{
		{"future", -1, []time.Duration{3 * time.Hour, 2 * time.Hour, -9000 * time.Hour, -9001 * time.Hour}, []int{0, 1}},
		{"only future", -1, []time.Duration{-9000 * time.Hour, -9001 * time.Hour, -9002 * time.Hour}, []int{1, 2}},
		{"another server is a little ahead", -1, []time.Duration{3 * time.Hour, 2 * time.Hour, -time.Minute}, []int{1, 2}},
		{"saved after a small step back", 0, []time.Duration{30 * time.Minute, 20 * time.Minute, 10 * time.Minute}, []int{0, 2}},
		{"saved in the past", 0, []time.Duration{500_000 * time.Hour, 20 * time.Minute, 10 * time.Minute}, []int{0, 2}},
	} {
		dir := Directory(t.TempDir())
		p := Pruning{Keep: 2}
		var want []string
		for i, age := range test.ages {
			name := newName("manual", "host", now.Add(-age))
			if err := dir.Put(t.Context(), name, strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
			if i == test.saved {
				p.Saved = name
			}
			if slices.Contains(test.want, i) {
				want = append(want, name)
			}
		}
		if _, err := Prune(t.Context(), dir, p); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		entries, err := dir.List(t.Context())
		var left []string
		for _, e := range entries {
			left = append(left, e.Name)
		}
		if slices.Sort(want); err != nil || !slices.Equal(left, want) {
			t.Errorf("%s: left are %v, want %v, %v", test.name, left, want, err)
		}
	}
}
