package netns

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
)

// The names of a node's namespaces besides those of its pods: the node itself, and a host outside of the cluster.
const (
	Host    = "host"
	Outside = "outside"
)

// Node describes the host of the test as a node: it forwards packets between pods, each in a namespace of its own, and a host outside.
type Node struct {
	// Gateways are the addresses of the node towards its pods.
	Gateways []string
	// Pods are the addresses of pods, by name. Pods of other nodes are connected in the same way.
	Pods map[string][]string
	// Ports are served by every pod, with its name.
	Ports []uint16
	// Addresses and OutsideAddresses are the ends of the link to the host outside: addresses with the length of the network's prefix.
	Addresses, OutsideAddresses []string
}

// Start makes the namespaces, by name. What the node has no other route for goes to the host outside.
func (n Node) Start(t testing.TB) map[string]Namespace {
	t.Helper()
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		Sysctl(t, name, "1")
	}
	// The tests are refused more often than a host says so to an ordinary client.
	for _, name := range []string{"net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"} {
		Sysctl(t, name, "0")
	}
	spaces := map[string]Namespace{Host: {}, Outside: New(t)}
	for name, addresses := range n.Pods {
		space := New(t)
		space.Connect(t, "pod-"+name, single(n.Gateways), single(addresses))
		for _, port := range n.Ports {
			space.Serve(t, name, strconv.Itoa(int(port)))
		}
		spaces[name] = space
	}
	spaces[Outside].Connect(t, "uplink", n.Addresses, n.OutsideAddresses)
	link, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range n.OutsideAddresses {
		gateway := net.IP(netip.MustParsePrefix(address).Addr().AsSlice())
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway}); err != nil {
			t.Fatal(err)
		}
	}
	return spaces
}

// single gives addresses the prefixes of networks that they are alone in.
func single(addresses []string) (prefixes []string) {
	for _, text := range addresses {
		a := netip.MustParseAddr(text)
		prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return prefixes
}
