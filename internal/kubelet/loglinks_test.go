package kubelet

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLongLogLink: the log of a container whose names are longer than that of a file can be is linked too, that of its last start.
func TestLongLogLink(t *testing.T) {
	dir := t.TempDir()
	k := &Kubelet{Config: Config{PodLogsDir: filepath.Join(dir, "pods"), Log: slog.New(slog.DiscardHandler)}}
	if err := os.Mkdir(LogLinksDir(k.LogsDir()), 0o755); err != nil {
		t.Fatal(err)
	}
	pod := planned(regular(strings.Repeat("c", 63)))
	pod.Name = strings.Repeat("p", 200)
	for attempt, want := range []string{"/0.log", "/1.log"} {
		k.linkLog(pod, &pod.Spec.Containers[0], strings.Repeat("0", 64), uint32(attempt))
		entries, err := os.ReadDir(LogLinksDir(k.LogsDir()))
		if err != nil || len(entries) != 1 {
			t.Fatalf("links %v, %v", entries, err)
		}
		name := entries[0].Name()
		target, err := os.Readlink(filepath.Join(LogLinksDir(k.LogsDir()), name))
		if len(name) != 255 || !strings.HasSuffix(name, "c.log") || !strings.HasSuffix(target, want) || err != nil {
			t.Errorf("attempt %d: %s links to %s, %v", attempt, name, target, err)
		}
	}
}
