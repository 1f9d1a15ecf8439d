package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Type is the type of one field of a key or a value.
type Type uint8

// The types of fields, with nft's names.
const (
	IPv4Addr Type = iota
	IPv6Addr
	InetProto
	InetService
	// Mark is a number of 32 bits in the byte order of the host. nft cannot list sets whose keys have fields of its type integer, which has no
	// length.
	Mark
	// Verdict is the value of verdict maps.
	Verdict
)

// datatype is the type in nftables' own terms.
func (t Type) datatype() nftables.SetDatatype {
	return [...]nftables.SetDatatype{
		nftables.TypeIPAddr, nftables.TypeIP6Addr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeMark, nftables.TypeVerdict,
	}[t]
}

// registers is the number of four-byte registers that a field needs.
func (t Type) registers() uint32 { return (t.datatype().Bytes + 3) / 4 }

// AddrType is the type of addresses of a family.
func AddrType(is4 bool) Type {
	if is4 {
		return IPv4Addr
	}
	return IPv6Addr
}

// Proto is the number of a transport protocol.
type Proto uint8

// The transport protocols that have ports.
const (
	TCP  Proto = unix.IPPROTO_TCP
	UDP  Proto = unix.IPPROTO_UDP
	SCTP Proto = unix.IPPROTO_SCTP
)

// ParseProto returns the protocol with a name in any case.
func ParseProto(name string) (Proto, bool) {
	for _, p := range [...]Proto{TCP, UDP, SCTP} {
		if strings.EqualFold(name, p.String()) {
			return p, true
		}
	}
	return 0, false
}

// String is the name of the protocol.
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}

// Bytes encodes fields of a key or a value: netip.Addr, Proto, uint16 for ports and int for numbers. It panics for other types.
func Bytes(fields ...any) string {
	var memory [64]byte // more than the longest key: a table has many of them
	b := memory[:0]
	for _, field := range fields {
		switch v := field.(type) {
		case netip.Addr:
			if v.Is4() {
				address := v.As4()
				b = append(b, address[:]...)
			} else {
				address := v.As16()
				b = append(b, address[:]...)
			}
		case Proto:
			b = append(b, byte(v), 0, 0, 0)
		case uint16:
			b = append(binary.BigEndian.AppendUint16(b, v), 0, 0)
		case int:
			b = binary.NativeEndian.AppendUint32(b, uint32(v))
		default:
			panic("nft: a value is not of the type of a field") // which is not named, because fields would have to be allocated for that
		}
	}
	return string(b)
}

// fieldTexts formats the fields of a key or a value.
func fieldTexts(types []Type, data string) string {
	var texts []string
	for _, t := range types {
		size := int(t.registers()) * 4
		if len(data) < size {
			return fmt.Sprintf("invalid %x", data)
		}
		field := []byte(data[:size])
		data = data[size:]
		switch t {
		case InetProto:
			texts = append(texts, Proto(field[0]).String())
		case InetService:
			texts = append(texts, strconv.Itoa(int(binary.BigEndian.Uint16(field))))
		case Mark:
			texts = append(texts, strconv.Itoa(int(binary.NativeEndian.Uint32(field))))
		default:
			address, _ := netip.AddrFromSlice(field)
			texts = append(texts, address.String())
		}
	}
	return strings.Join(texts, " . ")
}

// text is an element in nft's syntax.
func (s Set) text(e Element) string {
	text := fieldTexts(s.Key, e.Key)
	if e.End != "" {
		text += " - " + fieldTexts(s.Key, e.End)
	}
	switch {
	case len(s.Value) == 1 && s.Value[0] == Verdict:
		text += " : " + e.Value
	case len(s.Value) > 0:
		text += " : " + fieldTexts(s.Value, e.Value)
	}
	return text
}

// typeNames are the names of types joined as nft does.
func typeNames(types []Type) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.datatype().Name
	}
	return strings.Join(names, " . ")
}

// header is the first line of a set in nft's syntax.
func (s Set) header() string {
	text := "set " + s.Name + " { type " + typeNames(s.Key)
	if len(s.Value) > 0 {
		text = "map " + s.Name + " { type " + typeNames(s.Key) + " : " + typeNames(s.Value)
	}
	if s.Interval {
		text += "; flags interval"
	}
	if s.Timeout > 0 {
		text += fmt.Sprintf("; flags dynamic,timeout; timeout %s; size %d", s.Timeout, s.Size)
	}
	return text
}

// header is the first line of a chain in nft's syntax.
func (c Chain) header() string {
	text := "chain " + c.Name + " {"
	if c.Hook != nil {
		text += fmt.Sprintf(" type %s hook %s priority %d;", c.Hook.Type, c.Hook.Point, c.Hook.Priority)
	}
	return text
}

func (c Chain) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s\n", c.header())
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t%s\n", r.text)
	}
	b.WriteString("}\n")
}

// String is the canonical text of the table, close to nft's syntax.
func (m *Model) String() string {
	all := m.All()
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s\n", m.Table)
	elements := all.AddedElements
	slices.SortFunc(elements, compareElements)
	for _, s := range all.AddedSets {
		fmt.Fprintf(&b, "%s\n", s.header())
		for ; len(elements) > 0 && elements[0].Set == s.Name; elements = elements[1:] {
			fmt.Fprintf(&b, "\t%s\n", s.text(elements[0]))
		}
		b.WriteString("}\n")
	}
	for _, c := range all.AddedChains {
		c.write(&b)
	}
	return b.String()
}

// Text is the changes as text: a line for each element, set and rule.
func (m *Model) Text(c Changes) string {
	var b strings.Builder
	line := func(sign string, e Element) {
		if entry := m.sets[e.Set]; entry != nil {
			fmt.Fprintf(&b, "%s element %s { %s }\n", sign, e.Set, entry.content.text(e))
		}
	}
	for _, s := range c.AddedSets {
		fmt.Fprintf(&b, "add %s }\n", s.header())
	}
	for _, chain := range c.AddedChains {
		b.WriteString("add ")
		chain.write(&b)
	}
	for _, chain := range c.ChangedChains {
		b.WriteString("replace ")
		chain.write(&b)
	}
	for _, e := range c.RemovedElements {
		line("delete", e)
	}
	for _, e := range c.AddedElements {
		line("add", e)
	}
	for _, chain := range c.RemovedChains {
		fmt.Fprintf(&b, "delete chain %s\n", chain.Name)
	}
	for _, name := range c.RemovedSets {
		fmt.Fprintf(&b, "delete set %s\n", name)
	}
	return b.String()
}
