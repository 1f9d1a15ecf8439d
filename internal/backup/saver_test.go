package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/robfig/cron/v3"
)

// fakeSource is a database in memory.
type fakeSource struct {
	database []byte
	files    []File
	// The errors of the functions.
	writeErr, inspectErr, filesErr, passphraseErr error
	size                                          int64
	// onWrite is called before the database is written.
	onWrite func()
}

func (s *fakeSource) Size() int64 { return s.size }

func (s *fakeSource) WriteDatabase(_ context.Context, to io.Writer) error {
	if s.onWrite != nil {
		s.onWrite()
	}
	if _, err := to.Write(s.database); err != nil {
		return err
	}
	return s.writeErr
}

func (s *fakeSource) Inspect(path string) (Database, error) {
	data, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(data, s.database) {
		err = errors.New("not the database")
	}
	return Database{Revision: 5, Records: 3, Bytes: int64(len(data)), Hash: 1}, errors.Join(err, s.inspectErr)
}

func (s *fakeSource) Files() ([]File, error)      { return s.files, s.filesErr }
func (s *fakeSource) Passphrase() ([]byte, error) { return testPassphrase, s.passphraseErr }

func newTestSaver(t *testing.T, source *fakeSource, storage Storage) *Saver {
	return NewSaver(SaverOptions{
		Source: source, Storage: storage, StagingDir: filepath.Join(t.TempDir(), "staging"), Retention: 2, Server: "host", Version: "v1",
		Log: slog.New(slog.DiscardHandler),
	})
}

func testSource() *fakeSource {
	return &fakeSource{database: randomBytes(200_000), files: []File{{Name: "pki/ca.key", Data: []byte("key")}}}
}

func TestSave(t *testing.T) {
	source, directory := testSource(), Directory(t.TempDir())
	saver := newTestSaver(t, source, directory)
	name := newName("manual", "host", at(1))
	entry, database, err := saver.save(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := directory.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	dir := t.TempDir()
	manifest, err := Read(stored, testPassphrase, dir)
	if err != nil || manifest.Database != database || manifest.Server != "host" || manifest.Version != "v1" || database.Revision != 5 || database.SHA256 == "" {
		t.Errorf("%+v, %v", manifest, err)
	}
	if data, err := os.ReadFile(DatabaseFile(dir)); err != nil || !bytes.Equal(data, source.database) {
		t.Errorf("the database: %d bytes, %v", len(data), err)
	}
	if entries, err := directory.List(t.Context()); err != nil || len(entries) != 1 || entries[0].Bytes != entry.Bytes {
		t.Errorf("listed %v, saved %v, %v", entries, entry, err)
	}
	if _, err := os.Stat(saver.StagingDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the staging directory is left: %v", err)
	}
	if got := testutil.ToFloat64(saver.metrics.total.WithLabelValues("success")); got != 1 {
		t.Errorf("%v snapshots counted", got)
	}
}

// damagingStorage changes what is stored.
type damagingStorage struct {
	Directory
	damage func([]byte) []byte
}

func (s damagingStorage) Put(ctx context.Context, name string, content io.Reader) error {
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return s.Directory.Put(ctx, name, bytes.NewReader(s.damage(data)))
}

// A snapshot that cannot be saved, or is not what was written, is reported and not kept.
func TestSaveFails(t *testing.T) {
	failure := errors.New("injected")
	for what, test := range map[string]struct {
		change func(*fakeSource)
		damage func([]byte) []byte
		want   string
	}{
		"the database cannot be copied":  {change: func(s *fakeSource) { s.writeErr = failure }, want: "copy the database: injected"},
		"the copy is damaged":            {change: func(s *fakeSource) { s.inspectErr = failure }, want: "inspect the copy of the database: injected"},
		"the keys cannot be read":        {change: func(s *fakeSource) { s.filesErr = failure }, want: "read keys and configuration: injected"},
		"there is no passphrase":         {change: func(s *fakeSource) { s.passphraseErr = failure }, want: "injected"},
		"the disk is too small":          {change: func(s *fakeSource) { s.size = 1 << 60 }, want: "no space for a snapshot"},
		"the storage loses its end":      {damage: func(data []byte) []byte { return data[:len(data)-1] }, want: "verify the snapshot: the snapshot is damaged"},
		"the storage changes a byte":     {damage: func(data []byte) []byte { data[len(data)/2] ^= 1; return data }, want: "verify the snapshot: the snapshot is damaged"},
		"the storage keeps another file": {damage: func([]byte) []byte { return []byte("x") }, want: "verify the snapshot: not a snapshot"},
	} {
		t.Run(what, func(t *testing.T) {
			source := testSource()
			if test.change != nil {
				test.change(source)
			}
			directory := Directory(t.TempDir())
			var storage Storage = directory
			if test.damage != nil {
				storage = damagingStorage{directory, test.damage}
			}
			saver := newTestSaver(t, source, storage)
			if _, _, err := saver.save(t.Context(), newName("manual", "host", at(1))); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if left, err := os.ReadDir(string(directory)); err != nil || len(left) != 0 {
				t.Errorf("left are %v, %v", left, err)
			}
			if _, err := os.Stat(saver.StagingDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the staging directory is left: %v", err)
			}
			if got := testutil.ToFloat64(saver.metrics.total.WithLabelValues("error")); got != 1 {
				t.Errorf("%v failures counted", got)
			}
		})
	}
}

func TestSchedule(t *testing.T) {
	schedule, err := cron.ParseStandard("CRON_TZ=UTC 0 */6 * * *")
	if err != nil {
		t.Fatal(err)
	}
	directory := Directory(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		saver := newTestSaver(t, testSource(), directory)
		saver.Schedule = schedule
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- saver.Run(ctx) }()
		kept := newName("manual", "host", time.Now())
		if err := directory.Put(ctx, kept, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		entries, err := directory.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name)
		}
		// Four are saved in a day. The two newest are kept, and what a user has saved.
		latest := start.Truncate(time.Hour).Add(25 * time.Hour).Truncate(6 * time.Hour)
		want := []string{kept, newName(ScheduledPrefix, "host", latest.Add(-6*time.Hour)), newName(ScheduledPrefix, "host", latest)}
		if !slices.Equal(names, want) {
			t.Errorf("snapshots %v, want %v", names, want)
		}
		if got := testutil.ToFloat64(saver.metrics.total.WithLabelValues("success")); got != 4 {
			t.Errorf("%v were saved", got)
		}
	})
}

