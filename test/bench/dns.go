package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/cluster"
	"skiff/test/namespaces"
	"skiff/test/netns"
)

const (
	dnsServices = 1000
	dnsClients  = 8
	dnsDuration = 10 * time.Second
	// dnsRate is the number of queries per second at which the latency is measured.
	dnsRate = 10000
	// dnsLatencyLimit is that of the 99th percentile, in µs.
	dnsLatencyLimit = 1000
	// ownDNSAddress is the address of the Service kube-dns, on which skiff's DNS server listens.
	ownDNSAddress = "10.96.0.10:53"
	dnsTimeout    = time.Minute
)

// corefile is kubeadm's configuration of CoreDNS, without the plugins for names outside of the cluster, which cannot be reached here.
const corefile = `.:53 {
    errors
    health %[1]s:8080
    ready %[1]s:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %[2]s
        pods insecure
        ttl 30
    }
    prometheus %[1]s:9153
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    loadbalance
}
`

// prepareDNS builds CoreDNS, and the image without which a node is not ready.
func prepareDNS(side string) error {
	if side == "skiff" {
		return cluster.UseImages("pause")
	}
	_, err := cluster.Upstream("coredns")
	return err
}

// measureDNS queries the DNS server of a node from a pod, half of the names existing: skiff's, with everything else that the process does, and
// CoreDNS as the only other process beside skiff's API server.
func measureDNS(side, dir string, o options) ([]Row, error) {
	server, cpu, stop, err := startDNS(side, dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	b, err := newBench(server, o)
	if err != nil {
		return nil, err
	}
	k, err := b.client(protobufType)
	if err != nil {
		return nil, err
	}
	if err := b.parallel(dnsServices, func(i int) error {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: dnsService(i)}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: servicePort}}}}
		_, err := k.CoreV1().Services("default").Create(context.Background(), service, metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	pod, err := newPod(dir, "client", clientAddress)
	if err != nil {
		return nil, err
	}
	address := ownDNSAddress
	if side == "upstream" {
		address = net.JoinHostPort(namespaces.NodeAddress, "53")
	}
	m := &dnsBench{bench: b, side: side, pod: pod, address: address, cpu: cpu}
	if err := m.waitForServer(); err != nil {
		return nil, err
	}
	return b.rows, m.measure()
}

// startDNS starts a cluster and its DNS server, and returns the function that measures its CPU time.
func startDNS(side, dir string) (c *cluster.Cluster, cpu func() (time.Duration, error), stop func(), err error) {
	if side == "skiff" {
		if err := cluster.UseImages("pause"); err != nil {
			return nil, nil, nil, err
		}
		if c, err = cluster.SkiffNode(dir); err != nil {
			return nil, nil, nil, err
		}
		return c, c.CPU, c.Stop, nil
	}
	if c, err = cluster.Skiff(dir); err != nil {
		return nil, nil, nil, err
	}
	p, err := c.CoreDNS(fmt.Sprintf(corefile, namespaces.NodeAddress, c.Kubeconfig))
	if err != nil {
		c.Stop()
		return nil, nil, nil, err
	}
	return c, p.CPU, c.Stop, nil
}

func dnsService(i int) string { return fmt.Sprintf("service-%d", i) }

// dnsBench is the measurement of a DNS server.
type dnsBench struct {
	*bench
	side    string
	pod     netns.Namespace
	address string
	cpu     func() (time.Duration, error)
}

// waitForServer waits until the server has the last Service.
func (m *dnsBench) waitForServer() error {
	c, err := m.newClient()
	if err != nil {
		return err
	}
	defer c.Close()
	last := errors.New("no query was sent")
	for end := time.Now().Add(dnsTimeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if last = c.query(dnsServices-1, true); last == nil {
			return nil
		}
	}
	return fmt.Errorf("the DNS server at %s does not answer: %w", m.address, last)
}

