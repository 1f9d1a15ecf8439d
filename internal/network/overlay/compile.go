package overlay

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/network/hostnet"
	"skiff/internal/network/nodeaddr"
)

// Backend is how packets reach the pods of other nodes.
type Backend string

// The backends.
const (
	VXLAN     Backend = "vxlan"
	HostGW    Backend = "host-gw"
	WireGuard Backend = "wireguard"
	// None leaves the pod network to another network plugin.
	None Backend = "none"
)

// Backends are all backends, the default first.
var Backends = []Backend{VXLAN, HostGW, WireGuard, None}

// ParseBackend returns the backend with a name.
func ParseBackend(name string) (Backend, error) {
	if !slices.Contains(Backends, Backend(name)) {
		var names []string
		for _, b := range Backends {
			names = append(names, string(b))
		}
		return "", fmt.Errorf("%q is not one of %s", name, strings.Join(names, ", "))
	}
	return Backend(name), nil
}

// The names of the links, and what all nodes of a cluster agree on.
const (
	vxlanLink     = "skiff-vxlan"
	wireguardLink = "skiff-wireguard"
	// VXLANPort is the port of the kernel's first implementation, which other networks of Kubernetes use, too.
	VXLANPort     = 8472
	WireGuardPort = 51820
	// vxlanID is not 1, which another network on the same host may have.
	vxlanID = 83
	// minMTU is the least MTU with which IPv6 works.
	minMTU = 1280
)

// PublicKeyAnnotation has the WireGuard key of a node.
const PublicKeyAnnotation = "skiff.io/wireguard-public-key"

// Settings are what the network depends on besides Nodes.
type Settings struct {
	Backend Backend
	// NodeName is the name of this node.
	NodeName string
	// ClusterCIDRs are the CIDRs of all pods. Pod CIDRs outside of them are not routed; none: all are.
	ClusterCIDRs []netip.Prefix
	// IPs are the addresses of this node, at most one of each family.
	IPs []netip.Addr
	// Networks are those of the host's interfaces.
	Networks []hostnet.Network
	// PublicKey is this node's WireGuard key.
	PublicKey Key
}

// Node is what the network has to know about a node.
type Node struct {
	Name     string
	Created  time.Time
	IPs      []netip.Addr
	PodCIDRs []netip.Prefix
	// PublicKey is the text of the WireGuard key; empty: the node has not published one yet.
	PublicKey string
}

// NodeOf reads a Node object.
func NodeOf(object *corev1.Node) Node {
	return Node{
		Name: object.Name, Created: object.CreationTimestamp.Time, IPs: nodeaddr.Primary(object), PodCIDRs: nodeaddr.PodCIDRs(object),
		PublicKey: object.Annotations[PublicKeyAnnotation],
	}
}

func (n Node) equal(other Node) bool {
	return n.Name == other.Name && n.Created.Equal(other.Created) && slices.Equal(n.IPs, other.IPs) && slices.Equal(n.PodCIDRs, other.PodCIDRs) &&
		n.PublicKey == other.PublicKey
}

// ipOf returns the address of a family.
func ipOf(ips []netip.Addr, is4 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(ips, func(a netip.Addr) bool { return a.Is4() == is4 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return ips[i], true
}

// outer is the node's own address in the packets between nodes. IPv4 is preferred, so that all nodes that have both choose the same.
func (s Settings) outer() (netip.Addr, bool) {
	if a, ok := ipOf(s.IPs, true); ok {
		return a, true
	}
	return ipOf(s.IPs, false)
}

// uplinkMTU is the MTU of the interface that has an address of the node.
func (s Settings) uplinkMTU() int {
	outer, ok := s.outer()
	i := slices.IndexFunc(s.Networks, func(n hostnet.Network) bool { return ok && n.Address.Addr() == outer })
	if i < 0 || s.Networks[i].MTU == 0 {
		return hostnet.UsualMTU
	}
	return s.Networks[i].MTU
}

// MTU is the MTU of pods, such that their packets fit into those between nodes.
func (s Settings) MTU() int {
	const (
		// IPv4 or IPv6, UDP, VXLAN and the inner Ethernet header; and IPv4 or IPv6, UDP and WireGuard.
		vxlan4, vxlan6         = 20 + 8 + 8 + 14, 40 + 8 + 8 + 14
		wireguard4, wireguard6 = 20 + 8 + 32, 40 + 8 + 32
	)
	outer, _ := s.outer()
	overhead := map[Backend][2]int{VXLAN: {vxlan4, vxlan6}, WireGuard: {wireguard4, wireguard6}}[s.Backend]
	mtu := s.uplinkMTU() - overhead[0]
	if outer.Is6() {
		mtu = s.uplinkMTU() - overhead[1]
	}
	return max(mtu, minMTU)
}

// Problem says why the pods of another node cannot be reached.
type Problem struct{ Node, Reason string }

func (p Problem) String() string { return "node " + p.Node + ": " + p.Reason }

// Compile computes the state that a node's kernel should have, and which other nodes cannot be reached. While this node has no pod CIDR there
// is nothing to set up.
func Compile(s Settings, nodes []Node) (State, []Problem) {
	c := compiler{settings: s, state: NewState()}
	own := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == s.NodeName })
	if own < 0 || len(nodes[own].PodCIDRs) == 0 || s.Backend == None {
		return c.state, nil
	}
	c.own = nodes[own]
	// The oldest node keeps a pod CIDR that several have.
	sorted := slices.SortedFunc(slices.Values(nodes), func(a, b Node) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	for _, node := range sorted {
		if node.Name != s.NodeName && len(node.PodCIDRs) > 0 {
			c.addNode(node)
		}
	}
	// A cluster of one node needs no link, and works on a kernel that has none of that type.
	if len(c.state.Routes) > 0 {
		c.addLink()
	}
	slices.SortFunc(c.problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Reason, b.Reason))
	})
	return c.state, c.problems
}

