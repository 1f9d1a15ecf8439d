// Package diskusage measures what the files of a directory use on disk.
//
// Containers write these directories while they are measured, and may replace any component of a path at any time, or nest directories as deep as they
// want. The walk therefore uses no paths: each directory is opened by its name in the one above it, without following symlinks and without crossing mounts.
// It goes up by "..", and compares what it gets there with what it came from. So it needs few descriptors at any depth and never leaves the directory.
package diskusage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxOpen is how many directories are open at the same time: the first, and the last ones of the path that the walk is at.
	maxOpen = 16
	// batch is how many names are read at once.
	batch = 1024
	// checkEvery is after how many files the walk looks whether it has to end.
	checkEvery = 4096
)

// Usage is what files use. A file with several hard links counts once.
type Usage struct {
	Bytes, Inodes int64
}

// Of measures a directory and what is below it on the same mount. When ctx is done, or the directory cannot be read any more, it returns what it has counted
// until then, which is less than what is used, and the error. Files and directories below it that vanish meanwhile are left out.
func Of(ctx context.Context, dir string) (Usage, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	w := &walk{ctx: ctx, linked: map[uint64]bool{}}
	defer w.close()
	if err := w.run(fd); err != nil {
		return w.sum, fmt.Errorf("measure %s: %w", dir, err)
	}
	return w.sum, nil
}

// identity identifies a directory while it is open, or is above one that is.
type identity struct {
	major, minor uint32
	inode        uint64
}

// level is a directory on the path that the walk is at.
type level struct {
	file *os.File // nil: it was closed, because maxOpen others are open
	id   identity
	// dirs are the names of directories in it that were not visited yet.
	dirs []string
}

// walk is one measurement.
type walk struct {
	ctx context.Context
	sum Usage
	// linked are the inodes of files with several links that were counted.
	linked map[uint64]bool
	seen   int
	levels []*level
}

func (w *walk) close() {
	for _, l := range w.levels {
		if l.file != nil {
			l.file.Close()
		}
	}
}

func (w *walk) run(fd int) error {
	stat, err := statAt(fd, "")
	if err != nil {
		unix.Close(fd)
		return err
	}
	w.count(&stat)
	if err := w.enter(fd, identityOf(&stat)); err != nil {
		return err
	}
	for len(w.levels) > 0 {
		top := w.levels[len(w.levels)-1]
		if len(top.dirs) == 0 {
			w.leave()
			continue
		}
		name := top.dirs[len(top.dirs)-1]
		top.dirs = top.dirs[:len(top.dirs)-1]
		if err := w.visit(int(top.file.Fd()), name); err != nil {
			return err
		}
	}
	return nil
}

// visit enters a directory below one, unless it has vanished, or something was mounted on it.
func (w *walk) visit(at int, name string) error {
	fd, err := unix.Openat2(at, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EIO):
		return fmt.Errorf("open a directory: %w", err)
	case err != nil:
		return nil
	}
	stat, err := statAt(fd, "")
	if err != nil {
		unix.Close(fd)
		return nil
	}
	return w.enter(fd, identityOf(&stat))
}

// enter counts what is in a directory and makes it the one that the walk is at.
func (w *walk) enter(fd int, id identity) error {
	l := &level{file: os.NewFile(uintptr(fd), "directory"), id: id}
	w.levels = append(w.levels, l)
	if far := len(w.levels) - maxOpen; far > 0 && w.levels[far].file != nil {
		w.levels[far].file.Close()
		w.levels[far].file = nil
	}
	for {
		names, err := l.file.Readdirnames(batch)
		for _, name := range names {
			if err := w.countFile(l, name); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ENOENT): // it was removed
			return nil
		case err != nil:
			return fmt.Errorf("read a directory: %w", err)
		}
	}
}

// countFile counts one file, and remembers a directory.
func (w *walk) countFile(l *level, name string) error {
	if w.seen++; w.seen%checkEvery == 0 && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	stat, err := statAt(int(l.file.Fd()), name)
	if err != nil {
		return nil // it has vanished
	}
	// What is mounted here has another inode on another file system, or is counted where it is mounted from.
	if id := identityOf(&stat); id.major != l.id.major || id.minor != l.id.minor || stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return nil
	}
	w.count(&stat)
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		l.dirs = append(l.dirs, name)
	}
	return nil
}

func (w *walk) count(stat *unix.Statx_t) {
	if stat.Nlink > 1 && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		if w.linked[stat.Ino] {
			return
		}
		w.linked[stat.Ino] = true
	}
	w.sum.Bytes += int64(stat.Blocks) * 512
	w.sum.Inodes++
}

// leave goes up to the next directory on the path. If the one that the walk is at was moved meanwhile, it goes up to the next one that is still open; what was
// not visited in between is left out.
func (w *walk) leave() {
	left := w.levels[len(w.levels)-1]
	w.levels = w.levels[:len(w.levels)-1]
	defer left.file.Close()
	if len(w.levels) == 0 {
		return
	}
	above := w.levels[len(w.levels)-1]
	if above.file != nil {
		return
	}
	if fd, ok := parentOf(int(left.file.Fd()), above.id); ok {
		above.file = os.NewFile(uintptr(fd), "directory")
		return
	}
	for w.levels[len(w.levels)-1].file == nil { // the first is always open
		w.levels = w.levels[:len(w.levels)-1]
	}
}

// parentOf opens the directory above another, if it is the expected one.
func parentOf(fd int, want identity) (int, bool) {
	parent, err := unix.Openat2(fd, "..", &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return -1, false
	}
	stat, err := statAt(parent, "")
	if err != nil || identityOf(&stat) != want {
		unix.Close(parent)
		return -1, false
	}
	return parent, true
}

// statAt returns what is known about a file in a directory, or about the directory itself for an empty name. It does not follow symlinks, and does not ask
// the server of a network file system that is mounted there.
func statAt(at int, name string) (stat unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err = unix.Statx(at, name, flags, unix.STATX_BASIC_STATS, &stat)
	return stat, err
}

func identityOf(stat *unix.Statx_t) identity {
	return identity{stat.Dev_major, stat.Dev_minor, stat.Ino}
}
