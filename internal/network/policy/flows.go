package policy

import (
	"fmt"
	"net/netip"
	"time"

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

const (
	// answerDelay is the time after which the answers of datagrams that were cut are looked for, and maxAnswerRounds how often that is repeated: a server
	// that goes on sending by itself is allowed to.
	answerDelay     = time.Second
	maxAnswerRounds = 10
)

// datagrams are the packets of one direction of a UDP flow.
type datagrams struct{ source, destination netip.AddrPort }

// deniedFlows selects the connections of affected addresses that are denied.
type deniedFlows struct {
	compiler *Compiler
	affected map[netip.Addr]bool
	// host are the addresses of this host. Policies do not apply to its own connections with its pods.
	host map[netip.Addr]bool
	// answers are those of flows that were cut. One that was on its way meanwhile has begun a flow in the opposite direction, which is allowed, and
	// whose replies are the packets of the denied client. Those that are found are cut, too.
	answers map[datagrams]int
	// cut are the answers of the flows that were found, found those of answers.
	cut, found map[datagrams]bool
}

// newDeniedFlows selects the connections of affected addresses that are denied, and answers.
func newDeniedFlows(c *Compiler, affected, host map[netip.Addr]bool, answers map[datagrams]int) *deniedFlows {
	return &deniedFlows{compiler: c, affected: affected, host: host, answers: answers, cut: map[datagrams]bool{}, found: map[datagrams]bool{}}
}

// datagramsOf are the packets of one direction of a UDP flow.
func datagramsOf(t netlink.IPTuple) datagrams {
	source, _ := netip.AddrFromSlice(t.SrcIP)
	destination, _ := netip.AddrFromSlice(t.DstIP)
	return datagrams{netip.AddrPortFrom(source.Unmap(), t.SrcPort), netip.AddrPortFrom(destination.Unmap(), t.DstPort)}
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (d *deniedFlows) MatchConntrackFlow(entry *netlink.ConntrackFlow) bool {
	isUDP := entry.Forward.Protocol == unix.IPPROTO_UDP
	if isUDP && len(d.answers) > 0 {
		if packets := datagramsOf(entry.Forward); d.answers[packets] > 0 {
			d.found[packets] = true
			return true
		}
	}
	if !d.isDenied(entry) {
		return false
	}
	if isUDP {
		d.cut[datagramsOf(entry.Reverse)] = true
	}
	return true
}

// isDenied reports whether policies deny a connection of an affected address.
func (d *deniedFlows) isDenied(entry *netlink.ConntrackFlow) bool {
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

// nextAnswers are the answers to look for the next time.
func (d *deniedFlows) nextAnswers() map[datagrams]int {
	next := map[datagrams]int{}
	for packets := range d.found {
		if rounds := d.answers[packets] - 1; rounds > 0 {
			next[packets] = rounds
		}
	}
	for packets := range d.cut {
		next[packets] = maxAnswerRounds
	}
	return next
}

// concerns reports whether a connection of a family may have become denied.
func (d *deniedFlows) concerns(fam family) bool {
	for packets := range d.answers {
		if packets.source.Addr().Is4() == fam.is4 {
			return true
		}
	}
	for a := range d.affected {
		if a.Is4() == fam.is4 {
			return d.compiler.hasTargets()
		}
	}
	return false
}

// cutDenied deletes the kernel's entries of denied connections and returns their number. The next packets are those of new connections.
func cutDenied(conntrack *netlink.Handle, d *deniedFlows) (deleted int, err error) {
	for _, fam := range families {
		if !d.concerns(fam) {
			continue
		}
		number := netlink.InetFamily(unix.AF_INET6)
		if fam.is4 {
			number = unix.AF_INET
		}
		n, err := conntrack.ConntrackDeleteFilters(netlink.ConntrackTable, number, d)
		deleted += int(n)
		if err != nil {
			return deleted, fmt.Errorf("delete conntrack entries: %w", err)
		}
	}
	return deleted, nil
}
