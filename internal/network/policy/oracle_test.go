package policy

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/network/nft"
)

// The oracle says which connections are allowed, straight from the objects of the API. It shares no code with what computes the rules.

// hasNetwork reports whether policies apply to a pod.
func hasNetwork(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// podAt is the pod with an address, or nil.
func (c *cluster) podAt(a netip.Addr) *corev1.Pod {
	for _, p := range c.pods {
		for _, ip := range p.Status.PodIPs {
			if hasNetwork(p) && ip.IP == a.String() {
				return p
			}
		}
	}
	return nil
}

// allows is the oracle's answer about a connection. Only the policies of this node's pods count.
func (c *cluster) allows(f Flow) bool {
	source, destination := c.podAt(f.Source), c.podAt(f.Destination)
	if f.Source == f.Destination {
		return true
	}
	if destination != nil && destination.Spec.NodeName == thisNode {
		isolated, allowed := false, false
		for _, p := range c.policies {
			if p.Namespace != destination.Namespace || !hasType(p, networkingv1.PolicyTypeIngress) || !matchLabels(&p.Spec.PodSelector, destination.Labels) {
				continue
			}
			isolated = true
			for _, r := range p.Spec.Ingress {
				allowed = allowed || c.peersMatch(p.Namespace, r.From, f.Source, source) && portsMatch(r.Ports, f, destination)
			}
		}
		if isolated && !allowed {
			return false
		}
	}
	if source != nil && source.Spec.NodeName == thisNode {
		isolated, allowed := false, false
		for _, p := range c.policies {
			if p.Namespace != source.Namespace || !hasType(p, networkingv1.PolicyTypeEgress) || !matchLabels(&p.Spec.PodSelector, source.Labels) {
				continue
			}
			isolated = true
			for _, r := range p.Spec.Egress {
				allowed = allowed || c.egressMatches(p.Namespace, r, f, destination)
			}
		}
		if isolated && !allowed {
			return false
		}
	}
	return true
}

// egressMatches decides about an egress rule. A named port belongs to a pod that a selector, or a rule without peers, matches.
func (c *cluster) egressMatches(namespace string, r networkingv1.NetworkPolicyEgressRule, f Flow, destination *corev1.Pod) bool {
	for _, p := range r.To {
		ofPort := destination
		if p.IPBlock != nil {
			ofPort = nil
		}
		if c.peersMatch(namespace, []networkingv1.NetworkPolicyPeer{p}, f.Destination, destination) && portsMatch(r.Ports, f, ofPort) {
			return true
		}
	}
	return len(r.To) == 0 && portsMatch(r.Ports, f, destination)
}

func hasType(p *networkingv1.NetworkPolicy, want networkingv1.PolicyType) bool {
	for _, t := range p.Spec.PolicyTypes {
		if t == want {
			return true
		}
	}
	return false
}

func matchLabels(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic(err)
	}
	return selector.Matches(labels.Set(set))
}

func (c *cluster) peersMatch(namespace string, peers []networkingv1.NetworkPolicyPeer, address netip.Addr, p *corev1.Pod) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		switch {
		case peer.IPBlock != nil:
			if blockMatches(peer.IPBlock, address) {
				return true
			}
		case p == nil:
		case peer.NamespaceSelector == nil && p.Namespace != namespace:
		case peer.NamespaceSelector != nil && !c.namespaceMatches(peer.NamespaceSelector, p.Namespace):
		case peer.PodSelector == nil || matchLabels(peer.PodSelector, p.Labels):
			return true
		}
	}
	return false
}

func (c *cluster) namespaceMatches(s *metav1.LabelSelector, name string) bool {
	var set map[string]string
	if n := c.namespaces[name]; n != nil {
		set = n.Labels
	}
	return matchLabels(s, set)
}

func blockMatches(b *networkingv1.IPBlock, address netip.Addr) bool {
	if !netip.MustParsePrefix(b.CIDR).Contains(address) {
		return false
	}
	for _, except := range b.Except {
		if netip.MustParsePrefix(except).Contains(address) {
			return false
		}
	}
	return true
}

// portsMatch decides about the ports of a rule. server is the pod that has the named ports, or nil.
func portsMatch(ports []networkingv1.NetworkPolicyPort, f Flow, server *corev1.Pod) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		if strings.ToLower(string(*p.Protocol)) != f.Proto.String() {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			if server != nil && int32(f.Port) == containerPort(server, p.Port.StrVal, f.Proto) {
				return true
			}
		case p.EndPort != nil:
			if int32(f.Port) >= p.Port.IntVal && int32(f.Port) <= *p.EndPort {
				return true
			}
		case p.Port.IntVal == int32(f.Port):
			return true
		}
	}
	return false
}

// containerPort is the number of a pod's named port, or -1.
func containerPort(p *corev1.Pod, name string, proto nft.Proto) int32 {
	for _, c := range append(append([]corev1.Container{}, p.Spec.Containers...), p.Spec.InitContainers...) {
		for _, port := range c.Ports {
			if port.Name == name && (port.Protocol == "" && proto == nft.TCP || strings.EqualFold(string(port.Protocol), proto.String())) {
				return port.ContainerPort
			}
		}
	}
	return -1
}

// tableAllows says what a table does with the first packet of a connection.
func tableAllows(m *nft.Model, f Flow) bool {
	t := newTable(m)
	return t.check(egress, f) && t.check(ingress, f)
}

// table are the elements of a model by set.
type table map[string][]nft.Element

func newTable(m *nft.Model) table {
	t := table{}
	for _, e := range m.All().AddedElements {
		t[e.Set] = append(t[e.Set], e)
	}
	return t
}

// find returns the value of a key.
func (t table) find(set, key string) (value string, found bool) {
	for _, e := range t[set] {
		if e.Key == key || e.End != "" && e.Key <= key && key <= e.End {
			return e.Value, true
		}
	}
	return "", false
}

func (t table) check(d direction, f Flow) bool {
	local, remote := f.Destination, f.Source
	if d == egress {
		local, remote = f.Source, f.Destination
	}
	s := side{d, familyOf(local)}
	if _, isolated := t.find(s.pods().Name, nft.Bytes(local)); !isolated {
		return true
	}
	if _, self := t.find(s.self().Name, nft.Bytes(f.Source, f.Destination)); self {
		return true
	}
	if verdict, ok := t.find(s.peers().Name, nft.Bytes(remote)); ok {
		class := strings.TrimPrefix(verdict, "jump ")
		for suffix, key := range map[string]string{
			"-all": nft.Bytes(local), "-ports": nft.Bytes(local, f.Proto, f.Port), "-ranges": nft.Bytes(local, f.Proto, f.Port),
		} {
			if _, accepted := t.find(class+suffix, key); accepted {
				return true
			}
		}
	}
	blocks, ok := t.find(s.blocks().Name, nft.Bytes(local))
	if !ok {
		return false
	}
	verdict, ok := t.find(strings.TrimPrefix(blocks, "goto "), nft.Bytes(remote))
	if !ok || verdict == "accept" {
		return ok
	}
	_, accepted := t.find(strings.TrimPrefix(verdict, "goto "), nft.Bytes(f.Proto, f.Port))
	return accepted
}
