package system

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"skiff/internal/network/firewall"
)

// Without a network between nodes the condition is another component's: errors alone are reported, and no success.
func TestNetworkStatusWithoutOverlay(t *testing.T) {
	n := &nodeComponents{cniConfDir: t.TempDir(), network: &nodeNetwork{configured: true}}
	n.network.firewall = firewall.New(firewall.Settings{}, func() {}, slog.New(slog.DiscardHandler))
	if s := n.networkStatus(); s.Known || s.Error != nil {
		t.Errorf("status %+v, want none", s)
	}
	path := filepath.Join(n.cniConfDir, "00-other.conflist")
	if err := os.WriteFile(path, []byte(`{"name":"other","plugins":[{"type":"other"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := n.networkStatus(); s.Known || s.Error == nil {
		t.Errorf("status %+v, want an error", s)
	}
}
