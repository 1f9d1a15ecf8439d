package hostnet

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddresses(t *testing.T) {
	all, err := Addresses()
	if err != nil {
		t.Fatal(err)
	}
	if loopback := netip.MustParseAddr("127.0.0.1"); !slices.Contains(all, loopback) {
		t.Errorf("%s is not in %v", loopback, all)
	}
	if i := slices.IndexFunc(all, netip.Addr.Is4In6); i >= 0 {
		t.Errorf("%s is an IPv4 address in the form of an IPv6 address", all[i])
	}
}

func TestOwnLinks(t *testing.T) {
	for name, want := range map[string]bool{"skiff0": true, "skiff-wg": true, "kube-ipvs0": true, "eth0": false, "kube-ipvs01": false, "docker0": false} {
		if got := IsOwnLink(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
