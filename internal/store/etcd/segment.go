package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// etcd allocates the next segment of its log in advance, 64 MB, and removes it when it is stopped. If it cannot allocate it when it is started, it
// fails later: at the end of the current segment, or when it is stopped. So that a start on a full disk does not need the space, the
// segment is kept while etcd is stopped.
const (
	nextSegment = "0.tmp" // the first that etcd allocates after a start
	keptSegment = "kept.tmp"
)

// allocatedSegments are the names under which an allocated segment can be found.
var allocatedSegments = []string{nextSegment, "1.tmp", keptSegment}

func logDir(dataDir string) string { return filepath.Join(dataDir, "member", "wal") }

// newMemberBytes is the space that a member needs at first: for the first segment of its log, and an empty database.
const newMemberBytes = 65 << 20

// checkNewMember checks that there is space for a member that has no data yet: without it etcd would panic. free is the space on its disk.
func checkNewMember(dataDir string, free int64) error {
	if HasMember(dataDir) || free >= newMemberBytes {
		return nil
	}
	return fmt.Errorf("a new member of etcd needs %d MB: %w", newMemberBytes>>20, &fs.PathError{Op: "allocate", Path: dataDir, Err: syscall.ENOSPC})
}

// keepSegment keeps the segment that a running etcd has allocated. The function it returns makes it the next segment; it must be called
// after etcd has stopped.
func keepSegment(dataDir string) (restore func() error) {
	dir := logDir(dataDir)
	kept := filepath.Join(dir, keptSegment)
	for _, name := range []string{nextSegment, "1.tmp"} {
		if os.Link(filepath.Join(dir, name), kept) == nil {
			return func() error { return os.Rename(kept, filepath.Join(dir, nextSegment)) }
		}
	}
	return func() error { return nil }
}

// restoreSegment makes a segment that was allocated in an earlier run the next one.
func restoreSegment(dataDir string) error {
	dir := logDir(dataDir)
	next := filepath.Join(dir, nextSegment)
	found := false
	for _, name := range allocatedSegments {
		path := filepath.Join(dir, name)
		unused, err := isUnused(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return fmt.Errorf("read log segment: %w", err)
		case found || !unused:
			err = os.Remove(path)
		default:
			found = true
			err = os.Rename(path, next)
		}
		if err != nil {
			return fmt.Errorf("restore log segment: %w", err)
		}
	}
	return nil
}

// isUnused reports whether nothing was written to a segment. A crash can leave one behind to which etcd had begun to write.
func isUnused(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	head := make([]byte, 4096)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	return bytes.Count(head[:n], []byte{0}) == n, nil
}
