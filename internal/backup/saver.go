package backup

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/robfig/cron/v3"
	"golang.org/x/sys/unix"
)

// diskReserve is left free on the disk of the data directory: etcd ends the process when it cannot write.
const diskReserve = 192 << 20

// Source is what is saved.
type Source interface {
	// Size is about how many bytes WriteDatabase will write.
	Size() int64
	// WriteDatabase writes a consistent copy of the database.
	WriteDatabase(ctx context.Context, to io.Writer) error
	// Inspect reads all of a copy, and describes it. SHA256 is not set.
	Inspect(path string) (Database, error)
	// Files are the keys and the configuration that the database is useless without.
	Files() ([]File, error)
	// Passphrase encrypts the snapshots.
	Passphrase() ([]byte, error)
}

// SaverOptions are what a Saver needs.
type SaverOptions struct {
	Source  Source
	Storage Storage
	// StagingDir is a directory for the copy of the database, which is in use only while a snapshot is saved. Its content is removed.
	StagingDir string
	// Schedule is when snapshots are saved; nil: only on request.
	Schedule cron.Schedule
	// Retention is how many scheduled snapshots of this server are kept.
	Retention int
	// Server is the name of the host, Version that of skiff.
	Server, Version string
	Log             *slog.Logger
}

// Saver saves snapshots, one at a time, and verifies them.
type Saver struct {
	SaverOptions
	metrics saverMetrics
	// requests holds the names of snapshots that Run has to save. There is at most one.
	requests chan string

	mu sync.Mutex
	// requested is the snapshot that was requested last.
	requested Save
}

// Save is a requested snapshot.
type Save struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Error is why it failed.
	Error string `json:"error,omitempty"`
	// Location is where it was saved, Bytes its size there, and Database what is in it.
	Location string    `json:"location,omitempty"`
	Bytes    int64     `json:"bytes,omitempty"`
	Database *Database `json:"database,omitempty"`
}

// State is how far a requested snapshot is.
type State string

// The states of a requested snapshot.
const (
	Saving State = "Saving"
	Saved  State = "Saved"
	Failed State = "Failed"
)

// NewSaver returns a Saver. Nothing is saved before Run.
func NewSaver(o SaverOptions) *Saver {
	return &Saver{SaverOptions: o, metrics: newSaverMetrics(), requests: make(chan string, 1)}
}

// Run saves snapshots on schedule and on request until ctx is done.
func (s *Saver) Run(ctx context.Context) error {
	// A process that ended while it saved a snapshot has left its copy of the database.
	if err := os.RemoveAll(s.StagingDir); err != nil {
		return err
	}
	plan := timetable{schedule: s.Schedule}
	plan.advance(time.Now())
	for {
		var due <-chan time.Time
		if s.Schedule != nil {
			// The clock can be set meanwhile.
			due = time.After(min(time.Until(plan.next), maxTimer))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-due:
			if !plan.isDue(time.Now()) {
				continue
			}
			saved := s.saveScheduled(ctx)
			plan.advance(time.Now())
			if saved {
				plan.pause = 0
			} else {
				plan.retry(time.Now())
			}
		case name := <-s.requests:
			s.saveRequested(ctx, name)
		}
	}
}

// maxTimer is how long Run waits at most before it reads the clock again.
const maxTimer = time.Minute

// timetable is when the next snapshot has to be saved.
type timetable struct {
	schedule cron.Schedule // nil: never
	next     time.Time
	read     time.Time // when the clock was read last
	// pause is how long after the last failure a snapshot is tried again; 0: the last one was saved.
	pause time.Duration
}

// The pauses before a scheduled snapshot that has failed is tried again: the next one can be a day away.
const (
	minRetryPause = time.Minute
	maxRetryPause = time.Hour
)

// retry plans another attempt, if the schedule does not plan an earlier one. It follows advance.
func (t *timetable) retry(now time.Time) {
	t.pause = min(max(2*t.pause, minRetryPause), maxRetryPause)
	if again := wall(now).Add(t.pause); again.Before(t.next) {
		t.next = again
	}
}

// advance plans the next snapshot. Times that have passed while one was saved are left out.
func (t *timetable) advance(now time.Time) {
	now = wall(now)
	t.read = now
	if t.schedule != nil {
		t.next = t.schedule.Next(now)
	}
}

// isDue reports whether a snapshot has to be saved now. If the clock was set back, what was planned by its former time does not count: that can be
// years away.
func (t *timetable) isDue(now time.Time) bool {
	now = wall(now)
	if now.Before(t.read) {
		t.advance(now)
	}
	t.read = now
	return !now.Before(t.next)
}

