// Package conflict finds the networks of a host that overlap with the CIDRs of a cluster. The host could not reach them once the cluster's
// routes are set up.
package conflict

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/hostnet"
)

// Range is a CIDR of a cluster.
type Range struct {
	CIDR netip.Prefix
	// Flag is the flag it is set with.
	Flag string
}

// Network is a network that the host reaches without its default route.
type Network struct {
	Prefix netip.Prefix
	// Link is the interface it is reached through.
	Link string
	// Connected networks are those of the interface's own addresses.
	Connected bool
}

func (n Network) String() string {
	if n.Connected {
		return fmt.Sprintf("%s, the network of %s", n.Prefix, n.Link)
	}
	return fmt.Sprintf("%s, which this host reaches through %s", n.Prefix, n.Link)
}

// Check returns an error for every range that takes a network from the host. Connected networks must not overlap at all. A route to a larger network
// that contains a whole range is no conflict: such routes lead to everything private, of which a cluster may use a part.
func Check(ranges []Range, networks []Network) error {
	var errs []error
	for _, r := range ranges {
		for _, n := range networks {
			isAggregate := !n.Connected && n.Prefix.Bits() < r.CIDR.Bits()
			if n.Prefix.Overlaps(r.CIDR) && !isAggregate {
				errs = append(errs, fmt.Errorf("--%s: %s overlaps with %s; choose another CIDR", r.Flag, r.CIDR, n))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// HostNetworks lists the networks of the host: those of its interfaces, and those it has routes to in the main table. What skiff itself has set
// up is left out; ownProtocols are those of its routes.
func HostNetworks(ownProtocols ...int) ([]Network, error) {
	links, err := hostnet.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		if a := l.Attrs(); a.Flags&net.FlagLoopback == 0 && !hostnet.IsOwnLink(a.Name) {
			names[a.Index] = a.Name
		}
	}
	addresses, err := hostnet.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var networks []Network
	for _, a := range addresses {
		if name, ok := names[a.LinkIndex]; ok && !a.IP.IsLinkLocalUnicast() {
			networks = append(networks, Network{Prefix: hostnet.PrefixOf(a.IPNet).Masked(), Link: name, Connected: true})
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := hostnet.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			name, ok := names[r.LinkIndex]
			isOther := ok && !slices.Contains(ownProtocols, int(r.Protocol)) && r.Type == unix.RTN_UNICAST
			if isOther && r.Dst != nil && hostnet.PrefixOf(r.Dst).Bits() > 0 && !r.Dst.IP.IsLinkLocalUnicast() {
				networks = append(networks, Network{Prefix: hostnet.PrefixOf(r.Dst), Link: name})
			}
		}
	}
	return networks, nil
}
