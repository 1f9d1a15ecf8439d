package firewall

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// marker begins the comments of the rules that this package adds to chains of other programs.
const marker = "skiff-"

// acceptance is a kind of packets that are to be accepted. The zero value of a field does not restrict it.
type acceptance struct {
	from, to            string // interfaces
	source, destination netip.Prefix
	udpPort             uint16
	// translated packets were sent to a Service.
	translated bool
}

// acceptances are the packets that each hook has to accept.
func acceptances(s Settings, port uint16) map[string][]acceptance {
	all := map[string][]acceptance{
		hookForward: {{from: s.Bridge}, {to: s.Bridge}},
		hookInput:   {{from: s.Bridge, translated: true}},
		hookOutput:  {{to: s.Bridge}},
	}
	for _, p := range s.ClusterCIDRs {
		// What is sent to a node port of this host may be forwarded to another node.
		all[hookForward] = append(all[hookForward], acceptance{source: p.Masked()}, acceptance{destination: p.Masked()})
		all[hookOutput] = append(all[hookOutput], acceptance{destination: p.Masked()})
	}
	for _, p := range s.ServiceCIDRs {
		// The host has the address of the cluster's DNS.
		all[hookInput] = append(all[hookInput], acceptance{from: s.Bridge, destination: p.Masked()})
	}
	if port != 0 {
		all[hookInput] = append(all[hookInput], acceptance{udpPort: port})
		all[hookOutput] = append(all[hookOutput], acceptance{udpPort: port})
	}
	return all
}

// in reports whether packets of a table's family can be of this kind.
func (a acceptance) in(family string) bool {
	for _, p := range []netip.Prefix{a.source, a.destination} {
		if family != "inet" && p.IsValid() && p.Addr().Is4() != (family == "ip") {
			return false
		}
	}
	return true
}

// identity is the comment of the rule.
func (a acceptance) identity() string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%+v", a)))
	return marker + hex.EncodeToString(sum[:6])
}

// comment is the user data of a rule in the form of nft's comments.
func comment(text string) []byte { return userdata.AppendString(nil, userdata.TypeComment, text) }

// isIPTables reports whether a chain is one of iptables-nft, which refuses to list a table with expressions that it does not know.
func isIPTables(t table, c chain) bool {
	return t.family != "inet" && t.name == "filter" && slices.Contains([]string{"INPUT", "FORWARD", "OUTPUT"}, c.name)
}

// exprs are the expressions of the rule in a chain. In chains of iptables they are those that iptables itself would use.
func (a acceptance) exprs(t table, c chain) []expr.Any {
	var all []expr.Any
	add := func(e ...expr.Any) { all = append(all, e...) }
	if a.from != "" {
		add(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(a.from), 0)})
	}
	if a.to != "" {
		add(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(a.to), 0)})
	}
	if a.source.IsValid() {
		add(address(a.source, true, t.family == "inet")...)
	}
	if a.destination.IsValid() {
		add(address(a.destination, false, t.family == "inet")...)
	}
	if a.udpPort != 0 {
		add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}})
		if isIPTables(t, c) {
			add(&expr.Match{Name: "udp", Info: a.udpInfo()})
		} else {
			add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, a.udpPort)})
		}
	}
	if a.translated {
		add(translated(t, c)...)
	}
	add(&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
	return all
}

// udpInfo makes iptables' match udp compare the destination port.
func (a acceptance) udpInfo() *xt.Udp {
	return &xt.Udp{SrcPorts: [2]uint16{0, 65535}, DstPorts: [2]uint16{a.udpPort, a.udpPort}}
}

// address matches packets with a source or a destination in a CIDR.
func address(p netip.Prefix, isSource, isInet bool) []expr.Any {
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16}
	protocol := byte(unix.NFPROTO_IPV6)
	if p.Addr().Is4() {
		load.Offset, load.Len, protocol = 16, 4, unix.NFPROTO_IPV4
	}
	if isSource {
		load.Offset -= load.Len // it is in front of the destination
	}
	var all []expr.Any
	if isInet {
		all = append(all, &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}})
	}
	return append(all, load,
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: load.Len, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, load.Len)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()})
}

// translated matches packets whose destination was translated.
func translated(t table, c chain) []expr.Any {
	const statusDNAT = 1 << 5
	if !isIPTables(t, c) {
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
			&expr.Bitwise{
				SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, statusDNAT), Xor: make([]byte, 4),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		}
	}
	return []expr.Any{&expr.Match{Name: "conntrack", Rev: conntrackRevision, Info: translatedInfo(t.family == "ip")}}
}

// conntrackRevision is that of the type of translatedInfo.
const conntrackRevision = 3

// translatedInfo makes iptables' match conntrack compare the state with that of a translated destination.
func translatedInfo(is4 bool) *xt.ConntrackMtinfo3 {
	const stateDNAT = 1 << 7 // linux/netfilter/xt_conntrack.h
	ip, bits := net.IPv6zero, 128
	if is4 {
		ip, bits = net.IPv4zero.To4(), 32
	}
	mask := net.CIDRMask(0, bits)
	return &xt.ConntrackMtinfo3{ConntrackMtinfo2: xt.ConntrackMtinfo2{
		ConntrackMtinfoBase: xt.ConntrackMtinfoBase{
			OrigSrcAddr: ip, OrigSrcMask: mask, OrigDstAddr: ip, OrigDstMask: mask, ReplSrcAddr: ip, ReplSrcMask: mask, ReplDstAddr: ip, ReplDstMask: mask,
			MatchFlags: uint16(xt.ConntrackState),
		},
		StateMask: stateDNAT,
	}}
}

// families are the families of tables whose chains see packets of pods.
var families = map[string]nftables.TableFamily{"ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6, "inet": nftables.TableFamilyINet}
