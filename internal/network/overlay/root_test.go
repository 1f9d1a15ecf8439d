//go:build root

package overlay

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"skiff/internal/network/cni"
	"skiff/internal/network/hostnet"
	"skiff/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

const (
	segment = "segment"
	hosts   = 3
	wait    = 3 * time.Second
)

// host is a host with a pod network and one pod.
type host struct {
	netns.Namespace
	node   Node
	pod    netns.Namespace
	writer *Writer
	// publicKey is that of a WireGuard link.
	publicKey Key
	t         *testing.T
}

// newHosts makes hosts that share a network segment, each in a network namespace of its own. Reverse path filtering is strict on all.
func newHosts(t *testing.T, backend Backend) []*host {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = segment
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	if err := netlink.LinkSetUp(bridge); err != nil {
		t.Fatal(err)
	}
	var all []*host
	for number := 1; number <= hosts; number++ {
		h := &host{Namespace: netns.New(t), node: testNode(number), pod: netns.New(t), t: t}
		h.writer = NewWriter(HostKernel{}, slog.New(slog.DiscardHandler))
		port := fmt.Sprintf("host%d", number)
		h.Connect(t, port, nil, []string{fmt.Sprintf("192.168.7.%d/24", number), fmt.Sprintf("fd07::%d/64", number)})
		link, err := netlink.LinkByName(port)
		if err == nil {
			err = netlink.LinkSetMaster(link, bridge)
		}
		if err == nil {
			err = h.Do(func() error { return h.setUp(t.TempDir(), backend) })
		}
		if err == nil {
			err = h.connectPod(number)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.pod.Serve(t, fmt.Sprintf("pod%d", number), "80")
		all = append(all, h)
	}
	return all
}

// setUp sets up the pod network of the host.
func (h *host) setUp(dataDir string, backend Backend) error {
	for _, name := range []string{"all", "default", "eth0"} {
		if err := hostnet.SetSysctl("net/ipv4/conf/"+name+"/rp_filter", "1"); err != nil {
			return err
		}
	}
	settings, err := h.settings(backend)
	if err != nil {
		return err
	}
	return cni.Setup(cni.Settings{
		DataDir: dataDir, PodCIDRs: h.node.PodCIDRs, ClusterCIDRs: settings.ClusterCIDRs, ServiceCIDRs: prefixes("10.43.0.0/16", "fd43::/112"), MTU: settings.MTU(),
	})
}

// settings are those of the host. They are read inside its namespace.
func (h *host) settings(backend Backend) (Settings, error) {
	s := testSettings(backend)
	s.NodeName, s.IPs, s.PublicKey = h.node.Name, h.node.IPs, h.publicKey
	var err error
	s.Networks, err = hostnet.Networks()
	return s, err
}

// podIPs are the addresses of the host's pod.
func (h *host) podIPs() (ips []netip.Addr) {
	for _, p := range h.node.PodCIDRs {
		ips = append(ips, p.Addr().Next().Next())
	}
	return ips
}

// connectPod joins the pod to the host's bridge, as the CNI plugin does.
func (h *host) connectPod(number int) error {
	file, err := h.pod.Open()
	if err != nil {
		return err
	}
	defer file.Close()
	err = h.Do(func() error {
		bridge, err := netlink.LinkByName("skiff0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex, attrs.MTU = fmt.Sprintf("veth%d", number), bridge.Attrs().Index, bridge.Attrs().MTU
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace, veth.PeerMTU = "eth0", netlink.NsFd(int(file.Fd())), uint32(attrs.MTU)
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
	if err != nil {
		return err
	}
	return h.pod.Do(func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(eth); err != nil {
			return err
		}
		for i, ip := range h.podIPs() {
			if err := hostnet.AddAddress(eth, netip.PrefixFrom(ip, ip.BitLen())); err != nil {
				return err
			}
			gateway := h.node.PodCIDRs[i].Addr().Next()
			route := netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
			if err := netlink.RouteAdd(&route); err != nil {
				return fmt.Errorf("add default route via %s: %w", gateway, err)
			}
		}
		return nil
	})
}

// apply sets up the routes of a host to nodes. It returns the number of changes.
func (h *host) apply(backend Backend, nodes []Node) int {
	h.t.Helper()
	changes := 0
	err := h.Do(func() error {
		settings, err := h.settings(backend)
		if err != nil {
			return err
		}
		state, problems := Compile(settings, nodes)
		if len(problems) > 0 {
			return fmt.Errorf("problems: %v", problems)
		}
		changes, err = h.writer.Apply(state)
		return err
	})
	if err != nil {
		h.t.Fatalf("%s: %v", h.node.Name, err)
	}
	return changes
}

func nodesOf(all []*host) (nodes []Node) {
	for _, h := range all {
		nodes = append(nodes, h.node)
	}
	return nodes
}

// mustReach connects from a namespace to a pod and checks the address that the pod sees.
func mustReach(t *testing.T, from netns.Namespace, to *host, ip netip.Addr, want func(netip.Addr) bool) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		_, client, err := from.Ask(network, netip.AddrPortFrom(ip, 80).String(), wait)
		seen, _ := netip.ParseAddr(client)
		if err != nil || !want(seen) {
			t.Errorf("%s to %s of %s: seen as %q, error %v", network, ip, to.node.Name, client, err)
		}
	}
}

func backendTests(t *testing.T, test func(t *testing.T, backend Backend)) {
	for _, backend := range []Backend{VXLAN, HostGW} {
		t.Run(string(backend), func(t *testing.T) { test(t, backend) })
	}
}

func TestPodsOfThreeHosts(t *testing.T) {
	backendTests(t, func(t *testing.T, backend Backend) {
		all := newHosts(t, backend)
		for _, h := range all {
			h.apply(backend, nodesOf(all))
		}
		for _, from := range all {
			for _, to := range all {
				if from == to {
					continue
				}
				for i, ip := range to.podIPs() {
					own := from.podIPs()[i]
					mustReach(t, from.pod, to, ip, func(seen netip.Addr) bool { return seen == own })
					// From the host itself, with an address to which the pod can reply by the same way.
					mustReach(t, from.Namespace, to, ip, func(seen netip.Addr) bool {
						return from.node.PodCIDRs[i].Contains(seen) || slices.Contains(from.node.IPs, seen)
					})
				}
			}
		}
	})
}

func TestRemovedNode(t *testing.T) {
	backendTests(t, func(t *testing.T, backend Backend) {
		all := newHosts(t, backend)
		for _, h := range all {
			h.apply(backend, nodesOf(all))
		}
		for _, h := range all[:2] {
			h.apply(backend, nodesOf(all[:2]))
		}
		for _, ip := range all[2].podIPs() {
			// The unreachable route of the cluster's pods is left: nothing leaves the host.
			_, _, err := all[0].pod.Ask("tcp", netip.AddrPortFrom(ip, 80).String(), wait)
			if err == nil || errors.Is(err, netns.ErrDropped) {
				t.Errorf("a pod of a removed node: %v, want an error at once", err)
			}
		}
		for i, ip := range all[1].podIPs() {
			mustReach(t, all[0].pod, all[1], ip, func(seen netip.Addr) bool { return seen == all[0].podIPs()[i] })
		}
	})
}

// TestStartAgain checks that a new process changes nothing, and repairs what is missing.
func TestStartAgain(t *testing.T) {
	backendTests(t, func(t *testing.T, backend Backend) {
		all := newHosts(t, backend)
		for _, h := range all {
			h.apply(backend, nodesOf(all))
			h.writer = NewWriter(HostKernel{}, slog.New(slog.DiscardHandler))
			if changes := h.apply(backend, nodesOf(all)); changes != 0 {
				t.Errorf("%s: %d changes after a restart, want none", h.node.Name, changes)
			}
		}
		err := all[0].Do(func() error {
			if backend == VXLAN {
				return removeLink(vxlanLink)
			}
			return netlink.RouteDel(&netlink.Route{Dst: hostnet.IPNet(all[1].node.PodCIDRs[0]), Protocol: RouteProtocol})
		})
		if err != nil {
			t.Fatal(err)
		}
		all[0].writer.Forget()
		if changes := all[0].apply(backend, nodesOf(all)); changes == 0 {
			t.Error("nothing was repaired")
		}
		mustReach(t, all[0].pod, all[1], all[1].podIPs()[0], func(seen netip.Addr) bool { return seen == all[0].podIPs()[0] })
	})
}

// TestBackendChange checks that nothing of the old backend is left, and that Remove removes the rest.
func TestBackendChange(t *testing.T) {
	all := newHosts(t, VXLAN)
	for _, backend := range []Backend{VXLAN, HostGW, VXLAN, HostGW} {
		for _, h := range all {
			h.apply(backend, nodesOf(all))
			err := h.Do(func() error {
				_, err := netlink.LinkByName(vxlanLink)
				if exists := err == nil; exists != (backend == VXLAN) {
					return fmt.Errorf("link %s exists: %v", vxlanLink, exists)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s, %s: %v", backend, h.node.Name, err)
			}
		}
		mustReach(t, all[0].pod, all[1], all[1].podIPs()[0], func(seen netip.Addr) bool { return seen == all[0].podIPs()[0] })
	}
	err := all[0].Do(func() error {
		if err := Remove(); err != nil {
			return err
		}
		routes, err := ownRoutes()
		if len(routes) > 0 {
			err = fmt.Errorf("routes left: %v", routes)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWireGuardLink checks that the link has its key, or that the error names what is missing on a kernel without WireGuard.
func TestWireGuardLink(t *testing.T) {
	private, public, err := ReadPrivateKey(t.TempDir() + "/key")
	if err != nil {
		t.Fatal(err)
	}
	h := newHosts(t, WireGuard)[0]
	h.writer = NewWriter(HostKernel{PrivateKey: private}, slog.New(slog.DiscardHandler))
	h.publicKey = public
	err = h.Do(func() error {
		settings, err := h.settings(WireGuard)
		if err != nil {
			return err
		}
		state, _ := Compile(settings, []Node{h.node, testNode(2)})
		_, err = h.writer.Apply(state)
		return err
	})
	const want = "the kernel has no links of type wireguard, which --network-backend=wireguard needs"
	if err != nil {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		return
	}
	h.writer.Forget()
	if changes := h.apply(WireGuard, []Node{h.node, testNode(2)}); changes != 0 {
		t.Errorf("%d changes after the link was made, want none", changes)
	}
}

// Nodes whose objects say something wrong neither take packets to the pods of others, nor keep this node from setting up its routes.
func TestFaultyNodes(t *testing.T) {
	backendTests(t, func(t *testing.T, backend Backend) {
		all := newHosts(t, backend)
		faulty := func(number int, change func(*Node)) Node {
			n := testNode(number)
			change(&n)
			return n
		}
		nodes := append(nodesOf(all),
			faulty(11, func(n *Node) { n.PodCIDRs[0] = testNode(2).PodCIDRs[0] }),
			faulty(12, func(n *Node) { n.IPs = testNode(1).IPs }),
			faulty(13, func(n *Node) { n.IPs = addrs("192.168.7.255", "ff02::1") }))
		for _, h := range all {
			err := h.Do(func() error {
				settings, err := h.settings(backend)
				if err != nil {
					return err
				}
				state, problems := Compile(settings, nodes)
				if len(problems) == 0 {
					return errors.New("no problems are reported")
				}
				_, err = h.writer.Apply(state)
				return err
			})
			if err != nil {
				t.Errorf("%s: %v", h.node.Name, err)
			}
		}
		for i, ip := range all[1].podIPs() {
			mustReach(t, all[0].pod, all[1], ip, func(seen netip.Addr) bool { return seen == all[0].podIPs()[i] })
		}
	})
}
