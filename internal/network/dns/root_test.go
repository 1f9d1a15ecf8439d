//go:build root

package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/test/netns"
)

// The tests run in namespaces of their own.
func TestMain(m *testing.M) { netns.Main(m) }

// addresses are the addresses of an interface, except the usual ones of loopback.
func addresses(t *testing.T, link netlink.Link) []netip.Addr {
	t.Helper()
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var ips []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLoopback() {
			ips = append(ips, ip.Unmap())
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips
}

func loopback(t *testing.T) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func parseAddresses(texts ...string) []netip.Addr {
	var ips []netip.Addr
	for _, text := range texts {
		ips = append(ips, netip.MustParseAddr(text))
	}
	return ips
}

func TestHostAddresses(t *testing.T) {
	link := loopback(t)
	file := filepath.Join(t.TempDir(), "dns", "addresses.json")
	foreign := netip.MustParseAddr("10.96.0.53")
	if err := netlink.AddrAdd(link, hostAddress(foreign)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.AddrDel(link, hostAddress(foreign)) })
	for _, test := range []struct {
		about     string
		set, want []netip.Addr
	}{
		{"none", nil, parseAddresses("10.96.0.53")},
		{"both families", parseAddresses("10.96.0.10", "fd00:96::a"), parseAddresses("10.96.0.10", "10.96.0.53", "fd00:96::a")},
		{"again", parseAddresses("10.96.0.10", "fd00:96::a"), parseAddresses("10.96.0.10", "10.96.0.53", "fd00:96::a")},
		{"another one", parseAddresses("10.97.0.10"), parseAddresses("10.96.0.53", "10.97.0.10")},
		{"one that the host has already", parseAddresses("10.96.0.53"), parseAddresses("10.96.0.53")},
		{"removed", nil, parseAddresses("10.96.0.53")},
	} {
		// A new value each time: only the file remembers.
		if err := (HostAddresses{File: file}).Set(test.set); err != nil {
			t.Fatalf("%s: %v", test.about, err)
		}
		if got := addresses(t, link); !slices.Equal(got, test.want) {
			t.Errorf("%s: the host has %v, want %v", test.about, got, test.want)
		}
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

// TestPodQueries asks from a network namespace that is connected as a pod's is, over both families and both transports.
func TestPodQueries(t *testing.T) {
	// A link that was set up a moment ago may lose a datagram. Resolvers repeat their queries after this time.
	const resolverTimeout = 5 * time.Second

	link := loopback(t)
	s := manyEndpoints(t, 200)
	s.config.Addresses = HostAddresses{File: filepath.Join(t.TempDir(), "addresses.json")}
	own := parseAddresses("10.96.0.10", "fd00:96::a")
	s.own.Store(&own)
	pod := newPod(t)
	listeners := map[netip.Addr]*listener{}
	if err := s.syncListeners(listeners); err != nil {
		t.Fatal(err)
	}
	for _, ip := range own {
		for _, network := range []string{"udp", "tcp"} {
			err := pod.run(func() error {
				c := &dns.Client{Net: network, Timeout: resolverTimeout}
				var reply *dns.Msg
				err := errors.New("not asked")
				for end := time.Now().Add(deadline); err != nil; {
					if reply, _, err = c.Exchange(new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA), net.JoinHostPort(ip.String(), "53")); err != nil && time.Now().After(end) {
						return err
					}
				}
				if got, want := format(reply), "NOERROR aa\nweb.default.svc.cluster.local. 5 A 10.96.1.1"; got != want {
					return fmt.Errorf("response %s, want %s", got, want)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s over %s: %v", ip, network, err)
			}
		}
	}
	// The Service gets another address.
	moved := parseAddresses("10.96.0.11")
	s.own.Store(&moved)
	if err := s.syncListeners(listeners); err != nil {
		t.Fatal(err)
	}
	if got := addresses(t, link); !slices.Equal(got, moved) {
		t.Errorf("the host has %v, want %v", got, moved)
	}
	s.own.Store(&[]netip.Addr{})
	if err := s.syncListeners(listeners); err != nil {
		t.Fatal(err)
	}
	if got := addresses(t, link); len(got) != 0 || len(listeners) != 0 {
		t.Errorf("the host still has %v and %d listeners", got, len(listeners))
	}
}

// TestLostAddress checks that the host gets an address again that another program has removed, and that queries to it are answered.
func TestLostAddress(t *testing.T) {
	link := loopback(t)
	s := specServer(t)
	addService(s, "default/mine", []string{"10.96.9.9"}, "http/TCP/80")
	s.config.Addresses = HostAddresses{File: filepath.Join(t.TempDir(), "addresses.json")}
	s.addressCheck = 10 * time.Millisecond
	own := parseAddresses("10.96.0.10", "fd00:96::a")
	s.own.Store(&own)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.runListeners(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	hasAddresses := func() bool { return slices.Equal(addresses(t, link), own) }
	eventually(t, "the host has the addresses", hasAddresses)
	for _, ip := range own {
		if err := netlink.AddrDel(link, hostAddress(ip)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the host has the addresses again", hasAddresses)
	for _, ip := range own {
		for _, network := range []string{"udp", "tcp"} {
			reply := exchange(t, network, net.JoinHostPort(ip.String(), "53"), new(dns.Msg).SetQuestion("mine.default.svc.cluster.local.", dns.TypeA))
			if len(reply.Answer) != 1 {
				t.Errorf("%s over %s: %v", ip, network, reply)
			}
		}
	}
}

// TestPortInUse checks that a program that listens on all addresses does not keep the server from listening on its own.
func TestPortInUse(t *testing.T) {
	other := specServer(t)
	other.ports = ports{dns: dnsPort}
	wildcard, err := other.listen(netip.IPv4Unspecified())
	if err != nil {
		t.Fatal(err)
	}
	// Only its UDP socket stays: TCP sockets cannot share a port that is listened on for all addresses.
	wildcard.tcp.Close()
	defer wildcard.close()
	s := specServer(t)
	addService(s, "default/mine", []string{"10.96.9.9"}, "http/TCP/80")
	s.config.Addresses = HostAddresses{File: filepath.Join(t.TempDir(), "addresses.json")}
	listeners := map[netip.Addr]*listener{}
	if err := s.syncListeners(listeners); err != nil {
		t.Fatal(err)
	}
	defer func() {
		s.closeExcept(listeners, nil)
		if err := s.config.Addresses.Set(nil); err != nil {
			t.Error(err)
		}
	}()
	reply := exchange(t, "udp", "10.96.0.10:53", new(dns.Msg).SetQuestion("mine.default.svc.cluster.local.", dns.TypeA))
	if len(reply.Answer) != 1 {
		t.Errorf("another program answered: %v", reply)
	}
}

// pod is a network namespace with a link to the test's own.
type pod struct{ namespace int }

// newPod makes a namespace whose default routes lead to the test's.
func newPod(t *testing.T) pod {
	t.Helper()
	host, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(host)
	p := pod{namespace: -1}
	if err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		p.namespace, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p.namespace) })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "pod0"
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(p.namespace)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(veth) })
	if err := configure("pod0", []string{"10.42.0.1/24", "fd00:42::1/64"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.run(func() error {
		return configure("eth0", []string{"10.42.0.2/24", "fd00:42::2/64"}, []net.IP{net.ParseIP("10.42.0.1"), net.ParseIP("fd00:42::1")})
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// run calls a function in the pod's namespace.
func (p pod) run(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(p.namespace, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread calls a function on a thread of its own, which ends with it.
func onThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- f()
	}()
	return <-result
}

// configure sets up a link with addresses and default routes.
func configure(name string, addresses []string, gateways []net.IP) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if address.IP.To4() == nil {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, gateway := range gateways {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway}); err != nil {
			return err
		}
	}
	return nil
}
