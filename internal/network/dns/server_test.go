package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

// deadline bounds waiting for something that is expected to happen.
const deadline = 30 * time.Second

// eventually waits until a condition holds.

func eventually(t testing.TB, about string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not happen: %s", about)
		}
	}
}

// upstream is a name server on loopback.
type upstream struct {
	address netip.AddrPort
	queries atomic.Int64
}

// listenBoth listens on a port for UDP and TCP.
func listenBoth(t testing.TB) (net.PacketConn, net.Listener) {
	t.Helper()
	var failures error
	for range 10 { // the port of a UDP socket may be in use for TCP
		packets, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		stream, err := net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, stream
		}
		packets.Close()
		failures = errors.Join(failures, err)
	}
	t.Fatal(failures)
	return nil, nil
}

// newUpstream starts a name server that answers over UDP and TCP with handle.
func newUpstream(t testing.TB, handle func(w dns.ResponseWriter, q *dns.Msg)) *upstream {
	t.Helper()
	u := &upstream{}
	packets, stream := listenBoth(t)
	u.address = netip.MustParseAddrPort(packets.LocalAddr().String())
	counted := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		u.queries.Add(1)
		handle(w, q)
	})
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: counted}, {Listener: stream, Handler: counted}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() { _ = server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return u
}

// records answers with records in text form, the name replaced by the queried one; without records with NXDOMAIN.

func records(texts ...string) func(dns.ResponseWriter, *dns.Msg) {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		reply := new(dns.Msg).SetReply(q)
		for _, text := range texts {
			rr, err := dns.NewRR(text)
			if err != nil {
				panic(err)
			}
			reply.Answer = append(reply.Answer, rr)
		}
		if len(texts) == 0 {
			reply.Rcode = dns.RcodeNameError
			soa, _ := dns.NewRR("example. 60 SOA ns.example. hostmaster.example. 1 2 3 4 60")
			reply.Ns = append(reply.Ns, soa)
		}
		_ = w.WriteMsg(reply)
	}
}

// serve runs a server's listener on a free loopback port and returns its address.

func serve(t testing.TB, s *Server) string {
	t.Helper()
	s.ports = ports{}
	// The UDP and the TCP socket must have the same port.
	for range 100 {
		probe, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.ports.dns = uint16(probe.LocalAddr().(*net.UDPAddr).Port)
		probe.Close()
		l, err := s.listen(netip.MustParseAddr("127.0.0.1"))
		if err != nil {
			continue
		}
		t.Cleanup(l.close)
		return l.tcp.Addr().String()
	}
	t.Fatal("no free port")
	return ""
}

// useUpstreams sets the host's name servers.

func useUpstreams(s *Server, upstreams ...*upstream) {
	var servers []netip.AddrPort
	for _, u := range upstreams {
		servers = append(servers, u.address)
	}
	s.setHostServers(servers)
}

// exchange sends a query to a server.

func exchange(t testing.TB, network, address string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: deadline, UDPSize: 4096}
	reply, _, err := c.Exchange(m, address)
	if err != nil {
		t.Fatalf("%s over %s: %v", m.Question[0].Name, network, err)
	}
	return reply
}

func TestTransports(t *testing.T) {
	s := manyEndpoints(t, 200)
	address := serve(t, s)
	for _, network := range []string{"udp", "tcp"} {
		reply := exchange(t, network, address, new(dns.Msg).SetQuestion("wEb.DeFaUlT.svc.cluster.local.", dns.TypeA))
		if len(reply.Answer) != 1 || reply.Question[0].Name != "wEb.DeFaUlT.svc.cluster.local." || reply.Answer[0].Header().Name != "wEb.DeFaUlT.svc.cluster.local." {
			t.Errorf("%s: %v", network, reply)
		}
		reply = exchange(t, network, address, new(dns.Msg).SetQuestion("many.default.svc.cluster.local.", dns.TypeA))
		if reply.Truncated != (network == "udp") || network == "tcp" && len(reply.Answer) != 200 {
			t.Errorf("%s: truncated %v, %d answers", network, reply.Truncated, len(reply.Answer))
		}
	}
	// Several queries in one connection.
	c, err := dns.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if err := c.WriteMsg(new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if reply, err := c.ReadMsg(); err != nil || len(reply.Answer) != 1 {
			t.Fatalf("response %v, %v", reply, err)
		}
	}
}

