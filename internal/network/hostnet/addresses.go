package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// ownLinks are interfaces on which skiff, or another Service proxy or DNS server of the cluster, has addresses of the cluster; a name that ends
// with * stands for all with the prefix.
var ownLinks = []string{"skiff*", "kube-ipvs0", "nodelocaldns"}

// IsOwnLink reports whether an interface with a name has addresses of the cluster, not of the host.
func IsOwnLink(name string) bool {
	return slices.ContainsFunc(ownLinks, func(own string) bool {
		prefix, isPrefix := strings.CutSuffix(own, "*")
		return name == own || isPrefix && strings.HasPrefix(name, prefix)
	})
}

// errNoAddress is why a host has no primary address.
var errNoAddress = errors.New("the host has no address that others can reach")

// PrimaryAddress returns the address at which others reach this host: one of the interface with the default route, else of any interface, else one of the
// loopback interface, which hosts have that announce it by a routing protocol. IPv4 comes first, and IPv6 addresses that the kernel soon replaces last.
// Addresses of the cluster are left out: those in clusterCIDRs, and those of interfaces that the cluster's components make. They stay after a crash, and
// every node has the same.
func PrimaryAddress(clusterCIDRs ...netip.Prefix) (netip.Addr, error) {
	networks, err := Networks()
	if err != nil {
		return netip.Addr{}, err
	}
	if a := choose(ofUplinks(networks), clusterCIDRs); a.IsValid() {
		return a, nil
	}
	others := slices.DeleteFunc(networks, func(n Network) bool { return IsOwnLink(n.Link) })
	if a := choose(others, clusterCIDRs); a.IsValid() {
		return a, nil
	}
	ofLoopback, err := loopbackNetworks()
	if err != nil {
		return netip.Addr{}, err
	}
	if a := choose(ofLoopback, clusterCIDRs); a.IsValid() {
		return a, nil
	}
	return netip.Addr{}, errNoAddress
}

// UplinkAddress returns the primary address of a host that has a default route; none if it has not, or not yet.
func UplinkAddress(clusterCIDRs ...netip.Prefix) (netip.Addr, error) {
	networks, err := Networks()
	if err != nil {
		return netip.Addr{}, err
	}
	return choose(ofUplinks(networks), clusterCIDRs), nil
}

// choose returns the best of the addresses of networks; none if there is none outside of the cluster's networks.
func choose(networks []Network, clusterCIDRs []netip.Prefix) netip.Addr {
	best, bestRank := netip.Addr{}, 0
	for _, n := range networks {
		a := n.Address.Addr()
		if !a.IsGlobalUnicast() || slices.ContainsFunc(clusterCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		rank := 1
		switch {
		case a.Is4():
			rank = 3
		case !n.IsTemporary:
			rank = 2
		}
		if rank > bestRank {
			best, bestRank = a, rank
		}
	}
	return best
}

// ofUplinks are the networks of the links with a default route, in their order.
func ofUplinks(networks []Network) (found []Network) {
	for _, index := range uplinks() {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			continue // it was removed
		}
		for _, n := range networks {
			if n.Link == link.Attrs().Name {
				found = append(found, n)
			}
		}
	}
	return found
}

func loopbackNetworks() (all []Network, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	list, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(lo, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of the loopback interface: %w", err)
	}
	for _, a := range list {
		all = append(all, Network{Link: "lo", Address: PrefixOf(a.IPNet)})
	}
	return all, nil
}

// Addresses lists the addresses of the host's interfaces.
func Addresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var all []netip.Addr
	for _, address := range list {
		if network, ok := address.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(network.IP); ok {
				all = append(all, a.Unmap())
			}
		}
	}
	return all, nil
}
