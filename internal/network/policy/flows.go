package policy

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/nft"
)

// Flow is a connection as policies see it: with the real source, and the destination behind a Service.
type Flow struct {
	Source, Destination netip.Addr
	Proto               nft.Proto
	// Port is that of the destination.
	Port uint16
}

// Allows reports whether the policies of this node's pods allow a connection. Connections of the host itself are not its subject. It says what the
// objects said at the last Flush.
func (c *Compiler) Allows(f Flow) bool {
	if f.Source == f.Destination {
		return true
	}
	return c.allows(ingress, f.Destination, f.Source, f) && c.allows(egress, f.Source, f.Destination, f)
}

// allows checks the policies of one end of a connection.
func (c *Compiler) allows(d direction, local, peer netip.Addr, f Flow) bool {
	target := c.holder(local)
	if target == nil || target.profiles[d] == nil {
		return true
	}
	profile := target.profiles[d]
	if p := c.holder(peer); p != nil && p.classes[d] != nil && profile.ports(p.classes[d]).has(f.Proto, f.Port) {
		return true
	}
	return profile.blocks[familyOf(peer).index()].find(peer).has(f.Proto, f.Port)
}

// hasTargets reports whether a pod of this node is isolated.
func (c *Compiler) hasTargets() bool { return len(c.profiles[ingress])+len(c.profiles[egress]) > 0 }

// deniedFlows selects the connections of affected addresses that are denied.
type deniedFlows struct {
	compiler *Compiler
	affected map[netip.Addr]bool
	// host are the addresses of this host. Policies do not apply to its own connections with its pods.
	host map[netip.Addr]bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (d *deniedFlows) MatchConntrackFlow(entry *netlink.ConntrackFlow) bool {
	// Replies come from where the destination was translated to.
	source, ok := netip.AddrFromSlice(entry.Forward.SrcIP)
	destination, ok2 := netip.AddrFromSlice(entry.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	f := Flow{Source: source.Unmap(), Destination: destination.Unmap(), Proto: nft.Proto(entry.Forward.Protocol), Port: entry.Reverse.SrcPort}
	if !d.affected[f.Source] && !d.affected[f.Destination] || d.host[f.Source] || d.host[f.Destination] {
		return false
	}
	return !d.compiler.Allows(f)
}

// concerns reports whether a connection of a family may have become denied.
func (d *deniedFlows) concerns(fam family) bool {
	for a := range d.affected {
		if a.Is4() == fam.is4 {
			return d.compiler.hasTargets()
		}
	}
	return false
}

// cutDenied deletes the kernel's entries of denied connections and returns their number. The next packets are those of new connections.
func cutDenied(d *deniedFlows) (deleted int, err error) {
	for _, fam := range families {
		if !d.concerns(fam) {
			continue
		}
		number := netlink.InetFamily(unix.AF_INET6)
		if fam.is4 {
			number = unix.AF_INET
		}
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, number, d)
		deleted += int(n)
		if err != nil {
			return deleted, fmt.Errorf("delete conntrack entries: %w", err)
		}
	}
	return deleted, nil
}
