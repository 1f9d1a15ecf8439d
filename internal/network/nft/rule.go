package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers of four bytes. Keys are built from the first one on, and the result of a lookup takes the place of its key.
const firstRegister = unix.NFT_REG32_00

// Clause is a rule or a part of one: text close to nft's syntax, and the expressions that the kernel executes. Two clauses with the same
// text have the same expressions.
type Clause struct {
	text  string
	exprs []expr.Any
}

// Rule is a rule of a chain.
type Rule = Clause

// NewRule joins clauses. The first one that does not match ends the rule.
func NewRule(clauses ...Clause) Rule {
	var texts []string
	var whole Rule
	for _, c := range clauses {
		if c.text != "" {
			texts = append(texts, c.text)
		}
		whole.exprs = append(whole.exprs, c.exprs...)
	}
	whole.text = strings.Join(texts, " ")
	return whole
}

// String is the rule as text.
func (c Clause) String() string { return c.text }

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Family matches packets of IPv4 or of IPv6.
func Family(is4 bool) Clause {
	name, protocol := "ipv6", byte(unix.NFPROTO_IPV6)
	if is4 {
		name, protocol = "ipv4", unix.NFPROTO_IPV4
	}
	return Clause{"meta nfproto " + name, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{protocol}},
	}}
}

// family is Family without text, for clauses whose text names the family.
func family(is4 bool) []expr.Any { return Family(is4).exprs }

func familyName(is4 bool) string {
	if is4 {
		return "ip"
	}
	return "ip6"
}

// addressPayload loads the source or destination address.
func addressPayload(is4, isSource bool, register uint32) *expr.Payload {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16}
	switch {
	case is4 && isSource:
		p.Offset, p.Len = 12, 4
	case is4:
		p.Offset, p.Len = 16, 4
	case isSource:
		p.Offset = 8
	}
	return p
}

// Source matches packets from a CIDR.
func Source(p netip.Prefix) Clause { return within(p, true, expr.CmpOpEq) }

// SourceNot matches packets of the CIDR's family from other addresses.
func SourceNot(p netip.Prefix) Clause { return within(p, true, expr.CmpOpNeq) }

// Destination matches packets to a CIDR.
func Destination(p netip.Prefix) Clause { return within(p, false, expr.CmpOpEq) }

// DestinationNot matches packets of the CIDR's family to other addresses.
func DestinationNot(p netip.Prefix) Clause { return within(p, false, expr.CmpOpNeq) }

func within(p netip.Prefix, isSource bool, op expr.CmpOp) Clause {
	p = p.Masked()
	is4 := p.Addr().Is4()
	word, not := "daddr", ""
	if isSource {
		word = "saddr"
	}
	if op == expr.CmpOpNeq {
		not = "!= "
	}
	load := addressPayload(is4, isSource, firstRegister)
	mask := make([]byte, load.Len)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return Clause{fmt.Sprintf("%s %s %s%s", familyName(is4), word, not, p), append(family(is4), load,
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: load.Len, Mask: mask, Xor: make([]byte, load.Len)},
		&expr.Cmp{Op: op, Register: firstRegister, Data: p.Addr().AsSlice()},
	)}
}

// FromInterface matches packets that arrived through an interface.
func FromInterface(name string) Clause {
	return interfaceClause(name, "iifname "+name, expr.CmpOpEq, 16)
}

// ToInterface matches packets that leave through an interface.
func ToInterface(name string) Clause {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return Clause{"oifname " + name, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: firstRegister}, &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: data},
	}}
}

// NotFromInterface matches packets that did not arrive through an interface.
func NotFromInterface(name string) Clause {
	return interfaceClause(name, "iifname != "+name, expr.CmpOpNeq, 16)
}

// FromInterfacePrefix matches packets that arrived through an interface whose name has a prefix.
func FromInterfacePrefix(prefix string) Clause {
	return interfaceClause(prefix, "iifname "+prefix+"*", expr.CmpOpEq, len(prefix))
}

