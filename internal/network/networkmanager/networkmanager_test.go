package networkmanager

import (
	"os"
	"path/filepath"
	"testing"
)

func TestConfigure(t *testing.T) {
	reloads := 0
	s := Settings{RunDir: t.TempDir(), Reload: func() error { reloads++; return nil }}
	for range 2 {
		if err := s.Configure(); err != nil {
			t.Fatal(err)
		}
	}
	if reloads != 1 {
		t.Errorf("%d reloads of one configuration, want 1", reloads)
	}
	if text, err := os.ReadFile(filepath.Join(s.RunDir, fileName)); err != nil || string(text) != content {
		t.Errorf("the file has %q, %v", text, err)
	}
	for range 2 {
		if err := s.Unconfigure(); err != nil {
			t.Fatal(err)
		}
	}
	if reloads != 2 {
		t.Errorf("%d reloads after the removal, want 2", reloads)
	}
}

func TestHostWithoutNetworkManager(t *testing.T) {
	s := Settings{RunDir: filepath.Join(t.TempDir(), "none"), Reload: func() error { t.Error("reloaded"); return nil }}
	if err := s.Configure(); err != nil {
		t.Fatal(err)
	}
	if err := s.Unconfigure(); err != nil {
		t.Fatal(err)
	}
}
