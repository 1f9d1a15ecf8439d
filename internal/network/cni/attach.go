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
	"golang.org/x/sys/unix"
)

// Identity names an attachment: a container and its interface.
type Identity struct {
	Container string
	Interface string
}

// attach joins a pod to the network: an address, a link, its ports.
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
	// Links are made without the lock: many pods start at once.
	bridge, err := link(s, made, namespace)
	if err != nil {
		return made, nil, errors.Join(err, detach(s, made.Container, made.Interface))
	}
	forgetFlows(made)
	return made, bridge, nil
}

// link makes the veth pair, one end on the bridge, the other in the pod's network namespace.
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
		return nil, fmt.Errorf("make link %s to %s of the pod: %w", name, a.Interface, err)
	}
	host, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	// Where the kernel shows bridged packets to the rules (bridge-nf-call-iptables), a packet that they lead to a pod of the same bridge is
	// bridged there, and not routed. A pod that reaches itself must then be reached by the port it came from.
	if err := netlink.LinkSetHairpin(host, true); err != nil {
		return nil, fmt.Errorf("set hairpin on %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	if err := inNamespace(target, func() error { return plan.carryOut(a.Interface) }); err != nil {
		return nil, fmt.Errorf("set up the pod's network: %w", err)
	}
	return bridge, nil
}

// carryOut sets the pod's interface up. It runs in the pod's network namespace.
func (p podPlan) carryOut(ifname string) error {
	for _, s := range p.sysctls {
		if err := s.set(); err != nil {
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
		if err := addAddress(eth, a); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(eth); err != nil {
		return fmt.Errorf("set %s up: %w", ifname, err)
	}
	for _, g := range p.gateways {
		near := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: netOf(netip.PrefixFrom(g, g.BitLen())), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteReplace(near); err != nil {
			return fmt.Errorf("add route to gateway %s: %w", g, err)
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: defaultNet(g), Gw: g.AsSlice()}); err != nil {
			return fmt.Errorf("add default route via %s: %w", g, err)
		}
	}
	return nil
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

// detach undoes attach, whatever of it there is.
func detach(s Settings, container, ifname string) error {
	var gone Attachment
	err := locked(s.DataDir, func(state *State) error {
		before := slices.Clone(state.Attachments)
		gone, _ = state.release(container, ifname)
		if len(gone.Ports) == 0 {
			return nil
		}
		if _, ok := ready(planHost(s)); !ok {
			return nil // no rules, no ports in them
		}
		return updatePorts(s, before, state)
	})
	if err != nil {
		return err
	}
	forgetFlows(gone)
	return removeLink(vethName(container, ifname))
}

// removeLink removes an interface of the host, if there is one.
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

// forgetFlows makes the kernel forget the UDP flows of an attachment's ports. They have no end of their own, and would go on to where
// the port led before.
func forgetFlows(a Attachment) {
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
			// Where there is no list of flows there are none to forget.
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
		}
	}
}

// check says what is missing of an attachment.
func check(s Settings, container, ifname, namespace string) error {
	plan := planHost(s)
	bridge, ok := ready(plan)
	if !ok {
		return fmt.Errorf("the host's side of the network is not as configured")
	}
	var found *Attachment
	err := locked(s.DataDir, func(state *State) error {
		if a := state.find(container, ifname); a != nil {
			found = new(Attachment)
			*found = *a
		}
		return nil
	})
	if err != nil {
		return err
	}
	if found == nil {
		return errors.New("the attachment is not known")
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
	have, err := netlink.AddrList(eth, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, want := range p.addresses {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return prefixOf(a.IPNet) == want }) {
			return fmt.Errorf("%s has lost its address %s", ifname, want)
		}
	}
	routes, err := netlink.RouteList(eth, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, g := range p.gateways {
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Gw.Equal(g.AsSlice()) }) {
			return fmt.Errorf("%s has lost its default route via %s", ifname, g)
		}
	}
	return nil
}

// Collect removes every attachment that is not among those that live, with its link and its ports, and returns the removed ones.
func Collect(s Settings, live []Identity) ([]Attachment, error) {
	s = s.WithDefaults()
	var gone []Attachment
	err := locked(s.DataDir, func(state *State) error {
		before := slices.Clone(state.Attachments)
		gone = state.keep(live)
		if _, ok := ready(planHost(s)); !ok {
			return nil
		}
		return updatePorts(s, before, state)
	})
	if err != nil {
		return nil, fmt.Errorf("collect leftovers of the pod network: %w", err)
	}
	for _, a := range gone {
		forgetFlows(a)
	}
	bridge, err := netlink.LinkByName(s.Bridge)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return gone, nil
		}
		return gone, fmt.Errorf("collect leftovers of the pod network: %w", err)
	}
	var keep []string
	for _, id := range live {
		keep = append(keep, vethName(id.Container, id.Interface))
	}
	return gone, removePorts(bridge, keep)
}

// removePorts removes the links of a bridge that we made, but those to keep.
func removePorts(bridge netlink.Link, keep []string) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var problems []error
	for _, l := range links {
		name := l.Attrs().Name
		if l.Attrs().MasterIndex == bridge.Attrs().Index && l.Type() == "veth" && strings.HasPrefix(name, "veth") && !slices.Contains(keep, name) {
			problems = append(problems, removeLink(name))
		}
	}
	return errors.Join(problems...)
}

// inNamespace calls do in another network namespace. The thread that went there is not used again.
func inNamespace(namespace *os.File, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}