// NotFromInterfacePrefix matches packets that did not arrive through an interface whose name has a prefix.
func NotFromInterfacePrefix(prefix string) Clause {
	return interfaceClause(prefix, "iifname != "+prefix+"*", expr.CmpOpNeq, len(prefix))
}

func interfaceClause(name, text string, op expr.CmpOp, size int) Clause {
	data := make([]byte, size)
	copy(data, name)
	return Clause{text, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister}, &expr.Cmp{Op: op, Register: firstRegister, Data: data},
	}}
}

// ToThisHost matches packets to one of the host's own addresses.
func ToThisHost() Clause {
	return Clause{"fib daddr type local", []expr.Any{
		&expr.Fib{Register: firstRegister, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: native(unix.RTN_LOCAL)},
	}}
}

// NotUnicast matches packets to addresses of the host, and broadcast and multicast packets: all but those that are forwarded.
func NotUnicast() Clause {
	return Clause{"fib daddr type != unicast", []expr.Any{
		&expr.Fib{Register: firstRegister, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: native(unix.RTN_UNICAST)},
	}}
}

// RoutedTo matches packets that the host is going to forward through an interface, at the hook prerouting.
func RoutedTo(name string) Clause {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return Clause{"fib daddr oifname " + name, []expr.Any{
		&expr.Fib{Register: firstRegister, FlagDADDR: true, ResultOIFNAME: true}, &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: data},
	}}
}

// FromThisHost matches packets from one of the host's own addresses.
func FromThisHost() Clause {
	return Clause{"fib saddr type local", []expr.Any{
		&expr.Fib{Register: firstRegister, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: native(unix.RTN_LOCAL)},
	}}
}

// UDPPort matches UDP packets to a port.
func UDPPort(port uint16) Clause {
	return Clause{fmt.Sprintf("udp dport %d", port), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: binary.BigEndian.AppendUint16(nil, port)},
	}}
}

// StateNew matches packets of new connections.
func StateNew() Clause { return conntrackBits("ct state new", expr.CtKeySTATE, expr.CtStateBitNEW) }

// StateNotNew matches all other packets, also those that are not tracked.
func StateNotNew() Clause {
	return Clause{"ct state & new == 0", []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: native(expr.CtStateBitNEW), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: native(0)},
	}}
}

// NoTrack makes the kernel not assign the packet to a connection. The chain must have a priority below -200.
func NoTrack() Clause { return Clause{"notrack", []expr.Any{&expr.Notrack{}}} }

// StateEstablished matches packets of established connections, and those related to one.
func StateEstablished() Clause {
	return conntrackBits("ct state established,related", expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// StateInvalid matches packets that conntrack cannot assign to a connection, or that are not valid in theirs.
func StateInvalid() Clause {
	return conntrackBits("ct state invalid", expr.CtKeySTATE, expr.CtStateBitINVALID)
}

// IsTCP matches TCP packets.
func IsTCP() Clause { return Clause{"meta l4proto tcp", transport(TCP)} }

// NotFirstTCP matches TCP packets that do not begin a connection: all but those with SYN and without ACK.
func NotFirstTCP() Clause {
	const flagsOffset, finSynRstAck, syn = 13, 0x17, 0x02
	return Clause{"meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn", append(transport(TCP),
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseTransportHeader, Offset: flagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 1, Mask: []byte{finSynRstAck}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{syn}},
	)}
}

// NotFirstSCTP matches SCTP packets that do not begin an association: all but those whose first chunk is INIT.
func NotFirstSCTP() Clause {
	const chunkOffset, chunkInit = 12, 1
	return Clause{"meta l4proto sctp @th,96,8 != 1", append(transport(SCTP),
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseTransportHeader, Offset: chunkOffset, Len: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{chunkInit}},
	)}
}

// transport matches packets of a transport protocol.
func transport(p Proto) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}, &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{byte(p)}}}
}

