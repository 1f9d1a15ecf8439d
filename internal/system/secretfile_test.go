package system

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skiff/internal/config"
	"skiff/internal/kubelet/bootstrap"
)

// An agent and a server warn of a token that others can read or write, and go on.
func TestExposedToken(t *testing.T) {
	for mode, exposed := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: true, 0o604: true, 0o620: true} {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte("not a token"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		for name, join := range map[string]func(log *slog.Logger) error{
			"agent": func(log *slog.Logger) error {
				return runJoin(t.Context(), bootstrap.Join{Certificate: &bootstrap.Certificate{File: filepath.Join(filepath.Dir(file), "none"), Log: log}, CAFile: filepath.Join(filepath.Dir(file), "none"), Log: log}, config.Agent{TokenFile: file})
			},
			"server": func(log *slog.Logger) error {
				s := &server{config: testConfig(t), log: log}
				s.config.Servers = config.Servers{Join: []string{"https://127.0.0.1:1"}, JoinTokenFile: file, PeerPort: 1}
				return s.joinCluster(t.Context())
			},
		} {
			var out strings.Builder
			if err := join(slog.New(slog.NewTextHandler(&out, nil))); err == nil || !strings.Contains(err.Error(), "token") {
				t.Errorf("%s, mode %04o: %v", name, mode, err)
			}
			if got := strings.Contains(out.String(), "chmod 600"); got != exposed {
				t.Errorf("%s, mode %04o: warned %v, want %v:\n%s", name, mode, got, exposed, out.String())
			}
		}
	}
}
