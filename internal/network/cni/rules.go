package cni

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Maps from ports of the host to pods: for all of the host's addresses and for one, of each family.
const (
	portsAny     = "ports-any"
	portsAddress = "ports-address"
)

// hostPortMark is set on packets that are translated from a host port.
const hostPortMark = 0x2000

// Registers of four bytes. A map key starts at keyRegister, the result of a lookup at valueRegister.
const (
	keyRegister   = unix.NFT_REG32_00
	valueRegister = unix.NFT_REG32_08
	scratch       = unix.NFT_REG_1
)

// ruleset is all rules of the table, in order.
type ruleset struct {
	chains []chain
}

type chain struct {
	name string
	// hook is empty for chains that are only jumped to.
	hook     string
	kind     nftables.ChainType
	at       *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    []clause
}

// clause is a rule or a part of one, as text in nft's syntax and as expressions for the kernel.
type clause struct {
	text  string
	exprs []expr.Any
}

// String is the ruleset in nft's syntax, for tests.
func (r ruleset) String() string {
	var b strings.Builder
	for _, c := range r.chains {
		fmt.Fprintf(&b, "chain %s", c.name)
		if c.hook != "" {
			fmt.Fprintf(&b, " (%s %s %d)", c.kind, c.hook, *c.priority)
		}
		b.WriteString("\n")
		for _, rule := range c.rules {
			fmt.Fprintf(&b, "  %s\n", rule.text)
		}
	}
	return b.String()
}

// rule joins clauses.
func rule(clauses ...clause) clause {
	var texts []string
	var whole clause
	for _, c := range clauses {
		texts = append(texts, c.text)
		whole.exprs = append(whole.exprs, c.exprs...)
	}
	whole.text = strings.Join(texts, " ")
	return whole
}

// planRules computes the table: masquerading, host ports and rejected packets.
func planRules(s Settings) ruleset {
	hook := func(name, hookName string, kind nftables.ChainType, at *nftables.ChainHook, priority nftables.ChainPriority, rules ...clause) chain {
		return chain{name: name, hook: hookName, kind: kind, at: at, priority: &priority, rules: rules}
	}
	var rejected, toPorts []clause
	for _, p := range s.ServiceCIDRs {
		rejected = append(rejected, rule(destination(p), reject()))
		// The host has the address of the cluster's DNS. It is no address for host ports.
		toPorts = append(toPorts, rule(destination(p), accept()))
	}
	toPorts = append(toPorts, rule(toThisHost(), jump("host-ports")))
	rejectedOutput := append([]clause{rule(toThisHost(), accept())}, rejected...)
	chains := []chain{
		// route_localnet is enabled for host ports. Other packets from or to loopback addresses are dropped.
		hook("guard", "prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, -300,
			rule(from(s.Bridge), destination(loopback), drop()), rule(from(s.Bridge), source(loopback), drop())),
		hook("ports-in", "prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, -100, toPorts...),
		hook("ports-out", "output", nftables.ChainTypeNAT, nftables.ChainHookOutput, -100, toPorts...),
		hook("unowned-forward", "forward", nftables.ChainTypeFilter, nftables.ChainHookForward, 0, rejected...),
		hook("unowned-output", "output", nftables.ChainTypeFilter, nftables.ChainHookOutput, 0, rejectedOutput...),
	}
	ports := chain{name: "host-ports"}
	outbound := []chain{}
	// A pod that connects to itself through a host port would see its own address, or the loopback address, as the source.
	masquerade4And6 := []clause{rule(throughHostPort(), source(loopback), masquerade())}
	var leaving []clause
	for _, own := range s.PodCIDRs {
		own = own.Masked()
		family := "6"
		if own.Addr().Is4() {
			family = "4"
		}
		ports.rules = append(ports.rules, translate(own.Addr().Is4(), true), translate(own.Addr().Is4(), false))
		masquerade4And6 = append(masquerade4And6, rule(throughHostPort(), source(own), masquerade()))
		leaving = append(leaving, rule(source(own), jump("outbound-"+family)))
		c := chain{name: "outbound-" + family}
		for _, stays := range inside(s, own) {
			c.rules = append(c.rules, rule(destination(stays), accept()))
		}
		c.rules = append(c.rules, rule(masquerade()))
		outbound = append(outbound, c)
	}
	chains = append(chains, ports)
	chains = append(chains, outbound...)
	return ruleset{chains: append(chains, hook("outbound", "postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, 100,
		slices.Concat(masquerade4And6, leaving)...))}
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

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// family restricts a rule to IPv4 or IPv6: the table has family inet.
func family(is4 bool) []expr.Any {
	protocol := byte(unix.NFPROTO_IPV6)
	if is4 {
		protocol = unix.NFPROTO_IPV4
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: scratch},
		&expr.Cmp{Op: expr.CmpOpEq, Register: scratch, Data: []byte{protocol}},
	}
}

// addressField is the offset and length of the source or destination address in the network header.
func addressField(is4, isSource bool) (offset, length uint32) {
	switch {
	case is4 && isSource:
		return 12, 4
	case is4:
		return 16, 4
	case isSource:
		return 8, 16
	}
	return 24, 16
}

func source(p netip.Prefix) clause      { return within(p, true, "saddr") }
func destination(p netip.Prefix) clause { return within(p, false, "daddr") }

// within matches packets whose address is in a CIDR.
func within(p netip.Prefix, isSource bool, word string) clause {
	p = p.Masked()
	is4 := p.Addr().Is4()
	offset, length := addressField(is4, isSource)
	name := "ip6 "
	if is4 {
		name = "ip "
	}
	mask := make([]byte, length)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return clause{name + word + " " + p.String(), append(family(is4),
		&expr.Payload{DestRegister: scratch, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: scratch, DestRegister: scratch, Len: length, Mask: mask, Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: scratch, Data: p.Addr().AsSlice()},
	)}
}

// from matches packets that arrived through an interface.
func from(link string) clause {
	name := make([]byte, 16)
	copy(name, link)
	return clause{"iifname " + link, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: scratch},
		&expr.Cmp{Op: expr.CmpOpEq, Register: scratch, Data: name},
	}}
}

