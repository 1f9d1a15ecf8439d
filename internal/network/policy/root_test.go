//go:build root

package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
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
	node := netns.Node{
		Gateways: []string{gateway4, gateway6}, Pods: map[string][]string{}, Ports: serverPorts,
		Addresses: []string{nodeIP4 + "/24", nodeIP6 + "/64"}, OutsideAddresses: []string{outsideIP4 + "/24", outsideIP6 + "/64"},
	}
	for name, p := range newCluster().pods {
		node.Pods[name] = []string{p.Status.PodIPs[0].IP, p.Status.PodIPs[1].IP}
	}
	w := &world{t: t, spaces: node.Start(t)}
	t.Cleanup(func() {
		if err := nft.Remove(testTable); err != nil {
			t.Error(err)
		}
	})
	return w
}

const (
	answerWait = 10 * time.Second
	dropWait   = 300 * time.Millisecond
	// concurrentFlows bounds the connections that are tried at once.
	concurrentFlows = 48
)

// forget makes the kernel forget all connections, so that each flow begins a new one.
func (w *world) forget() {
	w.t.Helper()
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		w.t.Fatal(err)
	}
}

// ask tries a connection and returns whether it is allowed.
func (w *world) ask(f namedFlow, wait time.Duration) (bool, error) {
	server, _, err := w.spaces[f.from].Ask(f.Proto.String(), netip.AddrPortFrom(f.Destination, f.Port).String(), wait)
	switch {
	case err == nil && server == f.to:
		return true, nil
	case errors.Is(err, netns.ErrDropped):
		return false, nil
	}
	return false, errors.Join(err, errors.New("answered by "+server))
}

// check tries all connections and compares the results with the oracle.
func (w *world) check(c *cluster, flows []namedFlow) {
	w.t.Helper()
	w.forget()
	var running sync.WaitGroup
	seats := make(chan struct{}, concurrentFlows)
	for _, f := range flows {
		want, wait := c.allows(f.Flow), dropWait
		if want || f.from == onHost {
			want, wait = true, answerWait
		}
		seats <- struct{}{}
		running.Go(func() {
			defer func() { <-seats }()
			if have, err := w.ask(f, wait); have != want || err != nil {
				w.t.Errorf("%s: allowed %v, %v, want %v", f, have, err, want)
			}
		})
	}
	running.Wait()
}

// hasSpaces reports whether the ends of a flow are where its addresses are.
func (w *world) hasSpaces(c *cluster, f namedFlow) bool {
	for _, name := range []string{f.from, f.to} {
		if p := c.pods[name]; p != nil && p.Spec.HostNetwork {
			return false
		}
	}
	return true
}

// packetFlows are the flows that are tried, with those of the host: the kubelet's probes.
func (w *world) packetFlows(c *cluster) (all []namedFlow) {
	for _, f := range c.flows(nft.TCP, nft.UDP) {
		if w.hasSpaces(c, f) {
			all = append(all, f)
		}
	}
	for name, p := range c.pods {
		for _, a := range c.addressesOf(name) {
			if !p.Spec.HostNetwork {
				all = append(all, namedFlow{Flow{c.addressesOf(onHost)[familyOf(a).index()], a, nft.TCP, serverPorts[0]}, onHost, name})
			}
		}
	}
	return all
}

func applied(t testing.TB, m *nft.Model) *nft.Writer {
	t.Helper()
	writer := nft.NewWriter(m, slog.New(slog.DiscardHandler))
	if _, err := writer.Apply(); err != nil {
		t.Fatal(err)
	}
	if equal, err := writer.Check(); err != nil || !equal {
		t.Fatalf("the kernel has other rules: %v", err)
	}
	return writer
}

func TestShapesWithPackets(t *testing.T) {
	w := newWorld(t)
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			w.t = t
			c := s.cluster()
			_, m := c.compile(t)
			applied(t, m)
			w.check(c, w.packetFlows(c))
		})
	}
}

// For random changes the kernel does what the oracle says, and after a thousand its table is that of a fresh start.
func TestRandomPoliciesWithPackets(t *testing.T) {
	w := newWorld(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newRandomCluster(t, seed)
	writer := applied(t, c.model)
	for step := range 1000 {
		c.change(t)
		c.compiler.Flush()
		result, err := writer.Apply()
		if err != nil || result.Rebuilt {
			t.Fatalf("step %d: %+v, %v", step, result, err)
		}
		if step%25 != 0 {
			continue
		}
		flows := w.packetFlows(c.cluster)
		c.random.Shuffle(len(flows), func(i, j int) { flows[i], flows[j] = flows[j], flows[i] })
		w.check(c.cluster, flows[:min(40, len(flows))])
	}
	if equal, err := writer.Check(); err != nil || !equal {
		t.Fatalf("the kernel has other rules than the model: %v", err)
	}
	// Unused chains are deleted after a while.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		result, err := writer.Apply()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", result, err)
		}
		if result.Again == 0 {
			break
		}
	}
	changed, err := nft.Read(testTable)
	if err != nil {
		t.Fatal(err)
	}
	_, fresh := c.compile(t)
	if err := nft.Remove(testTable); err != nil {
		t.Fatal(err)
	}
	applied(t, fresh)
	want, err := nft.Read(testTable)
	if err != nil {
		t.Fatal(err)
	}
	if len(changed) != len(want) {
		t.Fatalf("after changes the kernel has %d lines, after a fresh start %d", len(changed), len(want))
	}
	for i := range want {
		if changed[i] != want[i] {
			t.Fatalf("after changes the kernel has %s, after a fresh start %s", changed[i], want[i])
		}
	}
}