// wall is a time without the reading of the monotonic clock, which does not change when the clock is set.
func wall(t time.Time) time.Time { return t.Round(0) }

// saveScheduled saves a snapshot, and deletes those that it replaces. It reports false if it could not be saved.
func (s *Saver) saveScheduled(ctx context.Context) bool {
	entry, _, err := s.save(ctx, newName(ScheduledPrefix, s.Server, time.Now()))
	if err != nil {
		if ctx.Err() == nil {
			s.Log.Error("failed to save scheduled snapshot", "name", entry.Name, "error", err)
		}
		return false
	}
	deleted, err := Prune(ctx, s.Storage, Pruning{Keep: s.Retention, Prefix: namePrefix(ScheduledPrefix, s.Server), Saved: entry.Name})
	if err != nil && ctx.Err() == nil {
		s.Log.Error("failed to delete old snapshots", "location", s.Storage.String(), "error", err)
	}
	if len(deleted) > 0 {
		s.Log.Info("deleted old snapshots", "location", s.Storage.String(), "names", deleted)
	}
	return true
}

// Save saves a snapshot whose name begins with a prefix, and verifies it. It must not be called while Run runs.
func (s *Saver) Save(ctx context.Context, prefix string) (Entry, error) {
	entry, _, err := s.save(ctx, newName(prefix, s.Server, time.Now()))
	return entry, err
}

// request makes Run save a snapshot. It reports false while it saves another one that was requested.
func (s *Saver) request(prefix string) (Save, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requested.State == Saving {
		return s.requested, false
	}
	s.requested = Save{Name: newName(prefix, s.Server, time.Now()), State: Saving}
	s.requests <- s.requested.Name // is empty: the last one has been saved
	return s.requested, true
}

// lastRequest is the snapshot that was requested last.
func (s *Saver) lastRequest() Save {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requested
}

func (s *Saver) saveRequested(ctx context.Context, name string) {
	result := Save{Name: name, State: Saved, Location: s.Storage.String()}
	entry, database, err := s.save(ctx, name)
	if err != nil {
		s.Log.Error("failed to save snapshot", "name", name, "error", err)
		result = Save{Name: name, State: Failed, Error: err.Error()}
	} else {
		result.Bytes, result.Database = entry.Bytes, &database
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requested = result
}

// save saves a snapshot and verifies it. One that is not what was written is deleted.
func (s *Saver) save(ctx context.Context, name string) (Entry, Database, error) {
	start := time.Now()
	entry, database, err := s.saveOnce(ctx, name, start)
	s.metrics.observe(err, start, entry.Bytes)
	if err != nil {
		return Entry{Name: name}, database, err
	}
	s.Log.Info("saved snapshot", "name", name, "location", s.Storage.String(), "revision", database.Revision, "records", database.Records,
		"bytes", entry.Bytes, "took", time.Since(start).Round(time.Millisecond).String())
	return entry, database, nil
}

func (s *Saver) saveOnce(ctx context.Context, name string, now time.Time) (entry Entry, database Database, err error) {
	passphrase, err := s.Source.Passphrase()
	if err != nil {
		return entry, database, err
	}
	files, err := s.Source.Files()
	if err != nil {
		return entry, database, fmt.Errorf("read keys and configuration: %w", err)
	}
	copied, database, err := s.stage(ctx)
	defer os.RemoveAll(s.StagingDir)
	if err != nil {
		return entry, database, err
	}
	defer copied.Close()
	manifest := Manifest{Created: now.UTC(), Server: s.Server, Version: s.Version, Database: database}
	counted, err := s.put(ctx, name, func(to io.Writer) error { return writeArchive(to, passphrase, manifest, files, copied) })
	if err != nil {
		return entry, database, err
	}
	if err := s.verify(ctx, name, passphrase, manifest); err != nil {
		deleting, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return entry, database, errors.Join(fmt.Errorf("verify the snapshot: %w", err), s.Storage.Delete(deleting, name))
	}
	return Entry{Name: name, Created: now, Bytes: counted}, database, nil
}

// stage copies the database to the staging directory and inspects the copy.
func (s *Saver) stage(ctx context.Context) (*os.File, Database, error) {
	if err := os.RemoveAll(s.StagingDir); err != nil {
		return nil, Database{}, err
	}
	if err := os.MkdirAll(s.StagingDir, 0o700); err != nil {
		return nil, Database{}, err
	}
	if err := checkDisk(s.StagingDir, s.neededBytes()); err != nil {
		return nil, Database{}, err
	}
	file, err := os.OpenFile(filepath.Join(s.StagingDir, databaseName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, Database{}, err
	}
	sum := sha256.New()
	if err := s.Source.WriteDatabase(ctx, io.MultiWriter(file, sum)); err != nil {
		return nil, Database{}, errors.Join(fmt.Errorf("copy the database: %w", err), file.Close())
	}
	database, err := s.Source.Inspect(file.Name())
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, Database{}, errors.Join(fmt.Errorf("inspect the copy of the database: %w", err), file.Close())
	}
	database.SHA256 = hexSum(sum)
	return file, database, nil
}

// neededBytes is how much a snapshot needs on the disk of the data directory: the copy of the database, and the snapshot if it is stored there.
func (s *Saver) neededBytes() int64 {
	size := s.Source.Size()
	if directory, ok := s.Storage.(Directory); ok && sameDisk(string(directory), s.StagingDir) {
		return 2 * size
	}
	return size
}

// sameDisk reports whether both directories, of which the first may not exist yet, are on the same disk.
func sameDisk(a, b string) bool {
	var of [2]unix.Stat_t
	for i, dir := range []string{a, b} {
		for err := unix.Stat(dir, &of[i]); err != nil; err = unix.Stat(dir, &of[i]) {
			if dir == filepath.Dir(dir) {
				return false
			}
			dir = filepath.Dir(dir)
		}
	}
	return of[0].Dev == of[1].Dev
}

// checkDisk refuses to write so much to a disk that etcd could not write any more.
func checkDisk(dir string, size int64) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return fmt.Errorf("read free space of %s: %w", dir, err)
	}
	if free := int64(stat.Bavail) * stat.Bsize; free < size+diskReserve {
		return fmt.Errorf("no space for a snapshot: the disk of %s has %d bytes free, %d are needed for it and %d are reserved", dir, free, size, int64(diskReserve))
	}
	return nil
}

