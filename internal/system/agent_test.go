package system

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skiff/internal/config"
	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/pki"
)

// The file of the token may be deleted once the host has joined, and is needed before.
func TestJoinWithoutTokenFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	keys := pki.Dir(filepath.Join(dir, "pki"))
	join := bootstrap.Join{
		Servers: []string{"https://127.0.0.1:1"}, Certificate: bootstrap.NodeClient(string(keys), "host1", log), CAFile: filepath.Join(string(keys), "ca.crt"),
		Kubeconfig: filepath.Join(dir, "kubeconfig"), NewClient: newClient, Log: log,
	}
	c := config.Agent{TokenFile: filepath.Join(dir, "join-token")}
	if err := runJoin(t.Context(), join, c); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "--token-file: ") {
		t.Errorf("a host that has not joined: %v", err)
	}
	if err := runJoin(t.Context(), join, config.Agent{}); !errors.Is(err, bootstrap.ErrNoToken) {
		t.Errorf("a host that has not joined, without a file: %v", err)
	}
	ca, err := keys.CA("ca", "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.NodeClient("host1"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(keys), "kubelet-client-current.pem"), append(pair.Cert, pair.Key...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := runJoin(t.Context(), join, c); err != nil {
		t.Errorf("a host that has joined: %v", err)
	}
	if _, err := os.Stat(join.Kubeconfig); err != nil {
		t.Error(err)
	}
}
