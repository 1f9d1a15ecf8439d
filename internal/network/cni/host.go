package cni

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/hostnet"
	"skiff/internal/network/nft"
)

// Setup configures the host for pods: the bridge with its addresses, routes, sysctls and nftables rules. It is idempotent and repairs
// differences.
func Setup(s Settings) error {
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return fmt.Errorf("set up pod network: %w", err)
	}
	return locked(s.DataDir, func(state *State) error { return setup(planHost(s), state) })
}

// ready reports whether the host matches the plan, and returns the bridge.
func ready(plan hostPlan) (netlink.Link, bool) {
	bridge, err := netlink.LinkByName(plan.settings.Bridge)
	if err != nil || bridge.Attrs().Flags&net.FlagUp == 0 {
		return nil, false
	}
	return bridge, nft.HasChain(plan.settings.Table, plan.markerChain())
}

// setup carries a plan out. The caller holds the lock.
func setup(plan hostPlan, state *State) error {
	if _, ok := ready(plan); ok {
		return nil
	}
	bridge, err := setupBridge(plan)
	if err != nil {
		return fmt.Errorf("set up bridge %s: %w", plan.settings.Bridge, err)
	}
	if err := setupPorts(bridge); err != nil {
		return err
	}
	if err := keepRouterAdvertisements(plan); err != nil {
		return err
	}
	for _, s := range plan.sysctls {
		if err := hostnet.SetSysctl(s.name, s.value); err != nil {
			return err
		}
	}
	if err := setupRoutes(plan, bridge); err != nil {
		return err
	}
	// Last, because the table has the marker that the setup is complete.
	return setupRules(plan, state)
}

func setupBridge(plan hostPlan) (netlink.Link, error) {
	mtu := plan.settings.MTU
	if mtu == 0 {
		mtu = hostnet.UplinkMTU()
	}
	bridge, err := netlink.LinkByName(plan.settings.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		// The hardware address is fixed: otherwise a bridge takes that of one of its ports, and changes it when the port is removed.
		attrs.Name, attrs.HardwareAddr, attrs.MTU = plan.settings.Bridge, plan.mac, mtu
		snooping := false
		if err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err == nil || errors.Is(err, unix.EEXIST) {
			bridge, err = netlink.LinkByName(plan.settings.Bridge)
		}
	}
	if err != nil {
		return nil, err
	}
	if bridge.Type() != "bridge" {
		return nil, fmt.Errorf("the interface is a %s", bridge.Type())
	}
	if bridge.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(bridge, mtu); err != nil {
			return nil, fmt.Errorf("set MTU %d: %w", mtu, err)
		}
	}
	if bridge.Attrs().HardwareAddr.String() != plan.mac.String() {
		if err := netlink.LinkSetHardwareAddr(bridge, plan.mac); err != nil {
			return nil, fmt.Errorf("set hardware address: %w", err)
		}
	}
	// Before the addresses: IPv6 may be disabled by default.
	for _, s := range plan.sysctls {
		if strings.HasSuffix(s.name, "/disable_ipv6") || strings.HasSuffix(s.name, "/accept_dad") {
			if err := hostnet.SetSysctl(s.name, s.value); err != nil {
				return nil, err
			}
		}
	}
	if err := setupAddresses(plan, bridge); err != nil {
		return nil, err
	}
	return bridge, netlink.LinkSetUp(bridge)
}

