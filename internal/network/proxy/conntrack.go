package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/network/hostnet"
)

// The kernel sends the packets of a UDP flow where it sent the first one, as long as packets follow one another. A flow to an endpoint that is
// gone, or that began before the Service had endpoints, would never end. Its entry is deleted, and the next packet is translated anew.

// datagramChanges has the Services that were compiled since the rules were last applied, with the UDP ports that the kernel's rules have for
// them. However often Services change while the rules cannot be applied, it has no more Services than the kernel's rules and the current state.
type datagramChanges map[types.NamespacedName][]DatagramPort

// add records that the UDP ports of a Service have changed.
func (c datagramChanges) add(key types.NamespacedName, old, now []DatagramPort) {
	if _, ok := c[key]; !ok {
		c[key] = old
	}
	if len(c[key]) == 0 && len(now) == 0 {
		delete(c, key)
	}
}

// stale returns the UDP ports whose flows have to be inspected after the rules were applied.
func (c datagramChanges) stale(compiled map[types.NamespacedName]Compiled) (stale []DatagramPort) {
	for _, key := range slices.SortedFunc(maps.Keys(c), compareKeys) {
		stale = append(stale, staleDatagrams(c[key], compiled[key].Datagrams)...)
	}
	return stale
}

// staleDatagrams returns the UDP ports whose flows have to be inspected after a change: those of the new state that differ from the old one, and
// those that are gone, as ports without endpoints.
func staleDatagrams(old, now []DatagramPort) (stale []DatagramPort) {
	for _, d := range now {
		if !slices.ContainsFunc(old, d.equal) {
			stale = append(stale, d)
		}
	}
	for _, d := range old {
		d.Endpoints = nil
		d.Frontends = slices.DeleteFunc(slices.Clone(d.Frontends), func(f netip.AddrPort) bool {
			return slices.ContainsFunc(now, func(other DatagramPort) bool { return slices.Contains(other.Frontends, f) })
		})
		if slices.ContainsFunc(now, func(other DatagramPort) bool { return other.Is4 == d.Is4 && other.NodePort == d.NodePort }) {
			d.NodePort = 0
		}
		if len(d.Frontends) > 0 || d.NodePort != 0 {
			stale = append(stale, d)
		}
	}
	return stale
}

func (d DatagramPort) equal(other DatagramPort) bool {
	return d.Is4 == other.Is4 && d.NodePort == other.NodePort && slices.Equal(d.Frontends, other.Frontends) && slices.Equal(d.Endpoints, other.Endpoints)
}

// flowFilter selects the flows of UDP ports that do not lead to one of their endpoints.
type flowFilter struct {
	frontends map[netip.AddrPort]map[netip.AddrPort]bool
	nodePorts map[uint16]map[netip.AddrPort]bool
	// isNodePortIP reports whether node ports are served on an address.
	isNodePortIP func(netip.Addr) bool
}

func newFlowFilter(ports []DatagramPort, is4 bool, isNodePortIP func(netip.Addr) bool) *flowFilter {
	f := &flowFilter{frontends: map[netip.AddrPort]map[netip.AddrPort]bool{}, nodePorts: map[uint16]map[netip.AddrPort]bool{}, isNodePortIP: isNodePortIP}
	for _, d := range ports {
		if d.Is4 != is4 {
			continue
		}
		endpoints := map[netip.AddrPort]bool{}
		for _, e := range d.Endpoints {
			endpoints[e] = true
		}
		for _, frontend := range d.Frontends {
			f.frontends[frontend] = endpoints
		}
		if d.NodePort != 0 {
			f.nodePorts[d.NodePort] = endpoints
		}
	}
	return f
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f *flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	destination, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	source, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	to, from := netip.AddrPortFrom(destination.Unmap(), flow.Forward.DstPort), netip.AddrPortFrom(source.Unmap(), flow.Reverse.SrcPort)
	if endpoints, ok := f.frontends[to]; ok {
		return !endpoints[from]
	}
	endpoints, ok := f.nodePorts[to.Port()]
	return ok && f.isNodePortIP(to.Addr()) && !endpoints[from]
}

// conntrackRetry is the time until flows that could not be deleted are inspected again.
const conntrackRetry = 5 * time.Second

// cleanFlows deletes the flows that the changes since its last success have made stale. It returns the time after which it has to be called again; 0: after
// the next change.
func (p *Proxy) cleanFlows() time.Duration {
	err := p.cleanConntrack(p.datagrams.stale(p.compiled))
	if err != nil && !p.flowsFailed {
		p.Log.Warn("failed to delete conntrack entries of UDP Services, trying again", "error", err, "retry", conntrackRetry.String())
	}
	if p.flowsFailed = err != nil; p.flowsFailed {
		return conntrackRetry
	}
	clear(p.datagrams)
	return 0
}

// cleanConntrack deletes the flows of UDP ports that do not lead to one of their endpoints.
func (p *Proxy) cleanConntrack(ports []DatagramPort) error {
	if len(ports) == 0 {
		return nil
	}
	var errs []error
	host, err := hostnet.Addresses()
	if err != nil {
		errs = append(errs, err) // flows to node ports are not inspected
	}
	isNodePortIP := func(a netip.Addr) bool {
		return slices.Contains(p.node.NodePortIPs, a) || p.node.allNodePorts(a.Is4()) && slices.Contains(host, a)
	}
	for _, f := range families {
		if !slices.ContainsFunc(ports, func(d DatagramPort) bool { return d.Is4 == f.is4 }) {
			continue
		}
		started := time.Now()
		deleted, err := p.deleteFlows(newFlowFilter(ports, f.is4, isNodePortIP), f.is4)
		errs = append(errs, err)
		p.Metrics.reconciledFlows(f, started, deleted)
	}
	return errors.Join(errs...)
}

func deleteFlows(filter *flowFilter, is4 bool) (int, error) {
	number := netlink.InetFamily(unix.AF_INET6)
	if is4 {
		number = unix.AF_INET
	}
	deleted, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, number, filter)
	if err != nil {
		return int(deleted), fmt.Errorf("conntrack: %w", err)
	}
	return int(deleted), nil
}
