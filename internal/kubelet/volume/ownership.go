package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"
)

// What the group of a volume may do with it.
const (
	groupReadWrite = 0o660
	groupRead      = 0o440
	groupSearch    = 0o110
)

// own gives everything in a volume to a group, and makes what is created in its directories the group's too. With the policy
// OnRootMismatch a volume whose root is as it should be is left alone.
func own(dir string, group int64, readOnly bool, policy *corev1.PodFSGroupChangePolicy) error {
	root, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	mask := uint32(groupReadWrite)
	if readOnly {
		mask = groupRead
	}
	if policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch && owned(root, group, mask) {
		return nil
	}
	// The root comes last, so that an attempt that was cut short is seen as such.
	paths := []string{"."}
	for i := 0; i < len(paths); i++ {
		names, err := list(root, paths[i])
		if err != nil {
			return fmt.Errorf("read %s of %s: %w", paths[i], dir, err)
		}
		for _, name := range names {
			path := filepath.Join(paths[i], name)
			isDir, err := ownOne(root, path, group, mask)
			if err != nil {
				return fmt.Errorf("change owner of %s in %s: %w", path, dir, err)
			}
			if isDir {
				paths = append(paths, path)
			}
		}
	}
	_, err = ownOne(root, ".", group, mask)
	return err
}

// owned reports whether a volume's root belongs to the group and lets it do what it should.
func owned(root int, group int64, mask uint32) bool {
	var stat unix.Stat_t
	mask |= groupSearch
	return unix.Fstat(root, &stat) == nil && int64(stat.Gid) == group && stat.Mode&mask == mask && stat.Mode&unix.S_ISGID != 0
}

// list returns the names in a directory, none when it has gone or become something else meanwhile.
func list(root int, path string) ([]string, error) {
	fd, err := openPlain(root, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if vanished(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	opened := os.NewFile(uintptr(fd), path)
	defer opened.Close()
	return opened.Readdirnames(-1)
}

// ownOne gives one file, directory or symlink to the group. A symlink's own mode means nothing, and what it leads to is none of ours.
func ownOne(root int, path string, group int64, mask uint32) (isDir bool, err error) {
	fd, err := openPlain(root, path, unix.O_PATH|unix.O_NOFOLLOW)
	if vanished(err) {
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
	if err := unix.Fchownat(fd, "", -1, int(group), unix.AT_EMPTY_PATH); err != nil && !tolerable(err) {
		return false, err
	}
	isDir = stat.Mode&unix.S_IFMT == unix.S_IFDIR
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return false, nil
	}
	if isDir {
		mask |= groupSearch | unix.S_ISGID
	}
	if err := unix.Chmod(throughDescriptor(fd), (stat.Mode|mask)&0o7777); err != nil && !tolerable(err) {
		return false, err
	}
	return isDir, nil
}

func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

// tolerable are failures of file systems that have no owners or are read-only. The volume is then used as it is.
func tolerable(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EOPNOTSUPP)
}
