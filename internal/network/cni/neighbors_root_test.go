//go:build root

package cni

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"skiff/internal/network/nft"
)

// flushNeighbors makes a namespace forget the hardware addresses of its neighbors.
func flushNeighbors(t *testing.T, ns string) {
	t.Helper()
	err := in(ns, func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.NeighList(0, family)
			if err != nil {
				return err
			}
			for _, n := range list {
				if n.State&(netlink.NUD_NOARP|netlink.NUD_PERMANENT) != 0 {
					continue
				}
				if err := netlink.NeighDel(&n); err != nil {
					return fmt.Errorf("forget neighbor %s: %w", n.IP, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// linkLocal is the link-local address of a pod.
func linkLocal(t *testing.T, ns string) (address netip.Addr) {
	t.Helper()
	err := in(ns, func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		list, err := netlink.AddrList(eth, netlink.FAMILY_V6)
		for _, a := range list {
			if a.IP.IsLinkLocalUnicast() {
				address, _ = netip.AddrFromSlice(a.IP)
			}
		}
		return err
	})
	if err != nil || !address.IsValid() {
		t.Fatalf("no link-local address: %v", err)
	}
	return address.WithZone("eth0")
}

// received are the packets that a pod gets on a UDP port until one with the text "last" arrives.
func received(t *testing.T, ns, network, port string) func() []string {
	t.Helper()
	var packets net.PacketConn
	err := in(ns, func() (err error) {
		packets, err = net.ListenPacket(network, ":"+port)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packets.Close() })
	return func() (texts []string) {
		t.Helper()
		_ = packets.SetReadDeadline(time.Now().Add(20 * time.Second))
		for buffer := make([]byte, 100); ; {
			n, _, err := packets.ReadFrom(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if string(buffer[:n]) == "last" {
				return texts
			}
			texts = append(texts, string(buffer[:n]))
		}
	}
}

func sendTo(t *testing.T, ns, address, text string) {
	t.Helper()
	err := in(ns, func() error {
		c, err := net.Dial("udp", address)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, text)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
}

// The bridge is the only neighbor of a pod: others are reached by routed packets alone, which policies see.
func TestPodsAreNoNeighbors(t *testing.T) { bridged(t, testPodsAreNoNeighbors) }

func testPodsAreNoNeighbors(t *testing.T) {
	const port = "5000"
	w := newWorld(t, nil)
	a, b := w.pod("a"), w.pod("b")
	serve(t, b.ns, "tcp", "80")
	for i, list := range [][]string{{"255.255.255.255", "224.0.0.1"}, {"ff02::1%eth0"}} {
		read := received(t, b.ns, []string{"udp4", "udp6"}[i], port)
		for _, to := range list {
			sendTo(t, a.ns, net.JoinHostPort(to, port), to)
		}
		sendTo(t, a.ns, net.JoinHostPort(b.addresses[i], port), "last")
		if got := read(); len(got) > 0 {
			t.Errorf("another pod got packets to %s", strings.Join(got, ", "))
		}
	}
	address := linkLocal(t, b.ns)
	err := in(a.ns, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(address, 80).String(), time.Second)
		if err == nil {
			_ = c.Close()
			return errors.New("connected")
		}
		return nil
	})
	if err != nil {
		t.Errorf("link-local address of another pod: %v", err)
	}
}

// The host and its pods find each other's hardware addresses, whoever asks first.
func TestNeighborDiscovery(t *testing.T) { bridged(t, testNeighborDiscovery) }

func testNeighborDiscovery(t *testing.T) {
	w := newWorld(t, nil)
	a, b := w.pod("a"), w.pod("b")
	serve(t, b.ns, "tcp", "80")
	serve(t, "", "tcp", "81")
	for i := range a.addresses {
		own := gateway(w.settings.PodCIDRs[i]).String()
		for _, ask := range []func(){
			func() { w.mustSee("", "tcp", b.addresses[i], "80", own) },
			func() { w.mustSee(b.ns, "tcp", own, "81", b.addresses[i]) },
			func() { w.mustSee(a.ns, "tcp", b.addresses[i], "80", a.addresses[i]) },
		} {
			for _, ns := range []string{"", a.ns, b.ns} {
				flushNeighbors(t, ns)
			}
			ask()
		}
	}
}

// A pod that was connected by an earlier version gets the settings of its port when the host is set up again.
func TestPortsOfEarlierVersion(t *testing.T) {
	const port = "5000"
	w := newWorld(t, nil)
	a, b := w.pod("a"), w.pod("b")
	for _, p := range []pod{a, b} {
		link, err := netlink.LinkByName(vethName(p.name, "eth0"))
		if err == nil {
			err = setFlooding(link, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := received(t, b.ns, "udp4", port)
	send := func() int {
		t.Helper()
		sendTo(t, a.ns, net.JoinHostPort("255.255.255.255", port), "broadcast")
		sendTo(t, a.ns, net.JoinHostPort(b.addresses[0], port), "last")
		return len(read())
	}
	if send() == 0 {
		t.Fatal("the ports are not as those of an earlier version")
	}
	// With the table goes the marker of the plan.
	if err := nft.Remove(w.settings.Table); err != nil {
		t.Fatal(err)
	}
	if err := Setup(w.settings); err != nil {
		t.Fatal(err)
	}
	if n := send(); n != 0 {
		t.Errorf("%d broadcasts of another pod arrive", n)
	}
}
