package system

import (
	"testing"

	"skiff/internal/config"
	"skiff/internal/network/overlay"
)

// TestClusterNetwork checks that the flags accept the backends that exist, and no others.
func TestClusterNetwork(t *testing.T) {
	s := &server{config: config.DefaultServer()}
	s.config.PodCIDRs.ClusterCIDR = "10.42.0.0/16, fd42::1/56"
	network, err := s.clusterNetwork()
	if err != nil || network.Backend != overlay.Backends[0] {
		t.Errorf("the default backend is %q, %v", network.Backend, err)
	}
	if want := "fd42::/56"; len(network.CIDRs) != 2 || network.CIDRs[1].String() != want {
		t.Errorf("CIDRs %v, want %s as the second", network.CIDRs, want)
	}
	for _, backend := range append(overlay.Backends, "ipip") {
		c := config.DefaultServer()
		c.NetworkBackend = string(backend)
		_, err := overlay.ParseBackend(c.NetworkBackend)
		if valid := c.Validate(); (valid == nil) != (err == nil) {
			t.Errorf("%s: the flag is validated with %v, the backend with %v", backend, valid, err)
		}
	}
}
