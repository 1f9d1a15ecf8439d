package system

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skiff/internal/kubelet/node"
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

// The pod network is set up for each pod CIDR, and repaired from time to time: other programs may remove it while no pod is started.
func TestPodNetworkIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodeComponents{podCIDRs: make(chan []string), network: &nodeNetwork{}, node: &node.Node{}, log: slog.New(slog.DiscardHandler)}
		var calls []string
		fail := errors.New("no memory")
		next := func() error {
			err := fail
			fail = nil
			return err
		}
		setUp := func(cidrs []string) (func() error, error) {
			calls = append(calls, "set up "+strings.Join(cidrs, ","))
			return func() error {
				calls = append(calls, "repair "+strings.Join(cidrs, ","))
				return next()
			}, next()
		}
		expect := func(about string, configured bool, want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(calls, want) || n.network.configured != configured {
				t.Errorf("%s: %q, configured %v, want %q, %v", about, calls, n.network.configured, want, configured)
			}
			calls = nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- n.keepPodNetwork(ctx, setUp) }()
		expect("without a pod CIDR", false)
		n.podCIDRs <- []string{"10.42.1.0/24"}
		expect("a failure", false, "set up 10.42.1.0/24")
		time.Sleep(networkRetryMin)
		expect("after a failure", true, "set up 10.42.1.0/24")
		time.Sleep(2 * nodeSyncPeriod)
		expect("a minute later", true, "repair 10.42.1.0/24", "repair 10.42.1.0/24")
		fail = errors.New("no memory")
		time.Sleep(nodeSyncPeriod)
		expect("a failed repair", false, "repair 10.42.1.0/24")
		time.Sleep(networkRetryMin)
		expect("after a failed repair", true, "repair 10.42.1.0/24")
		n.podCIDRs <- []string{"10.42.2.0/24"}
		expect("another pod CIDR", true, "set up 10.42.2.0/24")
		time.Sleep(nodeSyncPeriod)
		expect("later", true, "repair 10.42.2.0/24")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
