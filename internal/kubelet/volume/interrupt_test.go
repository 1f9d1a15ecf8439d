package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestInterrupted: what takes long for volumes with many files ends when the kubelet stops, and can be done again.
func TestInterrupted(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "volume")
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := setGroup(stopped, dir, int64(os.Getgid()), false, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("set the group: %v", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("the root of the volume has mode %v, %v, as if its files had the group", info.Mode(), err)
	}
	if err := removeTree(stopped, parent, "volume"); !errors.Is(err, context.Canceled) {
		t.Errorf("remove: %v", err)
	}
	if err := removeTree(t.Context(), parent, "volume"); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}
