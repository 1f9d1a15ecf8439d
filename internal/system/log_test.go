package system

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The check of the log fails while whoever reads the log does not, and succeeds again afterwards.
func TestBlockedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		output := &logOutput{Writer: writer}
		log := slog.New(slog.NewTextHandler(output, nil))
		if err := output.check(t.Context()); err != nil {
			t.Errorf("before the first record: %v", err)
		}
		logged := make(chan struct{})
		go func() {
			defer close(logged)
			log.Info("nobody reads this")
		}()
		time.Sleep(maxLogStall)
		if err := output.check(t.Context()); err != nil {
			t.Errorf("blocked for %s: %v", maxLogStall, err)
		}
		time.Sleep(time.Second)
		if output.check(t.Context()) == nil {
			t.Error("the check succeeds although the log is blocked")
		}
		go func() { _, _ = io.Copy(io.Discard, reader) }()
		<-logged
		if err := output.check(t.Context()); err != nil {
			t.Errorf("after the record was read: %v", err)
		}
		_ = writer.Close()
	})
}

// Info messages of libraries are shown at debug level only, their errors always.
func TestLibraryLog(t *testing.T) {
	for level, want := range map[slog.Level]string{
		slog.LevelInfo:  "level=ERROR msg=bad component=library\n",
		slog.LevelDebug: "level=DEBUG msg=started component=library\nlevel=ERROR msg=bad component=library\n",
	} {
		var out bytes.Buffer
		handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		log := slog.New(libraryHandler{handler}).With("component", "library")
		log.Info("started")
		log.Error("bad")
		if out.String() != want {
			t.Errorf("at %s: %q, want %q", level, out.String(), want)
		}
	}
	if _, err := newLogger("unknown"); err == nil || !strings.Contains(err.Error(), "--log-level") {
		t.Errorf("unknown level: %v", err)
	}
}
