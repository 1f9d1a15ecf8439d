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

// rotatingFile is a log that is set aside when it grows too large: audit.log becomes audit-2026-01-02T15-04-05.000.log, the time
// being when that happened. Those that are too many or too old are removed. Lines are never split over files.
//
// It is written here because the usual library rotates inside Write, one line at a time, and starts a goroutine that
// never ends.
type rotatingFile struct {
	path       string
	maxBytes   int64 // 0: never set aside
	maxBackups int
	maxAge     time.Duration
	compress   bool
	log        *slog.Logger

	file    *os.File
	size    int64
	rotated chan struct{} // holds a token when there is something to tidy up
}

// backupTime is the layout of the time in the names of files set aside.
const backupTime = "2006-01-02T15-04-05.000"

const packedSuffix = ".gz"

func openRotating(c Log, log *slog.Logger) (*rotatingFile, error) {
	f := &rotatingFile{
		path: c.Path, maxBytes: int64(c.MaxSize) << 20, maxBackups: c.MaxBackups, maxAge: time.Duration(c.MaxAge) * 24 * time.Hour,
		compress: c.Compress, log: log, rotated: make(chan struct{}, 1),
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o700); err != nil {
		return nil, err
	}
	signal(f.rotated) // an earlier run may have left something
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

// fitting is as many lines as the file has room for: at least one when the file is empty.
func (f *rotatingFile) fitting(lines []byte) []byte {
	room := f.maxBytes - f.size
	if f.maxBytes == 0 || int64(len(lines)) <= room {
		return lines
	}
	if room > 0 {
		if end := bytes.LastIndexByte(lines[:room], '\n'); end >= 0 {
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
	aside := ""
	for {
		aside = filepath.Join(filepath.Dir(f.path), prefix+at.Format(backupTime)+suffix)
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			break
		}
		at = at.Add(time.Millisecond)
	}
	if err := os.Rename(f.path, aside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("set the audit log aside: %w", err)
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

// tidy removes and compresses files that were set aside, until ctx ends.
func (f *rotatingFile) tidy(ctx context.Context) {
	for {
		select {
		case <-f.rotated:
			if err := f.tidyOnce(time.Now()); err != nil {
				f.log.Error("cannot tidy up old audit logs", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (f *rotatingFile) tidyOnce(now time.Time) error {
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
		case f.compress && !strings.HasSuffix(path, packedSuffix):
			errs = append(errs, pack(path))
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
		middle, ok := strings.CutPrefix(strings.TrimSuffix(entry.Name(), packedSuffix), prefix)
		if !ok || !strings.HasSuffix(middle, suffix) {
			continue
		}
		if at, err := time.Parse(backupTime, strings.TrimSuffix(middle, suffix)); err == nil {
			found = append(found, backup{entry.Name(), at})
		}
	}
	slices.SortFunc(found, func(a, b backup) int { return b.at.Compare(a.at) })
	return found, nil
}

// pack compresses a file into another beside it and removes it.
func pack(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	packed := path + packedSuffix
	out, err := os.OpenFile(packed, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := gzip.NewWriter(out)
	_, err = io.Copy(w, in)
	if err = errors.Join(err, w.Close(), out.Close()); err != nil {
		return errors.Join(fmt.Errorf("compress %s: %w", path, err), os.Remove(packed))
	}
	return os.Remove(path)
}
