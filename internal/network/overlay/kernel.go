package overlay

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/hostnet"
)

// RouteProtocol marks the routes between nodes. The routes of the pod network itself have another number.
const RouteProtocol = 84

// ownLinks are the names of all links that this package makes.
var ownLinks = []string{vxlanLink, wireguardLink}

// HostKernel is the kernel of the network namespace of the calling thread.
type HostKernel struct {
	// PrivateKey is this node's WireGuard key.
	PrivateKey Key
}

// Read implements Kernel.
func (k HostKernel) Read(desired State) (State, error) {
	s := NewState()
	wanted, _, _ := desired.link()
	names := map[int]string{}
	links, err := hostnet.Dump(netlink.LinkList)
	if err != nil {
		return s, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		name := l.Attrs().Name
		names[l.Attrs().Index] = name
		if !slices.Contains(ownLinks, name) {
			continue
		}
		if s.Links[name], err = k.readLink(l, name == wanted, &s); err != nil {
			return s, err
		}
	}
	return s, readRoutes(&s, names)
}

// readLink reads a link and, if it is wanted, what is on it.
func (k HostKernel) readLink(l netlink.Link, isWanted bool, s *State) (Link, error) {
	attrs := l.Attrs()
	link := Link{Type: l.Type(), MTU: attrs.MTU, Up: attrs.Flags&net.FlagUp != 0}
	if vxlan, ok := l.(*netlink.Vxlan); ok {
		link.Port, link.VNI = uint16(vxlan.Port), vxlan.VxlanId
		local, _ := netip.AddrFromSlice(vxlan.SrcAddr)
		link.Local = local.Unmap()
		if len(attrs.HardwareAddr) == len(link.MAC) {
			link.MAC = MAC(attrs.HardwareAddr)
		}
	}
	if !isWanted {
		return link, nil
	}
	addresses, err := hostnet.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return link, fmt.Errorf("list addresses of %s: %w", attrs.Name, err)
	}
	for _, a := range addresses {
		if p := hostnet.PrefixOf(a.IPNet); !p.Addr().IsLinkLocalUnicast() {
			s.Addresses[p] = true
		}
	}
	switch link.Type {
	case linkVXLAN:
		return link, readNeighbors(s, attrs.Index)
	case linkWireGuard:
		device, err := readDevice(attrs.Index)
		if err != nil {
			return link, fmt.Errorf("read link %s: %w", attrs.Name, err)
		}
		link.PublicKey, link.Port, s.Peers = device.publicKey, device.port, device.peers
	}
	return link, nil
}

// readNeighbors reads the permanent neighbor and forwarding entries of a VXLAN link.
func readNeighbors(s *State, index int) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		entries, err := hostnet.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
		if err != nil {
			return fmt.Errorf("list neighbors: %w", err)
		}
		for _, n := range entries {
			gateway, ok := netip.AddrFromSlice(n.IP)
			if ok && n.State&netlink.NUD_PERMANENT != 0 && len(n.HardwareAddr) == len(MAC{}) {
				s.Neighbors[gateway.Unmap()] = MAC(n.HardwareAddr)
			}
		}
	}
	entries, err := hostnet.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return fmt.Errorf("list forwarding entries: %w", err)
	}
	for _, n := range entries {
		if remote, ok := netip.AddrFromSlice(n.IP); ok && len(n.HardwareAddr) == len(MAC{}) {
			s.Forwarding[MAC(n.HardwareAddr)] = remote.Unmap()
		}
	}
	return nil
}

// readRoutes reads the routes between nodes.
func readRoutes(s *State, names map[int]string) error {
	routes, err := ownRoutes()
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		route := Route{Link: names[r.LinkIndex]}
		if gateway, ok := netip.AddrFromSlice(r.Gw); ok {
			route.Gateway = gateway.Unmap()
		}
		route.OnLink = route.Gateway.IsValid() && slices.Contains(ownLinks, route.Link)
		s.Routes[hostnet.PrefixOf(r.Dst)] = route
	}
	return nil
}

func ownRoutes() (all []netlink.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := hostnet.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		all = append(all, routes...)
	}
	return all, nil
}

