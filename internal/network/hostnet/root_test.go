//go:build root

package hostnet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/test/netns"
)

// The tests run in namespaces of their own.
func TestMain(m *testing.M) { netns.Main(m) }

// primary returns the primary address of a host whose interfaces have addresses. A default route leads through the interface uplink, unless that is empty.
func primary(t *testing.T, addresses [][2]string, uplink string) string {
	t.Helper()
	found := ""
	err := netns.New(t).Do(func() error {
		for _, row := range addresses {
			name, text := row[0], row[1]
			link, err := netlink.LinkByName(name)
			if err != nil {
				link = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
				if err := netlink.LinkAdd(link); err != nil {
					return err
				}
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
			if text == "" {
				continue
			}
			prefix, isDeprecated := strings.CutSuffix(text, " deprecated")
			if !isDeprecated {
				if err := AddAddress(link, netip.MustParsePrefix(prefix)); err != nil {
					return err
				}
				continue
			}
			address := &netlink.Addr{IPNet: IPNet(netip.MustParsePrefix(prefix)), Flags: unix.IFA_F_NODAD, ValidLft: 3600}
			if err := netlink.AddrAdd(link, address); err != nil {
				return err
			}
		}
		if uplink != "" {
			link, err := netlink.LinkByName(uplink)
			if err == nil {
				err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: IPNet(netip.MustParsePrefix("0.0.0.0/0"))})
			}
			if err != nil {
				return err
			}
		}
		services := netip.MustParsePrefix("10.96.0.0/12")
		address, err := PrimaryAddress(services)
		if found = address.String(); err != nil {
			found = err.Error()
		}
		if ofUplink, err := UplinkAddress(services); err != nil || ofUplink.IsValid() && ofUplink != address {
			t.Errorf("the address of the interface with the default route is %s, %v", ofUplink, err)
		} else if isUplink := uplink != "" && strings.HasPrefix(found, "192."); ofUplink.IsValid() != isUplink {
			t.Errorf("the address %s is of the interface with the default route: %t", found, ofUplink.IsValid())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestPrimaryAddress: what a crash has left of the cluster's addresses is never the address of the host.
func TestPrimaryAddress(t *testing.T) {
	cluster := [][2]string{{"lo", "10.96.0.10/32"}, {"skiff0", "10.42.0.1/24"}}
	for _, row := range []struct {
		name      string
		addresses [][2]string
		uplink    string
		want      string
	}{
		{"a default route", [][2]string{{"eth0", "10.0.0.1/24"}, {"eth1", "192.168.7.7/24"}}, "eth1", "192.168.7.7"},
		{"no default route", [][2]string{{"eth0", "10.0.0.1/24"}, {"eth1", "192.168.7.7/24"}}, "", "10.0.0.1"},
		{"IPv4 before IPv6", [][2]string{{"eth0", "fd00::1/64"}, {"eth0", "10.0.0.1/24"}}, "", "10.0.0.1"},
		{"IPv6 only", [][2]string{{"eth0", "fd00::1/64"}}, "", "fd00::1"},
		{"IPv6 addresses that are removed soon", [][2]string{{"eth0", "fd00::1/64 deprecated"}, {"eth0", "fd00::2/64"}, {"eth0", "fd00::3/64 deprecated"}}, "", "fd00::2"},
		{"nothing else than an address that is removed soon", [][2]string{{"eth0", "fd00::1/64 deprecated"}}, "", "fd00::1"},
		{"no address yet", [][2]string{{"eth0", ""}}, "eth0", errNoAddress.Error()},
		{"announced from the loopback interface", [][2]string{{"lo", "172.16.1.1/32"}, {"eth0", ""}}, "eth0", "172.16.1.1"},
	} {
		if got := primary(t, append(cluster, row.addresses...), row.uplink); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}