// toThisHost matches packets to one of the host's own addresses.
func toThisHost() clause {
	return clause{"fib daddr type local", []expr.Any{
		&expr.Fib{Register: scratch, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: scratch, Data: native(unix.RTN_LOCAL)},
	}}
}

// throughHostPort matches packets that translate has marked.
func throughHostPort() clause {
	return clause{fmt.Sprintf("meta mark & %#x != 0", hostPortMark), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: scratch},
		&expr.Bitwise{SourceRegister: scratch, DestRegister: scratch, Len: 4, Mask: native(hostPortMark), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: scratch, Data: native(0)},
	}}
}

// translate looks up a packet's port in a map and, if there is a pod for it, marks the packet and translates its destination.
func translate(is4, byAddress bool) clause {
	word, name, set := "ip6", "6", portsAny
	nfproto := uint32(unix.NFPROTO_IPV6)
	words := uint32(4) // registers of an address
	if is4 {
		word, name, nfproto, words = "ip", "4", unix.NFPROTO_IPV4, 1
	}
	exprs, key := family(is4), uint32(keyRegister)
	keyText := "meta l4proto . th dport"
	if byAddress {
		set, keyText = portsAddress, word+" daddr . "+keyText
		offset, length := addressField(is4, false)
		exprs = append(exprs, &expr.Payload{DestRegister: key, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length})
		key += words
	}
	set += name
	exprs = append(exprs,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: key},
		&expr.Payload{DestRegister: key + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: keyRegister, DestRegister: valueRegister, IsDestRegSet: true, SetName: set},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: scratch},
		&expr.Bitwise{SourceRegister: scratch, DestRegister: scratch, Len: 4, Mask: native(^uint32(hostPortMark)), Xor: native(hostPortMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: scratch, SourceRegister: true},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: nfproto, RegAddrMin: valueRegister, RegProtoMin: valueRegister + words},
	)
	return clause{fmt.Sprintf("meta mark |= %#x dnat %s to %s map @%s", hostPortMark, word, keyText, set), exprs}
}

func verdict(text string, v *expr.Verdict) clause { return clause{text, []expr.Any{v}} }

func accept() clause { return verdict("accept", &expr.Verdict{Kind: expr.VerdictAccept}) }
func drop() clause   { return verdict("drop", &expr.Verdict{Kind: expr.VerdictDrop}) }
func jump(to string) clause {
	return verdict("jump "+to, &expr.Verdict{Kind: expr.VerdictJump, Chain: to})
}

func masquerade() clause {
	return clause{"masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true}}}
}

// reject responds with ICMP host unreachable in the packet's family.
func reject() clause {
	return clause{"reject with icmpx host-unreachable", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_HOST_UNREACH}}}
}

// portSets are the maps of host ports.
func portSets(table *nftables.Table) (map[string]*nftables.Set, error) {
	sets := map[string]*nftables.Set{}
	for family, address := range map[string]nftables.SetDatatype{"4": nftables.TypeIPAddr, "6": nftables.TypeIP6Addr} {
		value, err := nftables.ConcatSetType(address, nftables.TypeInetService)
		if err != nil {
			return nil, err
		}
		for name, parts := range map[string][]nftables.SetDatatype{
			portsAny:     {nftables.TypeInetProto, nftables.TypeInetService},
			portsAddress: {address, nftables.TypeInetProto, nftables.TypeInetService},
		} {
			key, err := nftables.ConcatSetType(parts...)
			if err != nil {
				return nil, err
			}
			sets[name+family] = &nftables.Set{Table: table, Name: name + family, IsMap: true, Concatenation: true, KeyType: key, DataType: value}
		}
	}
	return sets, nil
}
