package dns

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newTestServer is a server with an empty index that takes itself for synced.
func newTestServer(t testing.TB) *Server {
	t.Helper()
	s, err := newServer(Config{ClusterDomain: "cluster.local", Addresses: noAddresses{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// noAddresses is for tests on loopback addresses.
type noAddresses struct{}

func (noAddresses) Set([]netip.Addr) error { return nil }

// addService adds a Service: "namespace/name", its cluster IPs ("None" for a headless one) and ports "name/TCP/80".
func addService(s *Server, key string, ips []string, ports ...string) {
	namespace, name, _ := strings.Cut(key, "/")
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	object.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ips[0], ClusterIPs: ips}
	for _, p := range ports {
		portName, protocol, number := parsePort(p)
		object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{Name: portName, Protocol: protocol, Port: number})
	}
	s.index.setService(object)
}

func addExternal(s *Server, key, target string) {
	namespace, name, _ := strings.Cut(key, "/")
	s.index.setService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target},
	})
}

func parsePort(text string) (name string, protocol corev1.Protocol, number int32) {
	fields := strings.Split(text, "/")
	_, _ = fmt.Sscan(fields[2], &number)
	return fields[0], corev1.Protocol(fields[1]), number
}

// newSlice is an EndpointSlice "namespace/service/suffix" with endpoints "address", "address hostname" or "address hostname notready".
func newSlice(key string, ports []string, endpoints ...string) *discoveryv1.EndpointSlice {
	fields := strings.Split(key, "/")
	object := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fields[0], Name: fields[1] + "-" + fields[2], Labels: map[string]string{discoveryv1.LabelServiceName: fields[1]},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range ports {
		name, protocol, number := parsePort(p)
		object.Ports = append(object.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
	}
	for _, text := range endpoints {
		fields := strings.Fields(text)
		if strings.Contains(fields[0], ":") {
			object.AddressType = discoveryv1.AddressTypeIPv6
		}
		e := discoveryv1.Endpoint{Addresses: []string{fields[0]}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
		if len(fields) > 1 && fields[1] != "-" {
			e.Hostname = &fields[1]
		}
		if len(fields) > 2 {
			e.Conditions.Ready = new(fields[2] != "notready")
		}
		object.Endpoints = append(object.Endpoints, e)
	}
	return object
}

func addNamespaces(s *Server, names ...string) {
	for _, name := range names {
		s.index.setNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// packQuery is a query in wire format.
func packQuery(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// ask answers a query from memory.
func ask(t testing.TB, s *Server, m *dns.Msg, isTCP bool) *dns.Msg {
	t.Helper()
	packet, result := s.newWorker().answer(request{packet: packQuery(t, m), client: netip.MustParseAddr("10.42.0.1"), isTCP: isTCP})
	if result != respond {
		t.Fatalf("%s: result %d, want a response", m.Question[0].Name, result)
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(packet); err != nil {
		t.Fatalf("%s: decode response %x: %v", m.Question[0].Name, packet, err)
	}
	return reply
}

// format is a response as text: the code and flags, then the records, sorted within their sections.
func format(m *dns.Msg) string {
	var lines []string
	head := dns.RcodeToString[m.Rcode]
	if m.Authoritative {
		head += " aa"
	}
	if m.Truncated {
		head += " tc"
	}
	for _, section := range []struct {
		name    string
		records []dns.RR
	}{{"", m.Answer}, {"authority ", m.Ns}, {"additional ", m.Extra}} {
		var texts []string
		for _, rr := range section.records {
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Serial = 1
			}
			if rr.Header().Rrtype != dns.TypeOPT {
				texts = append(texts, section.name+strings.Join(strings.Fields(strings.Replace(rr.String(), "\tIN\t", " ", 1)), " "))
			}
		}
		slices.Sort(texts)
		lines = append(lines, texts...)
	}
	return strings.Join(append([]string{head}, lines...), "\n")
}
