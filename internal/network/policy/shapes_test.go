package policy

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/test/netns"
)

// The cluster of the shapes: this node with pods a, b and e, another one with pods c and d, and a host outside.
const (
	thisNode, otherNode    = "node-1", "node-2"
	nodeIP4, nodeIP6       = "192.168.77.1", "fd77::1"
	outsideIP4, outsideIP6 = "192.168.77.2", "fd77::2"
	gateway4, gateway6     = "10.42.1.1", "fd00:42:1::1"
	// The clients besides the pods.
	onHost, outside = netns.Host, netns.Outside
)

// cluster are the objects that policies depend on.
type cluster struct {
	pods       map[string]*corev1.Pod // by name, which is unique in the tests
	namespaces map[string]*corev1.Namespace
	policies   map[string]*networkingv1.NetworkPolicy // by namespace/name
}

func newCluster(policies ...*networkingv1.NetworkPolicy) *cluster {
	c := &cluster{pods: map[string]*corev1.Pod{}, namespaces: map[string]*corev1.Namespace{}, policies: map[string]*networkingv1.NetworkPolicy{}}
	c.addNamespace("default", "team=red")
	c.addNamespace("other", "team=blue,env=test")
	c.addPod(testPod("default/a", thisNode, "app=web", "10.42.1.11", "fd00:42:1::11"), "http=8080", "metrics=9090")
	c.addPod(testPod("default/b", thisNode, "app=db,tier=back", "10.42.1.12", "fd00:42:1::12"), "http=9090")
	c.addPod(testPod("default/c", otherNode, "app=client", "10.42.2.21", "fd00:42:2::21"), "http=8080")
	c.addPod(testPod("other/d", otherNode, "app=client,tier=front", "10.42.2.22", "fd00:42:2::22"), "http=9090")
	c.addPod(testPod("other/e", thisNode, "app=web", "10.42.1.13", "fd00:42:1::13"))
	for _, p := range policies {
		c.policies[keyOf(p).String()] = p
	}
	return c
}

func labelMap(text string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			all[key] = value
		}
	}
	return all
}

func (c *cluster) addNamespace(name, labels string) {
	c.namespaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labelMap(labels)}}
}

func testPod(key, node, labels string, ips ...string) *corev1.Pod {
	namespace, name, _ := strings.Cut(key, "/")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labelMap(labels)}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "main"}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// addPod adds a pod with named TCP ports.
func (c *cluster) addPod(p *corev1.Pod, ports ...string) {
	for _, text := range ports {
		name, numberText, _ := strings.Cut(text, "=")
		number := intstr.Parse(numberText).IntVal
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: corev1.ProtocolTCP})
	}
	c.pods[p.Name] = p
}

// shape is a combination of policies that has to be enforced.
type shape struct {
	name     string
	policies []*networkingv1.NetworkPolicy
	// change changes the objects of the cluster.
	change func(*cluster)
}

func (s shape) cluster() *cluster {
	c := newCluster(s.policies...)
	if s.change != nil {
		s.change(c)
	}
	return c
}

type (
	option func(*networkingv1.NetworkPolicy)
	peer   = networkingv1.NetworkPolicyPeer
	port   = networkingv1.NetworkPolicyPort
)

// netpol builds a policy in the namespace default that selects pods. Without rules it denies ingress.
func netpol(pods string, options ...option) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
	p.Spec.PodSelector = *selects(pods)
	for _, apply := range options {
		apply(p)
	}
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	}
	return p
}

func named(name string) option { return func(p *networkingv1.NetworkPolicy) { p.Name = name } }

func inNamespace(name string) option {
	return func(p *networkingv1.NetworkPolicy) { p.Namespace = name }
}

func policyTypes(types ...networkingv1.PolicyType) option {
	return func(p *networkingv1.NetworkPolicy) { p.Spec.PolicyTypes = types }
}

func denyEgress() option { return policyTypes(networkingv1.PolicyTypeEgress) }

func denyBoth() option {
	return policyTypes(networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
}

func addType(p *networkingv1.NetworkPolicy, t networkingv1.PolicyType) {
	for _, have := range p.Spec.PolicyTypes {
		if have == t {
			return
		}
	}
	p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, t)
}

// from adds an ingress rule, and to an egress rule.
func from(peers []peer, ports ...port) option {
	return func(p *networkingv1.NetworkPolicy) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers, Ports: ports})
		addType(p, networkingv1.PolicyTypeIngress)
	}
}

