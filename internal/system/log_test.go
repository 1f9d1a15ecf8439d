package system

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestLibrariesAreQuiet: what a library finds worth telling is shown to those who look for a fault, its errors to all.
func TestLibrariesAreQuiet(t *testing.T) {
	for level, want := range map[slog.Level]string{
		slog.LevelInfo:  "level=ERROR msg=bad part=library\n",
		slog.LevelDebug: "level=DEBUG msg=told part=library\nlevel=ERROR msg=bad part=library\n",
	} {
		var out bytes.Buffer
		handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		log := slog.New(libraryHandler{handler}).With("part", "library")
		log.Info("told")
		log.Error("bad")
		if out.String() != want {
			t.Errorf("at %s: %q, want %q", level, out.String(), want)
		}
	}
	if _, err := newLogger("loud"); err == nil || !strings.Contains(err.Error(), "--log-level") {
		t.Errorf("a level that is none: %v", err)
	}
}