// put stores what write writes, and returns how many bytes it were.
func (s *Saver) put(ctx context.Context, name string, write func(io.Writer) error) (int64, error) {
	reader, writer := io.Pipe()
	done := make(chan struct{})
	counted := &countingWriter{to: writer}
	go func() {
		defer close(done)
		writer.CloseWithError(write(counted))
	}()
	err := s.Storage.Put(ctx, name, reader)
	reader.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // ends the writer, also when the storage has not read everything
	<-done
	return counted.bytes, err
}

type countingWriter struct {
	to    io.Writer
	bytes int64
}

// Write implements io.Writer.
func (w *countingWriter) Write(data []byte) (int, error) {
	n, err := w.to.Write(data)
	w.bytes += int64(n)
	return n, err
}

// verify reads a snapshot back from the storage, all of it, and compares what it contains with what was written.
func (s *Saver) verify(ctx context.Context, name string, passphrase []byte, want Manifest) error {
	stored, err := s.Storage.Open(ctx, name)
	if err != nil {
		return err
	}
	defer stored.Close()
	got, err := Read(contextReader{ctx, stored}, passphrase, "")
	if err != nil {
		return err
	}
	if got.Database != want.Database || !got.Created.Equal(want.Created) {
		return fmt.Errorf("%w: it contains another database", ErrDamaged)
	}
	return nil
}

// saverMetrics measure snapshots.
type saverMetrics struct {
	total       *prometheus.CounterVec
	lastSuccess prometheus.Gauge
	bytes       prometheus.Gauge
	duration    prometheus.Histogram
}

func newSaverMetrics() saverMetrics {
	return saverMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skiff_snapshots_total", Help: "Snapshots of the cluster that were saved and verified (result success), or not (result error).",
		}, []string{"result"}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "skiff_snapshot_last_success_timestamp_seconds", Help: "When this process saved its last snapshot, in seconds since 1970; 0: none yet.",
		}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "skiff_snapshot_last_size_bytes", Help: "Size of the last snapshot that this process saved."}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skiff_snapshot_duration_seconds", Help: "How long it took to save and verify snapshots.", Buckets: prometheus.ExponentialBuckets(0.1, 4, 8),
		}),
	}
}

func (m saverMetrics) observe(err error, start time.Time, bytes int64) {
	if err != nil {
		m.total.WithLabelValues("error").Inc()
		return
	}
	m.total.WithLabelValues("success").Inc()
	m.lastSuccess.SetToCurrentTime()
	m.bytes.Set(float64(bytes))
	m.duration.Observe(time.Since(start).Seconds())
}

// Collectors are the metrics.
func (s *Saver) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.metrics.total, s.metrics.lastSuccess, s.metrics.bytes, s.metrics.duration}
}
