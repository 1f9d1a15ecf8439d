//go:build root

package conflict

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/test/netns"
)

// The tests run in namespaces of their own.
func TestMain(m *testing.M) { netns.Main(m) }

// The networks of a host are those of its interfaces and routes; what skiff has set up, and the default route, are not among them.
func TestHostNetworks(t *testing.T) {
	const protocol = 83
	var found []string
	err := netns.New(t).Do(func() error {
		for name, address := range map[string]string{"eth0": "10.100.0.5/24", "skiff0": "10.42.0.1/24"} {
			bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
			parsed, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			if err := errors.Join(netlink.LinkAdd(bridge), netlink.AddrAdd(bridge, parsed), netlink.LinkSetUp(bridge)); err != nil {
				return err
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(net.IPv4(10, 96, 0, 10))})); err != nil {
			return err
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		to := func(text string) *net.IPNet {
			p := netip.MustParsePrefix(text)
			return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
		}
		for _, r := range []*netlink.Route{
			{LinkIndex: eth0.Attrs().Index, Dst: to("10.97.0.0/16"), Gw: net.IPv4(10, 100, 0, 1)},
			{LinkIndex: eth0.Attrs().Index, Dst: to("10.96.0.0/12"), Scope: netlink.SCOPE_LINK, Protocol: protocol},
			{LinkIndex: eth0.Attrs().Index, Dst: to("0.0.0.0/0"), Gw: net.IPv4(10, 100, 0, 1)},
			{Dst: to("10.42.0.0/16"), Type: unix.RTN_UNREACHABLE, Protocol: protocol},
		} {
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("add route %v: %w", r, err)
			}
		}
		networks, err := HostNetworks(protocol)
		for _, n := range networks {
			found = append(found, n.String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"10.100.0.0/24, the network of eth0", "10.97.0.0/16, which this host reaches through eth0", "10.100.0.0/24, which this host reaches through eth0",
	}
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("networks %q, want %q", found, want)
	}
}
