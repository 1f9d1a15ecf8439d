package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// isMounted reports whether path is a mount point. What is mounted is not looked at: the server of a network file system may not respond.
func isMounted(path string) (bool, error) {
	parent, err := openDir(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(parent)
	fd, err := openat2(parent, filepath.Base(path), unix.O_PATH|unix.O_NOFOLLOW, unix.RESOLVE_NO_XDEV)
	switch {
	case err == nil:
		return false, unix.Close(fd)
	case errors.Is(err, unix.EXDEV):
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, &os.PathError{Op: "open", Path: path, Err: err}
}

// mountTmpfs mounts a tmpfs on a directory. size is in bytes; 0 is the kernel's default, half of the memory.
func mountTmpfs(dir string, size int64) error {
	options := []string{"noswap"}
	if size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(options, ","))
	if errors.Is(err, unix.EINVAL) {
		// Kernels before 6.4 do not support noswap.
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(options[1:], ","))
	}
	if err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// bind bind-mounts what source refers to on target, which exists and has the same file type. source is a descriptor, so
// its name cannot be replaced meanwhile.
func bind(source int, target string, recursive bool) error {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(source, "", flags)
	if err != nil {
		return fmt.Errorf("clone mount for %s: %w", target, err)
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	return nil
}

// remountReadOnly makes a bind mount read-only.
func remountReadOnly(target string) error {
	return unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_SYMLINK_NOFOLLOW, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// unmountBelow unmounts everything at and below a directory, deepest first. The directories above it may be reached through symlinks.
func unmountBelow(dir string) error {
	parent, err := filepath.EvalSymlinks(filepath.Dir(filepath.Clean(dir))) // the kernel lists mounts by paths without symlinks
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resolve the directory of %s: %w", dir, err)
	}
	dir = filepath.Join(parent, filepath.Base(dir))
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts below %s: %w", dir, err)
	}
	// mountinfo lists a mount after the one it is mounted on; of several on one path the last is on top.
	slices.Reverse(mounts)
	slices.SortStableFunc(mounts, func(a, b *mountinfo.Info) int { return len(b.Mountpoint) - len(a.Mountpoint) })
	for _, mount := range mounts {
		if err := unmount(mount.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}

// unmount detaches a mount. The path is resolved without symlinks: one that was added meanwhile could lead to another mount of the host. The mount
// itself is not looked at: the server of a network file system may not respond.
func unmount(path string) error {
	root, err := openDir("/")
	if err != nil {
		return err
	}
	defer unix.Close(root)
	parent, err := openNoSymlinks(root, "."+filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	defer unix.Close(parent)
	err = unix.Unmount(filepath.Join(descriptorPath(parent), filepath.Base(path)), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // these: it is not mounted any more
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// share makes a directory a shared mount, so that mounts propagate between host and containers. It reports whether it had
// to bind-mount the directory.
func share(dir string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return false, fmt.Errorf("read mounts above %s: %w", dir, err)
	}
	var parent *mountinfo.Info
	for _, mount := range mounts {
		if parent == nil || len(mount.Mountpoint) >= len(parent.Mountpoint) {
			parent = mount
		}
	}
	if parent != nil && strings.Contains(parent.Optional, "shared:") {
		return false, nil
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return false, fmt.Errorf("bind %s on itself: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return true, fmt.Errorf("share mounts below %s: %w", dir, err)
	}
	return true, nil
}