// TestConcurrentClients checks that each client gets the responses to its own queries, also when many arrive at once.

func TestConcurrentClients(t *testing.T) {
	// So many queries at once fit into the receive buffer of any host.
	const clients, queries = 20, 10
	s := specServer(t)
	for i := range clients * queries {
		addService(s, fmt.Sprintf("default/s%d", i), []string{netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}).String()}, "http/TCP/80")
	}
	address := serve(t, s)
	errs := make(chan error, clients)
	for client := range clients {
		go func() {
			errs <- func() error {
				c, err := dns.Dial("udp", address)
				if err != nil {
					return err
				}
				defer c.Close()
				if err := c.SetDeadline(time.Now().Add(deadline)); err != nil {
					return err
				}
				pending := map[uint16]string{}
				for n := range queries {
					m := new(dns.Msg).SetQuestion(fmt.Sprintf("s%d.default.svc.cluster.local.", client*queries+n), dns.TypeA)
					m.Id = uint16(n)
					pending[m.Id] = fmt.Sprintf("10.97.%d.%d", (client*queries+n)>>8, byte(client*queries+n))
					if err := c.WriteMsg(m); err != nil {
						return err
					}
				}
				for len(pending) > 0 {
					reply, err := c.ReadMsg()
					if err != nil {
						return fmt.Errorf("%d queries have no response: %w", len(pending), err)
					}
					if want := pending[reply.Id]; len(reply.Answer) != 1 || reply.Answer[0].(*dns.A).A.String() != want {
						return fmt.Errorf("response %v, want %s", reply, want)
					}
					delete(pending, reply.Id)
				}
				return nil
			}()
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestConnectionLimit checks that one client cannot have all TCP connections.

func TestConnectionLimit(t *testing.T) {
	address := serve(t, specServer(t))
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range maxConnectionsPerClient {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	// Accepting is asynchronous: the last of the allowed connections is served.
	last := &dns.Conn{Conn: open[len(open)-1]}
	if err := last.WriteMsg(new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.ReadMsg(); err != nil {
		t.Fatal(err)
	}
	extra, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	_ = extra.SetReadDeadline(time.Now().Add(deadline))
	if _, err := extra.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("connection %d: %v, want it to be closed", maxConnectionsPerClient+1, err)
	}
}

// TestTruncatedUpstream checks that a truncated response is asked for over TCP, and truncated again only for a client with UDP.

// TestFailingUpstreams has a row for each way in which the first name server can fail.

// TestForwardLimits checks that one client cannot take all seats, and that there is an end to them.

// TestRefusedWhenBusy checks the response to a query for which there is no seat.

// TestExternalName checks that the target of an ExternalName outside of the cluster is resolved.

func TestExternalName(t *testing.T) {
	s := specServer(t)
	addExternal(s, "default/outside", "www.example")
	u := newUpstream(t, records("www.example. 60 CNAME example.", "example. 60 A 192.0.2.1"))
	useUpstreams(s, u)
	address := serve(t, s)
	const want = "NOERROR\nexample. 60 A 192.0.2.1\nouTside.default.svc.cluster.local. 5 CNAME www.example.\nwww.example. 60 CNAME example."
	for _, network := range []string{"udp", "tcp"} {
		reply := exchange(t, network, address, new(dns.Msg).SetQuestion("ouTside.default.svc.cluster.local.", dns.TypeA))
		if got := format(reply); got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", network, got, want)
		}
	}
	if n := u.queries.Load(); n != 1 {
		t.Errorf("%d queries were forwarded, want 1", n)
	}
	reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion("outside.default.svc.cluster.local.", dns.TypeCNAME))
	if got, want := format(reply), "NOERROR aa\noutside.default.svc.cluster.local. 5 CNAME www.example."; got != want {
		t.Errorf("CNAME:\n%s\nwant:\n%s", got, want)
	}
}

// TestSettings checks stub domains, upstream name servers and hosts.

func TestSettings(t *testing.T) {
	s := specServer(t)
	host := newUpstream(t, records("a. 60 A 192.0.2.1"))
	stub := newUpstream(t, records("a. 60 A 192.0.2.2"))
	inner := newUpstream(t, records("a. 60 A 192.0.2.3"))
	other := newUpstream(t, records("a. 60 A 192.0.2.4"))
	useUpstreams(s, host)
	address := serve(t, s)
	answers := func(name string, qtype uint16) string {
		reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion(name, qtype))
		var texts []string
		for _, rr := range reply.Answer {
			texts = append(texts, strings.Fields(rr.String())[4])
		}
		slices.Sort(texts)
		return strings.Join(texts, " ")
	}
	apply := func(data map[string]string) {
		s.setConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ConfigMapNamespace, Name: ConfigMapName}, Data: data})
	}
	stubs := fmt.Sprintf(`{"acme.example": [%q], "inner.acme.example.": [%q]}`, stub.address, inner.address)
	hosts := "192.0.2.9 one.example two.example # comment\n\nfd00::9 one.example\n10.96.77.77 vip.example\n"
	apply(map[string]string{"stubDomains": stubs, "hosts": hosts})
	check := func(want map[string]string) {
		t.Helper()
		for name, expected := range want {
			if got := answers(name, dns.TypeA); got != expected {
				t.Errorf("%s: %q, want %q", name, got, expected)
			}
		}
	}
	check(map[string]string{
		"example.": "192.0.2.1", "acme.example.": "192.0.2.2", "x.Acme.example.": "192.0.2.2", "x.inner.acme.example.": "192.0.2.3", "xacme.example.": "192.0.2.1",
		"one.example.": "192.0.2.9", "two.example.": "192.0.2.9",
	})
	for name, expected := range map[string]string{
		"9.2.0.192.in-addr.arpa.": "one.example.", "77.77.96.10.in-addr.arpa.": "vip.example.", "1.1.96.10.in-addr.arpa.": "web.default.svc.cluster.local.",
	} {
		if got := answers(name, dns.TypePTR); got != expected {
			t.Errorf("%s: %q, want %q", name, got, expected)
		}
	}
	if got := answers("one.example.", dns.TypeAAAA); got != "fd00::9" {
		t.Errorf("AAAA of a host: %q", got)
	}
	if reply := exchange(t, "udp", address, new(dns.Msg).SetQuestion("two.example.", dns.TypeAAAA)); reply.Rcode != dns.RcodeSuccess || len(reply.Answer) != 0 {
		t.Errorf("AAAA of a host with an IPv4 address: %v", reply)
	}

	// A ConfigMap that is read again keeps cached responses.
	before, upstreamQueries := s.generation.Load(), stub.queries.Load()
	apply(map[string]string{"stubDomains": stubs, "hosts": hosts})
	check(map[string]string{"acme.example.": "192.0.2.2"})
	if s.generation.Load() != before || stub.queries.Load() != upstreamQueries {
		t.Errorf("responses were forgotten, %d queries were forwarded again", stub.queries.Load()-upstreamQueries)
	}

	// An invalid change keeps the last settings, cached responses of former name servers are forgotten.
	apply(map[string]string{"stubDomains": "{"})
	check(map[string]string{"acme.example.": "192.0.2.2"})
	apply(map[string]string{"upstreamNameservers": fmt.Sprintf("[%q]", other.address)})
	check(map[string]string{"example.": "192.0.2.4", "acme.example.": "192.0.2.4", "one.example.": "192.0.2.4"})
	s.setConfigMap(nil)
	check(map[string]string{"example.": "192.0.2.1"})
}

