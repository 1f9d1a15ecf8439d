package cni

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"skiff/internal/network/nft"
)

// The plan is the desired configuration of the host. It is a value: computed from the settings only, compared in tests, applied by host.go.

// routeMetric gives skiff's routes the lowest preference, so that all other routes take precedence.
const routeMetric = 1 << 20

// RouteProtocol marks skiff's routes, so that obsolete ones can be found.
const RouteProtocol = 83

// route is a route of the host.
type route struct {
	to netip.Prefix
	// unreachable routes reject packets; the others lead to the bridge.
	unreachable bool
}

func (r route) String() string {
	if r.unreachable {
		return "unreachable " + r.to.String()
	}
	return "bridge " + r.to.String()
}

// sysctl is a sysctl, named by its path below /proc/sys.
type sysctl struct{ name, value string }

// hostPlan is the desired configuration of the host.
type hostPlan struct {
	settings  Settings
	addresses []netip.Prefix // of the bridge: the pods' gateways
	mac       net.HardwareAddr
	routes    []route
	sysctls   []sysctl
	rules     nft.Part
}

// gateway is the first address of a pod CIDR, which is the bridge's.
func gateway(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

// rangeOf is the node's pod CIDR of a family.
func (s Settings) rangeOf(is4 bool) (netip.Prefix, bool) {
	i := slices.IndexFunc(s.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return s.PodCIDRs[i].Masked(), true
}

// planHost computes the desired configuration of the host.
func planHost(s Settings) hostPlan {
	plan := hostPlan{settings: s, rules: planRules(s)}
	for _, p := range s.PodCIDRs {
		plan.addresses = append(plan.addresses, netip.PrefixFrom(gateway(p), p.Bits()))
	}
	plan.mac = hardwareAddress(plan.addresses[0].Addr())
	for _, p := range s.ClusterCIDRs {
		plan.routes = append(plan.routes, route{to: p.Masked(), unreachable: true})
	}
	for _, p := range s.ServiceCIDRs {
		// The host's own packets are routed before they are translated, so Service addresses need a route. It leads to the bridge, whose
		// address every pod can reply to. Packets that are not translated are rejected by the rules.
		_, known := s.rangeOf(p.Addr().Is4())
		plan.routes = append(plan.routes, route{to: p.Masked(), unreachable: !known})
	}
	plan.sysctls = planSysctls(s)
	return plan
}

func planSysctls(s Settings) []sysctl {
	var all []sysctl
	if _, ok := s.rangeOf(true); ok {
		conf := "net/ipv4/conf/" + s.Bridge + "/"
		all = append(all,
			sysctl{"net/ipv4/ip_forward", "1"},
			// Pods reach each other through the host, so ICMP redirects would be wrong. Either setting would enable them.
			sysctl{"net/ipv4/conf/all/send_redirects", "0"},
			sysctl{conf + "send_redirects", "0"},
			// A connection to a host port on 127.0.0.1 leaves through the bridge. The rules drop other packets with loopback addresses.
			sysctl{conf + "route_localnet", "1"},
		)
	}
	if _, ok := s.rangeOf(false); ok {
		conf := "net/ipv6/conf/" + s.Bridge + "/"
		all = append(all,
			sysctl{conf + "disable_ipv6", "0"},
			sysctl{conf + "accept_ra", "0"},
			sysctl{conf + "accept_dad", "0"},
			sysctl{"net/ipv6/conf/all/forwarding", "1"},
		)
	}
	return all
}

// portSettings is increased when the settings of bridge ports change, so that those of running pods are changed too.
const portSettings = 1

// markerChain is the name of an empty chain in the table. It exists while the host matches this plan, which makes checking that cheap.
func (p hostPlan) markerChain() string {
	rules := nft.NewModel(p.settings.Table)
	rules.Replace(rulesOwner, p.rules)
	text := fmt.Sprintf("%v\n%v\n%v\n%v\n%d\n%d\n%s", p.addresses, p.mac, p.routes, p.sysctls, p.settings.MTU, portSettings, rules)
	sum := sha256.Sum256([]byte(text))
	return "plan-" + hex.EncodeToString(sum[:8])
}

// hardwareAddress is derived from an IP address, so that neighbor caches stay valid when the address is reused.
func hardwareAddress(a netip.Addr) net.HardwareAddr {
	mac := net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 0}
	if a.Is4() {
		b := a.As4()
		copy(mac[2:], b[:])
		return mac
	}
	b := a.As16()
	sum := sha256.Sum256(b[:])
	copy(mac[2:], sum[:4])
	return mac
}

// vethName is the name of the host's end of a veth pair. It is a hash of the attachment, so that it can be found without state.
func vethName(container, ifname string) string {
	sum := sha256.Sum256([]byte(container + "\x00" + ifname))
	return "veth" + hex.EncodeToString(sum[:4])
}

// podPlan is the desired configuration of a pod's interface.
type podPlan struct {
	addresses []netip.Prefix
	gateways  []netip.Addr
	mac       net.HardwareAddr
	sysctls   []sysctl
}

// planPod computes the configuration of a pod's interface from its addresses.
func planPod(s Settings, ifname string, addresses []netip.Addr) podPlan {
	plan := podPlan{mac: hardwareAddress(addresses[0])}
	for _, a := range addresses {
		own, _ := s.rangeOf(a.Is4())
		plan.addresses = append(plan.addresses, netip.PrefixFrom(a, a.BitLen()))
		plan.gateways = append(plan.gateways, gateway(own))
		if a.Is6() {
			conf := "net/ipv6/conf/" + ifname + "/"
			// The address is unique, so duplicate address detection and router advertisements are disabled.
			plan.sysctls = append(plan.sysctls, sysctl{conf + "disable_ipv6", "0"}, sysctl{conf + "accept_dad", "0"},
				sysctl{conf + "accept_ra", "0"}, sysctl{conf + "accept_redirects", "0"})
		}
	}
	return plan
}

// Port is a host port of a pod.
type Port struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"`
	HostIP        string `json:"hostIP,omitempty"`
}

