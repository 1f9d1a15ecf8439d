package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"skiff/internal/atomicfile"
)

// Directory is a Storage in a directory of the host.
type Directory string

var _ Storage = Directory("")

const (
	// unfinished ends the names of files that are being written. They are removed after staleAfter, if the process that wrote them has ended.
	unfinished = ".tmp"
	staleAfter = 24 * time.Hour
)

// String implements Storage.
func (d Directory) String() string { return string(d) }

// Put implements Storage.
func (d Directory) Put(ctx context.Context, name string, content io.Reader) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("create snapshot directory: %w", err)
	}
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := removeStale(root, time.Now()); err != nil {
		return err
	}
	if err := d.write(ctx, root, name, content); err != nil {
		return fmt.Errorf("write snapshot to %s: %w", d, err)
	}
	return nil
}

// write writes a snapshot. The unfinished file is the lock of its name: of one that exists, another process is the writer.
func (d Directory) write(ctx context.Context, root *os.Root, name string, content io.Reader) error {
	file, err := root.OpenFile(name+unfinished, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = checkNew(root, name); err == nil {
		err = fill(file, contextReader{ctx, content})
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(name+unfinished, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(name+unfinished))
	}
	if err := atomicfile.SyncDir(string(d)); err != nil {
		return errors.Join(err, root.Remove(name))
	}
	return nil
}

// checkNew refuses a name that a snapshot has.
func checkNew(root *os.Root, name string) error {
	_, err := root.Lstat(name)
	switch {
	case err == nil:
		return &fs.PathError{Op: "write", Path: name, Err: fs.ErrExist}
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// fill writes the content of a file to the disk.
func fill(file *os.File, content io.Reader) error {
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	return file.Sync()
}

// contextReader fails when its context is done.
type contextReader struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (r contextReader) Read(to []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(to)
}

// removeStale removes what processes that ended early have left.
func removeStale(root *os.Root, now time.Time) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), unfinished)
		if !ok || checkName(name) != nil {
			continue
		}
		if info, err := entry.Info(); err == nil && now.Sub(info.ModTime()) > staleAfter {
			if err := root.Remove(entry.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// Open implements Storage.
func (d Directory) Open(_ context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Open(name)
}

// List implements Storage. A directory that does not exist has no snapshots.
func (d Directory) List(context.Context) ([]Entry, error) {
	files, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var entries []Entry
	for _, file := range files {
		_, created, ok := ParseName(file.Name())
		if !ok {
			continue
		}
		info, err := file.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			entries = append(entries, Entry{Name: file.Name(), Created: created, Bytes: info.Size()})
		}
	}
	sortEntries(entries)
	return entries, nil
}

// Delete implements Storage.
func (d Directory) Delete(_ context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
