package shutdown

import (
	"os"
	"path/filepath"
	"testing"
)

// The drop-in that skiff wrote is removed, that of upstream's kubelet is not.
func TestUnconfigure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logind.conf.d")
	if err := Unconfigure(dir); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	for text, kept := range map[string]bool{"[Login]\nInhibitDelayMaxSec=30\n": true, configMarker + "\n[Login]\nInhibitDelayMaxSec=30\n": false} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, configFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := Unconfigure(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); (err == nil) != kept {
			t.Errorf("%q: kept %t, want %t", text, err == nil, kept)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