// A clock that was set forward and back again does not end the schedule, and does not let snapshots be saved twice.
func TestScheduleAfterWrongClock(t *testing.T) {
	hourly, err := cron.ParseStandard("CRON_TZ=UTC 0 * * * *")
	if err != nil {
		t.Fatal(err)
	}
	for name, schedule := range map[string]cron.Schedule{"at times": hourly, "at intervals": cron.Every(time.Hour)} {
		plan := timetable{schedule: schedule}
		plan.advance(at(0))
		for _, test := range []struct {
			now  time.Time
			want bool
		}{
			{at(59), false},
			{at(60), true},
			{at(61), false},
			{at(61).AddDate(10, 0, 0), true},
			{at(62).AddDate(10, 0, 0), false},
			{at(63), false}, // the clock is right again
			{at(64), false},
			{at(124), true},
			{at(125), false},
		} {
			got := plan.isDue(test.now)
			if got != test.want {
				t.Errorf("%s: due at %v is %v, want %v", name, test.now, got, test.want)
			}
			if got {
				plan.advance(test.now)
			}
		}
	}
}

// A scheduled snapshot that cannot be saved is tried again before the next one is due, less often as it goes on failing.
func TestScheduleRetries(t *testing.T) {
	daily, err := cron.ParseStandard("CRON_TZ=UTC 0 0 * * *")
	if err != nil {
		t.Fatal(err)
	}
	directory := Directory(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		source := testSource()
		saver := newTestSaver(t, source, directory)
		saver.Schedule = daily
		midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		var attempts []time.Duration
		source.onWrite = func() {
			attempts = append(attempts, time.Since(midnight))
			source.writeErr = nil
			if len(attempts) <= 8 || len(attempts) == 10 {
				source.writeErr = errors.New("injected")
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- saver.Run(ctx) }()
		time.Sleep(time.Until(midnight) + 36*time.Hour)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		var want []time.Duration
		for _, minutes := range []int{0, 1, 3, 7, 15, 31, 63, 123, 183, 24 * 60, 24*60 + 1} {
			want = append(want, time.Duration(minutes)*time.Minute)
		}
		if !slices.Equal(attempts, want) {
			t.Errorf("attempts after %v, want %v", attempts, want)
		}
		if entries, err := directory.List(t.Context()); err != nil || len(entries) != 2 {
			t.Errorf("saved are %v, %v", entries, err)
		}
	})
}

