package cni

import (
	"net/netip"
	"slices"

	"skiff/internal/network/nft"
)

// Maps from ports of the host to pods: for all of the host's addresses and for one, of each family.
const (
	portsAny     = "ports-any"
	portsAddress = "ports-address"
)

// hostPortMark is set on packets that are translated from a host port.
const hostPortMark = 0x2000

// unownedPriority is that of the chains that reject packets to addresses of Services: after those of a Service proxy. unownedFirstPriority is that of the
// chains that see the first packets of connections, after those of skiff's own proxy.
const (
	unownedPriority      = 10
	unownedFirstPriority = -90
)

// The owners of the table's parts: the rules, which follow from the settings, and the host ports of pods.
const (
	rulesOwner = "rules"
	portsOwner = "ports"
)

// model is the nftables table of a host with attachments.
func (p hostPlan) model(attachments []Attachment) (*nft.Model, error) {
	m := nft.NewModel(p.settings.Table)
	rules := p.rules
	rules.Chains = append(slices.Clone(rules.Chains), nft.Chain{Name: p.markerChain()})
	m.Replace(rulesOwner, rules)
	ports, err := planPorts(attachments)
	m.Replace(portsOwner, nft.Part{Elements: ports})
	return m, err
}

// planRules computes the rules: masquerading, host ports and rejected packets.
func planRules(s Settings) nft.Part {
	var toPorts []nft.Rule
	for _, p := range s.ServiceCIDRs {
		// The host has the address of the cluster's DNS. It is no address for host ports.
		toPorts = append(toPorts, nft.NewRule(nft.Destination(p), nft.Accept()))
	}
	toPorts = append(toPorts, nft.NewRule(nft.ToThisHost(), nft.Jump("host-ports")))
	part := nft.Part{Chains: []nft.Chain{
		// route_localnet is enabled for host ports. Other packets from or to loopback addresses are dropped.
		hook("guard", "filter", "prerouting", -300, nft.NewRule(nft.FromInterface(s.Bridge), nft.Goto("guard-pods"))),
		{Name: "guard-pods", Rules: []nft.Rule{nft.NewRule(nft.Destination(loopback), nft.Drop()), nft.NewRule(nft.Source(loopback), nft.Drop())}},
		hook("ports-in", "nat", "prerouting", -100, toPorts...),
		hook("ports-out", "nat", "output", -100, toPorts...),
	}}
	part.Chains = append(part.Chains, unownedChains(s)...)
	ports := nft.Chain{Name: "host-ports"}
	throughHostPort := nft.HasMark(hostPortMark)
	// A pod that connects to itself through a host port would see its own address, or the loopback address, as the source.
	outbound := []nft.Rule{nft.NewRule(throughHostPort, nft.Source(loopback), nft.Masquerade())}
	var leaving []nft.Rule
	for _, own := range s.PodCIDRs {
		own = own.Masked()
		is4 := own.Addr().Is4()
		for _, byAddress := range []bool{true, false} {
			ports.Rules = append(ports.Rules, nft.NewRule(nft.Family(is4), nft.MarkedDNAT(is4, hostPortMark, nft.Lookup(portSet(byAddress, is4), portFields(byAddress, is4)...))))
		}
		outbound = append(outbound, nft.NewRule(throughHostPort, nft.Source(own), nft.Masquerade()))
		c := nft.Chain{Name: "outbound-" + familyName(is4)}
		leaving = append(leaving, nft.NewRule(nft.Source(own), nft.Jump(c.Name)))
		for _, stays := range inside(s, own) {
			c.Rules = append(c.Rules, nft.NewRule(nft.Destination(stays), nft.Accept()))
		}
		c.Rules = append(c.Rules, nft.NewRule(nft.Masquerade()))
		part.Chains = append(part.Chains, c)
	}
	part.Chains = append(part.Chains, ports, hook("outbound", "nat", "postrouting", 100, append(outbound, leaving...)...))
	for _, is4 := range []bool{true, false} {
		part.Sets = append(part.Sets, portSet(true, is4), portSet(false, is4))
	}
	return part
}

// hook is a base chain.
func hook(name, kind, point string, priority int32, rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: name, Hook: &nft.Hook{Type: kind, Point: point, Priority: priority}, Rules: rules}
}

// unownedChains reject packets to addresses of Services that a Service proxy has left, and which therefore belong to nobody. A network of the host in the CIDR
// has a route of its own and stays reachable: only what is routed to the bridge is rejected.
func unownedChains(s Settings) []nft.Chain {
	// All packets of the host pass chains of type filter. So those are used only for proxies that reject packets there themselves.
	kind, priority, point, toBridge := "filter", int32(unownedPriority), "forward", nft.ToInterface(s.Bridge)
	if s.OwnProxy {
		kind, priority, point, toBridge = "nat", unownedFirstPriority, "prerouting", nft.RoutedTo(s.Bridge)
	}
	var rejected, fromHost []nft.Rule
	for _, p := range s.ServiceCIDRs {
		rejected = append(rejected, nft.NewRule(nft.Destination(p), toBridge, nft.RejectHost()))
		fromHost = append(fromHost, nft.NewRule(nft.Destination(p), nft.ToInterface(s.Bridge), nft.Goto("unowned")))
	}
	return []nft.Chain{
		hook("unowned-"+point, kind, point, priority, rejected...),
		hook("unowned-output", kind, "output", priority, fromHost...),
		{Name: "unowned", Rules: []nft.Rule{nft.NewRule(nft.ToThisHost(), nft.Accept()), nft.NewRule(nft.RejectHost())}},
	}
}

// familyName is the name of a family in the names of sets and chains.
func familyName(is4 bool) string {
	if is4 {
		return "4"
	}
	return "6"
}

// portSet is a map of host ports.
func portSet(byAddress, is4 bool) nft.Set {
	s := nft.Set{Name: portsAny + familyName(is4), Key: []nft.Type{nft.InetProto, nft.InetService}, Value: []nft.Type{nft.AddrType(is4), nft.InetService}}
	if byAddress {
		s.Name, s.Key = portsAddress+familyName(is4), append([]nft.Type{nft.AddrType(is4)}, s.Key...)
	}
	return s
}

// portFields is the key of a packet in a map of host ports.
func portFields(byAddress, is4 bool) []nft.Field {
	fields := []nft.Field{nft.Protocol(), nft.DestinationPort()}
	if byAddress {
		return append([]nft.Field{nft.DestinationAddr(is4)}, fields...)
	}
	return fields
}

var (
	loopback     = netip.MustParsePrefix("127.0.0.0/8")
	loopbackHost = netip.MustParsePrefix("127.0.0.1/8")
	multicast4   = netip.MustParsePrefix("224.0.0.0/4")
	multicast6   = netip.MustParsePrefix("ff00::/8")
)

// inside lists the CIDRs that see a pod's own address.
func inside(s Settings, own netip.Prefix) []netip.Prefix {
	ranges := []netip.Prefix{own}
	for _, p := range slices.Concat(s.ClusterCIDRs, s.NonMasqueradeCIDRs, []netip.Prefix{multicast4, multicast6}) {
		if p = p.Masked(); p.Addr().Is4() == own.Addr().Is4() && !slices.Contains(ranges, p) {
			ranges = append(ranges, p)
		}
	}
	return ranges
}