func TestInvalidSettings(t *testing.T) {
	zone, _ := parseDomain("cluster.local")
	for _, test := range []struct{ key, value, want string }{
		{"Corefile", ".:53 {}", "data[Corefile]: unknown key"},
		{"stubDomains", "[]", "data[stubDomains]: expected a JSON object"},
		{"stubDomains", `{"a..b": ["10.0.0.1"]}`, "a label that is empty"},
		{"stubDomains", `{"svc.cluster.local": ["10.0.0.1"]}`, "belongs to the domain of the cluster"},
		{"stubDomains", `{"a.example": []}`, "the list of name servers is empty"},
		{"stubDomains", `{"a.example": ["ns.example"]}`, `"ns.example" is not an IP address`},
		{"stubDomains", `{"a.example": ["10.0.0.1"], "A.example.": ["10.0.0.1"]}`, "is there twice"},
		{"upstreamNameservers", `{}`, "expected a JSON list"},
		{"upstreamNameservers", `["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]`, "more than 3"},
		{"upstreamNameservers", `["0.0.0.0"]`, "not the address of a name server"},
		{"upstreamNameservers", `["10.0.0.1:0"]`, "not the address of a name server"},
		{"hosts", "example 10.0.0.1", `line 1: "example" is not an IP address`},
		{"hosts", "\n10.0.0.1", "line 2: 10.0.0.1 has no name"},
		{"hosts", "10.0.0.1 web.default.svc.cluster.local", "belongs to the domain of the cluster"},
	} {
		if _, err := parseSettings(map[string]string{test.key: test.value}, zone); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %s: %v, want %q", test.key, test.value, err, test.want)
		}
	}
	good := map[string]string{"stubDomains": `{"a.example": ["10.0.0.1", "10.0.0.1:5353", "fd00::1", "[fd00::1]:5353"]}`, "upstreamNameservers": `["10.0.0.1"]`}
	if _, err := parseSettings(good, zone); err != nil {
		t.Error(err)
	}
}

