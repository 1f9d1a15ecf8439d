package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"skiff/internal/network/hostnet"
)

// Identity names an attachment: a container and its interface.
type Identity struct {
	Container string
	Interface string
}

// attach connects a pod to the network: addresses, a veth pair, host ports.
func attach(s Settings, want Attachment, namespace string) (Attachment, netlink.Link, error) {
	plan := planHost(s)
	var made Attachment
	err := locked(s.DataDir, func(state *State) error {
		if err := setup(plan, state); err != nil {
			return err
		}
		var err error
		before := slices.Clone(state.Attachments)
		if made, err = state.reserve(want, s.PodCIDRs); err != nil {
			return err
		}
		return updatePorts(s, before, state)
	})
	if err != nil {
		return made, nil, err
	}
	// The rest is done without the lock, because many pods start concurrently. Without link, a pod has no packets.
	if err := announce(s.PolicySocket, made); err != nil {
		return made, nil, errors.Join(err, detach(s, made.Container, made.Interface))
	}
	bridge, err := link(s, made, namespace)
	if err != nil {
		return made, nil, errors.Join(err, detach(s, made.Container, made.Interface))
	}
	deleteFlows(made)
	return made, bridge, nil
}

// link creates the veth pair, one end on the bridge, the other in the pod's network namespace.
func link(s Settings, a Attachment, namespace string) (netlink.Link, error) {
	bridge, err := netlink.LinkByName(s.Bridge)
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", s.Bridge, err)
	}
	target, err := os.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer target.Close()
	plan, name := planPod(s, a.Interface, a.Addresses), vethName(a.Container, a.Interface)
	if err := removeLink(name); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = name, bridge.Attrs().MTU, bridge.Attrs().Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = a.Interface, plan.mac, uint32(attrs.MTU)
	veth.PeerNamespace = netlink.NsFd(int(target.Fd()))
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("create veth pair %s, %s: %w", name, a.Interface, err)
	}
	host, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	// With bridge-nf-call-iptables, a packet that is translated to a pod on the same bridge is bridged, not routed. A pod that connects to
	// itself must then be reached through the bridge port the packet came from.
	if err := netlink.LinkSetHairpin(host, true); err != nil {
		return nil, fmt.Errorf("set hairpin on %s: %w", name, err)
	}
	if err := setFlooding(host, false); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	if err := limitLink(host, a.Bandwidth.IngressRate, a.Bandwidth.IngressBurst); err != nil {
		return nil, err
	}
	if err := inNamespace(target, func() error { return plan.carryOut(a.Interface, a.Bandwidth) }); err != nil {
		return nil, fmt.Errorf("configure pod interface: %w", err)
	}
	return bridge, nil
}

// setFlooding sets whether a port of the bridge gets the broadcast and multicast frames of other ports. Those of the host itself it always gets, and
// the host gets those of the port, so that ARP and neighbor discovery work between the host and its pods, but not between two pods: packets from pod to
// pod would bypass the rules of the host.
func setFlooding(port netlink.Link, enabled bool) error {
	value := []byte{0}
	if enabled {
		value[0] = 1
	}
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_BRIDGE)
	message.Index = int32(port.Attrs().Index)
	request.AddData(message)
	flags := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	flags.AddRtAttr(unix.IFLA_BRPORT_MCAST_FLOOD, value)
	flags.AddRtAttr(unix.IFLA_BRPORT_BCAST_FLOOD, value)
	request.AddData(flags)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set flooding of bridge port %s: %w", port.Attrs().Name, err)
	}
	return nil
}

// carryOut configures the pod's interface. It runs in the pod's network namespace.
func (p podPlan) carryOut(ifname string, b Bandwidth) error {
	for _, s := range p.sysctls {
		if err := hostnet.SetSysctl(s.name, s.value); err != nil {
			return err
		}
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	eth, err := netlink.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("find %s: %w", ifname, err)
	}
	for _, a := range p.addresses {
		if err := hostnet.AddAddress(eth, a); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(eth); err != nil {
		return fmt.Errorf("set %s up: %w", ifname, err)
	}
	for _, g := range p.gateways {
		onLink := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: hostnet.IPNet(netip.PrefixFrom(g, g.BitLen())), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteReplace(onLink); err != nil {
			return fmt.Errorf("add route to gateway %s: %w", g, err)
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: defaultNet(g), Gw: g.AsSlice()}); err != nil {
			return fmt.Errorf("add default route via %s: %w", g, err)
		}
	}
	return limitLink(eth, b.EgressRate, b.EgressBurst)
}

func defaultNet(g netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, g.BitLen()/8), Mask: make(net.IPMask, g.BitLen()/8)}
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback interface up: %w", err)
	}
	return nil
}

