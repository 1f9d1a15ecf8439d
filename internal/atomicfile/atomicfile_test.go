package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, content := range []string{"first", "second"} {
		if err := Write(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Fatalf("read %q, %v; want %q", got, err, content)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Fatalf("left behind: %v, %v", entries, err)
	}
	if err := Write(filepath.Join(dir, "absent", "file"), nil, 0o600); err == nil {
		t.Fatal("a file in a directory that is not there was written")
	}
}

// A file that has the content is not replaced; one with another mode is.
func TestWriteUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(content string, mode os.FileMode) os.FileInfo {
		t.Helper()
		if err := Write(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := write("content", 0o600)
	if !os.SameFile(first, write("content", 0o600)) {
		t.Error("a file with the same content was replaced")
	}
	second := write("Content", 0o600)
	if os.SameFile(first, second) {
		t.Error("a file with other content of the same length was not replaced")
	}
	if third := write("Content", 0o644); third.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", third.Mode())
	}
}

// A file gets its owner, also if it has the content already.
func TestWriteOwned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	owner := Owner{UID: os.Getuid(), GID: os.Getgid()}
	owners := []Owner{owner}
	if os.Geteuid() == 0 {
		owners = append(owners, Owner{UID: 1234, GID: 5678}, owner)
	}
	for _, owner := range owners {
		if err := WriteOwned(path, []byte("content"), 0o600, owner); err != nil {
			t.Fatal(err)
		}
		if !owner.owns(path) {
			t.Errorf("the file is not one of %+v", owner)
		}
	}
}