func to(peers []peer, ports ...port) option {
	return func(p *networkingv1.NetworkPolicy) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: ports})
		addType(p, networkingv1.PolicyTypeEgress)
	}
}

func selects(text string) *metav1.LabelSelector {
	s, err := metav1.ParseToLabelSelector(text)
	if err != nil {
		panic(err)
	}
	return s
}

func peers(all ...peer) []peer { return all }

func podsWith(labels string) peer { return peer{PodSelector: selects(labels)} }

func namespacesWith(labels string) peer { return peer{NamespaceSelector: selects(labels)} }

func podsIn(namespaces, labels string) peer {
	return peer{NamespaceSelector: selects(namespaces), PodSelector: selects(labels)}
}

func ipBlock(cidr string, except ...string) peer {
	return peer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
}

func onPort(protocol corev1.Protocol, number int32) port {
	return port{Protocol: &protocol, Port: ptr.To(intstr.FromInt32(number))}
}

func tcp(number int32) port  { return onPort(corev1.ProtocolTCP, number) }
func udp(number int32) port  { return onPort(corev1.ProtocolUDP, number) }
func sctp(number int32) port { return onPort(corev1.ProtocolSCTP, number) }

func namedPort(name string) port {
	return port{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromString(name))}
}

func portsFrom(first, last int32) port {
	p := tcp(first)
	p.EndPort = &last
	return p
}

func allPorts(protocol corev1.Protocol) port { return port{Protocol: &protocol} }