// A scheduled snapshot is kept, although older ones have later times.
func TestScheduledIsKept(t *testing.T) {
	directory := Directory(t.TempDir())
	saver := newTestSaver(t, testSource(), directory)
	for minutes := range 4 {
		if err := directory.Put(t.Context(), newName(ScheduledPrefix, "host", time.Now().Add(time.Duration(5+minutes)*time.Minute)), strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	if !saver.saveScheduled(t.Context()) {
		t.Error("it is not saved")
	}
	entries, err := directory.List(t.Context())
	if err != nil || len(entries) != 2 || entries[0].Bytes <= 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// respond serves one request and returns its status and the saved snapshot, or the message of the error.
func respond(t *testing.T, saver *Saver, method, path, body string) (int, Save, string) {
	t.Helper()
	w := httptest.NewRecorder()
	saver.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	var save Save
	var status struct{ Kind, Message string }
	if err := errors.Join(json.Unmarshal(w.Body.Bytes(), &save), json.Unmarshal(w.Body.Bytes(), &status)); err != nil {
		t.Fatal(err)
	}
	if w.Code >= 300 && status.Kind != "Status" {
		t.Errorf("%s %s: no Status: %s", method, path, w.Body)
	}
	return w.Code, save, status.Message
}

func TestServe(t *testing.T) {
	source, directory := testSource(), Directory(t.TempDir())
	proceed := make(chan struct{})
	source.onWrite = func() { <-proceed }
	saver := newTestSaver(t, source, directory)
	for _, test := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", Path, "", http.StatusMethodNotAllowed},
		{"DELETE", Path + "/x", "", http.StatusMethodNotAllowed},
		{"POST", Path + "/x", `{"name":"a"}`, http.StatusMethodNotAllowed},
		{"GET", Path + "/", "", http.StatusNotFound},
		{"GET", Path + "/x", "", http.StatusNotFound},
		{"POST", Path, "{", http.StatusBadRequest},
		{"POST", Path, `{"name":"../x"}`, http.StatusBadRequest},
		{"POST", Path, `{"name":"scheduled"}`, http.StatusBadRequest},
		{"POST", Path, `{"name":"` + strings.Repeat("a", maxBodyBytes) + `"}`, http.StatusBadRequest},
	} {
		if code, _, message := respond(t, saver, test.method, test.path, test.body); code != test.want {
			t.Errorf("%s %s %.20s: %d %s, want %d", test.method, test.path, test.body, code, message, test.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- saver.Run(ctx) }()
	code, save, message := respond(t, saver, "POST", Path, `{"name":"manual"}`)
	if code != http.StatusAccepted || save.State != Saving || !strings.HasPrefix(save.Name, "manual-host-") {
		t.Fatalf("%d %+v %s", code, save, message)
	}
	if code, _, message := respond(t, saver, "POST", Path, `{"name":"other"}`); code != http.StatusConflict || !strings.Contains(message, "is being saved") {
		t.Errorf("a second one: %d %s", code, message)
	}
	if code, got, _ := respond(t, saver, "GET", Path+"/"+save.Name, ""); code != http.StatusOK || got.State != Saving {
		t.Errorf("meanwhile: %d %+v", code, got)
	}
	close(proceed)
	result := waitSaved(t, saver, save.Name)
	if result.State != Saved || result.Database == nil || result.Database.Revision != 5 || result.Bytes == 0 || result.Location != string(directory) {
		t.Errorf("%+v", result)
	}
	source.writeErr = errors.New("injected")
	_, save, _ = respond(t, saver, "POST", Path, `{"name":"other"}`)
	if result := waitSaved(t, saver, save.Name); result.State != Failed || !strings.Contains(result.Error, "injected") {
		t.Errorf("%+v", result)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func waitSaved(t *testing.T, saver *Saver, name string) Save {
	t.Helper()
	for {
		code, save, message := respond(t, saver, "GET", Path+"/"+name, "")
		if code != http.StatusOK {
			t.Fatal(code, message)
		}
		if save.State != Saving {
			return save
		}
		time.Sleep(time.Millisecond)
	}
}