func (m *dnsBench) measure() error {
	// A second first, so that both sides are warm.
	if _, err := m.load(time.Second, 0); err != nil {
		return err
	}
	before, err := m.cpu()
	if err != nil {
		return err
	}
	latencies, err := m.load(dnsDuration, 0)
	if err != nil {
		return err
	}
	after, err := m.cpu()
	if err != nil {
		return err
	}
	m.rows = append(m.rows, Row{
		Name: "DNS: queries per CPU second", Value: float64(len(latencies)) / (after - before).Seconds(), Unit: "/s", Goal: 4, HigherIsBetter: true,
	})
	if latencies, err = m.load(dnsDuration, dnsRate); err != nil {
		return err
	}
	slices.Sort(latencies)
	p99 := Row{
		Name:  fmt.Sprintf("DNS: 99th percentile at %d queries/s", dnsRate),
		Value: float64(latencies[len(latencies)*99/100].Microseconds()), Unit: "µs", Goal: 1,
	}
	if m.side == "skiff" {
		p99.Limit = dnsLatencyLimit
	}
	m.rows = append(m.rows, p99)
	return nil
}

// load queries the server from several clients and returns the latencies. With a rate, the clients send that many queries per second together;
// otherwise each sends the next one when it has a response.
func (m *dnsBench) load(duration time.Duration, rate int) ([]time.Duration, error) {
	results, errs := make([][]time.Duration, dnsClients), make([]error, dnsClients)
	var running sync.WaitGroup
	for i := range dnsClients {
		running.Go(func() {
			c, err := m.newClient()
			if err != nil {
				errs[i] = err
				return
			}
			defer c.Close()
			var pause time.Duration
			if rate > 0 {
				pause = dnsClients * time.Second / time.Duration(rate)
			}
			results[i], errs[i] = c.run(duration, pause)
		})
	}
	running.Wait()
	return slices.Concat(results...), errors.Join(errs...)
}

// dnsClient is a socket in the client's pod, with memory for its packets.
type dnsClient struct {
	net.Conn
	buffer []byte
}

func (m *dnsBench) newClient() (*dnsClient, error) {
	c := &dnsClient{buffer: make([]byte, 4096)}
	return c, m.pod.Do(func() (err error) {
		c.Conn, err = net.Dial("udp", m.address)
		return err
	})
}

// run sends queries, half of them for names that exist, one every pause. Those that are late are sent one after the other.
func (c *dnsClient) run(duration, pause time.Duration) (latencies []time.Duration, err error) {
	began := time.Now()
	for next := began; ; next = next.Add(pause) {
		time.Sleep(time.Until(next))
		sent := time.Now()
		if sent.Sub(began) > duration {
			return latencies, nil
		}
		if err := c.query(rand.IntN(dnsServices), rand.IntN(2) == 0); err != nil {
			return nil, err
		}
		latencies = append(latencies, time.Since(sent))
	}
}

// query sends a query for the address of a Service, or for a name that a search path makes of it and that does not exist, and checks the
// response.
func (c *dnsClient) query(service int, exists bool) error {
	name, want := dnsService(service)+".default.svc.cluster.local.", dns.RcodeSuccess
	if !exists {
		name, want = name+"default.svc.cluster.local.", dns.RcodeNameError
	}
	message := dns.Msg{MsgHdr: dns.MsgHdr{Id: uint16(rand.Uint32()), RecursionDesired: true}, Question: []dns.Question{{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET}}}
	packet, err := message.PackBuffer(c.buffer)
	if err != nil {
		return err
	}
	if err := c.SetDeadline(time.Now().Add(dnsTimeout / 10)); err != nil {
		return err
	}
	if _, err := c.Write(packet); err != nil {
		return err
	}
	n, err := c.Read(c.buffer)
	if err != nil {
		return err
	}
	// The header is enough: parsing all of it would cost the host more than the server does.
	const header = 12
	if n < header || c.buffer[0] != byte(message.Id>>8) || c.buffer[1] != byte(message.Id) {
		return fmt.Errorf("a response of %d bytes to another query", n)
	}
	if rcode := int(c.buffer[3] & 0xf); rcode != want {
		return fmt.Errorf("response code for %s is %s", name, dns.RcodeToString[rcode])
	}
	return nil
}
