package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"skiff/internal/network/nft"
)

// exceptedBlocks are n blocks with all addresses but one each. ports are those of the block with a number.
func exceptedBlocks(n int, ports func(i int) portSet) (blocks []allowedBlock) {
	for i := range n {
		except := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		blocks = append(blocks, allowedBlock{block{cidr: netip.MustParsePrefix("0.0.0.0/0"), except: []netip.Prefix{except}}, ports(i)})
	}
	return blocks
}

func onePort(i int) portSet {
	return newPortSet([]portRange{{proto: nft.TCP, from: uint16(2*i + 1), to: uint16(2*i + 1)}})
}

// A policy of a megabyte may have blocks and ports whose product are gigabytes: it allows nothing then. Many blocks with the same ports are no problem.
func TestIntervalsAreBounded(t *testing.T) {
	outside := netip.MustParseAddr("192.0.2.1")
	for _, test := range []struct {
		name    string
		blocks  []allowedBlock
		allowed bool
	}{
		{"few ports", exceptedBlocks(100, onePort), true},
		{"many ports", exceptedBlocks(13_000, onePort), false},
		{"the same ports", exceptedBlocks(26_000, func(int) portSet { return onePort(0) }), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			list := newIntervals(test.blocks, true)
			if allowed := list.find(outside).has(nft.TCP, 1); allowed != test.allowed {
				t.Errorf("allowed is %t with %d intervals", allowed, len(list))
			}
		})
	}
	list := newIntervals(exceptedBlocks(3, onePort), true)
	for i := range 3 {
		ports := list.find(netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i)))
		for j := range 3 {
			if ports.has(nft.TCP, uint16(2*j+1)) == (i == j) {
				t.Errorf("the ports at the exception of block %d are %s", i, ports)
			}
		}
	}
}
