package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// raceTime is how long each race below runs.
const raceTime = 400 * time.Millisecond

// swap keeps exchanging a directory with a symlink, as a malicious container would. It returns a function that stops it.
func swap(t *testing.T, path, target string) (stop func()) {
	t.Helper()
	other := path + ".other"
	if err := os.Symlink(target, other); err != nil {
		t.Fatal(err)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
			}
		}
	}()
	return func() { close(end); <-ended }
}

// outside creates a directory that no volume may reach, with a file whose mode must not change.
func outside(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkUntouched checks that a directory of outside is unchanged.
func checkUntouched(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("outside has %v, %v", entries, err)
	}
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, filepath.Join(dir, "secret"): 0o600} {
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, want %v, %v", path, info.Mode(), want, err)
		}
		if owner := info.Sys().(*syscall.Stat_t); owner.Gid != uint32(os.Getgid()) {
			t.Errorf("%s belongs to group %d", path, owner.Gid)
		}
	}
}

func TestSetGroupRace(t *testing.T) {
	volume, secret := t.TempDir(), outside(t)
	for i := range 20 {
		if err := os.MkdirAll(filepath.Join(volume, "a", fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	stop := swap(t, filepath.Join(volume, "a"), secret)
	defer stop()
	for end := time.Now().Add(raceTime); time.Now().Before(end); {
		if err := setGroup(t.Context(), volume, 4321, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	checkUntouched(t, secret)
}

func TestRemoveRace(t *testing.T) {
	parent, secret := t.TempDir(), outside(t)
	for end := time.Now().Add(raceTime); time.Now().Before(end); {
		if err := os.MkdirAll(filepath.Join(parent, "volume", "a", "b"), 0o755); err != nil {
			t.Fatal(err)
		}
		stop := swap(t, filepath.Join(parent, "volume", "a"), secret)
		err := removeTree(t.Context(), parent, "volume")
		stop()
		// A container that keeps writing can make removal fail, which is retried; it must not reach outside.
		if err != nil {
			if err := removeTree(t.Context(), parent, "volume"); err != nil {
				t.Fatal(err)
			}
		}
		checkUntouched(t, secret)
	}
}

func TestRemoveTree(t *testing.T) {
	parent, secret := t.TempDir(), outside(t)
	dir := filepath.Join(parent, "volume")
	deep := dir
	for range 30 {
		deep = filepath.Join(deep, strings.Repeat("d", 100))
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link": secret, "file": filepath.Join(secret, "secret"), "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(deep, "last"), nil, 0); err != nil {
		t.Fatal(err)
	}
	// Left by an earlier, interrupted attempt.
	if err := os.MkdirAll(filepath.Join(parent, "volume"+movedDirMark+"1", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(t.Context(), parent, "volume"); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(parent); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	checkUntouched(t, secret)
	if err := removeTree(t.Context(), parent, "volume"); err != nil {
		t.Errorf("what is not there is removed already: %v", err)
	}
}

// TestRemoveDeep removes directories nested deeper than the maximum path length and the number of descriptors.
func TestRemoveDeep(t *testing.T) {
	parent := t.TempDir()
	at, err := unix.Open(parent, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		if err := unix.Mkdirat(at, "volume", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "volume", unix.O_DIRECTORY|unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	if err := removeTree(t.Context(), parent, "volume"); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(parent); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
}

func TestReadBeneath(t *testing.T) {
	volume, secret := t.TempDir(), outside(t)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(volume, "plain"), []byte("A='1'"), 0o644))
	must(os.Symlink("plain", filepath.Join(volume, "inner")))
	must(os.Symlink(filepath.Join(secret, "secret"), filepath.Join(volume, "absolute")))
	must(os.Symlink("../../../../../../../../../../etc/passwd", filepath.Join(volume, "up")))
	must(unix.Mkfifo(filepath.Join(volume, "pipe"), 0o644))
	for path, ok := range map[string]bool{"plain": true, "inner": true, "absolute": false, "up": false, "pipe": false, "../x": false, ".": false} {
		if _, err := readBeneath(volume, path, 100); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := readBeneath(volume, "plain", 2); err == nil {
		t.Error("a file over the limit is read")
	}
}
