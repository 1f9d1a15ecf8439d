package etcd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// etcd maps its file into memory. The kernel counts every page that was ever read as resident memory of the process, although nearly none is
// read again: objects are served from the cache, and most of the file is history. So the pages are unmapped from time to time. They stay in
// the kernel's page cache, from which a later read maps them again.
const (
	unmapInterval = 10 * time.Second
	// minUnmapBytes is how much memory of files must have become resident since the last time.
	minUnmapBytes = 16 << 20
)

// unmapPeriodically unmaps the pages of the file when many have been read, until ctx is done.
func (e *embedded) unmapPeriodically(ctx context.Context) {
	ticker := time.NewTicker(unmapInterval)
	defer ticker.Stop()
	var last int64
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		resident, err := residentFiles()
		if err == nil && resident-last >= minUnmapBytes {
			err = e.unmapPages()
			last, _ = residentFiles()
		}
		if err != nil {
			e.log.Debug("failed to unmap the pages of etcd's file", "error", err)
		}
		last = min(last, resident)
	}
}

// residentFiles returns how much memory of this process is resident and that of files: etcd's, and the program itself.
func residentFiles() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("read memory usage: %w", err)
	}
	var total, resident, shared int64
	if _, err := fmt.Sscan(string(text), &total, &resident, &shared); err != nil {
		return 0, fmt.Errorf("parse memory usage %q: %w", text, err)
	}
	return shared * int64(os.Getpagesize()), nil
}

// unmapPages unmaps all pages of the file.
func (e *embedded) unmapPages() error {
	// While a transaction reads, the file stays mapped where it is.
	tx := e.server.Backend().ConcurrentReadTx()
	tx.RLock()
	defer tx.RUnlock()
	mappings, err := fileMappings(databaseFile(e.dir))
	if err != nil {
		return err
	}
	for _, m := range mappings {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmap pages: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses at which a file is mapped.
type mapping struct{ start, end uintptr }

// fileMappings returns where this process has mapped a file, and others cannot be affected: shared and without the right to write.
func fileMappings(path string) ([]mapping, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	file, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parseMappings(file, stat.Dev, stat.Ino)
}

// parseMappings returns the read-only shared mappings of a file in the format of /proc/PID/maps.
func parseMappings(maps io.Reader, dev, inode uint64) ([]mapping, error) {
	var found []mapping
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var m mapping
		var permissions string
		var offset, number uint64
		var major, minor uint32
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %x:%x %d", &m.start, &m.end, &permissions, &offset, &major, &minor, &number); err != nil {
			return nil, fmt.Errorf("parse mapping %q: %w", lines.Text(), err)
		}
		if number == inode && unix.Mkdev(major, minor) == dev && permissions == "r--s" {
			found = append(found, m)
		}
	}
	return found, lines.Err()
}