// compiler collects the state.
type compiler struct {
	settings Settings
	own      Node
	state    State
	problems []Problem
	// taken are the pod CIDRs of other nodes so far, in the order of their addresses. They do not overlap.
	taken []netip.Prefix
}

func (c *compiler) fail(node Node, format string, args ...any) {
	c.problems = append(c.problems, Problem{node.Name, fmt.Sprintf(format, args...)})
}

// addLink adds the link of the backend and its addresses.
func (c *compiler) addLink() {
	s := c.settings
	switch s.Backend {
	case VXLAN:
		local, _ := s.outer()
		c.state.Links[vxlanLink] = Link{
			Type: linkVXLAN, MTU: s.MTU(), Port: VXLANPort, VNI: vxlanID, Local: local, MAC: linkMAC(c.own), Up: true,
		}
	case WireGuard:
		c.state.Links[wireguardLink] = Link{Type: linkWireGuard, MTU: s.MTU(), Port: WireGuardPort, PublicKey: s.PublicKey, Up: true}
	default:
		return
	}
	for _, p := range c.own.PodCIDRs {
		c.state.Addresses[netip.PrefixFrom(linkAddress(p), p.Addr().BitLen())] = true
	}
}

// linkAddress is the address of a node's link, which is also that of its bridge. The first address of the CIDR would not do: before Linux 5.14 it is
// a broadcast address, and in IPv6 it is that of all routers.
func linkAddress(podCIDR netip.Prefix) netip.Addr { return podCIDR.Masked().Addr().Next() }

