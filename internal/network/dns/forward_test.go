package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestForwarding(t *testing.T) {
	s := specServer(t)
	u := newUpstream(t, records("www.example. 60 CNAME example.", "example. 60 A 192.0.2.1"))
	useUpstreams(s, u)
	address := serve(t, s)
	for i, network := range []string{"udp", "tcp", "udp"} {
		reply := exchange(t, network, address, new(dns.Msg).SetQuestion("WWW.Example.", dns.TypeA))
		want := "NOERROR\nexample. 60 A 192.0.2.1\nwww.example. 60 CNAME example."
		if got := format(reply); got != want || reply.Question[0].Name != "WWW.Example." || !reply.RecursionAvailable {
			t.Errorf("query %d:\n%s\nwant:\n%s", i, got, want)
		}
	}
	if n := u.queries.Load(); n != 1 {
		t.Errorf("%d queries were forwarded, want 1: the others are answered from the cache", n)
	}
	// A query for other records, or with DNSSEC, is another one.
	exchange(t, "udp", address, new(dns.Msg).SetQuestion("www.example.", dns.TypeAAAA))
	exchange(t, "udp", address, new(dns.Msg).SetQuestion("www.example.", dns.TypeA).SetEdns0(1232, true))
	if n := u.queries.Load(); n != 3 {
		t.Errorf("%d queries were forwarded, want 3", n)
	}
}

func TestNegativeCache(t *testing.T) {
	s := specServer(t)
	u := newUpstream(t, records())
	useUpstreams(s, u)
	address := serve(t, s)
	for range 3 {
		reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion("missing.example.", dns.TypeA))
		if reply.Rcode != dns.RcodeNameError || len(reply.Ns) != 1 {
			t.Errorf("response %v", reply)
		}
	}
	if n := u.queries.Load(); n != 1 {
		t.Errorf("%d queries were forwarded, want 1", n)
	}
	if s.denial.entries() != 1 || s.success.entries() != 0 {
		t.Errorf("%d negative and %d positive entries", s.denial.entries(), s.success.entries())
	}
}

func TestTruncatedUpstream(t *testing.T) {
	s := specServer(t)
	var texts []string
	for i := range 100 {
		texts = append(texts, fmt.Sprintf("example. 60 A 192.0.2.%d", i))
	}
	var overTCP atomic.Int64
	u := newUpstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if _, ok := w.RemoteAddr().(*net.TCPAddr); ok {
			overTCP.Add(1)
			records(texts...)(w, q)
			return
		}
		reply := new(dns.Msg).SetReply(q)
		reply.Truncated = true
		_ = w.WriteMsg(reply)
	})
	useUpstreams(s, u)
	address := serve(t, s)
	reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion("example.", dns.TypeA))
	if !reply.Truncated || len(reply.Answer) < 20 || len(reply.Answer) == 100 {
		t.Errorf("UDP: truncated %v, %d answers", reply.Truncated, len(reply.Answer))
	}
	reply = exchange(t, "tcp", address, new(dns.Msg).SetQuestion("example.", dns.TypeA))
	if reply.Truncated || len(reply.Answer) != 100 {
		t.Errorf("TCP: truncated %v, %d answers", reply.Truncated, len(reply.Answer))
	}
	if overTCP.Load() != 1 || u.queries.Load() != 2 {
		t.Errorf("%d of %d queries were forwarded over TCP, want 1 of 2", overTCP.Load(), u.queries.Load())
	}
}

