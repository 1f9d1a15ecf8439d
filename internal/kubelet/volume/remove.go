package volume

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// removeTree removes a directory and all it contains. It follows no symlink and enters no mount: whatever is mounted
// somewhere inside makes it fail, so that nothing is ever deleted that does not belong to the directory.
//
// A container may have nested directories as deep as it liked. Instead of going down, each directory found is moved up beside the
// first and then emptied there, so depth costs neither stack nor descriptors. What an attempt that was cut short has left there is
// removed as well.
func removeTree(parent, name string) error {
	at, err := openDir(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	dirs, err := leftovers(parent, name)
	if err != nil {
		return err
	}
	count := 0
	for len(dirs) > 0 {
		dir := dirs[len(dirs)-1]
		if gone, err := removeOne(at, dir); err != nil {
			return wrapRemove(parent, dir, err)
		} else if gone {
			dirs = dirs[:len(dirs)-1]
			continue
		}
		moved, err := empty(at, dir, name, &count)
		if err != nil {
			return wrapRemove(parent, dir, err)
		}
		dirs = append(dirs[:len(dirs)-1], moved...)
		if err := unix.Unlinkat(at, dir, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			return wrapRemove(parent, dir, err)
		}
	}
	return nil
}

// removedMark is what the names of directories that were moved up contain.
const removedMark = ".removed."

// leftovers are the directory itself and what was moved up out of it earlier.
func leftovers(parent, name string) ([]string, error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	dirs := []string{name}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), name+removedMark) {
			dirs = append(dirs, entry.Name())
		}
	}
	return dirs, nil
}

// moveUp moves a directory to a free name beside the one being removed. A mount point does not let itself be moved.
func moveUp(from int, name string, at int, prefix string, count *int) (string, error) {
	for {
		*count++
		up := fmt.Sprintf("%s%s%d", prefix, removedMark, *count)
		if err := unix.Renameat2(from, name, at, up, unix.RENAME_NOREPLACE); !errors.Is(err, unix.EEXIST) {
			return up, err
		}
	}
}

func wrapRemove(parent, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("remove %s/%s: %w", parent, name, err)
}

// removeOne removes what is not a directory, or is an empty one. It reports whether it is gone.
func removeOne(at int, name string) (bool, error) {
	err := unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return false, nil
	}
	return false, err
}

// empty removes what a directory contains but for further directories, which it moves up. It returns the names they have there.
func empty(at int, dir, prefix string, count *int) ([]string, error) {
	fd, err := openat2(at, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW,
		unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_XDEV)
	if errors.Is(err, unix.EXDEV) {
		return nil, errors.New("something is still mounted on it")
	}
	if err != nil {
		return nil, err
	}
	opened := os.NewFile(uintptr(fd), dir)
	defer opened.Close()
	names, err := opened.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var moved []string
	for _, name := range names {
		gone, err := removeOne(fd, name)
		if err != nil {
			return nil, err
		}
		if gone {
			continue
		}
		up, err := moveUp(fd, name, at, prefix, count)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		moved = append(moved, up)
	}
	return moved, nil
}
