package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// interval is a range of addresses and the ports that are allowed with them.
type interval struct {
	first, last netip.Addr
	ports       portSet
}

// intervals are sorted and do not overlap.
type intervals []interval

// find returns the ports that are allowed with an address.
func (list intervals) find(a netip.Addr) portSet {
	i, found := slices.BinarySearchFunc(list, a, func(v interval, a netip.Addr) int { return v.first.Compare(a) })
	if !found {
		i-- // the last one that begins before the address
	}
	if i < 0 || list[i].last.Less(a) {
		return portSet{}
	}
	return list[i].ports
}

// id identifies the content.
func (list intervals) id() string {
	var b strings.Builder
	for _, v := range list {
		fmt.Fprintf(&b, "%s-%s %s\n", v.first, v.last, v.ports)
	}
	return digest(b.String())
}

// allowedBlock is an ipBlock and the ports of its rule.
type allowedBlock struct {
	block
	ports portSet
}

// maxIntervalWork bounds what intervals cost, in ranges of ports: a policy of a megabyte can describe gigabytes of them.
const maxIntervalWork = 1 << 20

// newIntervals computes the ports that blocks allow together, for the addresses of one family. Blocks that cost more than maxIntervalWork allow nothing.
func newIntervals(blocks []allowedBlock, is4 bool) intervals {
	var parts []interval
	for _, b := range mergeBlocks(blocks) {
		if b.cidr.Addr().Is4() == is4 && !b.ports.isEmpty() {
			parts = append(parts, b.withoutExceptions()...)
		}
	}
	boundaries := boundariesOf(parts)
	var list intervals
	around := partsAround{count: map[string]int{}, sets: map[string]portSet{}}
	for i := 0; i < len(boundaries); {
		first := boundaries[i].address
		for ; i < len(boundaries) && boundaries[i].address == first; i++ {
			around.pass(boundaries[i])
		}
		last := lastAddress(everything(is4))
		if i < len(boundaries) {
			last = boundaries[i].address.Prev()
		}
		ports, ok := around.ports()
		if !ok {
			return nil
		}
		list = list.add(interval{first, last, ports})
	}
	return list
}

// boundary is an address at which a part begins, or the first one after its end.
type boundary struct {
	address netip.Addr
	begins  bool
	ports   portSet
	// id is the text of the ports.
	id string
}

// boundariesOf returns the boundaries of intervals by address.
func boundariesOf(parts []interval) (boundaries []boundary) {
	for _, part := range parts {
		id := part.ports.String()
		boundaries = append(boundaries, boundary{part.first, true, part.ports, id})
		// The last address of the family has no next one.
		if after := part.last.Next(); after.IsValid() {
			boundaries = append(boundaries, boundary{after, false, part.ports, id})
		}
	}
	slices.SortStableFunc(boundaries, func(a, b boundary) int { return a.address.Compare(b.address) })
	return boundaries
}

// partsAround are the parts that contain an address, counted by their ports.
type partsAround struct {
	count map[string]int
	sets  map[string]portSet
	// union is what the sets allow together; nil: it has to be computed.
	union *portSet
	// work is what the unions have cost, in ranges of ports.
	work int
}

// pass is called for each boundary, in their order.
func (p *partsAround) pass(b boundary) {
	if b.begins {
		p.count[b.id]++
	} else {
		p.count[b.id]--
	}
	switch {
	case p.count[b.id] == 0:
		delete(p.sets, b.id)
		p.union = nil
	case b.begins && p.count[b.id] == 1:
		p.sets[b.id] = b.ports
		p.union = nil
	}
}

// ports are those that the parts allow together. It returns false when they have cost too much.
func (p *partsAround) ports() (portSet, bool) {
	if p.union == nil {
		for _, set := range p.sets {
			p.work += 1 + len(set.ranges)
		}
		if p.work > maxIntervalWork {
			return portSet{}, false
		}
		union := unionPorts(slices.Collect(maps.Values(p.sets)))
		p.union = &union
	}
	return *p.union, true
}

// add appends an interval, or extends the last one if it is adjacent and has the same ports.
func (list intervals) add(v interval) intervals {
	if v.ports.isEmpty() {
		return list
	}
	if n := len(list); n > 0 && list[n-1].last.Next() == v.first && list[n-1].ports.equal(v.ports) {
		list[n-1].last = v.last
		return list
	}
	return append(list, v)
}

// mergeBlocks joins the ports of blocks with the same addresses.
func mergeBlocks(blocks []allowedBlock) (merged []allowedBlock) {
	positions := map[string]int{}
	ports := map[int][]portSet{}
	for _, b := range blocks {
		key := fmt.Sprint(b.cidr, b.except)
		i, known := positions[key]
		if !known {
			i = len(merged)
			positions[key] = i
			merged = append(merged, b)
		}
		ports[i] = append(ports[i], b.ports)
	}
	for i := range merged {
		merged[i].ports = unionPorts(ports[i])
	}
	return merged
}

// withoutExceptions are the ranges of a block's addresses.
func (b allowedBlock) withoutExceptions() (parts []interval) {
	except := slices.SortedFunc(slices.Values(b.except), func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	next, end := b.cidr.Addr(), lastAddress(b.cidr)
	for _, e := range except {
		first, last := e.Addr(), lastAddress(e)
		if first.Is4() != next.Is4() || last.Less(next) || end.Less(first) {
			continue
		}
		if next.Less(first) {
			parts = append(parts, interval{next, first.Prev(), b.ports})
		}
		if next = last.Next(); !next.IsValid() || end.Less(next) {
			return parts
		}
	}
	return append(parts, interval{next, end, b.ports})
}

// lastAddress is the last address of a CIDR.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