// shapes are the policies that golden files and packets are tested with.
func shapes() []shape {
	all := []shape{
		{name: "deny ingress", policies: list(netpol(""))},
		{name: "deny egress", policies: list(netpol("", denyEgress()))},
		{name: "deny both", policies: list(netpol("", denyBoth()))},
		{name: "deny ingress to one", policies: list(netpol("app=web"))},
		{name: "deny egress of one", policies: list(netpol("app=web", denyEgress()))},
		{name: "selects nothing", policies: list(netpol("app=nothing"))},
		{name: "pods of another node", policies: list(netpol("app=client"))},
		{name: "allow all ingress", policies: list(netpol("", from(nil)))},
		{name: "allow all egress", policies: list(netpol("", to(nil)))},
		{name: "allow all of one port", policies: list(netpol("", from(nil, tcp(8080))))},
		{name: "allow all to one port", policies: list(netpol("", to(nil, tcp(8080))))},
		{name: "from pods", policies: list(netpol("app=web", from(peers(podsWith("app=client")))))},
		{name: "from all pods of the namespace", policies: list(netpol("app=web", from(peers(podsWith("")))))},
		{name: "from pods on a port", policies: list(netpol("app=web", from(peers(podsWith("app=client")), tcp(8080))))},
		{name: "from namespaces", policies: list(netpol("app=web", from(peers(namespacesWith("team=blue")))))},
		{name: "from all namespaces", policies: list(netpol("app=web", from(peers(namespacesWith("")), tcp(9090))))},
		{name: "from pods in namespaces", policies: list(netpol("app=web", from(peers(podsIn("team=blue", "tier=front")))))},
		{name: "from pods or namespaces", policies: list(netpol("app=web", from(peers(podsWith("app=db"), namespacesWith("team=blue")))))},
		{name: "to pods", policies: list(netpol("app=web", to(peers(podsWith("app=db")))))},
		{name: "to pods on a port", policies: list(netpol("app=web", to(peers(podsWith("app=db")), udp(9090))))},
		{name: "to namespaces", policies: list(netpol("", to(peers(namespacesWith("team in (blue, green)")))))},
		{name: "to pods in namespaces", policies: list(netpol("app=web", to(peers(podsIn("env", "app notin (web)")))))},
		{name: "from block", policies: list(netpol("", from(peers(ipBlock("192.168.77.0/24")))))},
		{name: "from block without", policies: list(netpol("", from(peers(ipBlock("0.0.0.0/0", "192.168.77.0/24", "10.42.2.22/32")))))},
		{name: "from IPv6 block", policies: list(netpol("", from(peers(ipBlock("fd00:42::/32", "fd00:42:2::/64")), tcp(8080))))},
		{name: "to block", policies: list(netpol("", to(peers(ipBlock("10.42.2.0/24", "10.42.2.22/32")), tcp(8080))))},
		{name: "blocks inside each other", policies: list(netpol("", from(peers(ipBlock("10.0.0.0/8")), tcp(8080)), from(peers(ipBlock("10.42.2.0/24")), tcp(9090)), from(peers(ipBlock("10.42.2.21/32")))))},
		{name: "block up to the last address", policies: list(netpol("", from(peers(ipBlock("128.0.0.0/1"), ipBlock("8000::/1")), udp(8080))))},
		{name: "block and pods", policies: list(netpol("app=web", from(peers(ipBlock("10.42.2.21/32")), tcp(8080)), from(peers(podsWith("app=client")), tcp(9090))))},
		{name: "ranges of ports", policies: list(netpol("app=web", from(peers(podsWith("")), portsFrom(8000, 8100))))},
		{name: "ranges of ports from a block", policies: list(netpol("app=web", from(peers(ipBlock("0.0.0.0/0")), portsFrom(9000, 9100), udp(8080))))},
		{name: "ranges of ports that overlap", policies: list(netpol("app=web", from(peers(podsWith("")), portsFrom(8000, 8080), portsFrom(8080, 9000), tcp(9001), portsFrom(9002, 9090))))},
		{name: "all ports of a protocol", policies: list(netpol("app=web", from(peers(podsWith("app=client")), allPorts(corev1.ProtocolUDP))))},
		{name: "last port", policies: list(netpol("app=web", from(nil, portsFrom(65000, 65535), sctp(65535))))},
		{name: "three protocols", policies: list(netpol("app=web", from(peers(podsWith("")), tcp(8080), udp(9090), sctp(8080))))},
		{name: "named port", policies: list(netpol("", from(peers(podsWith("app=client")), namedPort("http"))))},
		{name: "named port that nobody has", policies: list(netpol("", from(nil, namedPort("missing"))))},
		{name: "named port to pods", policies: list(netpol("app=web", to(peers(namespacesWith("")), namedPort("http"))))},
		{name: "named port to anywhere", policies: list(netpol("app=web", to(nil, namedPort("http"), udp(8080))))},
		{name: "named port to a block", policies: list(netpol("app=web", to(peers(ipBlock("10.42.2.0/24")), namedPort("http"))))},
		{name: "two rules", policies: list(netpol("app=web", from(peers(podsWith("app=client")), tcp(8080)), from(peers(namespacesWith("team=blue")), udp(9090))))},
		{name: "two policies", policies: list(netpol("app=web", named("one"), from(peers(podsWith("app=client")), tcp(8080))), netpol("app=web", named("two"), from(peers(podsWith("app=client")), tcp(9090))))},
		{name: "policy that adds nothing", policies: list(netpol("", named("deny")), netpol("app=web", named("allow"), from(peers(podsWith("app=db")))))},
		{name: "both directions", policies: list(netpol("app=web", from(peers(podsWith("app=client"))), to(peers(podsWith("app=db")), tcp(9090))))},
		{name: "both ends", policies: list(netpol("app=web", named("out"), to(peers(podsWith("app=db")), tcp(8080), tcp(9090))), netpol("app=db", named("in"), from(peers(podsWith("app=web")), tcp(9090))))},
		{name: "two namespaces", policies: list(netpol("app=web", from(peers(podsIn("", "app=web")))), netpol("app=web", inNamespace("other"), from(peers(podsWith("app=client")))))},
		{name: "expressions", policies: list(netpol("app in (web, db), !tier", from(peers(podsWith("app notin (client)")))))},
	}
	return append(all, changedShapes()...)
}

func list(all ...*networkingv1.NetworkPolicy) []*networkingv1.NetworkPolicy { return all }

// changedShapes are shapes with other pods.
func changedShapes() []shape {
	allowClients := list(netpol("app=web", from(peers(podsWith("app=client")), tcp(8080))))
	return []shape{
		{name: "pod of one family", policies: allowClients, change: func(c *cluster) { c.pods["c"].Status.PodIPs = c.pods["c"].Status.PodIPs[:1] }},
		{name: "terminated pod", policies: allowClients, change: func(c *cluster) { c.pods["c"].Status.Phase = corev1.PodSucceeded }},
		{name: "pod with the host's network", policies: allowClients, change: func(c *cluster) {
			c.pods["c"].Spec.HostNetwork, c.pods["c"].Status.PodIPs = true, []corev1.PodIP{{IP: nodeIP4}}
		}},
		{name: "pod without address", policies: allowClients, change: func(c *cluster) { c.pods["a"].Status.PodIPs = nil }},
		{name: "port of a sidecar", policies: list(netpol("app=web", from(nil, namedPort("proxy")))), change: func(c *cluster) {
			c.pods["a"].Spec.InitContainers = []corev1.Container{{
				Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{Name: "proxy", ContainerPort: 9090}},
			}}
		}},
	}
}
