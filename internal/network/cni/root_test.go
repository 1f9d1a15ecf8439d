//go:build root

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/hostnet"
	"skiff/internal/network/nft"
	"skiff/test/netns"
)

// Under the plugin's name the test program is the plugin, so that the tests start a real one as the runtime does.
func TestMain(m *testing.M) {
	if Is(os.Args[0]) {
		os.Exit(Main())
	}
	netns.Main(m)
}

// world is a host with the plugin, inside the test's namespaces.
type world struct {
	t        testing.TB
	settings Settings
	plugin   string
}

func newWorld(t testing.TB, change func(*Settings)) *world {
	t.Helper()
	w := &world{t: t, plugin: filepath.Join(t.TempDir(), Name), settings: Settings{
		DataDir: t.TempDir(), PodCIDRs: prefixes("10.42.3.0/24", "fd00:42:0:3::/64"), ClusterCIDRs: prefixes("10.42.0.0/16", "fd00:42::/48"),
		ServiceCIDRs: prefixes("10.43.0.0/16", "fd00:43::/112"), MTU: 1450,
	}.WithDefaults()}
	if change != nil {
		change(&w.settings)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, w.plugin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(w.settings); err != nil {
			t.Error(err)
		}
		if left := w.links(); left != 0 {
			t.Errorf("%d links left", left)
		}
		if routes, err := ownRoutes(); err != nil || len(routes) != 0 {
			t.Errorf("routes left: %v, %v", routes, err)
		}
		connection, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		if tables, err := connection.ListTables(); err != nil || len(tables) != 0 {
			t.Errorf("tables left: %v, %v", tables, err)
		}
	})
	return w
}

// links counts the interfaces of the host that are ours.
func (w *world) links() (n int) {
	links, err := netlink.LinkList()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Name == w.settings.Bridge || strings.HasPrefix(l.Attrs().Name, "veth") {
			n++
		}
	}
	return n
}

