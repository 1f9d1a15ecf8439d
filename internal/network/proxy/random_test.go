//go:build root

package proxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/network/nft"
)

// randomService is a Service of any kind. Its addresses and ports follow from its number, so that no two have the same.
func randomService(random *rand.Rand, number int) object {
	chance := func(n int) bool { return random.IntN(n) == 0 }
	ip4, ip6 := fmt.Sprintf("10.43.1.%d", number), fmt.Sprintf("fd00:43::1:%d", number)
	options := []option{named(fmt.Sprint("s", number)), clusterIPs([][]string{{ip4}, {ip6}, {ip4, ip6}}[random.IntN(3)]...)}
	protocols := [][]corev1.ServicePort{{tcp("", 80)}, {udp("", 80)}, {tcp("a", 80), tcp("b", 81)}, {tcp("t", 53), udp("u", 53)}}
	options = append(options, ports(protocols[random.IntN(len(protocols))]...))
	if chance(2) {
		options = append(options, nodePort(int32(30000+10*number)))
		if chance(2) {
			options = append(options, loadBalancer(fmt.Sprintf("203.0.113.%d", number), fmt.Sprintf("2001:db8::%d", number)))
			if chance(2) {
				options = append(options, sourceRange([]string{"192.168.77.2/32", "10.42.0.0/16", "10.9.0.0/16", "192.168.77.1/32"}[random.IntN(4)]))
			}
		}
	}
	if chance(4) {
		options = append(options, externalIPs(fmt.Sprintf("198.51.100.%d", number)))
	}
	if chance(3) {
		options = append(options, externalLocal())
	}
	if chance(4) {
		options = append(options, internalLocal())
	}
	if chance(4) {
		options = append(options, affinity(int32(100+random.IntN(2)*100)))
	}
	var backends []backend
	flags := []string{"", "", "", " !", " t", " x", " @zone-1", " @zone-2", " #node-1", " #node-2"}
	for _, pod := range []string{"a", "b", "c", "d"} {
		if chance(2) {
			backends = append(backends, backend(pod+flags[random.IntN(len(flags))]))
		}
	}
	return service(append(options, endpoints(backends...))...)
}

// randomCluster changes Services one after the other.
type randomCluster struct {
	random   *rand.Rand
	settings Settings
	node     Node
	services map[int]object
	model    *nft.Model
	writer   *nft.Writer
}

func newRandomCluster(seed uint64) *randomCluster {
	c := &randomCluster{random: rand.New(rand.NewPCG(seed, 0)), settings: testSettings(), node: testNode(), services: map[int]object{}}
	c.model = nft.NewModel(c.settings.Table)
	c.model.Replace(baseOwner, base(c.settings, c.node))
	c.writer = nft.NewWriter(c.model, slog.New(slog.DiscardHandler))
	return c
}

// change adds, changes or removes a Service and returns its number.
func (c *randomCluster) change() int {
	number := 1 + c.random.IntN(12)
	owner := fmt.Sprint("default/s", number)
	if _, exists := c.services[number]; exists && c.random.IntN(4) == 0 {
		delete(c.services, number)
		c.model.Replace(owner, nft.Part{})
		return number
	}
	o := randomService(c.random, number)
	c.services[number] = o
	c.model.Replace(owner, Compile(c.settings, c.node, o.service, o.slices).Part)
	return number
}

// For random Services and endpoints the kernel sends each packet where the oracle says.
func TestRandomServices(t *testing.T) {
	w := newWorld(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newRandomCluster(seed)
	for range 60 {
		number := c.change()
		if result, err := c.writer.Apply(); err != nil || result.Rebuilt && len(c.services) > 1 {
			t.Fatalf("%+v, %v", result, err)
		}
		// A new socket may have the port of an old one, whose flow the kernel remembers.
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			t.Fatal(err)
		}
		o, exists := c.services[number]
		if !exists {
			continue
		}
		all := flows(shape{objects: []object{o}}, []string{clientPod, "a", onHost, outside})
		c.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, f := range all[:min(4, len(all))] {
			w.check(f)
		}
		if t.Failed() {
			t.Fatalf("Service %+v\nstatus %+v\nslices %+v\nrules\n%s", o.service.Spec, o.service.Status, o.slices, compileShape(shape{objects: []object{o}}, false))
		}
	}
}

