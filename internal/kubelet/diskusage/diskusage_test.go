package diskusage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// measure measures a directory.
func measure(t *testing.T, dir string) Usage {
	t.Helper()
	usage, err := Of(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return usage
}

func write(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOf(t *testing.T) {
	dir := t.TempDir()
	if usage := measure(t, dir); usage.Inodes != 1 {
		t.Errorf("an empty directory has %+v", usage)
	}
	before := measure(t, dir)
	write(t, filepath.Join(dir, "a/b/file"), 100_000)
	write(t, filepath.Join(dir, "c/file"), 50_000)
	for name, target := range map[string]string{"link": "/", "loop": "loop", "a/up": ".."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "a/b/file"), filepath.Join(dir, "c/again")); err != nil {
		t.Fatal(err)
	}
	usage := measure(t, dir)
	if usage.Inodes != 9 || usage.Bytes-before.Bytes < 150_000 || usage.Bytes-before.Bytes > 200_000 {
		t.Errorf("%+v, before %+v", usage, before)
	}
	if _, err := Of(t.Context(), filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if _, err := Of(t.Context(), filepath.Join(dir, "link")); err == nil {
		t.Error("a symlink is followed")
	}
}

// nest makes directories in each other and a file in the last, without paths.
func nest(t *testing.T, dir string, depth, size int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(at, "directory", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "directory", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
	fd, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "file")
	defer file.Close()
	if _, err := file.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
}

// flatten moves nested directories up, so that the test can remove them.
func flatten(t *testing.T, dir string) {
	for i := 0; ; i++ {
		inner := filepath.Join(dir, "directory", "directory")
		if _, err := os.Lstat(inner); err != nil {
			return
		}
		aside := filepath.Join(dir, fmt.Sprint("aside", i))
		if err := errors.Join(os.Rename(inner, aside), os.RemoveAll(filepath.Join(dir, "directory")), os.Rename(aside, filepath.Join(dir, "directory"))); err != nil {
			t.Error(err)
			return
		}
	}
}

// TestDeep: a file is counted however deep it is, beside others on the way, and few descriptors are needed for it.
func TestDeep(t *testing.T) {
	dir := t.TempDir()
	const depth = 3000
	nest(t, dir, depth, 100_000)
	t.Cleanup(func() { flatten(t, dir) })
	for _, path := range []string{"beside", "directory/beside", "directory/directory/beside"} {
		write(t, filepath.Join(dir, path, "file"), 10_000)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	lower := unix.Rlimit{Cur: uint64(len(open) + maxOpen + 16), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lower); err != nil {
		t.Fatal(err)
	}
	usage, err := Of(t.Context(), dir)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil || usage.Inodes != 1+depth+1+3*2 || usage.Bytes < 130_000 {
		t.Errorf("%+v, %v, want %d inodes", usage, err, 1+depth+1+3*2)
	}
}

// TestRenamed: whoever moves directories while they are measured does not lead the walk to other directories.
func TestRenamed(t *testing.T) {
	const files = 200 // in the directory outside
	dir, outside := t.TempDir(), t.TempDir()
	for i := range files {
		write(t, filepath.Join(outside, fmt.Sprint(i)), 0)
	}
	inner := filepath.Join(dir, "inner")
	// Deeper than maxOpen, so that the walk has to go up by "..".
	deep := inner
	for range 2 * maxOpen {
		deep = filepath.Join(deep, "directory")
	}
	write(t, filepath.Join(deep, "file"), 0)
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if usage := measure(t, dir); usage.Inodes >= files/2 {
		t.Fatalf("%+v", usage)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, inner, unix.AT_FDCWD, filepath.Join(dir, "link"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); {
		// What is moved to a name that comes later is counted twice.
		if usage, err := Of(t.Context(), dir); err != nil || usage.Inodes >= files {
			t.Errorf("%+v, %v, with the %d files outside", usage, err, files)
			break
		}
	}
	close(stop)
	<-stopped
}

// TestMovedAway: a walk whose directory is moved does not go up to where it was moved to.
func TestMovedAway(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "above/below"), 0o700); err != nil {
		t.Fatal(err)
	}
	below, err := unix.Open(filepath.Join(dir, "above/below"), unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(below)
	stat, err := statAt(unix.AT_FDCWD, filepath.Join(dir, "above"))
	if err != nil {
		t.Fatal(err)
	}
	fd, ok := parentOf(below, identityOf(&stat))
	if !ok {
		t.Fatal("the directory above is not found")
	}
	unix.Close(fd)
	if err := os.Rename(filepath.Join(dir, "above/below"), filepath.Join(dir, "below")); err != nil {
		t.Fatal(err)
	}
	if _, ok := parentOf(below, identityOf(&stat)); ok {
		t.Error("another directory is taken for the one above")
	}
}

// TestEnds: a walk ends when its context is done, with what it has counted.
func TestEnds(t *testing.T) {
	dir := t.TempDir()
	for i := range checkEvery + 10 {
		write(t, filepath.Join(dir, fmt.Sprint(i)), 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if usage, err := Of(ctx, dir); !errors.Is(err, context.Canceled) || usage.Inodes != checkEvery {
		t.Errorf("%+v, %v", usage, err)
	}
}
