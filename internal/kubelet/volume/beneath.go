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

// A container can change its volumes while the kubelet reads them. No path into a volume is therefore resolved twice: the
// kernel resolves it once, beneath the volume's root, and everything after that uses the file descriptor.

// openBeneath opens path below the directory root. Symlinks must not lead out of it.
func openBeneath(root int, path string, flags uint64) (int, error) {
	return openat2(root, path, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
}

// openNoSymlinks opens path below the directory root and fails on symlinks.
func openNoSymlinks(root int, path string, flags uint64) (int, error) {
	return openat2(root, path, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
}

func openat2(root int, path string, flags, resolve uint64) (int, error) {
	for {
		fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve})
		// EAGAIN: a concurrent rename kept the kernel from verifying that the path is below root.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// openDir opens a directory as root for the functions above.
func openDir(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// descriptorPath returns a path that refers to fd, independent of its name.
func descriptorPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// readBeneath reads a file below a directory. It fails if the file is larger than limit bytes.
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
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return content, err
}

// makeBeneath opens path below root, creating missing directories with the given mode.
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

// makeDirAt creates one directory. Its mode is set afterwards, because of the umask.
func makeDirAt(parent int, name string, mode uint32) (int, error) {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err := openNoSymlinks(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
