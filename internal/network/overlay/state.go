package overlay

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// MAC is a hardware address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Key is a WireGuard key.
type Key [32]byte

func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// ParseKey parses the text of a key.
func ParseKey(text string) (k Key, err error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(data) != len(k) {
		return k, fmt.Errorf("%q is not a WireGuard key", text)
	}
	return Key(data), nil
}

// The types of links, with the kernel's names.
const (
	linkVXLAN     = "vxlan"
	linkWireGuard = "wireguard"
)

// Link is a tunnel to all other nodes.
type Link struct {
	// Type is vxlan or wireguard.
	Type string
	MTU  int
	// Port is the UDP port of the outer packets.
	Port uint16
	// VNI, Local and MAC are those of a VXLAN link: the network identifier, the node's own address and the link's hardware address.
	VNI   int
	Local netip.Addr
	MAC   MAC
	// PublicKey is that of a WireGuard link.
	PublicKey Key
	Up        bool
}

// replaces reports whether a link cannot be changed into this one.
func (l Link) replaces(old Link) bool {
	return l.Type != old.Type || l.Type == linkVXLAN && (l.VNI != old.VNI || l.Port != old.Port || l.Local != old.Local)
}

func (l Link) String() string {
	text := fmt.Sprintf("%s mtu %d port %d", l.Type, l.MTU, l.Port)
	if l.Type == linkVXLAN {
		text += fmt.Sprintf(" id %d local %s address %s", l.VNI, l.Local, l.MAC)
	} else {
		text += fmt.Sprintf(" public-key %s", l.PublicKey)
	}
	if !l.Up {
		text += " down"
	}
	return text
}

// Route is how packets to a pod CIDR are sent.
type Route struct {
	// Gateway is invalid if the other end of the link is chosen by the destination, as WireGuard does.
	Gateway netip.Addr
	Link    string
	// OnLink says that the gateway is reached by the link although no address of the link says so.
	OnLink bool
}

func (r Route) String() string {
	text := "dev " + r.Link
	if r.Gateway.IsValid() {
		text = "via " + r.Gateway.String() + " " + text
	}
	if r.OnLink {
		text += " onlink"
	}
	return text
}

// Peer is another node's end of a WireGuard link.
type Peer struct {
	Endpoint netip.AddrPort
	// AllowedIPs are the sources that the peer may send from, and the destinations that are sent to it. They are sorted.
	AllowedIPs []netip.Prefix
}

func (p Peer) equal(other Peer) bool {
	return p.Endpoint == other.Endpoint && slices.Equal(p.AllowedIPs, other.AllowedIPs)
}

func (p Peer) String() string {
	return fmt.Sprintf("endpoint %s allowed %s", p.Endpoint, strings.Trim(fmt.Sprint(p.AllowedIPs), "[]"))
}

// State is what the kernel holds for the network between nodes. At most one link is wanted; there are more while another backend's still exists.
type State struct {
	Links map[string]Link
	// Addresses are those of the link.
	Addresses map[netip.Prefix]bool
	// Forwarding says on which node a hardware address is, Neighbors which hardware address a gateway has. Both are for VXLAN.
	Forwarding map[MAC]netip.Addr
	Neighbors  map[netip.Addr]MAC
	Peers      map[Key]Peer
	Routes     map[netip.Prefix]Route
}

// NewState returns an empty state.
func NewState() State {
	return State{
		Links: map[string]Link{}, Addresses: map[netip.Prefix]bool{}, Forwarding: map[MAC]netip.Addr{}, Neighbors: map[netip.Addr]MAC{},
		Peers: map[Key]Peer{}, Routes: map[netip.Prefix]Route{},
	}
}

// link is the wanted link, if there is one.
func (s State) link() (name string, l Link, ok bool) {
	for name, l = range s.Links {
		return name, l, true
	}
	return "", Link{}, false
}

// Tunnel is what a firewall has to know of the link.
type Tunnel struct {
	// Port is the UDP port of the outer packets; 0: there is no link.
	Port uint16
	// Authenticated is whether the link recognizes the packets of other nodes by their keys. They may come from any address then: that which the routes
	// of the other node choose, or that of a router between the nodes.
	Authenticated bool
	// Local is the address that the packets of a link without authentication are sent from and to, Nodes are the sorted ones of the other ends.
	Local netip.Addr
	Nodes []netip.Addr
}

// tunnel describes the wanted link.
func (s State) tunnel() Tunnel {
	_, link, ok := s.link()
	if !ok {
		return Tunnel{}
	}
	nodes := slices.Collect(maps.Values(s.Forwarding))
	slices.SortFunc(nodes, netip.Addr.Compare)
	return Tunnel{Port: link.Port, Authenticated: link.Type == linkWireGuard, Local: link.Local, Nodes: slices.Compact(nodes)}
}