// TestTruncatedUpstreamWithoutTCP checks that a client gets a truncated response if no name server sends all of it: over UDP, where it can see that.
func TestTruncatedUpstreamWithoutTCP(t *testing.T) {
	s := specServer(t)
	addExternal(s, "default/outside", "example")
	partial := func(w dns.ResponseWriter, q *dns.Msg) {
		if _, ok := w.RemoteAddr().(*net.TCPAddr); ok {
			_ = w.Close()
			return
		}
		reply := new(dns.Msg).SetReply(q)
		rr, _ := dns.NewRR("example. 60 A 192.0.2.1")
		reply.Answer, reply.Truncated = []dns.RR{rr}, true
		_ = w.WriteMsg(reply)
	}
	u := newUpstream(t, partial)
	useUpstreams(s, u)
	address := serve(t, s)
	for name, answers := range map[string]int{"example.": 1, "outside.default.svc.cluster.local.": 2} {
		for range 2 { // it is not cached
			before := u.queries.Load()
			reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion(name, dns.TypeA))
			if !reply.Truncated || reply.Rcode != dns.RcodeSuccess || len(reply.Answer) != answers || u.queries.Load() == before {
				t.Errorf("%s over UDP: %v", name, reply)
			}
		}
		if reply := exchange(t, "tcp", address, new(dns.Msg).SetQuestion(name, dns.TypeA)); reply.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s over TCP: %v", name, reply)
		}
	}
	// A name server that sends all of it is preferred.
	useUpstreams(s, u, newUpstream(t, records("example. 60 A 192.0.2.1", "example. 60 A 192.0.2.2")))
	if reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion("example.", dns.TypeA)); reply.Truncated || len(reply.Answer) != 2 {
		t.Errorf("with another name server: %v", reply)
	}
}

func TestFailingUpstreams(t *testing.T) {
	code := func(rcode int) func(dns.ResponseWriter, *dns.Msg) {
		return func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(q, rcode)) }
	}
	for name, handle := range map[string]func(dns.ResponseWriter, *dns.Msg){
		"SERVFAIL": code(dns.RcodeServerFailure), "REFUSED": code(dns.RcodeRefused),
		"another question": func(w dns.ResponseWriter, q *dns.Msg) {
			reply := new(dns.Msg).SetReply(q)
			reply.Question[0].Name = "evil.example."
			_ = w.WriteMsg(reply)
		},
		"not a message": func(w dns.ResponseWriter, q *dns.Msg) { _, _ = w.Write([]byte{byte(q.Id >> 8), byte(q.Id), 0x80}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := specServer(t)
			bad, good := newUpstream(t, handle), newUpstream(t, records("example. 60 A 192.0.2.1"))
			useUpstreams(s, bad, good)
			reply := exchange(t, "udp", serve(t, s), new(dns.Msg).SetQuestion("example.", dns.TypeA))
			if len(reply.Answer) != 1 || bad.queries.Load() == 0 {
				t.Errorf("response %v after %d queries to the first name server", reply, bad.queries.Load())
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		s := specServer(t)
		useUpstreams(s, newUpstream(t, code(dns.RcodeServerFailure)))
		reply := exchange(t, "udp", serve(t, s), new(dns.Msg).SetQuestion("example.", dns.TypeA))
		if reply.Rcode != dns.RcodeServerFailure {
			t.Errorf("response %v", reply)
		}
	})
	t.Run("none", func(t *testing.T) {
		reply := exchange(t, "udp", serve(t, specServer(t)), new(dns.Msg).SetQuestion("example.", dns.TypeA))
		if reply.Rcode != dns.RcodeServerFailure {
			t.Errorf("response %v", reply)
		}
	})
}

func TestForwardLimits(t *testing.T) {
	f := newForwarder(newMetrics())
	greedy := netip.MustParseAddr("10.42.0.1")
	for i := range maxForwardedPerClient {
		if !f.acquire(greedy) {
			t.Fatalf("seat %d was refused", i)
		}
	}
	if f.acquire(greedy) {
		t.Error("a client got more seats than allowed")
	}
	taken := maxForwardedPerClient
	for ip := greedy.Next(); taken < maxForwarded; ip = ip.Next() {
		if !f.acquire(ip) {
			t.Fatalf("seat %d was refused", taken)
		}
		taken++
	}
	if f.acquire(netip.MustParseAddr("10.43.0.1")) {
		t.Error("there were more seats than allowed")
	}
	f.release(greedy)
	if !f.acquire(netip.MustParseAddr("10.43.0.1")) {
		t.Error("a released seat was refused")
	}
}

func TestRefusedWhenBusy(t *testing.T) {
	s := specServer(t)
	useUpstreams(s, newUpstream(t, records("example. 60 A 192.0.2.1")))
	for range maxForwardedPerClient {
		s.forwarder.acquire(netip.MustParseAddr("127.0.0.1"))
	}
	address := serve(t, s)
	for _, network := range []string{"udp", "tcp"} {
		if reply := exchange(t, network, address, new(dns.Msg).SetQuestion("example.", dns.TypeA)); reply.Rcode != dns.RcodeRefused {
			t.Errorf("%s: %v", network, reply)
		}
		if reply := exchange(t, network, address, new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA)); len(reply.Answer) != 1 {
			t.Errorf("%s: a name of the cluster: %v", network, reply)
		}
	}
}

