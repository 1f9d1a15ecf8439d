// Package atomicfile replaces files atomically: a reader finds the old or the new content, also after a power loss. What Write has
// acknowledged is on disk.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Write replaces the file at path. The directory must exist. A file with this content and mode is left as it is, so that a start needs no
// space on a full disk.
func Write(path string, data []byte, mode fs.FileMode) error {
	return WriteOwned(path, data, mode, Owner{UID: unchanged, GID: unchanged})
}

// Owner is the user and the group of a file.
type Owner struct{ UID, GID int }

// unchanged leaves a new file to the user of the process.
const unchanged = -1

// WriteOwned is Write for a file of another user: there is no time at which the owner cannot read it. Only root can give files to others.
func WriteOwned(path string, data []byte, mode fs.FileMode, owner Owner) error {
	if isWritten(path, data, mode) && owner.owns(path) {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // fails if the rename succeeded
	if _, err = tmp.Write(data); err == nil {
		err = tmp.Chmod(mode)
	}
	if err == nil && owner.UID != unchanged {
		err = tmp.Chown(owner.UID, owner.GID)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// SyncDir writes the entries of a directory to disk, such as those that were renamed or created.
func SyncDir(dir string) error {
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	// A file system that cannot sync directories writes their entries with those of the files in them.
	if err := opened.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return errors.Join(err, opened.Close())
	}
	return opened.Close()
}

// isWritten reports whether a regular file has the content and mode.
func isWritten(path string, data []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(data)) {
		return false
	}
	content, err := os.ReadFile(path)
	return err == nil && bytes.Equal(content, data)
}

// owns reports whether a file is the owner's.
func (o Owner) owns(path string) bool {
	if o.UID == unchanged {
		return true
	}
	var stat unix.Stat_t
	return unix.Lstat(path, &stat) == nil && int(stat.Uid) == o.UID && int(stat.Gid) == o.GID
}
