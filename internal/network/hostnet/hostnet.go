// Package hostnet has what the components of the network share about the host: conversions to the types of netlink, sysctls, and the networks and addresses of its
// interfaces. It links little, because the CNI plugin is started for every pod.
package hostnet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	socket "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// UsualMTU is assumed where no interface tells.
const UsualMTU = 1500

// dumpTries limits how often a table is read that changes all the time.
const dumpTries = 20

// PrefixOf converts a network of netlink.
func PrefixOf(n *net.IPNet) netip.Prefix {
	address, _ := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if address = address.Unmap(); bits == 128 && address.Is4() && ones >= 96 {
		ones -= 96
	}
	return netip.PrefixFrom(address, ones)
}

// IPNet converts a prefix for netlink.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// SetSysctl writes a sysctl, named by its path below /proc/sys, if its value differs: /proc/sys may be read-only.
func SetSysctl(name, value string) error {
	path := filepath.Join("/proc/sys", name)
	if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", name, value, err)
	}
	return nil
}

// Dump calls list until the kernel's table did not change meanwhile: what netlink returns of a table that changes may be incomplete.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		got, err := list()
		if try == dumpTries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return got, err
		}
	}
}

// Messages sends a message that asks for a table, and returns the responses of a table that did not change meanwhile.
func Messages(connection *socket.Conn, message socket.Message) ([]socket.Message, error) {
	return Dump(func() ([]socket.Message, error) {
		responses, err := connection.Execute(message)
		if err == nil && slices.ContainsFunc(responses, func(r socket.Message) bool { return r.Header.Flags&socket.DumpInterrupted != 0 }) {
			err = netlink.ErrDumpInterrupted
		}
		return responses, err
	})
}

// AddAddress adds an address to a link, without duplicate address detection. The link may have it already.
func AddAddress(link netlink.Link, p netip.Prefix) error {
	address := &netlink.Addr{IPNet: IPNet(p)}
	if p.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, address); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", p, link.Attrs().Name, err)
	}
	return nil
}

// UplinkMTU is the MTU of the interface with the default route.
func UplinkMTU() int {
	for _, index := range uplinks() {
		if link, err := netlink.LinkByIndex(index); err == nil && link.Attrs().Flags&net.FlagLoopback == 0 && link.Attrs().MTU > 0 {
			return link.Attrs().MTU
		}
	}
	return UsualMTU
}

// uplinks are the indexes of the links with a default route, those of IPv4 first, and of a family those that the kernel prefers.
func uplinks() (indexes []int) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			continue
		}
		slices.SortStableFunc(routes, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
		for _, r := range routes {
			switch {
			case r.Dst != nil && PrefixOf(r.Dst).Bits() != 0:
			case r.LinkIndex != 0:
				indexes = append(indexes, r.LinkIndex)
			case len(r.MultiPath) > 0:
				indexes = append(indexes, r.MultiPath[0].LinkIndex)
			}
		}
	}
	return indexes
}

// Network is a network that an interface of the host is on.
type Network struct {
	// Link is the name of the interface, Address the host's address with the length of the network's prefix.
	Link    string
	Address netip.Prefix
	MTU     int
	// IsTemporary is set for an IPv6 address that the kernel replaces, is about to remove or has not accepted yet.
	IsTemporary bool
}

// temporaryFlags are the flags of temporary IPv6 addresses. The first is another one for IPv4.
const temporaryFlags = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED

// Networks lists the networks of the host's interfaces, except loopback ones, in the order of the kernel.
func Networks() ([]Network, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addresses, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []Network
	for _, a := range addresses {
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == a.LinkIndex })
		if i < 0 || links[i].Attrs().Flags&net.FlagLoopback != 0 || a.IP.IsLinkLocalUnicast() {
			continue
		}
		n := Network{Link: links[i].Attrs().Name, Address: PrefixOf(a.IPNet), MTU: links[i].Attrs().MTU}
		n.IsTemporary = n.Address.Addr().Is6() && a.Flags&temporaryFlags != 0
		all = append(all, n)
	}
	return all, nil
}