func TestResolvConf(t *testing.T) {
	dir := t.TempDir()
	c := &resolvConf{path: filepath.Join(dir, "resolv.conf"), resolvedPath: filepath.Join(dir, "resolved.conf")}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(c.path, "search example\nnameserver 192.0.2.1\nnameserver fd00::1\nnameserver 192.0.2.1\nnameserver x\n")
	current := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.follow(ctx, func(servers []netip.AddrPort) { current <- fmt.Sprint(servers) }, func(err error) { current <- "error" })
	}()
	expect := func(want string) {
		t.Helper()
		for timeout := time.After(deadline); ; {
			select {
			case got := <-current:
				if got == want {
					return
				}
			case <-timeout:
				t.Fatalf("the name servers did not become %s", want)
			}
		}
	}
	expect("[192.0.2.1:53 [fd00::1]:53]")
	write(c.path, "nameserver 127.0.0.53\noptions edns0 trust-ad\n")
	expect("[127.0.0.53:53]")
	write(c.resolvedPath, "nameserver 192.0.2.2\n")
	expect("[192.0.2.2:53]")
	write(c.resolvedPath, "nameserver 192.0.2.33\n")
	expect("[192.0.2.33:53]")
	if got := c.effectivePath(); got != c.resolvedPath {
		t.Errorf("pods use %s", got)
	}
	// Replaced by a rename, as network managers do.
	write(filepath.Join(dir, "new"), "nameserver 192.0.2.44\n")
	if err := os.Rename(filepath.Join(dir, "new"), c.path); err != nil {
		t.Fatal(err)
	}
	expect("[192.0.2.44:53]")
	if got := c.effectivePath(); got != c.path {
		t.Errorf("pods use %s", got)
	}
	if err := os.Remove(c.path); err != nil {
		t.Fatal(err)
	}
	expect("error")
	cancel()
	<-done
}

func TestOwnAddress(t *testing.T) {
	s := specServer(t)
	u := newUpstream(t, records("example. 60 A 192.0.2.1"))
	own := []netip.Addr{u.address.Addr()}
	s.own.Store(&own)
	useUpstreams(s, u)
	if reply := exchange(t, "udp", serve(t, s), new(dns.Msg).SetQuestion("example.", dns.TypeA)); reply.Rcode != dns.RcodeServerFailure || u.queries.Load() != 0 {
		t.Errorf("response %v after %d queries", reply, u.queries.Load())
	}
}

func TestLoop(t *testing.T) {
	s := specServer(t)
	own := []netip.Addr{netip.MustParseAddr("127.0.0.2")}
	s.own.Store(&own)
	address := serve(t, s)
	var loops atomic.Bool
	loops.Store(true)
	u := newUpstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !loops.Load() {
			records("example. 60 A 192.0.2.1")(w, q)
			return
		}
		reply, _, err := new(dns.Client).Exchange(q, address)
		if err == nil {
			_ = w.WriteMsg(reply)
		}
	})
	useUpstreams(s, u)
	s.probe(t.Context())
	if !s.isLooping() {
		t.Fatal("the loop was not detected")
	}
	if reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion("example.", dns.TypeA)); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("response in a loop: %v", reply)
	}
	loops.Store(false)
	s.probe(t.Context())
	if s.isLooping() {
		t.Fatal("the end of the loop was not detected")
	}
	if reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion("example.", dns.TypeA)); len(reply.Answer) != 1 {
		t.Errorf("response after the loop: %v", reply)
	}
}

