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

// isMounted reports whether something is mounted on exactly this path.
func isMounted(path string) (bool, error) {
	mounted, err := mountinfo.Mounted(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// mountMemory mounts a file system of memory on a directory. size is in bytes, 0 leaves the kernel's default of half the machine's.
func mountMemory(dir string, size int64) error {
	options := []string{"noswap"}
	if size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(options, ","))
	if errors.Is(err, unix.EINVAL) {
		// Kernels before 6.4 do not know noswap.
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(options[1:], ","))
	}
	if err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// bind makes what source refers to visible at target, which exists and is of the same kind. Neither is looked up by a name
// that somebody could change meanwhile.
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

// unmountBelow unmounts everything at and below a directory, the innermost first.
func unmountBelow(dir string) error {
	dir = filepath.Clean(dir)
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts below %s: %w", dir, err)
	}
	// A mount comes behind the one it is on; of several on one path the last is on top.
	slices.Reverse(mounts)
	slices.SortStableFunc(mounts, func(a, b *mountinfo.Info) int { return len(b.Mountpoint) - len(a.Mountpoint) })
	for _, mount := range mounts {
		if err := unmount(mount.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}

// unmount takes a mount away. The path is resolved without symlinks: one that has appeared on the way would lead to some other
// mount of the host.
func unmount(path string) error {
	root, err := openDir("/")
	if err != nil {
		return err
	}
	defer unix.Close(root)
	fd, err := openPlain(root, strings.TrimPrefix(path, "/"), unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	defer unix.Close(fd)
	var stat unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &stat); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return nil // gone meanwhile
	}
	// The descriptor itself keeps the mount busy, so it is detached and goes when the descriptor does.
	if err := unix.Unmount(throughDescriptor(fd), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// share makes a directory a mount whose changes containers see and, if they may, make. It reports whether it had to mount
// something for that.
func share(dir string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return false, fmt.Errorf("read mounts above %s: %w", dir, err)
	}
	var on *mountinfo.Info
	for _, mount := range mounts {
		if on == nil || len(mount.Mountpoint) >= len(on.Mountpoint) {
			on = mount
		}
	}
	if on != nil && strings.Contains(on.Optional, "shared:") {
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
