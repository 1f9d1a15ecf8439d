package dns

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// specServer has one Service of each kind that the specification knows.
func specServer(t testing.TB) *Server {
	s := newTestServer(t)
	addNamespaces(s, "default", "kube-system")
	own := []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	s.own.Store(&own)
	addService(s, "kube-system/kube-dns", []string{"10.96.0.10"}, "dns/UDP/53", "dns-tcp/TCP/53")

	addService(s, "default/web", []string{"10.96.1.1"}, "http/TCP/80", "metrics/TCP/9090")
	s.index.setEndpointSlice(newSlice("default/web/1", []string{"http/TCP/8080"}, "10.42.0.5", "10.42.0.6 - notready"))
	addService(s, "default/dual", []string{"10.96.1.2", "fd00:96::2"}, "http/TCP/80")
	addService(s, "default/unnamed", []string{"10.96.1.3"}, "/TCP/80")
	addService(s, "default/six", []string{"fd00:96::4"}, "http/TCP/80")

	addService(s, "default/db", []string{"None"}, "pg/TCP/5432")
	s.index.setEndpointSlice(newSlice("default/db/1", []string{"pg/TCP/5432", "gossip/UDP/7946"},
		"10.42.0.10 db-0", "10.42.0.11 Db-1", "10.42.0.12 db-2 notready", "10.42.0.13"))
	s.index.setEndpointSlice(newSlice("default/db/2", []string{"pg/TCP/5432", "gossip/UDP/7946"}, "fd00:42::10 db-0", "fd00:42::"))
	addService(s, "default/portless", []string{"None"})
	s.index.setEndpointSlice(newSlice("default/portless/1", nil, "10.42.0.20 a"))
	addService(s, "default/empty", []string{"None"}, "http/TCP/80")
	s.index.setEndpointSlice(newSlice("default/orphan/1", []string{"http/TCP/80"}, "10.42.0.30"))

	addExternal(s, "default/inside", "db-0.DB.default.svc.cluster.local")
	addExternal(s, "default/chained", "inside.default.svc.cluster.local.")
	addExternal(s, "default/nowhere", "missing.default.svc.cluster.local")
	addExternal(s, "default/address", "192.0.2.1")
	addExternal(s, "default/loop", "loop.default.svc.cluster.local")

	s.index.setRanges("servicecidr/kubernetes", []string{"10.96.0.0/12", "fd00:96::/112"})
	s.index.setRanges("node/a", []string{"10.42.0.0/24", "fd00:42::/64"})
	return s
}

const soa = "authority cluster.local. 5 SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"