func TestCacheBounds(t *testing.T) {
	evicted := 0
	c := newResponseCache(func() { evicted++ })
	now := time.Unix(1000, 0)
	reply := new(dns.Msg).SetQuestion("example.", dns.TypeTXT)
	rr, _ := dns.NewRR("example. 10 TXT " + strings.Repeat(`"`+strings.Repeat("a", 200)+`" `, 10))
	reply.Answer = append(reply.Answer, rr)
	m, err := newMessage(reply)
	if err != nil {
		t.Fatal(err)
	}
	if m.lifetime != 10*time.Second {
		t.Errorf("lifetime %v, want that of the record", m.lifetime)
	}
	for i := range 100_000 {
		c.put([]byte(fmt.Sprint(i)), m, now)
	}
	total := 0
	for i := range c.shards {
		total += c.shards[i].bytes
	}
	if total > cacheShards*maxShardBytes || c.entries() > cacheShards*maxShardEntries || c.entries() < cacheShards*maxShardEntries/4 || evicted == 0 {
		t.Errorf("%d bytes, %d entries, %d evicted", total, c.entries(), evicted)
	}
	c.put([]byte("key"), m, now)
	if got, age := c.get([]byte("key"), now.Add(9*time.Second)); got != m || age != 9*time.Second {
		t.Errorf("before it expires: %v, age %v", got, age)
	}
	if got, _ := c.get([]byte("key"), now.Add(10*time.Second)); got != nil {
		t.Error("an expired entry was returned")
	}
	var q query
	var r response
	if _, err := q.parse(packQuery(t, new(dns.Msg).SetQuestion("example.", dns.TypeTXT))); err != nil {
		t.Fatal(err)
	}
	r.begin(nil, &q, maxTCPSize)
	m.write(&r, &q, 4*time.Second)
	aged := new(dns.Msg)
	if err := aged.Unpack(r.finish(&q)); err != nil || len(aged.Answer) != 1 || aged.Answer[0].Header().Ttl != 6 {
		t.Errorf("after 4 of 10 seconds: %v, %v", aged, err)
	}
}

func TestLifetimes(t *testing.T) {
	for _, test := range []struct {
		about             string
		answer, authority string
		rcode             int
		want              time.Duration
	}{
		{"record", "a. 20 A 192.0.2.1", "", dns.RcodeSuccess, 20 * time.Second},
		{"long TTL", "a. 3600 A 192.0.2.1", "", dns.RcodeSuccess, maxLifetime},
		{"short TTL", "a. 1 A 192.0.2.1", "", dns.RcodeSuccess, minLifetime},
		{"TTL 0", "a. 0 A 192.0.2.1", "", dns.RcodeSuccess, 0},
		{"no name", "", "a. 20 SOA b. c. 1 2 3 4 10", dns.RcodeNameError, 10 * time.Second},
		{"no data", "", "a. 8 SOA b. c. 1 2 3 4 10", dns.RcodeSuccess, 8 * time.Second},
		{"no name without SOA", "", "", dns.RcodeNameError, 0},
		{"failure", "", "", dns.RcodeServerFailure, 0},
		{"refused", "", "", dns.RcodeRefused, 0},
	} {
		reply := new(dns.Msg).SetQuestion("a.", dns.TypeA)
		reply.Rcode = test.rcode
		if test.answer != "" {
			rr, _ := dns.NewRR(test.answer)
			reply.Answer = append(reply.Answer, rr)
		}
		if test.authority != "" {
			rr, _ := dns.NewRR(test.authority)
			reply.Ns = append(reply.Ns, rr)
		}
		m, err := newMessage(reply)
		if err != nil {
			t.Fatal(err)
		}
		if m.lifetime != test.want {
			t.Errorf("%s: %v, want %v", test.about, m.lifetime, test.want)
		}
	}
}