// String is the state as text, one line for each entry, in an order that does not depend on how it came about.
func (s State) String() string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		add("link %s %s", name, s.Links[name])
	}
	first := len(lines)
	for p := range s.Addresses {
		add("address %s", p)
	}
	for mac, node := range s.Forwarding {
		add("fdb %s dst %s", mac, node)
	}
	for gateway, mac := range s.Neighbors {
		add("neighbor %s lladdr %s", gateway, mac)
	}
	for key, peer := range s.Peers {
		add("peer %s %s", key, peer)
	}
	for p, route := range s.Routes {
		add("route %s %s", p, route)
	}
	slices.Sort(lines[first:])
	return strings.Join(lines, "\n")
}

// Changes are the difference between two states.
type Changes struct {
	RemovedLinks []string
	// Link is the link to make or to change, LinkName its name; empty: there is nothing to do. Recreate deletes the old one first.
	LinkName string
	Link     Link
	Recreate bool

	AddedAddresses, RemovedAddresses []netip.Prefix
	// Set entries are new or have another value. The values of removed ones are the old ones.
	SetForwarding, RemovedForwarding map[MAC]netip.Addr
	SetNeighbors, RemovedNeighbors   map[netip.Addr]MAC
	SetPeers, RemovedPeers           map[Key]Peer
	SetRoutes, RemovedRoutes         map[netip.Prefix]Route
}

// Size is the number of changes.
func (c Changes) Size() int {
	n := len(c.RemovedLinks) + len(c.AddedAddresses) + len(c.RemovedAddresses) + len(c.SetForwarding) + len(c.RemovedForwarding) +
		len(c.SetNeighbors) + len(c.RemovedNeighbors) + len(c.SetPeers) + len(c.RemovedPeers) + len(c.SetRoutes) + len(c.RemovedRoutes)
	if c.LinkName != "" {
		n++
	}
	return n
}

// Diff computes how the kernel gets from one state to another. A link that has to be made anew takes along everything that is on it.
func Diff(old, desired State) Changes {
	var c Changes
	name, link, wanted := desired.link()
	for _, other := range slices.Sorted(maps.Keys(old.Links)) {
		if other != name {
			c.RemovedLinks = append(c.RemovedLinks, other)
		}
	}
	existing, exists := old.Links[name]
	if wanted && (!exists || existing != link) {
		c.LinkName, c.Link, c.Recreate = name, link, exists && link.replaces(existing)
	}
	// A link that was down has lost what was on it, too.
	isNew := c.LinkName != "" && (!exists || c.Recreate || !existing.Up)
	old = old.afterLinks(c.RemovedLinks, name, isNew)
	added, removed := difference(old.Addresses, desired.Addresses, equal[bool])
	c.AddedAddresses, c.RemovedAddresses = slices.SortedFunc(maps.Keys(added), comparePrefixes), slices.SortedFunc(maps.Keys(removed), comparePrefixes)
	c.SetForwarding, c.RemovedForwarding = difference(old.Forwarding, desired.Forwarding, equal[netip.Addr])
	c.SetNeighbors, c.RemovedNeighbors = difference(old.Neighbors, desired.Neighbors, equal[MAC])
	c.SetPeers, c.RemovedPeers = difference(old.Peers, desired.Peers, Peer.equal)
	c.SetRoutes, c.RemovedRoutes = difference(old.Routes, desired.Routes, equal[Route])
	for p, route := range c.SetRoutes {
		// The kernel refuses a gateway on one link while there is a route to it by another.
		if before, ok := old.Routes[p]; ok && before.Link != route.Link {
			c.RemovedRoutes[p] = before
		}
	}
	return c
}

// afterLinks is the state after the removal of links and, if the wanted link is made anew, without what was on it.
func (s State) afterLinks(removed []string, wanted string, isNew bool) State {
	left := s
	if isNew {
		left = NewState()
	}
	left.Routes = maps.Clone(s.Routes)
	maps.DeleteFunc(left.Routes, func(_ netip.Prefix, route Route) bool {
		return isNew && route.Link == wanted || slices.Contains(removed, route.Link)
	})
	return left
}

func equal[T comparable](a, b T) bool { return a == b }

func comparePrefixes(a, b netip.Prefix) int {
	if order := a.Addr().Compare(b.Addr()); order != 0 {
		return order
	}
	return a.Bits() - b.Bits()
}

// difference returns the entries of desired that old does not have, and those of old that desired does not have.
func difference[K comparable, V any](old, desired map[K]V, equal func(a, b V) bool) (set, removed map[K]V) {
	set, removed = map[K]V{}, map[K]V{}
	for key, value := range desired {
		if before, ok := old[key]; !ok || !equal(before, value) {
			set[key] = value
		}
	}
	for key, value := range old {
		if _, ok := desired[key]; !ok {
			removed[key] = value
		}
	}
	return set, removed
}
