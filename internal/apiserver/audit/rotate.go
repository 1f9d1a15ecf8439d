package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// rotatingFile is a log file that is rotated when it reaches its maximum size: audit.log is renamed to
// audit-2026-01-02T15-04-05.000.log with the current time. Backups that are too many or too old are removed. Lines are never split
// over files.
//
// The library upstream uses rotates inside Write, one line at a time, and starts a goroutine that never ends.
type rotatingFile struct {
	path       string
	maxBytes   int64 // 0: never rotate
	maxBackups int
	maxAge     time.Duration
	compress   bool
	log        *slog.Logger

	file    *os.File
	size    int64
	rotated chan struct{} // signals that backups must be cleaned up
}

// backupTimeLayout is the layout of the time in the names of backups.
const backupTimeLayout = "2006-01-02T15-04-05.000"

const gzipSuffix = ".gz"

func openRotating(c Log, log *slog.Logger) (*rotatingFile, error) {
	f := &rotatingFile{
		path: c.Path, maxBytes: int64(c.MaxSize) << 20, maxBackups: c.MaxBackups, maxAge: time.Duration(c.MaxAge) * 24 * time.Hour,
		compress: c.Compress, log: log, rotated: make(chan struct{}, 1),
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o700); err != nil {
		return nil, err
	}
	signal(f.rotated) // an earlier process may have left backups
	return f, f.open()
}

func (f *rotatingFile) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Write writes whole lines.
func (f *rotatingFile) Write(lines []byte) (written int, err error) {
	for len(lines) > 0 {
		if f.file == nil {
			if err := f.open(); err != nil {
				return written, err
			}
		}
		part := f.fitting(lines)
		if len(part) == 0 {
			if err := f.rotate(); err != nil {
				return written, err
			}
			continue
		}
		n, err := f.file.Write(part)
		written += n
		f.size += int64(n)
		if err != nil {
			return written, err
		}
		lines = lines[len(part):]
	}
	return written, nil
}

// fitting returns as many lines as fit into the file: at least one if the file is empty.
func (f *rotatingFile) fitting(lines []byte) []byte {
	free := f.maxBytes - f.size
	if f.maxBytes == 0 || int64(len(lines)) <= free {
		return lines
	}
	if free > 0 {
		if end := bytes.LastIndexByte(lines[:free], '\n'); end >= 0 {
			return lines[:end+1]
		}
	}
	if f.size > 0 {
		return nil
	}
	return lines[:bytes.IndexByte(lines, '\n')+1]
}

func (f *rotatingFile) rotate() error {
	err := f.file.Close()
	f.file = nil
	if err != nil {
		return err
	}
	prefix, suffix := f.nameParts()
	at := time.Now().UTC()
	backup := ""
	for {
		backup = filepath.Join(filepath.Dir(f.path), prefix+at.Format(backupTimeLayout)+suffix)
		if _, err := os.Lstat(backup); errors.Is(err, os.ErrNotExist) {
			break
		}
		at = at.Add(time.Millisecond)
	}
	if err := os.Rename(f.path, backup); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("rotate audit log: %w", err)
	}
	signal(f.rotated)
	return f.open()
}

func (f *rotatingFile) nameParts() (prefix, suffix string) {
	base := filepath.Base(f.path)
	suffix = filepath.Ext(base)
	return strings.TrimSuffix(base, suffix) + "-", suffix
}

// Close implements io.Closer.
func (f *rotatingFile) Close() error {
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}

// runCleanup removes and compresses backups until ctx is done.
func (f *rotatingFile) runCleanup(ctx context.Context) {
	for {
		select {
		case <-f.rotated:
			if err := f.cleanup(time.Now()); err != nil {
				f.log.Error("failed to clean up old audit logs", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (f *rotatingFile) cleanup(now time.Time) error {
	backups, err := f.backups()
	if err != nil {
		return err
	}
	var errs []error
	for i, backup := range backups { // the newest first
		path := filepath.Join(filepath.Dir(f.path), backup.name)
		switch {
		case f.maxBackups > 0 && i >= f.maxBackups || f.maxAge > 0 && now.Sub(backup.at) > f.maxAge:
			errs = append(errs, os.Remove(path))
		case f.compress && !strings.HasSuffix(path, gzipSuffix):
			errs = append(errs, compressFile(path))
		}
	}
	return errors.Join(errs...)
}

type backup struct {
	name string
	at   time.Time
}

func (f *rotatingFile) backups() ([]backup, error) {
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return nil, err
	}
	prefix, suffix := f.nameParts()
	var found []backup
	for _, entry := range entries {
		middle, ok := strings.CutPrefix(strings.TrimSuffix(entry.Name(), gzipSuffix), prefix)
		if !ok || !strings.HasSuffix(middle, suffix) {
			continue
		}
		if at, err := time.Parse(backupTimeLayout, strings.TrimSuffix(middle, suffix)); err == nil {
			found = append(found, backup{entry.Name(), at})
		}
	}
	slices.SortFunc(found, func(a, b backup) int { return b.at.Compare(a.at) })
	return found, nil
}

// compressFile compresses a file into another in the same directory and removes it.
func compressFile(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	compressed := path + gzipSuffix
	out, err := os.OpenFile(compressed, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := gzip.NewWriter(out)
	_, err = io.Copy(w, in)
	if err = errors.Join(err, w.Close(), out.Close()); err != nil {
		return errors.Join(fmt.Errorf("compress %s: %w", path, err), os.Remove(compressed))
	}
	return os.Remove(path)
}
