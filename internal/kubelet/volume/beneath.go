package volume

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// What a container can write, it can also change while the kubelet looks at it. So no path into a volume is ever resolved twice:
// the kernel resolves it once, beneath the volume's root, and everything after that goes by the file descriptor.

// openBeneath opens path below the directory root. Symlinks are followed only as long as they stay below it.
func openBeneath(root int, path string, flags uint64) (int, error) {
	return openat2(root, path, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
}

// openPlain opens path below the directory root and follows no symlink at all.
func openPlain(root int, path string, flags uint64) (int, error) {
	return openat2(root, path, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
}

func openat2(root int, path string, flags, resolve uint64) (int, error) {
	for {
		fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve})
		// EAGAIN: something was renamed meanwhile, so that the kernel cannot tell whether the path stayed below its root.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// openDir opens a directory as a root for the functions above.
func openDir(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// throughDescriptor is a path to what fd refers to, whatever became of its name.
func throughDescriptor(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// readBeneath reads a file below a directory, at most limit bytes of it.
func readBeneath(dir, path string, limit int64) ([]byte, error) {
	root, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := openBeneath(root, path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return content, err
}

// makeBeneath opens path below root, and makes the directories that are missing with the given mode.
func makeBeneath(root int, path string, mode uint32) (int, error) {
	fd, err := openBeneath(root, path, unix.O_PATH)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	at, err := unix.Dup(root)
	if err != nil {
		return -1, err
	}
	made := ""
	for _, name := range strings.Split(filepath.Clean(path), "/") {
		made = filepath.Join(made, name)
		next, err := openBeneath(root, made, unix.O_PATH|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			next, err = makeDirAt(at, name, mode)
		}
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// makeDirectoryAt makes one directory. Its mode is set afterwards, because the process's umask would take bits away.
func makeDirAt(parent int, name string, mode uint32) (int, error) {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err := openPlain(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
