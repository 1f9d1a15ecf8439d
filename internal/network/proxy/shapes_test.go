package proxy

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The cluster of the shapes: this node with pods a and b, another one with pods c and d, a pod that is only a client, and a host outside.
const (
	thisNode, otherNode = "node-1", "node-2"
	nodeIP4, nodeIP6    = "192.168.77.1", "fd77::1"
	outsideIP4          = "192.168.77.2"
	outsideIP6          = "fd77::2"
	gateway4, gateway6  = "10.42.1.1", "fd00:42:1::1"
	clientPod           = "client"
)

// podIPs are the addresses of the pods by name.
var podIPs = map[string][2]string{
	"a": {"10.42.1.11", "fd00:42:1::11"}, "b": {"10.42.1.12", "fd00:42:1::12"},
	"c": {"10.42.2.21", "fd00:42:2::21"}, "d": {"10.42.2.22", "fd00:42:2::22"},
	clientPod: {"10.42.1.10", "fd00:42:1::10"},
}

func isLocalPod(name string) bool { return strings.Contains("ab", name) }

func testSettings() Settings {
	return Settings{
		Table: "test", MasqueradeMark: DefaultMasqueradeMark,
		Local: LocalTraffic{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/32")}},
	}
}

func testNode() Node {
	ips := []netip.Addr{netip.MustParseAddr(nodeIP4), netip.MustParseAddr(nodeIP6)}
	return Node{Name: thisNode, Zone: "zone-1", IPs: ips, NodePortIPs: ips}
}

// object is a Service and its EndpointSlices.
type object struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

// shape is a kind of Service that the proxy has to handle.
type shape struct {
	name     string
	settings func(*Settings)
	node     func(*Node)
	objects  []object
}

type option func(*object)

// service builds a Service with one TCP port 80 and the cluster IP 10.43.0.5.
func service(options ...option) object {
	o := object{service: &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.43.0.5", ClusterIPs: []string{"10.43.0.5"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}}
	for _, apply := range options {
		apply(&o)
	}
	return o
}

func spec(change func(*corev1.ServiceSpec)) option {
	return func(o *object) { change(&o.service.Spec) }
}

func named(name string) option { return func(o *object) { o.service.Name = name } }

func label(key, value string) option {
	return func(o *object) { o.service.Labels = map[string]string{key: value} }
}

// sliceLabel adds a label to the last slice.
func sliceLabel(key string) option {
	return func(o *object) { o.slices[len(o.slices)-1].Labels[key] = "" }
}

func clusterIPs(ips ...string) option {
	return spec(func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = ips[0], ips })
}

func ports(list ...corev1.ServicePort) option {
	return spec(func(s *corev1.ServiceSpec) { s.Ports = list })
}

func tcp(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolTCP}
}

func udp(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolUDP}
}

func sctp(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolSCTP}
}

func nodePort(port int32) option {
	return spec(func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeNodePort
		for i := range s.Ports {
			s.Ports[i].NodePort = port + int32(i)
		}
	})
}

func loadBalancer(ips ...string) option {
	return func(o *object) {
		o.service.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, ip := range ips {
			o.service.Status.LoadBalancer.Ingress = append(o.service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func externalIPs(ips ...string) option {
	return spec(func(s *corev1.ServiceSpec) { s.ExternalIPs = ips })
}

func externalLocal() option {
	return spec(func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
}

func internalLocal() option {
	return spec(func(s *corev1.ServiceSpec) {
		s.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	})
}

func sourceRange(ranges ...string) option {
	return spec(func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = ranges })
}

func affinity(seconds int32) option {
	return spec(func(s *corev1.ServiceSpec) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	})
}

// backend describes one endpoint: the pod's name, then flags: "!" not ready, "t" terminating and serving, "x" terminating and not serving,
// "?" terminating without a word about serving, "@zone" a zone hint, "#node" a node hint.
type backend string

func (b backend) endpoint(is4 bool) discoveryv1.Endpoint {
	text := string(b)
	name, node := text[:1], otherNode
	if isLocalPod(name) {
		node = thisNode
	}
	ip := podIPs[name][1]
	if is4 {
		ip = podIPs[name][0]
	}
	e := discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)}}
	for _, flag := range strings.Fields(text[1:]) {
		switch flag[0] {
		case '!':
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false)}
		case 't':
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
		case 'x':
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(true)}
		case '?':
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Terminating: ptr.To(true)}
		case '@', '#':
			if e.Hints == nil {
				e.Hints = &discoveryv1.EndpointHints{}
			}
			if flag[0] == '@' {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: flag[1:]})
			} else {
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: flag[1:]})
			}
		}
	}
	return e
}