// planPorts computes the maps of host ports. If two pods have the same port, the newer one gets it: the older one is terminating.
func planPorts(attachments []Attachment) ([]nft.Element, error) {
	newest := map[string]nft.Element{}
	sorted := slices.SortedFunc(slices.Values(attachments), func(a, b Attachment) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, a := range sorted {
		for _, port := range a.Ports {
			elements, err := port.elements(a.Addresses)
			if err != nil {
				return nil, err
			}
			for _, e := range elements {
				newest[e.Set+" "+e.Key] = e
			}
		}
	}
	return slices.Collect(maps.Values(newest)), nil
}

// elements are the map elements of a port: one for each pod address of the same family as the host address.
func (p Port) elements(addresses []netip.Addr) ([]nft.Element, error) {
	protocol, ok := nft.ParseProto(cmp.Or(p.Protocol, "tcp"))
	if !ok {
		return nil, fmt.Errorf("host port %d has unknown protocol %q", p.HostPort, p.Protocol)
	}
	if p.HostPort == 0 {
		return nil, nil
	}
	var host netip.Addr
	if p.HostIP != "" {
		var err error
		if host, err = netip.ParseAddr(p.HostIP); err != nil {
			return nil, fmt.Errorf("host port %d: %w", p.HostPort, err)
		}
		host = host.Unmap()
	}
	var all []nft.Element
	for _, a := range addresses {
		if host.IsValid() && host.Is4() != a.Is4() {
			continue
		}
		e := nft.Element{Set: portSet(false, a.Is4()).Name, Key: nft.Bytes(protocol, p.HostPort), Value: nft.Bytes(a, p.ContainerPort)}
		if host.IsValid() && !host.IsUnspecified() {
			e.Set, e.Key = portSet(true, a.Is4()).Name, nft.Bytes(host)+e.Key
		}
		all = append(all, e)
	}
	return all, nil
}
