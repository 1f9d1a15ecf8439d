package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"skiff/internal/network/hostnet"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// testNode is the node with a number, of both families.
func testNode(number int) Node {
	return Node{
		Name: fmt.Sprintf("n%d", number), Created: time.Unix(int64(number), 0),
		IPs:       addrs(fmt.Sprintf("192.168.7.%d", number), fmt.Sprintf("fd07::%x", number)),
		PodCIDRs:  prefixes(fmt.Sprintf("10.42.%d.0/24", number), fmt.Sprintf("fd42:0:0:%x::/64", number)),
		PublicKey: testKey(number).String(),
	}
}

func testKey(number int) Key { return Key{31: byte(number)} }

// testSettings are those of node n1.
func testSettings(backend Backend) Settings {
	return Settings{
		Backend: backend, NodeName: "n1", ClusterCIDRs: prefixes("10.42.0.0/16", "fd42::/48"), IPs: testNode(1).IPs, PublicKey: testKey(1),
		Networks: []hostnet.Network{
			{Link: "eth0", Address: netip.MustParsePrefix("192.168.7.1/24"), MTU: 1500},
			{Link: "eth0", Address: netip.MustParsePrefix("fd07::1/64"), MTU: 1500},
		},
	}
}

// only keeps the addresses and pod CIDRs of one family.
func only(n Node, is4 bool) Node {
	n.IPs = slices.DeleteFunc(slices.Clone(n.IPs), func(a netip.Addr) bool { return a.Is4() != is4 })
	n.PodCIDRs = slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(p netip.Prefix) bool { return p.Addr().Is4() != is4 })
	return n
}

