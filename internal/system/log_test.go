package system

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

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