// StatusDNAT matches packets of connections whose destination is translated.
func StatusDNAT() Clause {
	const statusDNAT = 1 << 5
	return conntrackBits("ct status dnat", expr.CtKeySTATUS, statusDNAT)
}

func conntrackBits(text string, key expr.CtKey, bits uint32) Clause {
	return Clause{text, append([]expr.Any{&expr.Ct{Key: key, Register: firstRegister}}, anyBit(bits)...)}
}

// anyBit matches if one of the bits is set in the first register.
func anyBit(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: native(0)},
	}
}

// HasMark matches packets that have one of the bits in their mark.
func HasMark(bits uint32) Clause {
	return Clause{fmt.Sprintf("meta mark & %#x != 0", bits), append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister}}, anyBit(bits)...)}
}

// SetMark sets bits of the packet's mark.
func SetMark(bits uint32) Clause {
	return Clause{fmt.Sprintf("meta mark set mark | %#x", bits), changeMark(^bits, bits)}
}

// ClearMark clears bits of the packet's mark.
func ClearMark(bits uint32) Clause {
	return Clause{fmt.Sprintf("meta mark set mark & %#x", ^bits), changeMark(^bits, 0)}
}

func changeMark(mask, xor uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: native(mask), Xor: native(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister, SourceRegister: true},
	}
}

// The verdicts.
func verdict(text string, kind expr.VerdictKind, chain string) Clause {
	return Clause{text, []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}}
}

// Accept ends the hook's chain for the packet.
func Accept() Clause { return verdict("accept", expr.VerdictAccept, "") }

// Drop drops the packet.
func Drop() Clause { return verdict("drop", expr.VerdictDrop, "") }

// Return continues after the rule that jumped to this chain.
func Return() Clause { return verdict("return", expr.VerdictReturn, "") }

// Jump continues with a chain and then after this rule.
func Jump(chain string) Clause { return verdict("jump "+chain, expr.VerdictJump, chain) }

// Goto continues with a chain and then after the rule that jumped to this one.
func Goto(chain string) Clause { return verdict("goto "+chain, expr.VerdictGoto, chain) }

// Masquerade translates the source to the address of the interface the packet leaves by.
func Masquerade() Clause {
	return Clause{"masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true}}}
}

// Reject responds with ICMP port unreachable in the packet's family: a connection to a closed port.
func Reject() Clause {
	return Clause{"reject", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}}
}

// ResetTCP responds to a TCP packet with a reset.
func ResetTCP() Clause {
	return Clause{"reject with tcp reset", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}
}

// RejectHost responds with ICMP host unreachable in the packet's family.
func RejectHost() Clause {
	return Clause{"reject with icmpx host-unreachable", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_HOST_UNREACH}}}
}

// Field is a field of a key: a part of the packet, a constant, a random number or the result of a lookup.
type Field struct {
	text string
	// load loads the field into registers from the given one on. A lookup may use registers after its own for its key.
	load func(register uint32) []expr.Any
	// registers is the number of registers that the field fills.
	registers uint32
}

// SourceAddr is the source address of the packet.
func SourceAddr(is4 bool) Field { return addressField(is4, true, "saddr") }

// DestinationAddr is the destination address of the packet.
func DestinationAddr(is4 bool) Field { return addressField(is4, false, "daddr") }

func addressField(is4, isSource bool, word string) Field {
	return Field{
		text: familyName(is4) + " " + word, registers: AddrType(is4).registers(),
		load: func(register uint32) []expr.Any { return []expr.Any{addressPayload(is4, isSource, register)} },
	}
}

// Protocol is the transport protocol of the packet.
func Protocol() Field {
	return Field{text: "meta l4proto", registers: 1, load: func(register uint32) []expr.Any {
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}}
	}}
}

// DestinationPort is the destination port of the packet.
func DestinationPort() Field {
	return Field{text: "th dport", registers: 1, load: func(register uint32) []expr.Any {
		return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
	}}
}

// Random is a random number from 0 to below n.
func Random(n int) Field {
	return Field{text: fmt.Sprintf("numgen random mod %d", n), registers: 1, load: func(register uint32) []expr.Any {
		return []expr.Any{&expr.Numgen{Register: register, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM}}
	}}
}