// Apply implements Kernel. The order is such that a route exists only while everything it needs does.
func (k HostKernel) Apply(c Changes) error {
	for p := range c.RemovedRoutes {
		if err := netlink.RouteDel(&netlink.Route{Dst: hostnet.IPNet(p), Protocol: RouteProtocol}); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route to %s: %w", p, err)
		}
	}
	for _, name := range c.RemovedLinks {
		if err := removeLink(name); err != nil {
			return err
		}
	}
	if c.LinkName != "" {
		if err := k.setLink(c); err != nil {
			return err
		}
	}
	indexes, err := linkIndexes(c)
	if err != nil {
		return err
	}
	if err := setAddresses(c); err != nil {
		return err
	}
	if err := setNeighbors(c, indexes[vxlanLink]); err != nil {
		return err
	}
	if len(c.SetPeers)+len(c.RemovedPeers) > 0 {
		if err := writePeers(indexes[wireguardLink], c.SetPeers, c.RemovedPeers); err != nil {
			return fmt.Errorf("change WireGuard peers: %w", err)
		}
	}
	for p, route := range c.SetRoutes {
		if err := setRoute(p, route, indexes[route.Link]); err != nil {
			return err
		}
	}
	return nil
}

// linkIndexes finds the links that changes are about.
func linkIndexes(c Changes) (map[string]int, error) {
	needed := map[string]bool{
		vxlanLink:     len(c.SetForwarding)+len(c.RemovedForwarding)+len(c.SetNeighbors)+len(c.RemovedNeighbors) > 0,
		wireguardLink: len(c.SetPeers)+len(c.RemovedPeers) > 0,
	}
	for _, route := range c.SetRoutes {
		needed[route.Link] = true
	}
	indexes := map[string]int{}
	for name, isNeeded := range needed {
		if !isNeeded {
			continue
		}
		link, err := netlink.LinkByName(name)
		if isNotFound(err) && len(c.SetRoutes)+len(c.SetForwarding)+len(c.SetNeighbors)+len(c.SetPeers) == 0 {
			continue // what is to be removed is gone with the link
		}
		if err != nil {
			return nil, fmt.Errorf("find link %s: %w", name, err)
		}
		indexes[name] = link.Attrs().Index
	}
	return indexes, nil
}

func isNotFound(err error) bool { return errors.As(err, &netlink.LinkNotFoundError{}) }

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !isNotFound(err) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// setLink makes a link, or changes it.
func (k HostKernel) setLink(c Changes) error {
	if c.Recreate {
		if err := removeLink(c.LinkName); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(c.LinkName)
	if isNotFound(err) {
		link, err = addLink(c.LinkName, c.Link)
	}
	if err != nil {
		return err
	}
	if c.Link.Type == linkVXLAN && link.Attrs().HardwareAddr.String() != c.Link.MAC.String() {
		if err := netlink.LinkSetHardwareAddr(link, c.Link.MAC[:]); err != nil {
			return fmt.Errorf("set hardware address of %s: %w", c.LinkName, err)
		}
	}
	if link.Attrs().MTU != c.Link.MTU {
		if err := netlink.LinkSetMTU(link, c.Link.MTU); err != nil {
			return fmt.Errorf("set MTU of %s to %d: %w", c.LinkName, c.Link.MTU, err)
		}
	}
	if c.Link.Type == linkWireGuard {
		if err := writeDevice(link.Attrs().Index, k.PrivateKey, c.Link.Port); err != nil {
			return fmt.Errorf("set the key of %s: %w", c.LinkName, err)
		}
	}
	for name, value := range linkSysctls(c.LinkName) {
		// A host without IPv6 has no such files.
		if err := hostnet.SetSysctl(name, value); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", c.LinkName, err)
	}
	return nil
}

// linkSysctls are the sysctls of a link: its addresses are unique, and there are no routers on it.
func linkSysctls(name string) map[string]string {
	conf := "net/ipv6/conf/" + name + "/"
	return map[string]string{
		"net/ipv4/conf/" + name + "/send_redirects": "0", conf + "disable_ipv6": "0", conf + "accept_dad": "0", conf + "accept_ra": "0",
	}
}

// addLink makes a link.
func addLink(name string, l Link) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, l.MTU
	var link netlink.Link
	switch l.Type {
	case linkVXLAN:
		attrs.HardwareAddr = l.MAC[:]
		// Hardware addresses are not learned from packets: another node could claim them.
		link = &netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: l.VNI, SrcAddr: l.Local.AsSlice(), Port: int(l.Port), Learning: false,
			UDP6ZeroCSumTx: l.Local.Is6(), UDP6ZeroCSumRx: l.Local.Is6(),
		}
	case linkWireGuard:
		link = &netlink.Wireguard{LinkAttrs: attrs}
	}
	err := netlink.LinkAdd(link)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("the kernel has no links of type %s, which --network-backend=%s needs: %w", l.Type, l.Type, err)
	}
	if err != nil {
		return nil, fmt.Errorf("make link %s: %w", name, err)
	}
	return netlink.LinkByName(name)
}

