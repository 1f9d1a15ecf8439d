//go:build root

package proxy

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"skiff/internal/network/nft"
	"skiff/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

// world is this node, its pods, the pods of another node and a host outside.
type world struct {
	t      testing.TB
	spaces map[string]netns.Namespace
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, spaces: map[string]netns.Namespace{onHost: {}}}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		netns.Sysctl(t, name, "1")
	}
	// The tests are refused more often than a host says so to an ordinary client.
	for _, name := range []string{"net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"} {
		netns.Sysctl(t, name, "0")
	}
	for name, ips := range podIPs {
		space := netns.New(t)
		space.Connect(t, "pod-"+name, []string{gateway4 + "/32", gateway6 + "/128"}, []string{ips[0] + "/32", ips[1] + "/128"})
		space.Serve(t, name, strconv.Itoa(targetPort))
		w.spaces[name] = space
	}
	other := netns.New(t)
	other.Connect(t, "uplink", []string{nodeIP4 + "/24", nodeIP6 + "/64"}, []string{outsideIP4 + "/24", outsideIP6 + "/64"})
	w.spaces[outside] = other
	// What is not translated leaves by the default route and is lost.
	link, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	for _, gateway := range []string{outsideIP4, outsideIP6} {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := nft.Remove(testSettings().Table); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) apply(m *nft.Model) {
	w.t.Helper()
	writer := nft.NewWriter(m, slog.New(slog.DiscardHandler))
	if _, err := writer.Apply(); err != nil {
		w.t.Fatal(err)
	}
	if equal, err := writer.Check(); err != nil || !equal {
		w.t.Fatalf("the kernel has other rules: %v", err)
	}
}

const (
	answerWait = 5 * time.Second
	dropWait   = 200 * time.Millisecond
	// affinityTries is how often a client with session affinity has to reach the same pod.
	affinityTries = 20
)

// send sends the packet of a flow once.
func (w *world) send(f flow) (server, client string, err error) {
	wait := answerWait
	if f.want.dropped {
		wait = dropWait
	}
	return w.spaces[f.client].Ask(f.network, f.to.String(), wait)
}

// sees reports whether the address that a pod sees is the one it should see.
func (f flow) sees(server, client string) bool {
	isNode := slices.Contains([]string{nodeIP4, nodeIP6, gateway4, gateway6}, client)
	// A pod that reaches itself sees the node.
	return isNode == (f.want.masqueraded || f.client == onHost || server == f.client)
}

// check sends the packets of a flow until all pods that may answer have answered.
func (w *world) check(f flow) {
	w.t.Helper()
	if len(f.want.pods) == 0 {
		want := netns.ErrRefused
		if f.want.dropped {
			want = netns.ErrDropped
		}
		server, _, err := w.send(f)
		if f.client == onHost && f.network == "udp" && errors.Is(err, netns.ErrNotPermitted) {
			err = want // the packet is refused where it is sent
		}
		if !errors.Is(err, want) {
			w.t.Errorf("%s %s from %s: %q answers, %v, want %v", f.network, f.to, f.client, server, err, want)
		}
		return
	}
	answered := map[string]bool{}
	for try := range 400 {
		server, client, err := w.send(f)
		if err != nil || !slices.Contains(f.want.pods, server) {
			w.t.Errorf("%s %s from %s: %q answers, %v, want one of %v", f.network, f.to, f.client, server, err, f.want.pods)
			return
		}
		if !f.sees(server, client) {
			w.t.Errorf("%s %s from %s: pod %s sees %s (masqueraded %v)", f.network, f.to, f.client, server, client, f.want.masqueraded)
			return
		}
		answered[server] = true
		if f.affinity && len(answered) > 1 {
			w.t.Errorf("%s %s from %s: %v answer", f.network, f.to, f.client, answered)
			return
		}
		if !f.affinity && len(answered) == len(f.want.pods) || f.affinity && try == affinityTries {
			return
		}
	}
	w.t.Errorf("%s %s from %s: only %v answer, want %v", f.network, f.to, f.client, answered, f.want.pods)
}

func TestShapesWithPackets(t *testing.T) {
	w := newWorld(t)
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			w.t = t
			w.apply(compileShape(s, true))
			for _, f := range flows(s, []string{clientPod, "a", onHost, outside}) {
				if f.network != "sctp" {
					w.check(f)
				}
			}
		})
	}
}
