package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// allocation is how much of etcd's file has blocks on the disk.
type allocation struct {
	mu   sync.Mutex   // held while more is allocated
	end  atomic.Int64 // offset up to which there are blocks
	next atomic.Int64 // size of the database at which more are allocated
}

// allocate allocates blocks of the disk for what etcd appends to its file next, unless enough are allocated. etcd itself only extends the
// file, which allocates nothing: a write to it would fail on a full disk. Where the file system cannot allocate, or copies on write, there is no
// such reserve.
func (e *embedded) allocate() {
	a, size := &e.allocation, e.server.Backend().Size()
	if size < a.next.Load() || !a.mu.TryLock() {
		return
	}
	defer a.mu.Unlock()
	free, err := freeBytes(e.dir)
	if err == nil && free >= 2*allocatedAhead { // otherwise the rest is for the log
		err = allocateFile(databaseFile(e.dir), size+allocatedAhead)
		a.next.Store(size + allocatedAhead/2) // after a failure, too
	}
	if err != nil {
		e.log.Debug("failed to allocate space for etcd in advance", "error", err)
	}
	a.end.Store(allocatedBytes(databaseFile(e.dir)))
}

// reset forgets what is allocated, because the file was replaced.
func (a *allocation) reset() {
	a.end.Store(0)
	a.next.Store(0)
}

func databaseFile(dataDir string) string { return filepath.Join(dataDir, "member", "snap", "db") }

// allocateFile allocates the blocks of a file up to an offset. Its size and content do not change.
func allocateFile(path string, end int64) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, end); err != nil {
		return fmt.Errorf("allocate %s: %w", path, err)
	}
	return nil
}

// allocatedBytes is how much of the disk a file uses; 0 if that is not known.
func allocatedBytes(path string) int64 {
	const blockSize = 512 // of stat
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return stat.Blocks * blockSize
}