func TestCompile(t *testing.T) {
	ipv6 := testSettings(VXLAN)
	ipv6.IPs = ipv6.IPs[1:]
	mac1, mac2 := linkMAC(testNode(1)), linkMAC(testNode(2))
	with := func(n Node, change func(*Node)) Node { change(&n); return n }
	tests := map[string]struct {
		settings Settings
		nodes    []Node
		// state and problems have one line for each entry.
		state, problems string
	}{
		"a node without pod CIDR": {testSettings(VXLAN), []Node{{Name: "n1"}, testNode(2)}, "", ""},
		"one node":                {testSettings(VXLAN), []Node{testNode(1)}, "", ""},
		"VXLAN, both families over IPv4": {
			testSettings(VXLAN), []Node{testNode(1), testNode(2)},
			"link skiff-vxlan vxlan mtu 1450 port 8472 id 83 local 192.168.7.1 address " + mac1.String() + `
address 10.42.1.1/32
address fd42:0:0:1::1/128
fdb ` + mac2.String() + ` dst 192.168.7.2
neighbor 10.42.2.1 lladdr ` + mac2.String() + `
neighbor fd42:0:0:2::1 lladdr ` + mac2.String() + `
route 10.42.2.0/24 via 10.42.2.1 dev skiff-vxlan onlink
route fd42:0:0:2::/64 via fd42:0:0:2::1 dev skiff-vxlan onlink`, "",
		},
		"VXLAN over IPv6": {
			ipv6, []Node{only(testNode(1), false), only(testNode(2), false)},
			"link skiff-vxlan vxlan mtu 1430 port 8472 id 83 local fd07::1 address " + linkMAC(only(testNode(1), false)).String() + `
address fd42:0:0:1::1/128
fdb ` + linkMAC(only(testNode(2), false)).String() + ` dst fd07::2
neighbor fd42:0:0:2::1 lladdr ` + linkMAC(only(testNode(2), false)).String() + `
route fd42:0:0:2::/64 via fd42:0:0:2::1 dev skiff-vxlan onlink`, "",
		},
		"VXLAN to a node without the family of this one": {
			testSettings(VXLAN), []Node{only(testNode(1), true), with(testNode(2), func(n *Node) { n.IPs = n.IPs[1:] })}, "",
			"node n2: it has no IPv4 address, as this node has",
		},
		"WireGuard": {
			testSettings(WireGuard), []Node{testNode(1), testNode(2)},
			"link skiff-wireguard wireguard mtu 1440 port 51820 public-key " + testKey(1).String() + `
address 10.42.1.1/32
address fd42:0:0:1::1/128
peer ` + testKey(2).String() + ` endpoint 192.168.7.2:51820 allowed 10.42.2.0/24 fd42:0:0:2::/64
route 10.42.2.0/24 dev skiff-wireguard
route fd42:0:0:2::/64 dev skiff-wireguard`, "",
		},
		"WireGuard keys that cannot be used": {
			testSettings(WireGuard), []Node{
				only(testNode(1), true), with(testNode(2), func(n *Node) { n.PublicKey = "" }), with(testNode(3), func(n *Node) { n.PublicKey = "?" }),
				with(testNode(4), func(n *Node) { n.PublicKey = testKey(1).String() }),
			}, "",
			"node n2: it has not published its WireGuard key yet\nnode n3: annotation skiff.io/wireguard-public-key: \"?\" is not a WireGuard key\n" +
				"node n4: another node has its WireGuard key",
		},
		"direct routes": {
			testSettings(HostGW), []Node{testNode(1), testNode(2)},
			"route 10.42.2.0/24 via 192.168.7.2 dev eth0\nroute fd42:0:0:2::/64 via fd07::2 dev eth0", "",
		},
		"direct routes to another segment, or without address": {
			testSettings(HostGW), []Node{
				testNode(1), with(testNode(2), func(n *Node) { n.IPs = addrs("192.168.8.2", "fd07::2") }), with(testNode(3), func(n *Node) { n.IPs = n.IPs[:1] }),
			},
			"route 10.42.3.0/24 via 192.168.7.3 dev eth0\nroute fd42:0:0:2::/64 via fd07::2 dev eth0",
			"node n2: its address 192.168.8.2 is not on a network segment of this node, which backend host-gw needs\n" +
				"node n3: it has no IPv6 address, which backend host-gw needs for its pod CIDR fd42:0:0:3::/64",
		},
		"pod CIDRs that are not the node's": {
			testSettings(HostGW), []Node{
				only(testNode(1), true), only(testNode(2), true), with(only(testNode(3), true), func(n *Node) { n.PodCIDRs = prefixes("0.0.0.0/0") }),
				with(only(testNode(4), true), func(n *Node) { n.PodCIDRs = prefixes("10.42.1.128/25") }),
				with(only(testNode(5), true), func(n *Node) { n.PodCIDRs = prefixes("10.42.2.0/24") }),
				with(only(testNode(6), true), func(n *Node) { n.PodCIDRs = prefixes("10.42.2.128/25") }),
				with(only(testNode(7), true), func(n *Node) { n.PodCIDRs = prefixes("10.42.2.0/23") }),
			},
			"route 10.42.2.0/24 via 192.168.7.2 dev eth0",
			"node n3: its pod CIDR 0.0.0.0/0 is not in the cluster CIDR\nnode n4: its pod CIDR 10.42.1.128/25 overlaps addresses of this node\n" +
				"node n5: an older node has addresses of its pod CIDR 10.42.2.0/24\nnode n6: an older node has addresses of its pod CIDR 10.42.2.128/25\n" +
				"node n7: an older node has addresses of its pod CIDR 10.42.2.0/23",
		},
		"addresses that are not those of another host": {
			testSettings(HostGW), []Node{
				only(testNode(1), true), only(testNode(2), true), with(only(testNode(3), true), func(n *Node) { n.IPs = addrs("192.168.7.1") }),
				with(only(testNode(4), true), func(n *Node) { n.IPs = addrs("192.168.7.255") }), with(only(testNode(5), true), func(n *Node) { n.IPs = addrs("127.0.0.1") }),
			},
			"route 10.42.2.0/24 via 192.168.7.2 dev eth0",
			"node n3: its address 192.168.7.1 is one of this node\nnode n4: its address 192.168.7.255 is not one that other nodes can reach\n" +
				"node n5: its address 127.0.0.1 is not one that other nodes can reach",
		},
		"VXLAN to a node with the address of this one": {
			testSettings(VXLAN), []Node{testNode(1), with(testNode(2), func(n *Node) { n.IPs = testNode(1).IPs })}, "", "node n2: its address 192.168.7.1 is one of this node",
		},
		"VXLAN, the first pod CIDR is another node's": {
			testSettings(VXLAN), []Node{
				only(testNode(1), true), only(testNode(2), true), with(testNode(3), func(n *Node) { n.PodCIDRs[0] = testNode(2).PodCIDRs[0] }),
				with(testNode(4), func(n *Node) { n.PodCIDRs[0] = testNode(1).PodCIDRs[0] }),
			},
			"link skiff-vxlan vxlan mtu 1450 port 8472 id 83 local 192.168.7.1 address " + mac1.String() + `
address 10.42.1.1/32
fdb ` + mac2.String() + ` dst 192.168.7.2
neighbor 10.42.2.1 lladdr ` + mac2.String() + `
route 10.42.2.0/24 via 10.42.2.1 dev skiff-vxlan onlink`,
			"node n3: an older node has addresses of its pod CIDR 10.42.2.0/24\nnode n3: another node has its first pod CIDR 10.42.2.0/24\n" +
				"node n4: another node has its first pod CIDR 10.42.1.0/24\nnode n4: its pod CIDR 10.42.1.0/24 overlaps addresses of this node",
		},
		"no backend": {testSettings(None), []Node{testNode(1), testNode(2)}, "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			slices.Reverse(test.nodes) // their order does not matter
			state, problems := Compile(test.settings, test.nodes)
			var lines []string
			for _, p := range problems {
				lines = append(lines, p.String())
			}
			if got := state.String(); got != test.state {
				t.Errorf("state:\n%s\nwant:\n%s", got, test.state)
			}
			if got := strings.Join(lines, "\n"); got != test.problems {
				t.Errorf("problems:\n%s\nwant:\n%s", got, test.problems)
			}
		})
	}
}

