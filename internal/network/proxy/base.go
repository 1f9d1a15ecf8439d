package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"skiff/internal/network/nft"
)

// Settings are what the table depends on besides the objects of the API.
type Settings struct {
	// Table is the name of the nftables table. Two nodes that share a network namespace need different ones.
	Table string
	// Local recognizes packets of the cluster's pods.
	Local LocalTraffic
	// MasqueradeAll hides the source of all packets to cluster IPs from the endpoints.
	MasqueradeAll bool
	// MasqueradeMark is the bit of the packet mark that says that the source of a packet is to be translated.
	MasqueradeMark uint32
}

// DefaultMasqueradeMark is kube-proxy's.
const DefaultMasqueradeMark = 1 << 14

// The names of tables: of the proxy of a skiff node, and of one that runs alone. A skiff node without proxy removes the former.
const (
	DefaultTable    = "skiff-proxy"
	StandaloneTable = "skiff-proxy-standalone"
)

// LocalTraffic recognizes packets of pods: by their source, or by the interface through which they arrive. The zero value recognizes none.
type LocalTraffic struct {
	// CIDRs are the pods' addresses, at most one of each family.
	CIDRs                      []netip.Prefix
	Interface, InterfacePrefix string
}

// match returns the clauses that match packets of pods, and other packets.
func (l LocalTraffic) match(is4 bool) (local, other nft.Clause, ok bool) {
	switch i := slices.IndexFunc(l.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 }); {
	case i >= 0:
		return nft.Source(l.CIDRs[i]), nft.SourceNot(l.CIDRs[i]), true
	case l.Interface != "":
		return nft.FromInterface(l.Interface), nft.NotFromInterface(l.Interface), true
	case l.InterfacePrefix != "":
		return nft.FromInterfacePrefix(l.InterfacePrefix), nft.NotFromInterfacePrefix(l.InterfacePrefix), true
	}
	return local, other, false
}

// Node is what the proxy has to know about the node.
type Node struct {
	Name, Zone string
	// IPs are the primary addresses of the node, at most one of each family.
	IPs []netip.Addr
	// PodCIDRs are those of the node's pods, if packets of pods are recognized by them; at most one of each family.
	PodCIDRs []netip.Prefix
	// NodePortIPs are the addresses on which node ports are served, unless they are served on all addresses of the host of a family, except
	// loopback ones.
	NodePortIPs                        []netip.Addr
	AllIPv4NodePorts, AllIPv6NodePorts bool
	// ServiceCIDRs are the ranges of cluster IPs. Packets to those that no Service has are dropped.
	ServiceCIDRs []netip.Prefix
}

// allNodePorts reports whether node ports are served on all addresses of a family.
func (n Node) allNodePorts(is4 bool) bool {
	return is4 && n.AllIPv4NodePorts || !is4 && n.AllIPv6NodePorts
}

// family names the sets and chains of one address family.
type family struct {
	is4    bool
	suffix string
}

var families = []family{{true, "4"}, {false, "6"}}

func familyOf(is4 bool) family {
	if is4 {
		return families[0]
	}
	return families[1]
}

func (f family) addr() nft.Type { return nft.AddrType(f.is4) }

// frontend is the type of the key that identifies a Service's port by an address.
func (f family) frontend() []nft.Type { return []nft.Type{f.addr(), nft.InetProto, nft.InetService} }

// The sets of a family.
func (f family) clusterIPs() nft.Set {
	return nft.Set{Name: "cluster-ips" + f.suffix, Key: []nft.Type{f.addr()}}
}

func (f family) verdicts(name string) nft.Set {
	return nft.Set{Name: name + f.suffix, Key: f.frontend(), Value: []nft.Type{nft.Verdict}}
}

func (f family) serviceIPs() nft.Set         { return f.verdicts("service-ips") }
func (f family) noEndpointServices() nft.Set { return f.verdicts("no-endpoint-services") }
func (f family) firewallIPs() nft.Set        { return f.verdicts("firewall-ips") }

func (f family) portVerdicts(name string) nft.Set {
	return nft.Set{Name: name + f.suffix, Key: []nft.Type{nft.InetProto, nft.InetService}, Value: []nft.Type{nft.Verdict}}
}

