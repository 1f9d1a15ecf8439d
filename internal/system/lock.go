package system

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// lockFile is the file in a directory by whose lock the directory is locked.
const lockFile = "lock"

// lockDirs locks those directories of one data directory that exist.
func lockDirs(dirs ...string) (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, unlock := range unlocks {
			unlock()
		}
	}
	for _, dir := range dirs {
		one, err := lockDir(dir, "data-dir")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, one)
	}
	return unlock, nil
}

// lockDir locks a directory, which only one skiff may use at a time. flag is the one that names another directory.
func lockDir(dir, flag string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, lockedError(f, dir, flag)
		}
		return nil, fmt.Errorf("lock directory: %w", err)
	}
	// It is for messages only, so that a full disk does not matter.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	return func() { f.Close() }, nil
}

// checkUnlocked returns the error of lockDir if a skiff uses a directory. It creates nothing.
func checkUnlocked(dir, flag string) error {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return nil // nobody has locked it, or lockDir will tell
	}
	defer f.Close()
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return lockedError(f, dir, flag)
	}
	return nil
}

// lockedError is about a directory with a lock file that another skiff has locked.
func lockedError(f *os.File, dir, flag string) error {
	return fmt.Errorf("directory %s is used by another skiff%s: stop it, or choose another --%s", dir, lockHolder(f), flag)
}

// lockHolder says which process has written its number to a lock file.
func lockHolder(f *os.File) string {
	text := make([]byte, 20)
	n, _ := f.ReadAt(text, 0) // it ends before
	pid, err := strconv.Atoi(string(text[:n]))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}