// The packets of VXLAN are recognized by the addresses of nodes, those of WireGuard by their keys: they may come from any address.
func TestTunnel(t *testing.T) {
	nodes := []Node{testNode(3), testNode(1), testNode(2)}
	for backend, want := range map[Backend]Tunnel{
		VXLAN: {Port: VXLANPort, Local: addrs("192.168.7.1")[0], Nodes: addrs("192.168.7.2", "192.168.7.3")}, WireGuard: {Port: WireGuardPort, Authenticated: true}, HostGW: {},
	} {
		state, problems := Compile(testSettings(backend), nodes)
		if got := state.tunnel(); fmt.Sprint(got) != fmt.Sprint(want) || len(problems) > 0 {
			t.Errorf("%s: %v, want %v, problems %v", backend, got, want, problems)
		}
	}
}

func TestMTU(t *testing.T) {
	for _, test := range []struct {
		backend  Backend
		outerIs4 bool
		uplink   int
		want     int
	}{
		{VXLAN, true, 1500, 1450}, {VXLAN, false, 1500, 1430}, {WireGuard, true, 1500, 1440}, {WireGuard, false, 1500, 1420},
		{HostGW, true, 1500, 1500}, {VXLAN, true, 9000, 8950}, {VXLAN, true, 0, 1450}, {VXLAN, true, 1300, 1280},
	} {
		s := testSettings(test.backend)
		for i := range s.Networks {
			s.Networks[i].MTU = test.uplink
		}
		if !test.outerIs4 {
			s.IPs = s.IPs[1:]
		}
		if got := s.MTU(); got != test.want {
			t.Errorf("%s, IPv4 %v, uplink %d: MTU %d, want %d", test.backend, test.outerIs4, test.uplink, got, test.want)
		}
	}
}