// detach reverts attach, also after a partial failure.
func detach(s Settings, container, ifname string) error {
	var released Attachment
	err := locked(s.DataDir, func(state *State) error {
		before := slices.Clone(state.Attachments)
		released, _ = state.release(container, ifname)
		if len(released.Ports) == 0 {
			return nil
		}
		if _, ok := ready(planHost(s)); !ok {
			return nil // without the table there are no host ports
		}
		return updatePorts(s, before, state)
	})
	if err != nil {
		return err
	}
	deleteFlows(released)
	return removeLink(vethName(container, ifname))
}

// removeLink deletes an interface of the host if it exists.
func removeLink(name string) error {
	old, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(old)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// deleteFlows deletes the conntrack entries of UDP flows of an attachment's host ports. Otherwise they would keep the old destination.
func deleteFlows(a Attachment) {
	for _, port := range a.Ports {
		if !strings.EqualFold(port.Protocol, "udp") {
			continue
		}
		filter := &netlink.ConntrackFilter{}
		if filter.AddProtocol(unix.IPPROTO_UDP) != nil || filter.AddPort(netlink.ConntrackOrigDstPort, port.HostPort) != nil {
			continue
		}
		for _, address := range a.Addresses {
			family := netlink.InetFamily(unix.AF_INET)
			if address.Is6() {
				family = unix.AF_INET6
			}
			// Without conntrack there are no entries to delete.
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
		}
	}
}

// check returns an error if a part of an attachment is missing.
func check(s Settings, container, ifname, namespace string) error {
	plan := planHost(s)
	bridge, ok := ready(plan)
	if !ok {
		return errors.New("the host network is not configured")
	}
	state, err := inspect(s.DataDir)
	if err != nil {
		return err
	}
	found := state.find(container, ifname)
	if found == nil {
		return errors.New("the attachment does not exist")
	}
	name := vethName(container, ifname)
	host, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if host.Attrs().MasterIndex != bridge.Attrs().Index {
		return fmt.Errorf("link %s is not on bridge %s", name, s.Bridge)
	}
	target, err := os.Open(namespace)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer target.Close()
	return inNamespace(target, func() error { return planPod(s, ifname, found.Addresses).check(ifname) })
}

// check compares the pod's interface with the plan. It runs in the pod's network namespace.
func (p podPlan) check(ifname string) error {
	eth, err := netlink.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("find %s: %w", ifname, err)
	}
	if eth.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("%s is down", ifname)
	}
	have, err := hostnet.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(eth, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, want := range p.addresses {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return hostnet.PrefixOf(a.IPNet) == want }) {
			return fmt.Errorf("%s is missing address %s", ifname, want)
		}
	}
	routes, err := hostnet.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(eth, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, g := range p.gateways {
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Gw.Equal(g.AsSlice()) }) {
			return fmt.Errorf("%s is missing the default route via %s", ifname, g)
		}
	}
	return nil
}

// Collect removes every attachment that is not in live, with its link and host ports, and returns the removed ones.
func Collect(s Settings, live []Identity) ([]Attachment, error) {
	s = s.WithDefaults()
	var released []Attachment
	err := locked(s.DataDir, func(state *State) error {
		before := slices.Clone(state.Attachments)
		released = state.keep(live)
		if _, ok := ready(planHost(s)); !ok {
			return nil
		}
		return updatePorts(s, before, state)
	})
	if err != nil {
		return nil, fmt.Errorf("collect orphaned attachments: %w", err)
	}
	for _, a := range released {
		deleteFlows(a)
	}
	bridge, err := netlink.LinkByName(s.Bridge)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return released, nil
		}
		return released, fmt.Errorf("collect orphaned attachments: %w", err)
	}
	var keep []string
	for _, id := range live {
		keep = append(keep, vethName(id.Container, id.Interface))
	}
	return released, removePorts(bridge, keep)
}

// bridgePorts lists the veth links of a bridge that skiff created.
func bridgePorts(bridge netlink.Link) ([]netlink.Link, error) {
	links, err := hostnet.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool {
		return l.Attrs().MasterIndex != bridge.Attrs().Index || l.Type() != "veth" || !strings.HasPrefix(l.Attrs().Name, "veth")
	}), nil
}

// removePorts deletes the ports of a bridge, except those to keep.
func removePorts(bridge netlink.Link, keep []string) error {
	ports, err := bridgePorts(bridge)
	if err != nil {
		return err
	}
	var problems []error
	for _, p := range ports {
		if name := p.Attrs().Name; !slices.Contains(keep, name) {
			problems = append(problems, removeLink(name))
		}
	}
	return errors.Join(problems...)
}

// inNamespace calls do in another network namespace, on a thread that is not used again.
func inNamespace(namespace *os.File, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits with the goroutine
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}
