package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"
)

// The permissions of a volume's group.
const (
	groupReadWrite = 0o660
	groupRead      = 0o440
	groupSearch    = 0o110
)

// setGroup makes a group the owner of everything in a volume, and sets the setgid bit on directories. With the policy
// OnRootMismatch, a volume whose root already matches is left alone. It ends when ctx is done.
func setGroup(ctx context.Context, dir string, group int64, readOnly bool, policy *corev1.PodFSGroupChangePolicy) error {
	root, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	mask := uint32(groupReadWrite)
	if readOnly {
		mask = groupRead
	}
	if policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch && hasGroup(root, group, mask) {
		return nil
	}
	// The root is changed last, so that OnRootMismatch repeats an interrupted attempt.
	paths := []string{"."}
	for i := 0; i < len(paths); i++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		names, err := list(root, paths[i])
		if err != nil {
			return fmt.Errorf("read %s of %s: %w", paths[i], dir, err)
		}
		for _, name := range names {
			path := filepath.Join(paths[i], name)
			isDir, err := setGroupOf(root, path, group, mask)
			if err != nil {
				return fmt.Errorf("change owner of %s in %s: %w", path, dir, err)
			}
			if isDir {
				paths = append(paths, path)
			}
		}
	}
	_, err = setGroupOf(root, ".", group, mask)
	return err
}

// isGroupsVolume reports whether the root of a volume belongs to the group with the permissions that setGroup sets.
func isGroupsVolume(dir string, group int64) bool {
	root, err := openDir(dir)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	return hasGroup(root, group, groupReadWrite)
}

// hasGroup reports whether a volume's root belongs to the group with the needed permissions.
func hasGroup(root int, group int64, mask uint32) bool {
	var stat unix.Stat_t
	mask |= groupSearch
	return unix.Fstat(root, &stat) == nil && int64(stat.Gid) == group && stat.Mode&mask == mask && stat.Mode&unix.S_ISGID != 0
}

// list returns the names in a directory, none if it was removed or replaced meanwhile.
func list(root int, path string) ([]string, error) {
	fd, err := openNoSymlinks(root, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	opened := os.NewFile(uintptr(fd), path)
	defer opened.Close()
	return opened.Readdirnames(-1)
}

// setGroupOf changes the group of one file, directory or symlink. Symlinks are not followed.
func setGroupOf(root int, path string, group int64, mask uint32) (isDir bool, err error) {
	fd, err := openNoSymlinks(root, path, unix.O_PATH|unix.O_NOFOLLOW)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return false, err
	}
	if err := unix.Fchownat(fd, "", -1, int(group), unix.AT_EMPTY_PATH); err != nil && !isUnsupported(err) {
		return false, err
	}
	isDir = stat.Mode&unix.S_IFMT == unix.S_IFDIR
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return false, nil
	}
	if isDir {
		mask |= groupSearch | unix.S_ISGID
	}
	if err := unix.Chmod(descriptorPath(fd), (stat.Mode|mask)&0o7777); err != nil && !isUnsupported(err) {
		return false, err
	}
	return isDir, nil
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

// isUnsupported reports errors of file systems that have no owners or are read-only. Such a volume is used as it is.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EOPNOTSUPP)
}