// A packet that was translated to a pod is decided by the pod and the real client: Services.
func TestTranslatedPackets(t *testing.T) {
	w := newWorld(t)
	translated := netip.MustParseAddrPort("10.99.0.1:80")
	nat := nft.NewModel("test-nat")
	nat.Replace("", nft.Part{Chains: []nft.Chain{
		{Name: "in", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -100}, Rules: []nft.Rule{
			nft.NewRule(nft.Destination(netip.PrefixFrom(translated.Addr(), 32)), nft.DNATTo(netip.MustParseAddrPort("10.42.1.11:8080"))),
		}},
		{Name: "out", Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: 100}, Rules: []nft.Rule{nft.NewRule(nft.StatusDNAT(), nft.Masquerade())}},
	}})
	applied(t, nat)
	t.Cleanup(func() {
		if err := nft.Remove("test-nat"); err != nil {
			t.Error(err)
		}
	})
	// a is reached by c, and by itself.
	c := newCluster(netpol("app=web", from(peers(podsWith("app=client")), tcp(8080)), to(peers(podsWith("app=client")))))
	_, m := c.compile(t)
	applied(t, m)
	for client, want := range map[string]bool{"a": true, "b": false, "c": true, "d": false, "e": false} {
		f := namedFlow{Flow{c.addressesOf(client)[0], translated.Addr(), nft.TCP, translated.Port()}, client, "a"}
		wait := dropWait
		if want {
			wait = answerWait
		}
		if have, err := w.ask(f, wait); have != want || err != nil {
			t.Errorf("%s: allowed %v, %v, want %v", f, have, err, want)
		}
	}
}

// dialKept opens a connection that stays open.
func (w *world) dialKept(from, network, address string) net.Conn {
	w.t.Helper()
	var connection net.Conn
	err := w.spaces[from].Do(func() (err error) {
		connection, err = net.DialTimeout(network, address, answerWait)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// echo serves TCP connections of a pod until the test ends: what is sent comes back. Lines can be pushed by the server, too.
func (w *world) echo(name, port string) (accepted chan net.Conn) {
	w.t.Helper()
	accepted = make(chan net.Conn, 10)
	err := w.spaces[name].Do(func() error {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		w.t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return accepted
}

// sends reports whether bytes written to one end arrive at the other.
func sends(from, to net.Conn, wait time.Duration) bool {
	_ = from.SetDeadline(time.Now().Add(wait))
	_ = to.SetDeadline(time.Now().Add(wait))
	if _, err := from.Write([]byte("x")); err != nil {
		return false
	}
	n, err := to.Read(make([]byte, 1))
	return err == nil && n == 1
}

// A connection that becomes denied is cut in both directions, whichever end sends first; others go on.
func TestDeniedConnectionsAreCut(t *testing.T) {
	for _, first := range []string{"client", "server"} {
		t.Run(first+" sends first", func(t *testing.T) {
			w := newWorld(t)
			w.forget()
			c := newCluster(netpol("app=web", from(peers(podsWith("app=client"), podsWith("app=db")))))
			compiler, m := c.compile(t)
			writer := applied(t, m)
			accepted := w.echo("a", "7000")
			denied := w.dialKept("c", "tcp", "10.42.1.11:7000")
			deniedServer := <-accepted
			allowed := w.dialKept("b", "tcp", "10.42.1.11:7000")
			allowedServer := <-accepted
			if !sends(denied, deniedServer, answerWait) || !sends(deniedServer, denied, answerWait) || !sends(allowed, allowedServer, answerWait) {
				t.Fatal("the connections do not work")
			}
			if err := compiler.SetPolicy(netpol("app=web", from(peers(podsWith("app=db"))))); err != nil {
				t.Fatal(err)
			}
			affected := compiler.Flush()
			if _, err := writer.Apply(); err != nil {
				t.Fatal(err)
			}
			deleted, err := cutDenied(&netlink.Handle{}, newDeniedFlows(compiler, affected, nil, nil))
			if err != nil || deleted != 1 {
				t.Fatalf("%d connections are cut, %v", deleted, err)
			}
			ends := [][2]net.Conn{{denied, deniedServer}, {deniedServer, denied}}
			if first == "server" {
				ends[0], ends[1] = ends[1], ends[0]
			}
			for _, e := range ends {
				if sends(e[0], e[1], 2*dropWait) {
					t.Error("a denied connection goes on")
				}
			}
			if !sends(allowed, allowedServer, answerWait) || !sends(allowedServer, allowed, answerWait) {
				t.Error("an allowed connection was cut")
			}
		})
	}
}

// BenchmarkEnforcePodChange is the time from a change of a pod's labels until it is enforced: 1,000 policies, 200 pods of this node.
func BenchmarkEnforcePodChange(b *testing.B) {
	c := largeCluster(1000, 200, 50)
	compiler, m := c.compile(b)
	writer := applied(b, m)
	b.Cleanup(func() {
		if err := nft.Remove(testTable); err != nil {
			b.Error(err)
		}
	})
	b.ResetTimer()
	for i := range b.N {
		p := c.pods["pod-7"].DeepCopy()
		p.Labels = labelMap(fmt.Sprintf("app=app-%d", i%50))
		c.pods["pod-7"] = p
		setPod(compiler, c, "pod-7")
		affected := compiler.Flush()
		if result, err := writer.Apply(); err != nil || result.Rebuilt {
			b.Fatalf("%+v, %v", result, err)
		}
		if _, err := cutDenied(&netlink.Handle{}, newDeniedFlows(compiler, affected, nil, nil)); err != nil {
			b.Fatal(err)
		}
	}
}
