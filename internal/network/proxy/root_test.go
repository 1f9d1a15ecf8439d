//go:build root

package proxy

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

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
	node := netns.Node{
		Gateways: []string{gateway4, gateway6}, Pods: map[string][]string{}, Ports: []uint16{targetPort},
		Addresses: []string{nodeIP4 + "/24", nodeIP6 + "/64"}, OutsideAddresses: []string{outsideIP4 + "/24", outsideIP6 + "/64"},
	}
	for name, ips := range podIPs {
		node.Pods[name] = ips[:]
	}
	w := &world{t: t, spaces: node.Start(t)}
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

// A client that connects again and again is refused at once, each time: also when the kernel sends it no more ICMP errors.
func TestConnectionsAreRefusedAtOnce(t *testing.T) {
	const (
		connections = 10
		// soon is less than the time after which a client sends its first packet again, and the kernel another ICMP error.
		soon = 900 * time.Millisecond
	)
	w := newWorld(t)
	for _, name := range []string{"net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"} {
		netns.Sysctl(t, name, "1000")
	}
	w.apply(compileShape(shape{objects: []object{
		service(clusterIPs("10.43.0.5", ip6), nodePort(30080), loadBalancer("203.0.113.5", "2001:db8::5"), externalIPs("198.51.100.7")),
		service(named("other"), clusterIPs("10.43.0.6", "fd00:43::6"), nodePort(30081), externalLocal()),
		service(named("running"), clusterIPs("10.43.0.7", "fd00:43::7"), endpoints("a", "c")),
	}}, true))
	const unusedPort = "81"
	for _, client := range []string{clientPod, "c", onHost, outside} {
		for _, to := range []string{
			"10.43.0.5:80", "[" + ip6 + "]:80", nodeIP4 + ":30080", "[" + nodeIP6 + "]:30080", "203.0.113.5:80", "[2001:db8::5]:80", "198.51.100.7:80",
			"10.43.0.6:80", nodeIP4 + ":30081", "[" + nodeIP6 + "]:30081", "10.43.0.7:" + unusedPort, "[fd00:43::7]:" + unusedPort,
		} {
			for n := range connections {
				if server, _, err := w.spaces[client].Ask("tcp", to, soon); !errors.Is(err, netns.ErrRefused) {
					t.Errorf("connection %d to %s from %s: %q answers, %v, want %v", n+1, to, client, server, err, netns.ErrRefused)
					break
				}
			}
		}
	}
}