func (f family) serviceNodePorts() nft.Set    { return f.portVerdicts("service-nodeports") }
func (f family) noEndpointNodePorts() nft.Set { return f.portVerdicts("no-endpoint-nodeports") }

// endpoints maps an address and port of a Service and a number to an endpoint, and nodePortEndpoints a node port and a number. That a map's
// value is never part of another's key keeps the rules such that nft can list them.
func (f family) endpoints(policy string) nft.Set {
	return nft.Set{Name: policy + "-endpoints" + f.suffix, Key: append(f.frontend(), nft.Mark), Value: []nft.Type{f.addr(), nft.InetService}}
}

func (f family) nodePortEndpoints(policy string) nft.Set {
	return nft.Set{Name: policy + "-nodeport-endpoints" + f.suffix, Key: []nft.Type{nft.InetProto, nft.InetService, nft.Mark}, Value: []nft.Type{f.addr(), nft.InetService}}
}

func (f family) hairpin() nft.Set {
	return nft.Set{Name: "hairpin-connections" + f.suffix, Key: []nft.Type{f.addr(), f.addr(), nft.InetProto, nft.InetService}}
}

func (f family) nodePortIPs() nft.Set {
	return nft.Set{Name: "nodeport-ips" + f.suffix, Key: []nft.Type{f.addr()}}
}

// The keys of packets.
func (f family) destination() []nft.Field {
	return []nft.Field{nft.DestinationAddr(f.is4), nft.Protocol(), nft.DestinationPort()}
}

func destinationPort() []nft.Field { return []nft.Field{nft.Protocol(), nft.DestinationPort()} }

// The traffic policies, as names of endpoint maps and chains.
const (
	policyCluster = "cluster"
	policyLocal   = "local"
	rejectChain   = "reject"
)

// base is the part of the table that does not depend on Services.
func base(s Settings, node Node) nft.Part {
	// The kernel limits how many ICMP errors a client gets: after a few, connections would time out. Resets are not limited.
	part := nft.Part{Chains: []nft.Chain{{Name: rejectChain, Rules: []nft.Rule{nft.NewRule(nft.IsTCP(), nft.ResetTCP()), nft.NewRule(nft.Reject())}}}}
	hook := func(name, point string, priority int32) *nft.Chain {
		return &nft.Chain{Name: name, Hook: &nft.Hook{Type: "nat", Point: point, Priority: priority}}
	}
	// All chains are of type nat: only the first packets of connections pass those. What a chain at the hooks prerouting and output has not translated is
	// checked there.
	prerouting, output := hook("nat-prerouting", "prerouting", -100), hook("nat-output", "output", -100)
	postrouting := hook("nat-postrouting", "postrouting", 100)
	postrouting.Rules = append(postrouting.Rules, nft.NewRule(nft.HasMark(s.MasqueradeMark), nft.ClearMark(s.MasqueradeMark), nft.Masquerade()))
	for _, f := range families {
		for _, chain := range []string{"services", "nodeport-endpoints-check", "service-endpoints-check", "cluster-ips-check"} {
			prerouting.Rules, output.Rules = append(prerouting.Rules, f.jump(chain)), append(output.Rules, f.jump(chain))
		}
		// A pod that reaches itself through a Service would receive a packet from its own address.
		postrouting.Rules = append(postrouting.Rules, nft.NewRule(nft.StatusDNAT(), nft.Family(f.is4),
			nft.In(f.hairpin().Name, append([]nft.Field{nft.SourceAddr(f.is4)}, f.destination()...)...), nft.Masquerade()))
		f.addBase(&part, s, node)
	}
	for _, c := range []*nft.Chain{prerouting, output, postrouting} {
		part.Chains = append(part.Chains, *c)
	}
	return part
}

// jump continues packets of the family with its chain of a name.
func (f family) jump(chain string) nft.Rule {
	return nft.NewRule(nft.Family(f.is4), nft.Jump(chain+f.suffix))
}

// sourceChecks are the base chains that check sources, before the destination is translated. They exist while a Service has source ranges, because
// every packet of the host passes them.
func sourceChecks() []nft.Chain {
	// All but the first packets of connections pass one rule.
	rules := []nft.Rule{nft.NewRule(nft.StateNotNew(), nft.Accept())}
	for _, f := range families {
		rules = append(rules, f.jump("firewall-check"))
	}
	var chains []nft.Chain
	for _, point := range []string{"prerouting", "output"} {
		chains = append(chains, nft.Chain{Name: "filter-" + point + "-pre-dnat", Hook: &nft.Hook{Type: "filter", Point: point, Priority: -110}, Rules: rules})
	}
	return chains
}