// linkMAC is the hardware address of a node's VXLAN link.
func linkMAC(n Node) MAC {
	sum := sha256.Sum256([]byte(n.PodCIDRs[0].String()))
	// Locally administered, and no multicast address.
	return MAC{0x0a, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// addNode adds what reaches the pods of another node.
func (c *compiler) addNode(node Node) {
	cidrs := c.routable(node)
	if len(cidrs) == 0 {
		return
	}
	switch c.settings.Backend {
	case VXLAN:
		c.addVXLAN(node, cidrs)
	case WireGuard:
		c.addWireGuard(node, cidrs)
	case HostGW:
		c.addHostGW(node, cidrs)
	}
}

// routable are the pod CIDRs of a node that packets may be sent to.
func (c *compiler) routable(node Node) (cidrs []netip.Prefix) {
	overlaps := func(p netip.Prefix) bool {
		return slices.ContainsFunc(c.own.PodCIDRs, p.Overlaps) || slices.ContainsFunc(c.settings.IPs, p.Contains)
	}
	inCluster := func(p netip.Prefix) bool {
		return len(c.settings.ClusterCIDRs) == 0 ||
			slices.ContainsFunc(c.settings.ClusterCIDRs, func(whole netip.Prefix) bool { return whole.Overlaps(p) && whole.Bits() <= p.Bits() })
	}
	for _, p := range node.PodCIDRs {
		switch {
		case !inCluster(p):
			c.fail(node, "its pod CIDR %s is not in the cluster CIDR", p)
		case overlaps(p):
			c.fail(node, "its pod CIDR %s overlaps addresses of this node", p)
		case !c.take(p):
			c.fail(node, "an older node has addresses of its pod CIDR %s", p)
		default:
			cidrs = append(cidrs, p)
		}
	}
	return cidrs
}

// take adds a pod CIDR to those that are taken, unless it overlaps one of them.
func (c *compiler) take(p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(c.taken, p, comparePrefixes)
	// Of CIDRs that do not overlap each other, p can only overlap the one before and the one after it.
	if i < len(c.taken) && c.taken[i].Overlaps(p) || i > 0 && c.taken[i-1].Overlaps(p) {
		return false
	}
	c.taken = slices.Insert(c.taken, i, p)
	return true
}

// remote is the address of another node in the packets between nodes.
func (c *compiler) remote(node Node) (netip.Addr, bool) {
	local, ok := c.settings.outer()
	if !ok {
		c.fail(node, "this node has no address")
		return netip.Addr{}, false
	}
	remote, ok := ipOf(node.IPs, local.Is4())
	if !ok {
		c.fail(node, "it has no %s address, as this node has", familyName(local.Is4()))
		return remote, false
	}
	return remote, c.isAddressOfAnother(node, remote)
}

// isAddressOfAnother reports whether an address of another node can be one of another host.
func (c *compiler) isAddressOfAnother(node Node, a netip.Addr) bool {
	isOwn := slices.Contains(c.settings.IPs, a) || slices.ContainsFunc(c.settings.Networks, func(n hostnet.Network) bool { return n.Address.Addr() == a })
	switch {
	case isOwn:
		c.fail(node, "its address %s is one of this node", a)
	case !a.IsGlobalUnicast() || slices.ContainsFunc(c.settings.Networks, func(n hostnet.Network) bool { return isBroadcast(n.Address, a) }):
		c.fail(node, "its address %s is not one that other nodes can reach", a)
	default:
		return true
	}
	return false
}

func familyName(is4 bool) string {
	if is4 {
		return "IPv4"
	}
	return "IPv6"
}

// isBroadcast reports whether an address stands for all hosts of an IPv4 network.
func isBroadcast(network netip.Prefix, a netip.Addr) bool {
	if !a.Is4() || !network.Contains(a) || network.Bits() > 30 {
		return false
	}
	return a == network.Masked().Addr() || !network.Contains(a.Next())
}

func (c *compiler) addVXLAN(node Node, cidrs []netip.Prefix) {
	remote, ok := c.remote(node)
	if !ok {
		return
	}
	// It follows from the first pod CIDR, also when that is another node's and only the second one is routed.
	mac := linkMAC(node)
	if _, taken := c.state.Forwarding[mac]; taken || mac == linkMAC(c.own) {
		c.fail(node, "another node has its first pod CIDR %s", node.PodCIDRs[0])
		return
	}
	c.state.Forwarding[mac] = remote
	for _, p := range cidrs {
		gateway := linkAddress(p)
		c.state.Neighbors[gateway] = mac
		c.state.Routes[p] = Route{Gateway: gateway, Link: vxlanLink, OnLink: true}
	}
}

func (c *compiler) addWireGuard(node Node, cidrs []netip.Prefix) {
	remote, ok := c.remote(node)
	if !ok {
		return
	}
	key, err := ParseKey(node.PublicKey)
	switch {
	case node.PublicKey == "":
		c.fail(node, "it has not published its WireGuard key yet")
		return
	case err != nil:
		c.fail(node, "annotation %s: %v", PublicKeyAnnotation, err)
		return
	}
	if _, taken := c.state.Peers[key]; taken || key == c.settings.PublicKey {
		c.fail(node, "another node has its WireGuard key")
		return
	}
	c.state.Peers[key] = Peer{Endpoint: netip.AddrPortFrom(remote, WireGuardPort), AllowedIPs: slices.SortedFunc(slices.Values(cidrs), comparePrefixes)}
	for _, p := range cidrs {
		c.state.Routes[p] = Route{Link: wireguardLink}
	}
}

// addHostGW adds routes to a node on the same network segment.
func (c *compiler) addHostGW(node Node, cidrs []netip.Prefix) {
	for _, p := range cidrs {
		is4 := p.Addr().Is4()
		gateway, ok := ipOf(node.IPs, is4)
		if !ok {
			c.fail(node, "it has no %s address, which backend %s needs for its pod CIDR %s", familyName(is4), HostGW, p)
			continue
		}
		if !c.isAddressOfAnother(node, gateway) {
			continue
		}
		i := slices.IndexFunc(c.settings.Networks, func(n hostnet.Network) bool { return n.Address.Contains(gateway) && !n.Address.IsSingleIP() })
		if i < 0 {
			c.fail(node, "its address %s is not on a network segment of this node, which backend %s needs", gateway, HostGW)
			continue
		}
		c.state.Routes[p] = Route{Gateway: gateway, Link: c.settings.Networks[i].Link}
	}
}