// TestResolvConf checks which file the name servers come from, and that changes are followed.

// TestOwnAddress checks that queries are never forwarded to the server itself.

// TestLoop checks that a name server that forwards queries back is found out, and that forwarding goes on when it no longer does.

// TestCacheBounds checks that the cache does not grow beyond its limits, and that TTLs and expiry are right.

// addServiceCIDR creates the range of cluster IPs, which a server creates at its start.

func addServiceCIDR(t testing.TB, c *client.Client) {
	t.Helper()
	object := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}
	if _, err := client.For[*networkingv1.ServiceCIDR](c).Create(t.Context(), object, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestChanges runs a server against an API server and checks that changes are visible.

func TestChanges(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := inprocess.Start(t, ctx)
	addServiceCIDR(t, c)
	informers := client.NewInformers(c)
	events := client.NewEventBroadcaster(c)
	s, err := New(Config{
		ClusterDomain: "cluster.local", Client: c, Informers: informers, Addresses: noAddresses{}, Log: slog.New(slog.DiscardHandler),
		Events: events.NewRecorder("dns"),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	go func() { done <- events.Run(ctx) }()
	go func() { done <- informers.Run(ctx) }()
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}()
	eventually(t, "the informers sync", s.hasSynced)
	lookup := func(name string, qtype uint16) string {
		return format(ask(t, s, new(dns.Msg).SetQuestion(name, qtype), false))
	}
	is := func(name string, qtype uint16, want string) {
		t.Helper()
		eventually(t, name+" is "+want, func() bool { return lookup(name, qtype) == want })
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	namespaces, services := client.For[*corev1.Namespace](c), client.For[*corev1.Service](c)
	slicesClient := client.For[*discoveryv1.EndpointSlice](c)
	_, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod"}}, client.WriteOptions{})
	must(err)
	is("10-0-0-1.prod.pod.cluster.local.", dns.TypeA, "NOERROR aa\n10-0-0-1.prod.pod.cluster.local. 5 A 10.0.0.1")
	headless := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db"}}
	headless.Spec = corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "pg", Port: 5432}}}
	_, err = services.Create(ctx, headless, client.WriteOptions{})
	must(err)
	slice, err := slicesClient.Create(ctx, newSlice("prod/db/1", []string{"pg/TCP/5432"}, "10.42.0.1 db-0"), client.WriteOptions{})
	must(err)
	is("db.prod.svc.cluster.local.", dns.TypeA, "NOERROR aa\ndb.prod.svc.cluster.local. 5 A 10.42.0.1")
	is("1.0.42.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa\n1.0.42.10.in-addr.arpa. 5 PTR db-0.db.prod.svc.cluster.local.")
	changed := slice.DeepCopy()
	changed.Endpoints[0].Addresses = []string{"10.42.0.2"}
	slice, err = slicesClient.Update(ctx, changed, client.WriteOptions{})
	must(err)
	is("db.prod.svc.cluster.local.", dns.TypeA, "NOERROR aa\ndb.prod.svc.cluster.local. 5 A 10.42.0.2")
	eventually(t, "the former address is forgotten", func() bool {
		_, endpoints, _ := s.index.reverse(netip.MustParseAddr("10.42.0.1"))
		return len(endpoints) == 0
	})
	notReady := slice.DeepCopy()
	notReady.Endpoints[0].Conditions.Ready = new(false)
	_, err = slicesClient.Update(ctx, notReady, client.WriteOptions{})
	must(err)
	is("db.prod.svc.cluster.local.", dns.TypeA, "NXDOMAIN aa\n"+soa)
	must(services.Delete(ctx, "prod", "db", metav1.DeleteOptions{}))
	must(slicesClient.Delete(ctx, "prod", "db-1", metav1.DeleteOptions{}))
	eventually(t, "the index is empty", func() bool {
		s.index.mu.RLock()
		defer s.index.mu.RUnlock()
		return len(s.index.services)+len(s.index.endpoints)+len(s.index.slices)+len(s.index.clusterIPs)+len(s.index.endpointIPs) == 0
	})

	// The ConfigMap is followed.
	configs := client.For[*corev1.ConfigMap](c)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ConfigMapNamespace, Name: ConfigMapName}, Data: map[string]string{"hosts": "192.0.2.1 a.example"}}
	config, err = configs.Create(ctx, config, client.WriteOptions{})
	must(err)
	eventually(t, "the ConfigMap is applied", func() bool { return len(s.settings.Load().hosts) == 1 })
	invalid := config.DeepCopy()
	invalid.Data = map[string]string{"stubDomains": "x"}
	_, err = configs.Update(ctx, invalid, client.WriteOptions{})
	must(err)
	eventually(t, "an event reports the invalid ConfigMap", func() bool {
		list, _, err := client.For[*corev1.Event](c).List(ctx, ConfigMapNamespace, client.Selector{})
		must(err)
		return len(list) == 1 && list[0].Reason == "InvalidConfiguration" && strings.Contains(list[0].Message, "data[stubDomains]")
	})
	if len(s.settings.Load().hosts) != 1 {
		t.Error("the last valid settings are not in effect")
	}
	must(configs.Delete(ctx, ConfigMapNamespace, ConfigMapName, metav1.DeleteOptions{}))
	eventually(t, "the ConfigMap is no longer applied", func() bool { return len(s.settings.Load().hosts) == 0 })
}

