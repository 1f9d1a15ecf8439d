package volume

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// tree returns what a user of a volume sees: paths and contents, without the writer's own names.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	seen := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		top := filepath.Join(dir, entry.Name())
		resolved, err := filepath.EvalSymlinks(top)
		if err != nil {
			t.Fatalf("%s leads nowhere: %v", top, err)
		}
		err = filepath.WalkDir(resolved, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			relative, _ := filepath.Rel(resolved, path)
			text, err := os.ReadFile(path)
			seen[filepath.Join(entry.Name(), relative)] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return seen
}

func TestWrite(t *testing.T) {
	content := func(text string) file { return file{data: []byte(text), mode: 0o640} }
	steps := []struct {
		name    string
		files   payload
		changes bool
	}{
		{"first", payload{"a": content("1"), "deep/er/b": content("2")}, true},
		{"again", payload{"a": content("1"), "deep/er/b": content("2")}, false},
		{"one changed", payload{"a": content("9"), "deep/er/b": content("2")}, true},
		{"one more", payload{"a": content("9"), "deep/er/b": content("2"), "deep/c": content("3")}, true},
		{"one gone", payload{"a": content("9"), "deep/c": content("3")}, true},
		{"a directory gone", payload{"a": content("9")}, true},
		{"a file becomes a directory", payload{"a/x": content("5")}, true},
		{"nothing", payload{}, true},
		{"still nothing", payload{}, false},
	}
	dir := t.TempDir()
	for _, step := range steps {
		changed, err := write(dir, step.files, nil)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if changed != step.changes {
			t.Errorf("%s: changed is %v", step.name, changed)
		}
		seen := tree(t, dir)
		if len(seen) != len(step.files) {
			t.Errorf("%s: sees %v", step.name, seen)
		}
		for path, want := range step.files {
			if seen[path] != string(want.data) {
				t.Errorf("%s: %s is %q", step.name, path, seen[path])
			}
			if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode() != 0o640 {
				t.Errorf("%s: %s has mode %v, %v", step.name, path, info.Mode(), err)
			}
		}
		versions, _ := filepath.Glob(filepath.Join(dir, "..2*"))
		if len(versions) != 1 {
			t.Errorf("%s: %d versions", step.name, len(versions))
		}
	}
}

func TestWriteRejectsPaths(t *testing.T) {
	for path, want := range map[string]string{
		"":                       "must not be empty",
		"/etc/passwd":            "must be relative",
		"../x":                   "must not contain '..'",
		"a/../../x":              "must not contain '..'",
		"..data":                 "must not start with '..'",
		strings.Repeat("a", 256): "filenames must be",
	} {
		if _, err := write(t.TempDir(), payload{path: {}}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestWriteAfterCrash writes to a volume that a kubelet left between two steps.
func TestWriteAfterCrash(t *testing.T) {
	dir := t.TempDir()
	if _, err := write(dir, payload{"a": {data: []byte("old"), mode: 0o644}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "..2001_01_01_00_00_00.7", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, nextLink)); err != nil {
		t.Fatal(err)
	}
	if _, err := write(dir, payload{"a": {data: []byte("new"), mode: 0o644}}, nil); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	if seen := tree(t, dir); seen["a"] != "new" || len(entries) != 3 {
		t.Errorf("sees %v among %v", seen, entries)
	}
}

// TestFailedFinish: the volume is unchanged if finish fails.
func TestFailedFinish(t *testing.T) {
	dir := t.TempDir()
	if _, err := write(dir, payload{"a": {data: []byte("old"), mode: 0o644}}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := write(dir, payload{"a": {data: []byte("new"), mode: 0o644}}, func() error { return fs.ErrPermission }); err == nil {
		t.Fatal("the failure is lost")
	}
	versions, _ := filepath.Glob(filepath.Join(dir, "..2*"))
	if seen := tree(t, dir); seen["a"] != "old" || len(versions) != 1 {
		t.Errorf("sees %v in %v", seen, versions)
	}
}

// TestReadersSeeOneVersion reads a volume while it is rewritten with random contents. Every file contains the number of
// its version and of that version's files: a reader that has opened one version never finds a file of another, or one
// missing.
func TestReadersSeeOneVersion(t *testing.T) {
	dir := t.TempDir()
	versionOf := func(n int) payload {
		files, count := payload{}, 1+rand.IntN(6)
		for i := range count {
			files[fmt.Sprintf("d%d/f%d", i%3, i)] = file{data: fmt.Appendf(nil, "%d of %d", n, count), mode: 0o644}
		}
		return files
	}
	if _, err := write(dir, versionOf(0), nil); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	done := make(chan int)
	for range 2 {
		go func() {
			whole := 0
			for !stop.Load() {
				whole += readOnce(t, dir)
			}
			done <- whole
		}()
	}
	for n := 1; n <= 80; n++ {
		if _, err := write(dir, versionOf(n), nil); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	total := <-done + <-done
	if total == 0 {
		t.Error("no reader ever got a whole version")
	}
	t.Logf("%d whole versions read", total)
}

// readOnce reads the current version. It only counts if that is still current afterwards: old versions are removed file
// by file.
func readOnce(t *testing.T, dir string) int {
	before, err := os.Readlink(filepath.Join(dir, currentLink))
	if err != nil {
		t.Errorf("there is no current version: %v", err)
		return 0
	}
	texts := map[string]int{}
	_ = filepath.WalkDir(filepath.Join(dir, before), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			texts[string(text)]++
		}
		return err
	})
	if len(texts) > 1 {
		t.Errorf("a mix of versions: %v", texts)
	}
	if after, _ := os.Readlink(filepath.Join(dir, currentLink)); after != before {
		return 0
	}
	for text, files := range texts {
		var n, count int
		if _, err := fmt.Sscanf(text, "%d of %d", &n, &count); err != nil || files != count {
			t.Errorf("%d files of %q", files, text)
		}
	}
	return 1
}