// targetPort is the port of all endpoints.
const targetPort = 8080

// endpoints adds a slice for each family of the Service, with all of its ports.
func endpoints(backends ...backend) option {
	return func(o *object) {
		for _, ip := range o.service.Spec.ClusterIPs {
			is4 := !strings.Contains(ip, ":")
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: o.service.Namespace, Labels: map[string]string{discoveryv1.LabelServiceName: o.service.Name}},
				AddressType: discoveryv1.AddressTypeIPv6,
			}
			if is4 {
				slice.AddressType = discoveryv1.AddressTypeIPv4
			}
			for _, p := range o.service.Spec.Ports {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To[int32](targetPort)})
			}
			for _, b := range backends {
				slice.Endpoints = append(slice.Endpoints, b.endpoint(is4))
			}
			o.slices = append(o.slices, slice)
		}
	}
}

const ip6 = "fd00:43::5"

// shapes are all kinds of Services, each of them tested by its rules and with packets.
func shapes() []shape {
	one := func(name string, options ...option) shape {
		return shape{name: name, objects: []object{service(options...)}}
	}
	with := func(s shape, settings func(*Settings), node func(*Node)) shape {
		s.settings, s.node = settings, node
		return s
	}
	return []shape{
		one("clusterip one endpoint", endpoints("a")),
		one("clusterip four endpoints", endpoints("a", "b", "c", "d")),
		one("clusterip no endpoints"),
		one("clusterip two ports", ports(tcp("http", 80), tcp("admin", 81)), endpoints("a", "c")),
		one("clusterip udp", ports(udp("dns", 53)), endpoints("a", "b")),
		one("clusterip udp no endpoints", ports(udp("dns", 53))),
		one("clusterip sctp", ports(sctp("signal", 36412)), endpoints("a", "b")),
		one("clusterip tcp and udp on one port", ports(tcp("tcp", 53), udp("udp", 53)), endpoints("b")),
		one("clusterip ipv6", clusterIPs(ip6), endpoints("a", "c")),
		one("clusterip ipv6 no endpoints", clusterIPs(ip6)),
		one("clusterip dual stack", clusterIPs("10.43.0.5", ip6), endpoints("a", "c")),
		one("headless", clusterIPs(corev1.ClusterIPNone), endpoints("a")),
		one("external name", spec(func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeExternalName, "example.com", "", nil
		})),
		one("another proxy's", label(labelProxyName, "other"), endpoints("a")),
		one("headless label", label(corev1.IsHeadlessService, ""), endpoints("a")),
		one("slice of another proxy", endpoints("a"), endpoints("c"), sliceLabel(labelProxyName)),
		one("slice with headless label", endpoints("a"), endpoints("c"), sliceLabel(corev1.IsHeadlessService)),
		one("all slices with headless label", endpoints("a"), sliceLabel(corev1.IsHeadlessService)),
		one("endpoint not ready", endpoints("a !", "c")),
		one("all endpoints not ready", endpoints("a !", "c !")),
		one("terminating endpoints serve", endpoints("a t", "c t", "d x")),
		one("terminating endpoints that may serve", nodePort(30080), externalLocal(), endpoints("a ?", "c ?", "d x")),
		one("terminating endpoints do not serve", endpoints("a x", "c x")),
		one("ready endpoints before terminating ones", endpoints("a t", "c")),
		one("endpoint in two slices", endpoints("a", "c"), endpoints("a t", "b")),
		one("hairpin", endpoints("a", "b", "c")),
		one("internal local", internalLocal(), endpoints("a", "b", "c")),
		one("internal local no local endpoint", internalLocal(), endpoints("c", "d")),
		one("internal local terminating", internalLocal(), endpoints("a t", "c")),
		one("internal local no endpoints", internalLocal()),
		one("nodeport", nodePort(30080), endpoints("a", "c")),
		one("nodeport udp", ports(udp("dns", 53)), nodePort(30053), endpoints("a", "c")),
		one("nodeport sctp", ports(sctp("signal", 36412)), nodePort(30412), endpoints("a")),
		one("nodeport dual stack", clusterIPs("10.43.0.5", ip6), nodePort(30080), endpoints("b", "d")),
		one("nodeport no endpoints", nodePort(30080)),
		one("nodeport local", nodePort(30080), externalLocal(), endpoints("a", "c", "d")),
		one("nodeport local ipv6", clusterIPs(ip6), nodePort(30080), externalLocal(), endpoints("a", "c")),
		one("nodeport local no local endpoint", nodePort(30080), externalLocal(), endpoints("c", "d")),
		one("nodeport local no endpoints", nodePort(30080), externalLocal()),
		one("nodeport local terminating", nodePort(30080), externalLocal(), endpoints("b t", "c")),
		one("nodeport both local", nodePort(30080), externalLocal(), internalLocal(), endpoints("a", "c")),
		with(one("nodeport on all addresses", nodePort(30080), endpoints("a", "c")), nil, func(n *Node) { n.AllIPv4NodePorts, n.AllIPv6NodePorts, n.NodePortIPs = true, true, nil }),
		one("loadbalancer", nodePort(30080), loadBalancer("203.0.113.5"), endpoints("a", "c")),
		one("loadbalancer no endpoints", nodePort(30080), loadBalancer("203.0.113.5")),
		one("loadbalancer local", nodePort(30080), loadBalancer("203.0.113.5"), externalLocal(), endpoints("b", "c")),
		one("loadbalancer local no local endpoint", nodePort(30080), loadBalancer("203.0.113.5"), externalLocal(), endpoints("c")),
		one("loadbalancer dual stack", clusterIPs("10.43.0.5", ip6), nodePort(30080), loadBalancer("203.0.113.5", "2001:db8::5"), endpoints("a", "d")),
		one("loadbalancer in proxy mode", nodePort(30080), loadBalancer("203.0.113.5"), func(o *object) {
			o.service.Status.LoadBalancer.Ingress[0].IPMode = ptr.To(corev1.LoadBalancerIPModeProxy)
		}, endpoints("a")),
		one("source range of the client", nodePort(30080), loadBalancer("203.0.113.5"), sourceRange("192.168.77.2/32", " 10.9.0.0/16"), endpoints("a")),
		one("source range of others", nodePort(30080), loadBalancer("203.0.113.5"), sourceRange("10.9.0.0/16"), endpoints("a")),
		one("source range of pods and node", nodePort(30080), loadBalancer("203.0.113.5"), sourceRange("10.42.0.0/16", "192.168.77.1/32"), endpoints("a", "c")),
		one("source range of everybody", nodePort(30080), loadBalancer("203.0.113.5"), sourceRange("10.9.0.0/16", "0.0.0.0/0"), endpoints("a")),
		one("external ips", externalIPs("198.51.100.7", "198.51.100.8"), endpoints("a", "c")),
		one("external ips no endpoints", externalIPs("198.51.100.7")),
		one("external ips local", externalIPs("198.51.100.7"), externalLocal(), endpoints("a", "c")),
		one("affinity", affinity(600), endpoints("a", "b", "c", "d")),
		one("affinity udp", ports(udp("dns", 53)), affinity(600), endpoints("a", "b", "c")),
		one("affinity ipv6", clusterIPs(ip6), affinity(600), endpoints("a", "b", "c")),
		one("affinity nodeport", nodePort(30080), affinity(10800), endpoints("a", "b", "c", "d")),
		one("affinity nodeport local", nodePort(30080), externalLocal(), affinity(10800), endpoints("a", "b", "c")),
		one("affinity loadbalancer", nodePort(30080), loadBalancer("203.0.113.5"), affinity(60), endpoints("a", "c")),
		one("affinity long names", func(o *object) {
			o.service.Namespace, o.service.Name = strings.Repeat("n", 63), strings.Repeat("s", 63)
		}, clusterIPs("fd00:43:1111:2222:3333:4444:5555:6666"), ports(tcp(strings.Repeat("p", 63), 80)), affinity(86400), endpoints("a", "c")),
		one("zone hints", endpoints("a @zone-1", "c @zone-2", "d @zone-1")),
		one("zone hints for other zones", endpoints("a @zone-2", "c @zone-3")),
		one("zone hints incomplete", endpoints("a @zone-1", "c")),
		with(one("zone hints without zone", endpoints("a @zone-1", "c @zone-2")), nil, func(n *Node) { n.Zone = "" }),
		one("node hints", endpoints("a @zone-1 #node-1", "b @zone-1 #node-2", "c @zone-1 #node-2")),
		one("node hints for other nodes", endpoints("b @zone-1 #node-3", "c @zone-2 #node-2")),
		with(one("masquerade all", endpoints("a", "c")), func(s *Settings) { s.MasqueradeAll = true }, nil),
		with(one("no local traffic detection", nodePort(30080), externalLocal(), endpoints("a", "c")), func(s *Settings) { s.Local = LocalTraffic{} }, nil),
		{name: "two services with one external ip", objects: []object{
			service(named("first"), externalIPs("198.51.100.7"), endpoints("a")),
			service(named("second"), clusterIPs("10.43.0.6"), externalIPs("198.51.100.7"), endpoints("b", "c")),
		}},
	}
}
