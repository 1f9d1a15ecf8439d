package firewall

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"skiff/internal/network/nft"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestNodesPart(t *testing.T) {
	settings := Settings{Bridge: "skiff0", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/48")}, TunnelPort: 8472}
	local, nodes := netip.MustParseAddr("192.168.7.1"), []netip.Addr{netip.MustParseAddr("192.168.7.8"), netip.MustParseAddr("192.168.7.9")}
	for name, test := range map[string]struct {
		settings Settings
		tunnel   Tunnel
	}{
		"one-node":        {settings, Tunnel{}},
		"tunnel":          {settings, Tunnel{Port: 8472, Local: local, Nodes: nodes}},
		"unknown-address": {settings, Tunnel{Port: 8472, Nodes: nodes}},
		"authenticated":   {Settings{Bridge: "skiff0"}, Tunnel{Port: 51820, Authenticated: true, Nodes: nodes}},
		"direct-routes":   {Settings{Bridge: "skiff0"}, Tunnel{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := nft.NewModel(Table)
			m.Replace(nodesOwner, nodesPart(test.settings, test.tunnel))
			golden, got := filepath.Join("testdata", name+".txt"), m.String()
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