// namespace makes a network namespace and returns its path.
func namespace(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

// in calls do inside a network namespace, or on the host when path is empty.
func in(path string, do func() error) error {
	if path == "" {
		return do()
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return inNamespace(file, do)
}

// call starts the plugin as a runtime does.
func (w *world) call(command, container, ns string, extra map[string]any) ([]byte, error) {
	config := map[string]any{}
	text, err := json.Marshal(w.settings)
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		return nil, err
	}
	config["cniVersion"], config["name"], config["type"] = Version, NetworkName, Name
	for key, value := range extra {
		config[key] = value
	}
	if text, err = json.Marshal(config); err != nil {
		return nil, err
	}
	plugin := exec.Command(w.plugin)
	plugin.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_NETNS=" + ns, "CNI_IFNAME=eth0", "CNI_PATH=/none",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + container}
	plugin.Stdin = bytes.NewReader(text)
	out, err := plugin.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return out, nil
}

// pod is a namespace with a network.
type pod struct {
	name, ns  string
	addresses []string
}

func (w *world) pod(name string, ports ...map[string]any) pod {
	w.t.Helper()
	p := pod{name: name, ns: namespace(w.t)}
	out, err := w.call("ADD", name, p.ns, map[string]any{"runtimeConfig": map[string]any{"portMappings": ports}})
	if err != nil {
		w.t.Fatal(err)
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	for _, ip := range result.IPs {
		p.addresses = append(p.addresses, ip.Address.IP.String())
	}
	if len(p.addresses) != len(w.settings.PodCIDRs) || len(result.Interfaces) != 3 || result.Interfaces[2].Sandbox != p.ns {
		w.t.Fatalf("%s", out)
	}
	return p
}

func (w *world) remove(p pod) {
	w.t.Helper()
	for range 2 { // twice: what is gone is gone
		if _, err := w.call("DEL", p.name, p.ns, nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

// serve answers every connection to a port of a namespace with the caller's address.
func serve(t testing.TB, ns, network, port string) {
	t.Helper()
	var closer io.Closer
	err := in(ns, func() error {
		if network == "udp" {
			packets, err := net.ListenPacket("udp", ":"+port)
			if err != nil {
				return err
			}
			closer = packets
			go func() {
				for buffer := make([]byte, 100); ; {
					_, from, err := packets.ReadFrom(buffer)
					if err != nil {
						return
					}
					_, _ = packets.WriteTo([]byte(hostOf(from.String())), from)
				}
			}()
			return nil
		}
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		closer = listener
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, hostOf(c.RemoteAddr().String()))
				_ = c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	a, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	return a.Unmap().String()
}

// ask connects from a namespace and returns the address the other side sees.
func ask(ns, network, address, port string) (seen string, err error) {
	const timeout = 20 * time.Second // with IPv6 the kernel heeds the rejection of the second packet only, a second later
	err = in(ns, func() error {
		c, err := net.DialTimeout(network, net.JoinHostPort(address, port), timeout)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(timeout))
		if network == "udp" {
			if _, err := io.WriteString(c, "?"); err != nil {
				return err
			}
		}
		buffer := make([]byte, 100)
		n, err := c.Read(buffer)
		seen = string(buffer[:n])
		return err
	})
	return seen, err
}

func (w *world) mustSee(ns, network, address, port, want string) {
	w.t.Helper()
	if seen, err := ask(ns, network, address, port); err != nil || seen != want {
		w.t.Errorf("to %s port %s by %s: seen as %q, want %q, %v", address, port, network, seen, want, err)
	}
}

// outside is another machine, joined to the host by a link, which knows the host's address alone.
func (w *world) outside() (ns, hostAddress, address string) {
	w.t.Helper()
	ns = namespace(w.t)
	file, err := os.Open(ns)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink"
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(file.Fd()))
	if err := netlink.LinkAdd(veth); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = netlink.LinkDel(veth) })
	up := func(name, v4, v6 string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range []string{v4, v6} {
			if err := hostnet.AddAddress(link, netip.MustParsePrefix(a)); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	}
	if err := up("uplink", "192.168.77.1/24", "fd77::1/64"); err != nil {
		w.t.Fatal(err)
	}
	if err := in(ns, func() error { return up("eth0", "192.168.77.2/24", "fd77::2/64") }); err != nil {
		w.t.Fatal(err)
	}
	return ns, "192.168.77.1", "192.168.77.2"
}

func TestPodsReachEachOther(t *testing.T) {
	w := newWorld(t, nil)
	a, b := w.pod("a"), w.pod("b")
	serve(t, b.ns, "tcp", "80")
	serve(t, "", "tcp", "81")
	for i := range a.addresses {
		w.mustSee(a.ns, "tcp", b.addresses[i], "80", a.addresses[i])
		w.mustSee(b.ns, "tcp", b.addresses[i], "80", b.addresses[i])
		w.mustSee("", "tcp", b.addresses[i], "80", gateway(w.settings.PodCIDRs[i]).String())
		w.mustSee(a.ns, "tcp", gateway(w.settings.PodCIDRs[i]).String(), "81", a.addresses[i])
	}
	if _, err := w.call("CHECK", "a", a.ns, nil); err != nil {
		t.Error(err)
	}
	err := in(a.ns, func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if eth.Attrs().MTU != 1450 || eth.Attrs().Promisc != 0 {
			t.Errorf("MTU %d, promiscuous %d", eth.Attrs().MTU, eth.Attrs().Promisc)
		}
		list, err := netlink.AddrList(eth, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		return netlink.AddrDel(eth, &list[0])
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.call("CHECK", "a", a.ns, nil); err == nil || !strings.Contains(err.Error(), "is missing address") {
		t.Errorf("CHECK of a pod without its address: %v", err)
	}
	if _, err := w.call("CHECK", "c", a.ns, nil); err == nil {
		t.Error("CHECK of an unknown pod succeeded")
	}
	w.remove(a)
	w.remove(b)
	if n := w.links(); n != 1 {
		t.Errorf("%d links are left, want the bridge alone", n)
	}
}

// bridged calls test with the kernel showing bridged packets to the rules and without: hosts have either.
func bridged(t *testing.T, test func(t *testing.T)) {
	for name, value := range map[string]string{"rules see bridged packets": "1", "rules see routed packets alone": "0"} {
		t.Run(name, func(t *testing.T) {
			for _, setting := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
				if err := hostnet.SetSysctl(setting, value); err != nil && value == "1" {
					t.Logf("this kernel never shows them: %v", err)
				}
			}
			test(t)
		})
	}
}

func TestHostPort(t *testing.T) { bridged(t, testHostPort) }

func testHostPort(t *testing.T) {
	w := newWorld(t, nil)
	other, hostAddress, address := w.outside()
	tcp := func(host, container int, ip string) map[string]any {
		return map[string]any{"HostPort": host, "ContainerPort": container, "Protocol": "tcp", "HostIP": ip}
	}
	server := w.pod("server", tcp(8080, 80, ""), tcp(8081, 80, hostAddress), tcp(8082, 80, "127.0.0.1"),
		map[string]any{"HostPort": 5353, "ContainerPort": 53, "Protocol": "udp"})
	client := w.pod("client")
	serve(t, server.ns, "tcp", "80")
	serve(t, server.ns, "udp", "53")

	bridge4, bridge6 := "10.42.3.1", "fd00:42:0:3::1"
	w.mustSee("", "tcp", "127.0.0.1", "8080", bridge4)
	w.mustSee("", "tcp", "127.0.0.1", "8082", bridge4)
	w.mustSee("", "udp", "127.0.0.1", "5353", bridge4)
	// From another address of the host than the one it connects to.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(hostAddress)}, Timeout: 3 * time.Second}
	if c, err := dialer.Dial("tcp", "127.0.0.1:8082"); err != nil {
		t.Error(err)
	} else {
		if seen, err := io.ReadAll(c); err != nil || string(seen) != hostAddress {
			t.Errorf("seen as %q, %v", seen, err)
		}
		_ = c.Close()
	}
	w.mustSee("", "tcp", hostAddress, "8080", hostAddress)
	w.mustSee("", "tcp", hostAddress, "8081", hostAddress)
	w.mustSee(other, "tcp", hostAddress, "8080", address)
	w.mustSee(other, "tcp", hostAddress, "8081", address)
	w.mustSee(other, "udp", hostAddress, "5353", address)
	w.mustSee(other, "tcp", "fd77::1", "8080", "fd77::2")
	w.mustSee(client.ns, "tcp", hostAddress, "8080", bridge4)
	w.mustSee(client.ns, "tcp", "fd77::1", "8080", bridge6)
	// A pod reaches itself by the host's port.
	w.mustSee(server.ns, "tcp", hostAddress, "8080", bridge4)
	w.mustSee(server.ns, "tcp", "fd77::1", "8080", bridge6)
	for _, refused := range [][3]string{{"", "127.0.0.1", "8081"}, {other, hostAddress, "8082"}, {other, "fd77::1", "8081"}} {
		if _, err := ask(refused[0], "tcp", refused[1], refused[2]); err == nil {
			t.Errorf("port %s answers at %s", refused[2], refused[1])
		}
	}
	w.remove(server)
	for _, network := range []string{"tcp", "udp"} {
		port := map[string]string{"tcp": "8080", "udp": "5353"}[network]
		if seen, err := ask("", network, hostAddress, port); err == nil {
			t.Errorf("the %s port of a pod that is gone answers %q", network, seen)
		}
	}
	// The next pod with these ports gets them, also from clients that go on sending to the old one.
	next := w.pod("next", tcp(8080, 80, ""), map[string]any{"HostPort": 5353, "ContainerPort": 53, "Protocol": "udp"})
	serve(t, next.ns, "tcp", "80")
	serve(t, next.ns, "udp", "53")
	w.mustSee(other, "tcp", hostAddress, "8080", address)
	w.mustSee(other, "udp", hostAddress, "5353", address)
}

// TestLoopbackIsGuarded sends from a pod to the host's loopback addresses, which the bridge would route.
func TestLoopbackIsGuarded(t *testing.T) {
	w := newWorld(t, nil)
	p := w.pod("p")
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	port := packets.LocalAddr().(*net.UDPAddr).Port
	err = in(p.ns, func() error {
		// The pod makes 127.0.0.0/8 somebody else's, as a privileged one can.
		if err := hostnet.SetSysctl("net/ipv4/conf/eth0/route_localnet", "1"); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(lo); err != nil {
			return err
		}
		if err := netlink.RouteReplace(&netlink.Route{Dst: hostnet.IPNet(loopback), Gw: net.IPv4(10, 42, 3, 1)}); err != nil {
			return err
		}
		c, err := net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, "hello")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = packets.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, from, err := packets.ReadFrom(make([]byte, 10)); err == nil {
		t.Errorf("a pod reached the host's loopback: %d bytes from %s", n, from)
	}
}

func TestMasquerade(t *testing.T) {
	w := newWorld(t, nil)
	other, hostAddress, address := w.outside()
	p := w.pod("p")
	serve(t, other, "tcp", "80")
	w.mustSee(p.ns, "tcp", address, "80", hostAddress)
	w.mustSee(p.ns, "tcp", "fd77::2", "80", "fd77::1")

	// Another node's pods see the pod's own address.
	err := in(other, func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := hostnet.AddAddress(eth, netip.MustParsePrefix("10.42.9.9/32")); err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{Dst: hostnet.IPNet(w.settings.PodCIDRs[0]), Gw: net.ParseIP(hostAddress)})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteReplace(&netlink.Route{Dst: hostnet.IPNet(netip.MustParsePrefix("10.42.9.0/24")), Gw: net.ParseIP(address)}); err != nil {
		t.Fatal(err)
	}
	w.mustSee(p.ns, "tcp", "10.42.9.9", "80", p.addresses[0])
}

// proxies calls test with the rules beside skiff's own Service proxy and beside another one.
func proxies(t *testing.T, test func(t *testing.T, ownProxy bool)) {
	for name, own := range map[string]bool{"own proxy": true, "another proxy": false} {
		t.Run(name, func(t *testing.T) { test(t, own) })
	}
}

// TestUnownedAddresses sends to pods and services that do not exist: the answer comes at once, and nothing leaves by the default route.
func TestUnownedAddresses(t *testing.T) {
	bridged(t, func(t *testing.T) { proxies(t, testUnownedAddresses) })
}

func testUnownedAddresses(t *testing.T, ownProxy bool) {
	w := newWorld(t, func(s *Settings) { s.OwnProxy = ownProxy })
	other, _, address := w.outside()
	p := w.pod("p")
	for _, gw := range []string{address, "fd77::2"} {
		if err := netlink.RouteReplace(&netlink.Route{Dst: defaultNet(netip.MustParseAddr(gw)), Gw: net.ParseIP(gw)}); err != nil {
			t.Fatal(err)
		}
	}
	err := in(other, func() error {
		for _, a := range []string{"10.42.200.1/32", "10.43.0.5/32", "fd00:42:0:99::1/128", "fd00:43::5/128"} {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			if err := hostnet.AddAddress(eth, netip.MustParsePrefix(a)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, other, "tcp", "80")
	for _, to := range []string{"10.42.200.1", "10.43.0.5", "fd00:42:0:99::1", "fd00:43::5"} {
		for _, ns := range []string{"", p.ns} {
			if seen, err := ask(ns, "tcp", to, "80"); err == nil {
				t.Errorf("%s is reached from %q as %q", to, ns, seen)
			} else if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("%s from %q: %v", to, ns, err)
			}
		}
	}
}

// A network of the host that lies in the service CIDR stays reachable, from the host and from pods: a host may get such an address later.
func TestHostNetworkInServiceCIDR(t *testing.T) { proxies(t, testHostNetworkInServiceCIDR) }

func testHostNetworkInServiceCIDR(t *testing.T, ownProxy bool) {
	w := newWorld(t, func(s *Settings) { s.ServiceCIDRs, s.OwnProxy = prefixes("192.168.0.0/16", "fd77::/48"), ownProxy })
	other, host, address := w.outside()
	p := w.pod("p")
	serve(t, other, "tcp", "80")
	w.mustSee("", "tcp", address, "80", host)
	// Whether the server listens for IPv6 depends on the namespace in which Go has tried that first.
	if _, err := ask("", "tcp", "fd77::2", "80"); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("fd77::2 is not reached: %v", err)
	}
	w.mustSee(p.ns, "tcp", address, "80", host)
	for _, to := range []string{"192.168.200.1", "fd77:0:0:9::1"} {
		if seen, err := ask("", "tcp", to, "80"); err == nil {
			t.Errorf("%s is reached as %q", to, seen)
		}
	}
}

// TestServiceAddress translates a service's address as a service proxy would, from the host and from a pod: routes and rejections must
// not be in its way, and a pod sees the caller's own address.
func TestServiceAddress(t *testing.T) {
	bridged(t, func(t *testing.T) { proxies(t, testServiceAddress) })
}

func testServiceAddress(t *testing.T, ownProxy bool) {
	w := newWorld(t, func(s *Settings) { s.OwnProxy = ownProxy })
	a, b := w.pod("a"), w.pod("b")
	serve(t, b.ns, "tcp", "80")
	m := nft.NewModel("proxy")
	defer func() { _ = nft.Remove("proxy") }()
	services := nft.Set{Name: "services", Key: []nft.Type{nft.IPv4Addr}, Value: []nft.Type{nft.IPv4Addr, nft.InetService}}
	part := nft.Part{Sets: []nft.Set{services}, Elements: []nft.Element{
		{Set: services.Name, Key: nft.Bytes(netip.MustParseAddr("10.43.0.10")), Value: nft.Bytes(netip.MustParseAddr(b.addresses[0]), uint16(80))},
	}}
	for _, point := range []string{"prerouting", "output"} {
		part.Chains = append(part.Chains, nft.Chain{Name: point, Hook: &nft.Hook{Type: "nat", Point: point, Priority: -100}, Rules: []nft.Rule{
			nft.NewRule(nft.Family(true), nft.DNAT(true, nft.Lookup(services, nft.DestinationAddr(true)))),
		}})
	}
	m.Replace("", part)
	if err := nft.NewWriter(m, slog.New(slog.DiscardHandler)).Replace(); err != nil {
		t.Fatal(err)
	}
	w.mustSee("", "tcp", "10.43.0.10", "80", "10.42.3.1")
	w.mustSee(a.ns, "tcp", "10.43.0.10", "80", a.addresses[0])
}

func TestManyAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	const count = 50
	pods := make([]pod, count)
	for i := range pods {
		pods[i] = pod{name: fmt.Sprintf("pod-%d", i), ns: namespace(t)}
	}
	parallel := func(do func(i int) error) {
		t.Helper()
		var group sync.WaitGroup
		for i := range pods {
			group.Go(func() {
				if err := do(i); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	began := time.Now()
	parallel(func(i int) error {
		out, err := w.call("ADD", pods[i].name, pods[i].ns, map[string]any{"runtimeConfig": map[string]any{"portMappings": []any{
			map[string]any{"hostPort": 9000 + i, "containerPort": 80, "protocol": "tcp"}}}})
		if err != nil {
			return err
		}
		var result current.Result
		if err := json.Unmarshal(out, &result); err != nil {
			return err
		}
		for _, ip := range result.IPs {
			pods[i].addresses = append(pods[i].addresses, ip.Address.IP.String())
		}
		return nil
	})
	t.Logf("%d pods added in %v", count, time.Since(began))
	seen := map[string]bool{}
	for _, p := range pods {
		for _, a := range p.addresses {
			if seen[a] {
				t.Errorf("%s was given out twice", a)
			}
			seen[a] = true
		}
	}
	if n := w.links(); n != count+1 || len(seen) != 2*count {
		t.Errorf("%d links, %d addresses", n, len(seen))
	}
	serve(t, pods[7].ns, "tcp", "80")
	w.mustSee("", "tcp", "127.0.0.1", "9007", "10.42.3.1")
	began = time.Now()
	parallel(func(i int) error { _, err := w.call("DEL", pods[i].name, pods[i].ns, nil); return err })
	t.Logf("%d pods removed in %v", count, time.Since(began))
	err := locked(w.settings.DataDir, func(s *State) error {
		if len(s.Attachments) != 0 {
			t.Errorf("%d attachments are left", len(s.Attachments))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := w.links(); n != 1 {
		t.Errorf("%d links left", n)
	}
}

func TestCollect(t *testing.T) {
	w := newWorld(t, nil)
	port := func(n int) map[string]any {
		return map[string]any{"hostPort": n, "containerPort": 80, "protocol": "tcp"}
	}
	stays, goes := w.pod("stays", port(8001)), w.pod("goes", port(8002))
	serve(t, stays.ns, "tcp", "80")
	serve(t, goes.ns, "tcp", "80")
	w.mustSee("", "tcp", "127.0.0.1", "8002", "10.42.3.1")
	// A link nobody remembers, as after a crash between two steps.
	attrs := netlink.NewLinkAttrs()
	bridge, err := netlink.LinkByName(w.settings.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	attrs.Name, attrs.MasterIndex = "veth00000000", bridge.Attrs().Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName = "lost"
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	_, err = w.call("GC", "", "", map[string]any{"cni.dev/valid-attachments": []any{map[string]any{"containerID": "stays", "ifname": "eth0"}}})
	if err != nil {
		t.Fatal(err)
	}
	if n := w.links(); n != 2 {
		t.Errorf("%d links, want the bridge and one pod's", n)
	}
	w.mustSee("", "tcp", "127.0.0.1", "8001", "10.42.3.1")
	if _, err := ask("", "tcp", "127.0.0.1", "8002"); err == nil {
		t.Error("the port of a collected pod answers")
	}
	if _, err := w.call("CHECK", "stays", stays.ns, nil); err != nil {
		t.Error(err)
	}
	gone, err := Collect(w.settings, nil)
	if err != nil || len(gone) != 1 || gone[0].Pod != "stays" || gone[0].Namespace != "default" {
		t.Errorf("%v, %v", gone, err)
	}
}

// TestRepair loses what the host needs; the next pod finds it again, and the ports of older pods too.
func TestRepair(t *testing.T) {
	w := newWorld(t, nil)
	a := w.pod("a", map[string]any{"hostPort": 8001, "containerPort": 80, "protocol": "tcp"})
	serve(t, a.ns, "tcp", "80")
	connection, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	connection.DelTable(&nftables.Table{Name: w.settings.Table, Family: nftables.TableFamilyINet})
	if err := connection.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask("", "tcp", "127.0.0.1", "8001"); err == nil {
		t.Fatal("the port answers without rules")
	}
	if _, err := w.call("CHECK", "a", a.ns, nil); err == nil {
		t.Error("CHECK is content without rules")
	}
	if _, err := w.call("STATUS", "", "", nil); err != nil {
		t.Fatal(err)
	}
	w.mustSee("", "tcp", "127.0.0.1", "8001", "10.42.3.1")
	// A port is taken out by somebody else; its pod goes all the same.
	connection.FlushSet(&nftables.Set{Name: portsAny + "4", Table: &nftables.Table{Name: w.settings.Table, Family: nftables.TableFamilyINet}})
	if err := connection.Flush(); err != nil {
		t.Fatal(err)
	}
	w.remove(a)
	// The node gets another range.
	w.settings.PodCIDRs = prefixes("10.42.4.0/24")
	b := w.pod("b")
	if b.addresses[0] != "10.42.4.2" {
		t.Errorf("%v", b.addresses)
	}
	serve(t, b.ns, "tcp", "80")
	w.mustSee("", "tcp", b.addresses[0], "80", "10.42.4.1")
}

func TestFailedAddLeavesNothing(t *testing.T) {
	w := newWorld(t, func(s *Settings) { s.PodCIDRs = prefixes("10.42.3.0/30") })
	if _, err := w.call("ADD", "a", "/no/such/namespace", nil); err == nil {
		t.Error("a pod without a namespace was added")
	}
	only := w.pod("only")
	if _, err := w.call("ADD", "b", namespace(t), nil); err == nil || !strings.Contains(err.Error(), `"code": 11`) {
		t.Errorf("a second pod in a range for one: %v", err)
	}
	if n := w.links(); n != 2 {
		t.Errorf("%d links", n)
	}
	w.remove(only)
	if _, err := w.call("ADD", "b", namespace(t), map[string]any{"podCIDRs": nil}); err == nil || !strings.Contains(err.Error(), `"code": 7`) {
		t.Errorf("no range: %v", err)
	}
	if _, err := w.call("STATUS", "", "", map[string]any{"podCIDRs": nil}); err == nil || !strings.Contains(err.Error(), `"code": 50`) {
		t.Errorf("status without a range: %v", err)
	}
}

// TestBandwidth checks that a pod's limits are set, or that the error says what the kernel lacks.
func TestBandwidth(t *testing.T) {
	w := newWorld(t, nil)
	p := pod{name: "limited", ns: namespace(t)}
	_, err := w.call("ADD", p.name, p.ns, map[string]any{"runtimeConfig": map[string]any{
		"bandwidth": map[string]any{"ingressRate": 8_000_000, "ingressBurst": 1 << 32, "egressRate": 16_000_000, "egressBurst": 1 << 32},
	}})
	if err != nil {
		if !strings.Contains(err.Error(), "the kernel has no queueing discipline tbf") {
			t.Fatal(err)
		}
		return
	}
	defer w.remove(p)
	if rate := tokenBucketRate(t, vethName(p.name, "eth0")); rate != 1_000_000 {
		t.Errorf("the pod receives %d bytes per second, want 1000000", rate)
	}
	err = in(p.ns, func() error {
		if rate := tokenBucketRate(t, "eth0"); rate != 2_000_000 {
			return fmt.Errorf("the pod sends %d bytes per second, want 2000000", rate)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func tokenBucketRate(t *testing.T, name string) uint64 {
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Error(err)
		return 0
	}
	disciplines, err := netlink.QdiscList(link)
	if err != nil {
		t.Error(err)
	}
	for _, d := range disciplines {
		if bucket, ok := d.(*netlink.Tbf); ok {
			return bucket.Rate
		}
	}
	return 0
}

func TestLoopbackPlugin(t *testing.T) {
	w := newWorld(t, nil)
	ns := namespace(t)
	out, err := w.call("ADD", "a", ns, map[string]any{"type": "loopback"})
	if err != nil || !strings.Contains(string(out), "127.0.0.1/8") {
		t.Fatalf("%s, %v", out, err)
	}
	serve(t, ns, "tcp", "80")
	w.mustSee(ns, "tcp", "127.0.0.1", "80", "127.0.0.1")
	if _, err := w.call("DEL", "a", ns, map[string]any{"type": "loopback"}); err != nil {
		t.Error(err)
	}
}

func BenchmarkAddDelete(b *testing.B) {
	w := newWorld(b, nil)
	ns := namespace(b)
	w.remove(w.pod("first"))
	for b.Loop() {
		if _, err := w.call("ADD", "a", ns, nil); err != nil {
			b.Fatal(err)
		}
		if _, err := w.call("DEL", "a", ns, nil); err != nil {
			b.Fatal(err)
		}
	}
}
