package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// removeTree removes a directory and its content. It does not follow symlinks or cross mounts: a mount anywhere inside
// makes it fail, so nothing outside of the directory is ever deleted.
//
// A container may have nested directories arbitrarily deep. Instead of recursing, removeTree moves each subdirectory into
// parent and empties it there, so depth costs neither stack nor descriptors. Directories that an interrupted attempt left
// in parent are removed as well; it is interrupted when ctx is done.
func removeTree(ctx context.Context, parent, name string) error {
	at, err := openDir(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	dirs, err := withMovedDirs(parent, name)
	if err != nil {
		return err
	}
	count := 0
	for len(dirs) > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		dir := dirs[len(dirs)-1]
		if removed, err := removeOne(at, dir); err != nil {
			return wrapRemove(parent, dir, err)
		} else if removed {
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

// movedDirMark is part of the names of directories that were moved into parent.
const movedDirMark = ".removed."

// withMovedDirs returns the directory and those that an earlier attempt moved out of it.
func withMovedDirs(parent, name string) ([]string, error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	dirs := []string{name}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), name+movedDirMark) {
			dirs = append(dirs, entry.Name())
		}
	}
	return dirs, nil
}

// moveToParent moves a directory to an unused name in parent. It fails for mount points.
func moveToParent(from int, name string, at int, prefix string, count *int) (string, error) {
	for {
		*count++
		up := fmt.Sprintf("%s%s%d", prefix, movedDirMark, *count)
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

// removeOne removes a file or an empty directory. It reports whether it is gone.
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

// empty removes the files of a directory and moves its subdirectories into parent. It returns their names there.
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
		removed, err := removeOne(fd, name)
		if err != nil {
			return nil, err
		}
		if removed {
			continue
		}
		up, err := moveToParent(fd, name, at, prefix, count)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		moved = append(moved, up)
	}
	return moved, nil
}