// addBase adds the sets and chains of a family.
func (f family) addBase(part *nft.Part, s Settings, node Node) {
	part.Sets = append(part.Sets, f.clusterIPs(), f.serviceIPs(), f.noEndpointServices(), f.firewallIPs(), f.serviceNodePorts(), f.noEndpointNodePorts(),
		f.endpoints(policyCluster), f.endpoints(policyLocal), f.nodePortEndpoints(policyCluster), f.nodePortEndpoints(policyLocal), f.hairpin())
	toNodePort := []nft.Clause{nft.ToThisHost(), nft.DestinationNot(loopback(f.is4))}
	if !node.allNodePorts(f.is4) {
		part.Sets = append(part.Sets, f.nodePortIPs())
		toNodePort = []nft.Clause{nft.In(f.nodePortIPs().Name, nft.DestinationAddr(f.is4))}
		for _, a := range node.NodePortIPs {
			if a.Is4() == f.is4 && !a.IsLoopback() {
				part.Elements = append(part.Elements, nft.Element{Set: f.nodePortIPs().Name, Key: nft.Bytes(a)})
			}
		}
	}
	nodePort := func(verdicts nft.Set) nft.Rule {
		return nft.NewRule(append(slices.Clone(toNodePort), nft.VerdictMap(verdicts.Name, destinationPort()...))...)
	}
	verdict := func(verdicts nft.Set) nft.Rule { return nft.NewRule(nft.VerdictMap(verdicts.Name, f.destination()...)) }
	toClusterIP := nft.In(f.clusterIPs().Name, nft.DestinationAddr(f.is4))
	services := nft.Chain{Name: "services" + f.suffix}
	if s.MasqueradeAll {
		services.Rules = append(services.Rules, nft.NewRule(toClusterIP, nft.SetMark(s.MasqueradeMark)))
	} else if _, other, ok := s.Local.match(f.is4); ok {
		// Packets from outside of the cluster may be routed to any node, and may be sent on to another.
		services.Rules = append(services.Rules, nft.NewRule(toClusterIP, other, nft.SetMark(s.MasqueradeMark)))
	}
	services.Rules = append(services.Rules, verdict(f.serviceIPs()), nodePort(f.serviceNodePorts()))
	// What is still addressed to a cluster IP was not translated.
	check := nft.Chain{Name: "cluster-ips-check" + f.suffix, Rules: []nft.Rule{nft.NewRule(nft.ToThisHost(), nft.Return()), nft.NewRule(toClusterIP, nft.Goto(rejectChain))}}
	for _, cidr := range node.ServiceCIDRs {
		if cidr.Addr().Is4() == f.is4 {
			check.Rules = append(check.Rules, nft.NewRule(nft.Destination(cidr), nft.Drop()))
		}
	}
	part.Chains = append(part.Chains, services, check,
		nft.Chain{Name: "firewall-check" + f.suffix, Rules: []nft.Rule{verdict(f.firewallIPs())}},
		nft.Chain{Name: "service-endpoints-check" + f.suffix, Rules: []nft.Rule{verdict(f.noEndpointServices())}},
		nft.Chain{Name: "nodeport-endpoints-check" + f.suffix, Rules: []nft.Rule{nodePort(f.noEndpointNodePorts())}},
	)
}

func loopback(is4 bool) netip.Prefix {
	if is4 {
		return netip.MustParsePrefix("127.0.0.0/8")
	}
	return netip.MustParsePrefix("::1/128")
}

// maxName bounds the names of chains and sets. The kernel's limit is 255.
const maxName = 200

// chainName joins a name with the family and what the chain or set depends on. The rest of a long name is replaced by its hash.
func (f family) chainName(name, format string, args ...any) string {
	whole := name + f.suffix + "-" + fmt.Sprintf(format, args...)
	if len(whole) <= maxName {
		return whole
	}
	sum := sha256.Sum256([]byte(whole))
	return whole[:maxName-17] + "-" + hex.EncodeToString(sum[:8])
}
