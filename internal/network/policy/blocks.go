package policy

import (
	"cmp"
	"fmt"
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

// newIntervals computes the ports that blocks allow together, for the addresses of one family. At most as many blocks contain an address as there are
// prefix lengths, times the exceptions of blocks with the same CIDR.
func newIntervals(blocks []allowedBlock, is4 bool) intervals {
	var parts []interval
	for _, b := range mergeBlocks(blocks) {
		if b.cidr.Addr().Is4() == is4 && !b.ports.isEmpty() {
			parts = append(parts, b.withoutExceptions()...)
		}
	}
	// An address at which a part begins, or the first one after its end.
	type boundary struct {
		address netip.Addr
		part    int
		begins  bool
	}
	var boundaries []boundary
	for i, part := range parts {
		boundaries = append(boundaries, boundary{part.first, i, true})
		// The last address of the family has no next one.
		if after := part.last.Next(); after.IsValid() {
			boundaries = append(boundaries, boundary{after, i, false})
		}
	}
	slices.SortFunc(boundaries, func(a, b boundary) int { return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.part, b.part)) })
	var list intervals
	active := map[int]bool{}
	for i := 0; i < len(boundaries); {
		first := boundaries[i].address
		for ; i < len(boundaries) && boundaries[i].address == first; i++ {
			if boundaries[i].begins {
				active[boundaries[i].part] = true
			} else {
				delete(active, boundaries[i].part)
			}
		}
		last := lastAddress(everything(is4))
		if i < len(boundaries) {
			last = boundaries[i].address.Prev()
		}
		var sets []portSet
		for part := range active {
			sets = append(sets, parts[part].ports)
		}
		list = list.add(interval{first, last, unionPorts(sets)})
	}
	return list
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