// Constant is a value of one type, encoded by Bytes.
func Constant(t Type, data string) Field {
	return Field{text: fieldTexts([]Type{t}, data), registers: t.registers(), load: func(register uint32) []expr.Any {
		return []expr.Any{&expr.Immediate{Register: register, Data: []byte(data)}}
	}}
}

// Lookup is the value that a key of fields has in a map. A key that is not there ends the rule.
func Lookup(m Set, fields ...Field) Field {
	var registers uint32
	for _, t := range m.Value {
		registers += t.registers()
	}
	return Field{
		text: fieldNames(fields) + " map @" + m.Name, registers: registers,
		load: func(register uint32) []expr.Any {
			return append(loadAll(fields, register), &expr.Lookup{SourceRegister: register, DestRegister: register, IsDestRegSet: true, SetName: m.Name})
		},
	}
}

func fieldNames(fields []Field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.text
	}
	return strings.Join(names, " . ")
}

func loadAll(fields []Field, register uint32) (all []expr.Any) {
	for _, f := range fields {
		all = append(all, f.load(register)...)
		register += f.registers
	}
	return all
}

// In matches packets whose fields are a key of a set.
func In(set string, fields ...Field) Clause { return membership(set, "", false, fields) }

// NotIn matches packets whose fields are not a key of a set.
func NotIn(set string, fields ...Field) Clause { return membership(set, "!= ", true, fields) }

func membership(set, not string, invert bool, fields []Field) Clause {
	return Clause{fieldNames(fields) + " " + not + "@" + set,
		append(loadAll(fields, firstRegister), &expr.Lookup{SourceRegister: firstRegister, SetName: set, Invert: invert})}
}

// VerdictMap does what a verdict map says about the fields. If it says nothing, the next rule is evaluated.
func VerdictMap(set string, fields ...Field) Clause {
	return Clause{fieldNames(fields) + " vmap @" + set,
		append(loadAll(fields, firstRegister), &expr.Lookup{SourceRegister: firstRegister, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set})}
}

// DNAT translates the destination to an address and port: the value of a lookup.
func DNAT(is4 bool, to Field) Clause {
	return Clause{fmt.Sprintf("dnat %s addr . port to %s", familyName(is4), to.text), append(to.load(firstRegister), nat(is4, firstRegister))}
}

// MarkedDNAT is DNAT that also sets bits of the packet's mark.
func MarkedDNAT(is4 bool, bits uint32, to Field) Clause {
	const register = firstRegister + 8 // the mark is changed in the first one
	exprs := append(to.load(register), changeMark(^bits, bits)...)
	return Clause{fmt.Sprintf("meta mark set mark | %#x dnat %s addr . port to %s", bits, familyName(is4), to.text), append(exprs, nat(is4, register))}
}

// nat translates the destination to the address and port that are in registers.
func nat(is4 bool, register uint32) *expr.NAT {
	n := &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: register, RegProtoMin: register + AddrType(is4).registers()}
	if is4 {
		n.Family = unix.NFPROTO_IPV4
	}
	return n
}

// DNATTo translates the destination to an address and port.
func DNATTo(to netip.AddrPort) Clause {
	is4 := to.Addr().Is4()
	return Clause{fmt.Sprintf("dnat %s to %s", familyName(is4), to), []expr.Any{
		&expr.Immediate{Register: firstRegister, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: firstRegister + AddrType(is4).registers(), Data: binary.BigEndian.AppendUint16(nil, to.Port())},
		nat(is4, firstRegister),
	}}
}

// Update adds a field to a set with a time-out, or renews its time. It does not match when the set is full.
func Update(s Set, field Field) Clause {
	return Clause{fmt.Sprintf("update @%s { %s }", s.Name, field.text), append(field.load(firstRegister),
		&expr.Dynset{SrcRegKey: firstRegister, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.Timeout})}
}