// setAddresses changes the addresses of the wanted link.
func setAddresses(c Changes) error {
	if len(c.AddedAddresses)+len(c.RemovedAddresses) == 0 {
		return nil
	}
	for _, name := range ownLinks {
		link, err := netlink.LinkByName(name)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find link %s: %w", name, err)
		}
		for _, p := range c.RemovedAddresses {
			if err := netlink.AddrDel(link, &netlink.Addr{IPNet: hostnet.IPNet(p)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s from %s: %w", p, name, err)
			}
		}
		for _, p := range c.AddedAddresses {
			if err := hostnet.AddAddress(link, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// setNeighbors changes the forwarding and neighbor entries of the VXLAN link.
func setNeighbors(c Changes, index int) error {
	forwarding := func(mac MAC, remote netip.Addr) *netlink.Neigh {
		return &netlink.Neigh{
			LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, HardwareAddr: mac[:], IP: remote.AsSlice(),
		}
	}
	neighbor := func(gateway netip.Addr, mac MAC) *netlink.Neigh {
		return &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, HardwareAddr: mac[:], IP: gateway.AsSlice()}
	}
	for gateway, mac := range c.RemovedNeighbors {
		if err := netlink.NeighDel(neighbor(gateway, mac)); err != nil && !isGone(err) {
			return fmt.Errorf("remove neighbor %s: %w", gateway, err)
		}
	}
	for mac, remote := range c.RemovedForwarding {
		if err := netlink.NeighDel(forwarding(mac, remote)); err != nil && !isGone(err) {
			return fmt.Errorf("remove forwarding entry %s: %w", mac, err)
		}
	}
	for mac, remote := range c.SetForwarding {
		if err := netlink.NeighSet(forwarding(mac, remote)); err != nil {
			return fmt.Errorf("set forwarding entry %s to %s: %w", mac, remote, err)
		}
	}
	for gateway, mac := range c.SetNeighbors {
		if err := netlink.NeighSet(neighbor(gateway, mac)); err != nil {
			return fmt.Errorf("set neighbor %s to %s: %w", gateway, mac, err)
		}
	}
	return nil
}

// isGone reports that an entry, or the link that had it, does not exist.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}

func setRoute(p netip.Prefix, route Route, index int) error {
	r := netlink.Route{Dst: hostnet.IPNet(p), LinkIndex: index, Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
	if route.Gateway.IsValid() {
		r.Gw = route.Gateway.AsSlice()
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if route.OnLink {
		r.Flags = int(netlink.FLAG_ONLINK)
	}
	if err := netlink.RouteReplace(&r); err != nil {
		return fmt.Errorf("set route to %s %s: %w", p, route, err)
	}
	return nil
}

// Remove removes all links and routes between nodes from the host.
func Remove() error {
	k := HostKernel{}
	s, err := k.Read(NewState())
	if err != nil {
		return fmt.Errorf("remove the routes between nodes: %w", err)
	}
	// Routes by a removed link are removed first, so that nothing depends on what the kernel does with them.
	c := Changes{RemovedRoutes: s.Routes, RemovedLinks: slices.Sorted(maps.Keys(s.Links))}
	if err := k.Apply(c); err != nil {
		return fmt.Errorf("remove the routes between nodes: %w", err)
	}
	return nil
}