// TestService checks that the Service of the cluster's DNS is created, created again, left alone and deleted, and that the server follows it.

func TestService(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := inprocess.Start(t, ctx)
	addServiceCIDR(t, c)
	s := newTestServer(t)
	services := client.For[*corev1.Service](c)
	get := func() *corev1.Service {
		service, err := services.Get(ctx, ServiceNamespace, ServiceName)
		if err != nil {
			return nil
		}
		return service
	}
	options := ServiceOptions{Client: c, IP: netip.MustParseAddr("10.96.0.10"), ClusterDomain: "example.org", Log: slog.New(slog.DiscardHandler)}
	run := func(o ServiceOptions) (stop func()) {
		own, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := RunService(own, o); err != nil {
				t.Error(err)
			}
		}()
		return func() {
			cancel()
			<-done
		}
	}
	stop := run(options)
	eventually(t, "the Service is created", func() bool { return get() != nil })
	first := get()
	if first.Spec.ClusterIP != "10.96.0.10" || !IsOwnService(first) || first.Labels["k8s-app"] != "kube-dns" || len(first.Spec.Ports) != 3 {
		t.Errorf("the Service is %v", first)
	}
	if got := ClusterDomain(first); got != "example.org" {
		t.Errorf("the domain in the Service is %q", got)
	}
	s.serviceChanged(first, false)
	if got := fmt.Sprint(s.ownAddresses()); got != "[10.96.0.10]" {
		t.Errorf("the server listens on %s", got)
	}
	if err := services.Delete(ctx, ServiceNamespace, ServiceName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Service is created again", func() bool { return get() != nil && get().UID != first.UID })
	stop()
	options.ClusterDomain = "example.net"
	stop = run(options)
	eventually(t, "the domain in the Service is changed", func() bool { return ClusterDomain(get()) == "example.net" })
	stop()

	other := get().DeepCopy()
	delete(other.Labels, ProxyLabel)
	if _, err := services.Update(ctx, other, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.serviceChanged(other, false)
	if got := s.ownAddresses(); len(got) != 0 {
		t.Errorf("the server listens on %s, which belongs to another", got)
	}
	options.Disabled = true
	if err := options.sync(ctx, get()); err != nil || get() == nil {
		t.Errorf("the Service of another was deleted: %v", err)
	}
	other = get().DeepCopy()
	other.Labels[ProxyLabel] = ProxyName
	if _, err := services.Update(ctx, other, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	stop = run(options)
	eventually(t, "the Service is deleted", func() bool { return get() == nil })
	stop()
}

func TestServiceIP(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.96.0.0/12": "10.96.0.10", "10.43.0.0/16": "10.43.0.10", "fd00:96::/112": "fd00:96::a", "10.0.0.16/28": "10.0.0.26", "10.0.0.0/29": "", "10.96.3.4/12": "10.96.0.10",
	} {
		ip, err := ServiceIP(netip.MustParsePrefix(cidr))
		if (err == nil) != (want != "") || want != "" && ip.String() != want {
			t.Errorf("%s: %v, %v", cidr, ip, err)
		}
	}
}

// TestMetrics checks that CoreDNS's metrics are served.

func TestMetrics(t *testing.T) {
	s := specServer(t)
	useUpstreams(s, newUpstream(t, records("example. 60 A 192.0.2.1")))
	address := serve(t, s)
	for range 2 {
		exchange(t, "udp", address, new(dns.Msg).SetQuestion("example.", dns.TypeA))
		exchange(t, "udp", address, new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA))
	}
	l, err := s.listen(netip.MustParseAddr("127.0.0.3"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	response, err := http.Get("http://" + l.metrics.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`coredns_dns_requests_total{family="1",proto="udp",server="dns://:53",type="A",view="",zone="cluster.local."} 2`,
		`coredns_dns_requests_total{family="1",proto="udp",server="dns://:53",type="A",view="",zone="."} 2`,
		`coredns_dns_responses_total{plugin="",rcode="NOERROR",server="dns://:53",view="",zone="cluster.local."} 2`,
		`coredns_dns_request_duration_seconds_count{server="dns://:53",view="",zone="cluster.local."} 2`,
		`coredns_dns_request_size_bytes_count{proto="udp",server="dns://:53",view="",zone="."} 2`,
		`coredns_dns_response_size_bytes_count{proto="udp",server="dns://:53",view="",zone="."} 2`,
		`coredns_cache_requests_total{server="dns://:53",view="",zones="."} 2`,
		`coredns_cache_misses_total{server="dns://:53",view="",zones="."} 1`,
		`coredns_cache_hits_total{server="dns://:53",type="success",view="",zones="."} 1`,
		`coredns_cache_entries{server="dns://:53",type="success",view="",zones="."} 1`,
		`coredns_forward_max_concurrent_rejects_total 0`,
		`coredns_panics_total 0`,
		`coredns_proxy_request_duration_seconds_count{proxy_name="forward",rcode="NOERROR",to="`,
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%s is missing in:\n%s", want, body)
		}
	}
}

// TestBoundedListener checks that a client cannot take all connections, and gets another one for each that is closed.
func TestBoundedListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := boundedListener{listener, newConnections(10, 2)}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	defer func() {
		listener.Close()
		for c := range accepted {
			c.Close()
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	next := func() net.Conn {
		t.Helper()
		select {
		case c := <-accepted:
			t.Cleanup(func() { c.Close() })
			return c
		case <-time.After(deadline):
			t.Fatal("the connection is not accepted")
			return nil
		}
	}
	dial()
	first := next()
	dial()
	next()
	mustBeClosed := func() {
		t.Helper()
		extra := dial()
		_ = extra.SetReadDeadline(time.Now().Add(deadline))
		if _, err := extra.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("one connection too many: %v, want it to be closed", err)
		}
	}
	mustBeClosed()
	// A connection that is closed twice is not counted twice.
	first.Close()
	first.Close()
	dial()
	next()
	mustBeClosed()
}

// TestMetricsConnectionsAreCounted checks that the connections to the port of the metrics are bounded ones.
func TestMetricsConnectionsAreCounted(t *testing.T) {
	s := specServer(t)
	s.ports = ports{}
	l, err := s.listen(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	open := func() int {
		l.scrapes.mu.Lock()
		defer l.scrapes.mu.Unlock()
		return l.scrapes.total
	}
	c, err := net.Dial("tcp", l.metrics.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection is counted", func() bool { return open() == 1 })
	c.Close()
	eventually(t, "the closed connection is not counted", func() bool { return open() == 0 })
}
