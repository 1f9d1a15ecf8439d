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
// loopback interface, which hosts have that announce it by a routing protocol. IPv4 comes first. Addresses of the cluster are left out: those in
// clusterCIDRs, and those of interfaces that the cluster's components make. They stay after a crash, and every node has the same.
func PrimaryAddress(clusterCIDRs ...netip.Prefix) (netip.Addr, error) {
	networks, err := Networks()
	if err != nil {
		return netip.Addr{}, err
	}
	var ofUplinks, ofOthers []netip.Addr
	for _, index := range uplinks() {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			continue // it was removed
		}
		for _, n := range networks {
			if n.Link == link.Attrs().Name {
				ofUplinks = append(ofUplinks, n.Address.Addr())
			}
		}
	}
	for _, n := range networks {
		if !IsOwnLink(n.Link) {
			ofOthers = append(ofOthers, n.Address.Addr())
		}
	}
	ofLoopback, err := loopbackAddresses()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, candidates := range [][]netip.Addr{ofUplinks, ofOthers, ofLoopback} {
		for _, isIPv4 := range []bool{true, false} {
			for _, a := range candidates {
				if a.Is4() == isIPv4 && a.IsGlobalUnicast() && !slices.ContainsFunc(clusterCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
					return a, nil
				}
			}
		}
	}
	return netip.Addr{}, errNoAddress
}

func loopbackAddresses() (all []netip.Addr, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	list, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(lo, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of the loopback interface: %w", err)
	}
	for _, a := range list {
		all = append(all, PrefixOf(a.IPNet).Addr())
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