// TestSpecification has a row for each record of the Kubernetes DNS specification 1.1.0, and for each case in which there is none.
func TestSpecification(t *testing.T) {
	s := specServer(t)
	const (
		noName = "NXDOMAIN aa\n" + soa
		noData = "NOERROR aa\n" + soa
	)
	tests := []struct {
		about, name string
		qtype       uint16
		want        string
	}{
		{"schema version", "dns-version.cluster.local.", dns.TypeTXT, "NOERROR aa\ndns-version.cluster.local. 28800 TXT \"1.1.0\""},
		{"schema version, other type", "dns-version.cluster.local.", dns.TypeA, noData},
		{"schema version below", "x.dns-version.cluster.local.", dns.TypeTXT, noName},

		{"zone SOA", "cluster.local.", dns.TypeSOA, "NOERROR aa\n" + soa[len("authority "):]},
		{"zone NS", "cluster.local.", dns.TypeNS, "NOERROR aa\ncluster.local. 5 NS ns.dns.cluster.local.\nadditional ns.dns.cluster.local. 5 A 10.96.0.10"},
		{"zone A", "cluster.local.", dns.TypeA, noData},
		{"name server", "ns.dns.cluster.local.", dns.TypeA, "NOERROR aa\nns.dns.cluster.local. 5 A 10.96.0.10"},
		{"name server, other family", "ns.dns.cluster.local.", dns.TypeAAAA, noData},
		{"above the name server", "dns.cluster.local.", dns.TypeA, noData},
		{"svc", "svc.cluster.local.", dns.TypeA, noData},
		{"pod", "pod.cluster.local.", dns.TypeA, noData},
		{"other subdomain", "other.cluster.local.", dns.TypeA, noName},
		{"external name with search path", "example.com.default.svc.cluster.local.", dns.TypeA, noName},
		{"namespace", "default.svc.cluster.local.", dns.TypeA, noData},
		{"missing namespace", "missing.svc.cluster.local.", dns.TypeA, noName},
		{"namespace of pods", "default.pod.cluster.local.", dns.TypeA, noData},

		{"ClusterIP A", "web.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\nweb.default.svc.cluster.local. 5 A 10.96.1.1"},
		{"ClusterIP AAAA without IPv6", "web.default.svc.cluster.local.", dns.TypeAAAA, noData},
		{"ClusterIP TXT", "web.default.svc.cluster.local.", dns.TypeTXT, noData},
		{"ClusterIP CNAME", "web.default.svc.cluster.local.", dns.TypeCNAME, noData},
		{"ClusterIP MX", "web.default.svc.cluster.local.", dns.TypeMX, noData},
		{"ClusterIP HTTPS", "web.default.svc.cluster.local.", dns.TypeHTTPS, noData},
		{"ClusterIP of another namespace", "web.kube-system.svc.cluster.local.", dns.TypeA, noName},
		{"upper case", "WEB.Default.SVC.Cluster.Local.", dns.TypeA, "NOERROR aa\nWEB.Default.SVC.Cluster.Local. 5 A 10.96.1.1"},
		{"dual-stack A", "dual.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\ndual.default.svc.cluster.local. 5 A 10.96.1.2"},
		{"dual-stack AAAA", "dual.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR aa\ndual.default.svc.cluster.local. 5 AAAA fd00:96::2"},
		{"IPv6 A", "six.default.svc.cluster.local.", dns.TypeA, noData},
		{"IPv6 AAAA", "six.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR aa\nsix.default.svc.cluster.local. 5 AAAA fd00:96::4"},

		{"ClusterIP SRV", "_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV,
			"NOERROR aa\n_http._tcp.web.default.svc.cluster.local. 5 SRV 0 100 80 web.default.svc.cluster.local.\nadditional web.default.svc.cluster.local. 5 A 10.96.1.1"},
		{"ClusterIP SRV of all ports", "web.default.svc.cluster.local.", dns.TypeSRV,
			"NOERROR aa\nweb.default.svc.cluster.local. 5 SRV 0 50 80 web.default.svc.cluster.local.\nweb.default.svc.cluster.local. 5 SRV 0 50 9090 web.default.svc.cluster.local.\n" +
				"additional web.default.svc.cluster.local. 5 A 10.96.1.1"},
		{"dual-stack SRV", "_http._tcp.dual.default.svc.cluster.local.", dns.TypeSRV,
			"NOERROR aa\n_http._tcp.dual.default.svc.cluster.local. 5 SRV 0 50 80 dual.default.svc.cluster.local.\n" +
				"additional dual.default.svc.cluster.local. 5 A 10.96.1.2\nadditional dual.default.svc.cluster.local. 5 AAAA fd00:96::2"},
		{"A of a port's name", "_http._tcp.web.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\n_http._tcp.web.default.svc.cluster.local. 5 A 10.96.1.1"},
		{"SRV of another port", "_https._tcp.web.default.svc.cluster.local.", dns.TypeSRV, noName},
		{"SRV of another protocol", "_http._udp.web.default.svc.cluster.local.", dns.TypeSRV, noName},
		{"SRV without underscores", "http.tcp.web.default.svc.cluster.local.", dns.TypeSRV, noName},
		{"unnamed port has no SRV name", "_._tcp.unnamed.default.svc.cluster.local.", dns.TypeSRV, noName},
		{"protocol", "_tcp.web.default.svc.cluster.local.", dns.TypeSRV, noData},
		{"protocol without ports", "_udp.web.default.svc.cluster.local.", dns.TypeSRV, noName},
		{"too many labels", "a._http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, noName},

		{"endpoint of a ClusterIP", "10-42-0-5.web.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\n10-42-0-5.web.default.svc.cluster.local. 5 A 10.42.0.5"},
		{"endpoint that is not ready", "10-42-0-6.web.default.svc.cluster.local.", dns.TypeA, noName},

		{"headless A", "db.default.svc.cluster.local.", dns.TypeA,
			"NOERROR aa\ndb.default.svc.cluster.local. 5 A 10.42.0.10\ndb.default.svc.cluster.local. 5 A 10.42.0.11\ndb.default.svc.cluster.local. 5 A 10.42.0.13"},
		{"headless AAAA", "db.default.svc.cluster.local.", dns.TypeAAAA,
			"NOERROR aa\ndb.default.svc.cluster.local. 5 AAAA fd00:42::\ndb.default.svc.cluster.local. 5 AAAA fd00:42::10"},
		{"headless TXT", "db.default.svc.cluster.local.", dns.TypeTXT, noData},
		{"headless without endpoints", "empty.default.svc.cluster.local.", dns.TypeA, noName},
		{"headless without ports", "portless.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\nportless.default.svc.cluster.local. 5 A 10.42.0.20"},
		{"headless without ports SRV", "portless.default.svc.cluster.local.", dns.TypeSRV, noData},
		{"endpoints without Service", "orphan.default.svc.cluster.local.", dns.TypeA, noName},
		{"hostname A", "db-0.db.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\ndb-0.db.default.svc.cluster.local. 5 A 10.42.0.10"},
		{"hostname AAAA", "db-0.db.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR aa\ndb-0.db.default.svc.cluster.local. 5 AAAA fd00:42::10"},
		{"hostname in upper case", "db-1.db.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\ndb-1.db.default.svc.cluster.local. 5 A 10.42.0.11"},
		{"hostname that is not ready", "db-2.db.default.svc.cluster.local.", dns.TypeA, noName},
		{"endpoint by address", "10-42-0-13.db.default.svc.cluster.local.", dns.TypeA, "NOERROR aa\n10-42-0-13.db.default.svc.cluster.local. 5 A 10.42.0.13"},
		{"endpoint with hostname by address", "10-42-0-10.db.default.svc.cluster.local.", dns.TypeA, noName},
		{"endpoint by IPv6 address", "fd00-42--0.db.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR aa\nfd00-42--0.db.default.svc.cluster.local. 5 AAAA fd00:42::"},
		{"headless SRV", "_pg._tcp.db.default.svc.cluster.local.", dns.TypeSRV,
			"NOERROR aa\n" +
				"_pg._tcp.db.default.svc.cluster.local. 5 SRV 0 20 5432 10-42-0-13.db.default.svc.cluster.local.\n" +
				"_pg._tcp.db.default.svc.cluster.local. 5 SRV 0 20 5432 db-0.db.default.svc.cluster.local.\n" +
				"_pg._tcp.db.default.svc.cluster.local. 5 SRV 0 20 5432 db-1.db.default.svc.cluster.local.\n" +
				"_pg._tcp.db.default.svc.cluster.local. 5 SRV 0 20 5432 fd00-42--0.db.default.svc.cluster.local.\n" +
				"additional 10-42-0-13.db.default.svc.cluster.local. 5 A 10.42.0.13\n" +
				"additional db-0.db.default.svc.cluster.local. 5 A 10.42.0.10\n" +
				"additional db-0.db.default.svc.cluster.local. 5 AAAA fd00:42::10\n" +
				"additional db-1.db.default.svc.cluster.local. 5 A 10.42.0.11\n" +
				"additional fd00-42--0.db.default.svc.cluster.local. 5 AAAA fd00:42::"},
		{"headless SRV of a hostname", "db-1.db.default.svc.cluster.local.", dns.TypeSRV,
			"NOERROR aa\ndb-1.db.default.svc.cluster.local. 5 SRV 0 50 5432 db-1.db.default.svc.cluster.local.\n" +
				"db-1.db.default.svc.cluster.local. 5 SRV 0 50 7946 db-1.db.default.svc.cluster.local.\nadditional db-1.db.default.svc.cluster.local. 5 A 10.42.0.11"},
		{"headless SRV of another port", "_http._tcp.db.default.svc.cluster.local.", dns.TypeSRV, noName},
		{"headless protocol", "_udp.db.default.svc.cluster.local.", dns.TypeSRV, noData},

		{"ExternalName CNAME", "inside.default.svc.cluster.local.", dns.TypeCNAME, "NOERROR aa\ninside.default.svc.cluster.local. 5 CNAME db-0.db.default.svc.cluster.local."},
		{"ExternalName A", "inside.default.svc.cluster.local.", dns.TypeA,
			"NOERROR aa\ndb-0.db.default.svc.cluster.local. 5 A 10.42.0.10\ninside.default.svc.cluster.local. 5 CNAME db-0.db.default.svc.cluster.local."},
		{"ExternalName of an ExternalName", "chained.default.svc.cluster.local.", dns.TypeAAAA,
			"NOERROR aa\nchained.default.svc.cluster.local. 5 CNAME inside.default.svc.cluster.local.\n" +
				"db-0.db.default.svc.cluster.local. 5 AAAA fd00:42::10\ninside.default.svc.cluster.local. 5 CNAME db-0.db.default.svc.cluster.local."},
		{"ExternalName of a missing name", "nowhere.default.svc.cluster.local.", dns.TypeA,
			"NXDOMAIN aa\nnowhere.default.svc.cluster.local. 5 CNAME missing.default.svc.cluster.local.\n" + soa},
		{"ExternalName with an address", "address.default.svc.cluster.local.", dns.TypeA, noName},
		{"below an ExternalName", "a.inside.default.svc.cluster.local.", dns.TypeA, noName},
		{"SRV of an ExternalName", "_http._tcp.inside.default.svc.cluster.local.", dns.TypeSRV, noName},

		{"pod A", "10-42-0-5.default.pod.cluster.local.", dns.TypeA, "NOERROR aa\n10-42-0-5.default.pod.cluster.local. 5 A 10.42.0.5"},
		{"pod that nobody has", "192-0-2-1.default.pod.cluster.local.", dns.TypeA, "NOERROR aa\n192-0-2-1.default.pod.cluster.local. 5 A 192.0.2.1"},
		{"pod AAAA", "fd00-42--5.default.pod.cluster.local.", dns.TypeAAAA, "NOERROR aa\nfd00-42--5.default.pod.cluster.local. 5 AAAA fd00:42::5"},
		{"pod, other family", "10-42-0-5.default.pod.cluster.local.", dns.TypeAAAA, noData},
		{"pod in a missing namespace", "10-42-0-5.missing.pod.cluster.local.", dns.TypeA, noName},
		{"pod that is no address", "web.default.pod.cluster.local.", dns.TypeA, noName},
		{"below a pod", "a.10-42-0-5.default.pod.cluster.local.", dns.TypeA, noName},

		{"PTR of a ClusterIP", "1.1.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa\n1.1.96.10.in-addr.arpa. 5 PTR web.default.svc.cluster.local."},
		{"PTR of an IPv6 ClusterIP", "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR,
			"NOERROR aa\n2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa. 5 PTR dual.default.svc.cluster.local."},
		{"PTR of an endpoint with hostname", "10.0.42.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa\n10.0.42.10.in-addr.arpa. 5 PTR db-0.db.default.svc.cluster.local."},
		{"PTR of an endpoint", "5.0.42.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa\n5.0.42.10.in-addr.arpa. 5 PTR 10-42-0-5.web.default.svc.cluster.local."},
		{"PTR of an IPv6 endpoint", "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.2.4.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR,
			"NOERROR aa\n0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.2.4.0.0.0.0.d.f.ip6.arpa. 5 PTR db-0.db.default.svc.cluster.local."},
		{"TXT of an endpoint's address", "5.0.42.10.in-addr.arpa.", dns.TypeTXT,
			"NOERROR aa\nauthority in-addr.arpa. 5 SOA ns.dns.in-addr.arpa. hostmaster.in-addr.arpa. 1 7200 1800 86400 5"},
		{"PTR of an unused service address", "9.9.96.10.in-addr.arpa.", dns.TypePTR,
			"NXDOMAIN aa\nauthority in-addr.arpa. 5 SOA ns.dns.in-addr.arpa. hostmaster.in-addr.arpa. 1 7200 1800 86400 5"},
		{"PTR of an unused pod address", "99.0.42.10.in-addr.arpa.", dns.TypePTR,
			"NXDOMAIN aa\nauthority in-addr.arpa. 5 SOA ns.dns.in-addr.arpa. hostmaster.in-addr.arpa. 1 7200 1800 86400 5"},
		{"PTR of an unused IPv6 pod address", "f.f.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.2.4.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR,
			"NXDOMAIN aa\nauthority ip6.arpa. 5 SOA ns.dns.ip6.arpa. hostmaster.ip6.arpa. 1 7200 1800 86400 5"},
	}
	for _, test := range tests {
		t.Run(test.about, func(t *testing.T) {
			reply := ask(t, s, new(dns.Msg).SetQuestion(test.name, test.qtype), false)
			if got := format(reply); got != test.want {
				t.Errorf("%s %s:\n%s\nwant:\n%s", test.name, dns.TypeToString[test.qtype], got, test.want)
			}
			if reply.Question[0].Name != test.name || !reply.RecursionDesired || !reply.RecursionAvailable || !reply.Response {
				t.Errorf("header and question %v", reply)
			}
		})
	}
}

// TestForwardedNames checks which names are not the cluster's.
func TestForwardedNames(t *testing.T) {
	s := specServer(t)
	for _, name := range []string{"example.com.", "local.", ".", "xcluster.local.", "1.2.0.192.in-addr.arpa.", "42.10.in-addr.arpa.", "256.0.42.10.in-addr.arpa.", "05.0.42.10.in-addr.arpa."} {
		_, result := s.newWorker().answer(request{packet: packQuery(t, new(dns.Msg).SetQuestion(name, dns.TypeA))})
		if result != wait {
			t.Errorf("%s: result %d, want to be forwarded", name, result)
		}
	}
}

// TestExternalNameLoop checks that CNAMEs that lead back end.
func TestExternalNameLoop(t *testing.T) {
	reply := ask(t, specServer(t), new(dns.Msg).SetQuestion("loop.default.svc.cluster.local.", dns.TypeA), true)
	if len(reply.Answer) != maxChain || reply.Rcode != dns.RcodeSuccess {
		t.Errorf("%d records, code %d", len(reply.Answer), reply.Rcode)
	}
}

// TestNotSynced checks that a name is not denied before all objects are known.
func TestNotSynced(t *testing.T) {
	s := specServer(t)
	synced := false
	s.synced = append(s.synced, func() bool { return synced })
	missing := new(dns.Msg).SetQuestion("missing.default.svc.cluster.local.", dns.TypeA)
	if reply := ask(t, s, missing, false); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("before the first lists: code %d", reply.Rcode)
	}
	if reply := ask(t, s, new(dns.Msg).SetQuestion("9.9.96.10.in-addr.arpa.", dns.TypePTR), false); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("before the first lists: code %d for an address", reply.Rcode)
	}
	if reply := ask(t, s, new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA), false); len(reply.Answer) != 1 {
		t.Errorf("before the first lists: %v", reply)
	}
	synced = true
	if reply := ask(t, s, missing, false); reply.Rcode != dns.RcodeNameError {
		t.Errorf("after the first lists: code %d", reply.Rcode)
	}
}