// setupAddresses adds the bridge's addresses and removes those of former pod CIDRs.
func setupAddresses(plan hostPlan, bridge netlink.Link) error {
	have, err := hostnet.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(bridge, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var present []netip.Prefix
	for _, a := range have {
		p := hostnet.PrefixOf(a.IPNet)
		if p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !slices.Contains(plan.addresses, p) {
			if err := netlink.AddrDel(bridge, &a); err != nil {
				return fmt.Errorf("remove address %s: %w", p, err)
			}
			continue
		}
		present = append(present, p)
	}
	for _, p := range plan.addresses {
		if slices.Contains(present, p) {
			continue
		}
		if err := hostnet.AddAddress(bridge, p); err != nil {
			return err
		}
	}
	return nil
}

// setupPorts sets up the ports of running pods, which an earlier version may have made.
func setupPorts(bridge netlink.Link) error {
	ports, err := bridgePorts(bridge)
	if err != nil {
		return err
	}
	for _, p := range ports {
		// The pod of the port may be removed meanwhile.
		if err := setFlooding(p, false); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	return nil
}

// keepRouterAdvertisements keeps interfaces accepting router advertisements: by default a host with forwarding enabled ignores them, and
// would lose its default route.
func keepRouterAdvertisements(plan hostPlan) error {
	if _, ok := plan.settings.rangeOf(false); !ok {
		return nil
	}
	if forwarding, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/forwarding"); err != nil || strings.TrimSpace(string(forwarding)) == "1" {
		return nil
	}
	links, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		name := "net/ipv6/conf/" + link.Name() + "/accept_ra"
		if value, err := os.ReadFile("/proc/sys/" + name); err == nil && strings.TrimSpace(string(value)) == "1" && link.Name() != plan.settings.Bridge {
			if err := hostnet.SetSysctl(name, "2"); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownRoutes lists the routes that skiff created.
func ownRoutes() ([]netlink.Route, error) {
	var all []netlink.Route
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

func setupRoutes(plan hostPlan, bridge netlink.Link) error {
	old, err := ownRoutes()
	if err != nil {
		return err
	}
	for _, r := range old {
		// Routes to another bridge, and unreachable routes, may be those of another node.
		if r.LinkIndex != bridge.Attrs().Index || r.Type == unix.RTN_UNREACHABLE {
			continue
		}
		wanted := slices.ContainsFunc(plan.routes, func(w route) bool { return r.Dst != nil && hostnet.PrefixOf(r.Dst) == w.to && !w.unreachable })
		if !wanted {
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove route to %s: %w", r.Dst, err)
			}
		}
	}
	for _, w := range plan.routes {
		r := netlink.Route{Dst: hostnet.IPNet(w.to), Priority: routeMetric, Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
		if w.unreachable {
			r.Type = unix.RTN_UNREACHABLE
		} else {
			r.LinkIndex, r.Scope = bridge.Attrs().Index, netlink.SCOPE_LINK
		}
		if err := netlink.RouteReplace(&r); err != nil {
			return fmt.Errorf("add route: %s: %w", w, err)
		}
	}
	return nil
}

// setupRules replaces the nftables table in one transaction.
func setupRules(plan hostPlan, state *State) error {
	m, err := plan.model(state.Attachments)
	if err == nil {
		w := nft.NewWriter(m, slog.New(slog.DiscardHandler))
		defer w.Close()
		err = w.Replace()
	}
	if err != nil {
		return fmt.Errorf("set up nftables rules: %w", err)
	}
	return nil
}

// updatePorts updates the host ports after a change of the attachments. It sends only changes, because the kernel is slow at deleting
// elements. If the table is not as expected it is replaced.
func updatePorts(s Settings, before []Attachment, state *State) error {
	m, err := planHost(s).model(before)
	if err != nil {
		return fmt.Errorf("update host ports: %w", err)
	}
	m.Commit()
	ports, err := planPorts(state.Attachments)
	if err != nil {
		return fmt.Errorf("update host ports: %w", err)
	}
	m.Replace(portsOwner, nft.Part{Elements: ports})
	if m.Changes().IsEmpty() {
		return nil
	}
	w := nft.NewWriter(m, slog.New(slog.DiscardHandler))
	defer w.Close()
	w.Assume()
	if _, err := w.Apply(); err != nil {
		return fmt.Errorf("update host ports: %w", err)
	}
	return nil
}

// Remove removes the pod network: links, routes, rules and state. Sysctls are kept, because others may depend on them.
func Remove(s Settings) error {
	s = s.WithDefaults()
	return locked(s.DataDir, func(state *State) error {
		*state = State{}
		var problems []error
		bridge, err := netlink.LinkByName(s.Bridge)
		if err == nil {
			problems = append(problems, removePorts(bridge, nil))
			problems = append(problems, netlink.LinkDel(bridge))
		} else if !errors.As(err, &netlink.LinkNotFoundError{}) {
			problems = append(problems, err)
		}
		routes, err := ownRoutes()
		problems = append(problems, err)
		for _, r := range routes {
			isClusterRoute := slices.ContainsFunc(slices.Concat(s.ClusterCIDRs, s.ServiceCIDRs), func(p netip.Prefix) bool { return r.Dst != nil && hostnet.PrefixOf(r.Dst) == p.Masked() })
			if !isClusterRoute {
				continue
			}
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				problems = append(problems, fmt.Errorf("remove route to %s: %w", r.Dst, err))
			}
		}
		problems = append(problems, nft.Remove(s.Table))
		if err := errors.Join(problems...); err != nil {
			return fmt.Errorf("remove pod network: %w", err)
		}
		return nil
	})
}