// A thousand random changes one after the other leave the kernel with the table of a fresh start.
func TestRandomChanges(t *testing.T) {
	c := newRandomCluster(7)
	t.Cleanup(func() {
		for _, table := range []string{"test", "fresh"} {
			if err := nft.Remove(table); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 1000 {
		c.change()
		if result, err := c.writer.Apply(); err != nil || result.Rebuilt != (i == 0) {
			t.Fatalf("change %d: %+v, %v", i, result, err)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		result, err := c.writer.Apply()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("unused chains are not deleted: %v", err)
		}
		if result.Again == 0 {
			break
		}
	}
	fresh := nft.NewModel("fresh")
	fresh.Replace(baseOwner, base(c.settings, c.node))
	for _, o := range c.services {
		fresh.Replace(keyOf(o.service).String(), Compile(c.settings, c.node, o.service, o.slices).Part)
	}
	if _, err := nft.NewWriter(fresh, slog.New(slog.DiscardHandler)).Apply(); err != nil {
		t.Fatal(err)
	}
	have, err := nft.Read("test")
	if err != nil {
		t.Fatal(err)
	}
	want, err := nft.Read("fresh")
	if err != nil {
		t.Fatal(err)
	}
	have[slices.Index(have, "table test")] = "table fresh"
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("after 1000 changes\n%s\nfresh\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// A client keeps its endpoint while it exists, gets another one when it is gone, and keeps that.
func TestAffinityFollowsEndpoints(t *testing.T) {
	w := newWorld(t)
	settings, node := testSettings(), testNode()
	m := nft.NewModel(settings.Table)
	m.Replace(baseOwner, base(settings, node))
	writer := nft.NewWriter(m, slog.New(slog.DiscardHandler))
	use := func(backends ...backend) {
		t.Helper()
		o := service(nodePort(30080), affinity(600), endpoints(backends...))
		m.Replace("default/web", Compile(settings, node, o.service, o.slices).Part)
		if _, err := writer.Apply(); err != nil {
			t.Fatal(err)
		}
	}
	ask := func() string {
		t.Helper()
		first := ""
		for range 20 {
			// The cluster IP and the node port are the same Service.
			for _, address := range []string{"10.43.0.5:80", nodeIP4 + ":30080"} {
				server, _, err := w.spaces[clientPod].Ask("tcp", address, answerWait)
				if err != nil {
					t.Fatal(err)
				}
				if first == "" {
					first = server
				}
				if server != first {
					t.Fatalf("%s and %s answer one client", first, server)
				}
			}
		}
		return first
	}
	all := []backend{"a", "b", "c", "d"}
	use(all...)
	before := ask()
	rest := slices.DeleteFunc(slices.Clone(all), func(b backend) bool { return string(b) == before })
	use(rest...)
	after := ask()
	if after == before {
		t.Fatalf("%s answers without being an endpoint", before)
	}
	use(all...)
	if again := ask(); again != after {
		t.Errorf("the client had %s and now has %s", after, again)
	}
}

// sctpInit is an SCTP packet that opens an association.
func sctpInit(source, destination uint16) []byte {
	packet := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source), destination)
	packet = append(packet, 0, 0, 0, 0, 0, 0, 0, 0)  // verification tag, checksum
	packet = append(packet, 1, 0, 0, 20, 0, 0, 0, 1) // INIT, its length and tag
	packet = append(packet, 0, 1, 0, 0, 0, 1, 0, 1)  // window, streams
	packet = append(packet, 0, 0, 0, 1)              // first TSN
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	return packet
}

// SCTP packets reach the endpoints. The kernel of the tests may have no SCTP sockets, so they are sent and received as they are.
func TestSCTPPackets(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	received := map[string]string{}
	for name := range podIPs {
		var conn net.PacketConn
		if err := w.spaces[name].Do(func() (err error) { conn, err = net.ListenPacket("ip4:132", "0.0.0.0"); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			buffer := make([]byte, 200)
			for {
				n, from, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				if n >= 32 && buffer[12] == 1 && binary.BigEndian.Uint16(buffer[2:]) == targetPort {
					mu.Lock()
					received[name] = from.String()
					mu.Unlock()
				}
			}
		}()
	}
	s := shape{objects: []object{service(ports(sctp("signal", 36412)), nodePort(30412), endpoints("a", "c"))}}
	w.apply(compileShape(s, true))
	port := uint16(40000)
	for _, f := range flows(s, []string{clientPod, outside}) {
		mu.Lock()
		clear(received)
		mu.Unlock()
		err := w.spaces[f.client].Do(func() error {
			conn, err := net.Dial("ip4:132", f.to.Addr().String())
			if err != nil {
				return err
			}
			defer conn.Close()
			for range 200 {
				port++
				if _, err := conn.Write(sctpInit(port, f.to.Port())); err != nil {
					return err
				}
				time.Sleep(5 * time.Millisecond)
				mu.Lock()
				done := len(received) == 2
				mu.Unlock()
				if done {
					return nil
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		for _, pod := range f.want.pods {
			if from, ok := received[pod]; !ok || !f.sees(pod, from) {
				t.Errorf("sctp %s from %s: received %v, want %v", f.to, f.client, received, f.want.pods)
			}
		}
		if len(received) != len(f.want.pods) {
			t.Errorf("sctp %s from %s: received %v", f.to, f.client, received)
		}
		mu.Unlock()
	}
}

// A datagram flow to an endpoint that is gone is sent to another one.
func TestUDPFlowFollowsEndpoints(t *testing.T) {
	w := newWorld(t)
	settings, node := testSettings(), testNode()
	m := nft.NewModel(settings.Table)
	m.Replace(baseOwner, base(settings, node))
	writer := nft.NewWriter(m, slog.New(slog.DiscardHandler))
	p := &Proxy{Config: Config{Log: slog.New(slog.DiscardHandler)}, node: node, deleteFlows: deleteFlows}
	var old Compiled
	use := func(clean bool, options ...option) {
		t.Helper()
		o := service(append([]option{ports(udp("dns", 53)), nodePort(30053)}, options...)...)
		c := Compile(settings, node, o.service, o.slices)
		m.Replace("default/web", c.Part)
		if _, err := writer.Apply(); err != nil {
			t.Fatal(err)
		}
		if clean {
			if err := p.cleanConntrack(staleDatagrams(old.Datagrams, c.Datagrams)); err != nil {
				t.Fatal(err)
			}
		}
		old = c
	}
	for _, address := range []string{"10.43.0.5:53", nodeIP4 + ":30053"} {
		use(true)
		var conn net.Conn
		if err := w.spaces[clientPod].Do(func() (err error) { conn, err = net.Dial("udp", address); return err }); err != nil {
			t.Fatal(err)
		}
		ask := func() string {
			t.Helper()
			_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
			if _, err := conn.Write([]byte("?")); err != nil {
				return err.Error()
			}
			answer := make([]byte, 100)
			n, err := conn.Read(answer)
			if err != nil {
				return err.Error()
			}
			name, _, _ := bytes.Cut(answer[:n], []byte(" "))
			return string(name)
		}
		use(true, endpoints("a"))
		if got := ask(); got != "a" {
			t.Fatalf("%s: %s answers", address, got)
		}
		use(false, endpoints("b"))
		if got := ask(); got != "a" {
			t.Fatalf("%s: the flow moved to %s by itself", address, got)
		}
		old.Datagrams[0].Endpoints = []netip.AddrPort{netip.MustParseAddrPort(podIPs["a"][0] + ":8080")}
		use(true, endpoints("b"))
		if got := ask(); got != "b" {
			t.Errorf("%s: %s answers instead of b", address, got)
		}
		conn.Close()
	}
}

// BenchmarkProgram measures 5,000 Services of 10 endpoints: the whole table, one endpoint's change, and the comparison with the kernel.
func BenchmarkProgram(b *testing.B) {
	settings, node := testSettings(), testNode()
	makePart := func(i, count int) (string, nft.Part) {
		o := service(clusterIPs(netip.AddrFrom4([4]byte{10, 43, byte(i >> 8), byte(i)}).String()))
		backends := endpoints("a")
		backends(&o)
		e := o.slices[0].Endpoints[0]
		o.slices[0].Endpoints = nil
		for n := range count {
			one := *e.DeepCopy()
			one.Addresses[0] = netip.AddrFrom4([4]byte{10, 42, byte(n), byte(i)}).String()
			o.slices[0].Endpoints = append(o.slices[0].Endpoints, one)
		}
		return fmt.Sprint("default/s", i), Compile(settings, node, o.service, o.slices).Part
	}
	b.Cleanup(func() { _ = nft.Remove(settings.Table) })
	m := nft.NewModel(settings.Table)
	m.Replace(baseOwner, base(settings, node))
	const services, count = 5000, 10
	for i := range services {
		m.Replace(makePart(i, count))
	}
	w := nft.NewWriter(m, slog.New(slog.DiscardHandler))
	b.Run("table", func(b *testing.B) {
		for b.Loop() {
			if err := w.Replace(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("change", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			m.Replace(makePart(17, count-i%2))
			if r, err := w.Apply(); err != nil || r.Rebuilt {
				b.Fatal(r, err)
			}
		}
	})
	b.Run("compare", func(b *testing.B) {
		for b.Loop() {
			if equal, err := w.Check(); err != nil || !equal {
				b.Fatal(equal, err)
			}
		}
	})
}
