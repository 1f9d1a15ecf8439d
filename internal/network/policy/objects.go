package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	netutils "k8s.io/utils/net"

	"skiff/internal/podstate"
)

// direction is the direction of connections.
type direction int

const (
	ingress direction = iota
	egress
	directionCount
)

var directions = []direction{ingress, egress}

func (d direction) String() string { return [...]string{"ingress", "egress"}[d] }

// Pod is what policies depend on in a pod.
type Pod struct {
	Key    types.NamespacedName
	Labels labels.Set
	// Addresses are the pod's own. A pod with the host's network has none.
	Addresses []netip.Addr
	// Local is whether the pod is on this node.
	Local bool
	// Announced is whether the addresses are those that the CNI plugin has reserved, and not from the pod's status.
	Announced bool
	Created   time.Time

	ports map[portName]uint16
}

// NewPod reads a pod. announced are the addresses that the CNI plugin has reserved for it, if any. It returns false for a pod that has no
// address of its own, or none any more.
func NewPod(pod *corev1.Pod, nodeName string, announced []netip.Addr) (Pod, bool) {
	if pod.Spec.HostNetwork || podstate.IsTerminal(pod) {
		return Pod{}, false
	}
	p := Pod{
		Key: keyOf(pod), Labels: pod.Labels, Created: pod.CreationTimestamp.Time,
		Addresses: announced, Announced: len(announced) > 0, ports: namedPorts(pod),
	}
	// An announced pod is on this node, even if the event of its binding has not arrived yet.
	p.Local = p.Announced || pod.Spec.NodeName == nodeName && nodeName != ""
	if !p.Announced {
		for _, ip := range pod.Status.PodIPs {
			if a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(ip.IP)); ok {
				p.Addresses = append(p.Addresses, a.Unmap())
			}
		}
	}
	return p, len(p.Addresses) > 0
}

// trimPod returns a pod with what this package uses of it, to keep in memory: a node has all pods of the cluster.
func trimPod(pod *corev1.Pod) *corev1.Pod {
	trimmed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp, Labels: pod.Labels,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork,
			Containers: trimContainers(pod.Spec.Containers), InitContainers: trimContainers(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
	if uid, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		trimmed.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uid}
	}
	return trimmed
}

// trimContainers returns the containers that have ports, with what their ports depend on.
func trimContainers(containers []corev1.Container) (trimmed []corev1.Container) {
	for i := range containers {
		if c := &containers[i]; len(c.Ports) > 0 {
			trimmed = append(trimmed, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return trimmed
}

func (p *Pod) equal(other *Pod) bool {
	return p.Key == other.Key && maps.Equal(p.Labels, other.Labels) && slices.Equal(p.Addresses, other.Addresses) && p.Local == other.Local &&
		p.Announced == other.Announced && p.Created.Equal(other.Created) && maps.Equal(p.ports, other.ports)
}

func keyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// policy is a NetworkPolicy.
type policy struct {
	key types.NamespacedName
	// id changes with the content of the policy.
	id       string
	selector labels.Selector
	isolates [directionCount]bool
	rules    [directionCount][]rule
}

// rule allows connections with peers on ports.
type rule struct {
	selectors []peerSelector
	blocks    []block
	// anyPeer is set for a rule without peers, which allows all.
	anyPeer bool
	ports   rulePorts
}

// peerSelector selects pods as peers.
type peerSelector struct {
	// text identifies the selector: two with the same text select the same pods.
	text string
	// namespace is the only one whose pods are selected; if it is empty, those that namespaces matches.
	namespace        string
	namespaces, pods labels.Selector
}

// matches reports whether a pod in a namespace with labels is selected.
func (s *peerSelector) matches(p *Pod, namespaceLabels labels.Set) bool {
	if s.namespace != "" {
		return s.namespace == p.Key.Namespace && s.pods.Matches(p.Labels)
	}
	return s.namespaces.Matches(namespaceLabels) && s.pods.Matches(p.Labels)
}

// block is an ipBlock.
type block struct {
	cidr   netip.Prefix
	except []netip.Prefix
}

// newPolicy reads a NetworkPolicy. Peers that cannot be read allow nothing: the policy is returned without them, and with the error. If the pods that the
// policy applies to cannot be read, there is no policy.
func newPolicy(object *networkingv1.NetworkPolicy) (*policy, error) {
	spec, err := json.Marshal(object.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode NetworkPolicy %s: %w", keyOf(object), err)
	}
	p := &policy{key: keyOf(object)}
	p.id = p.key.String() + " " + digest(string(spec))
	if p.selector, err = metav1.LabelSelectorAsSelector(&object.Spec.PodSelector); err != nil {
		return nil, fmt.Errorf("podSelector of NetworkPolicy %s: %w", p.key, err)
	}
	p.isolates[ingress], p.isolates[egress] = len(object.Spec.PolicyTypes) == 0, len(object.Spec.PolicyTypes) == 0 && len(object.Spec.Egress) > 0
	for _, t := range object.Spec.PolicyTypes {
		p.isolates[ingress] = p.isolates[ingress] || t == networkingv1.PolicyTypeIngress
		p.isolates[egress] = p.isolates[egress] || t == networkingv1.PolicyTypeEgress
	}
	var errs []error
	for _, r := range object.Spec.Ingress {
		errs = append(errs, p.addRule(ingress, r.From, r.Ports))
	}
	for _, r := range object.Spec.Egress {
		errs = append(errs, p.addRule(egress, r.To, r.Ports))
	}
	return p, errors.Join(errs...)
}

// addRule adds a rule without the peers that cannot be read.
func (p *policy) addRule(d direction, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) error {
	r := rule{anyPeer: len(peers) == 0, ports: newRulePorts(ports)}
	var errs []error
	for i := range peers {
		if peers[i].IPBlock != nil {
			b, err := newBlock(peers[i].IPBlock)
			if err != nil {
				errs = append(errs, fmt.Errorf("ipBlock of NetworkPolicy %s: %w", p.key, err))
				continue
			}
			r.blocks = append(r.blocks, b)
			continue
		}
		s, err := newPeerSelector(p.key.Namespace, &peers[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("peer of NetworkPolicy %s: %w", p.key, err))
			continue
		}
		r.selectors = append(r.selectors, s)
	}
	if r.anyPeer {
		r.blocks = []block{{cidr: everything(true)}, {cidr: everything(false)}}
		if d == egress && len(r.ports.names) > 0 {
			// The numbers of named ports are those of the pods that connections lead to.
			r.selectors = []peerSelector{{text: "all pods", namespaces: labels.Everything(), pods: labels.Everything()}}
		}
	}
	p.rules[d] = append(p.rules[d], r)
	return errors.Join(errs...)
}

// everything is the CIDR of all addresses of a family.
func everything(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func newPeerSelector(namespace string, peer *networkingv1.NetworkPolicyPeer) (s peerSelector, err error) {
	s.pods = labels.Everything()
	if peer.PodSelector != nil {
		if s.pods, err = metav1.LabelSelectorAsSelector(peer.PodSelector); err != nil {
			return s, fmt.Errorf("podSelector: %w", err)
		}
	}
	if peer.NamespaceSelector == nil {
		s.namespace = namespace
		s.text = "namespace " + namespace + " pods " + s.pods.String()
		return s, nil
	}
	if s.namespaces, err = metav1.LabelSelectorAsSelector(peer.NamespaceSelector); err != nil {
		return s, fmt.Errorf("namespaceSelector: %w", err)
	}
	s.text = "namespaces " + s.namespaces.String() + " pods " + s.pods.String()
	return s, nil
}

func newBlock(b *networkingv1.IPBlock) (parsed block, err error) {
	if parsed.cidr, err = parseCIDR(b.CIDR); err != nil {
		return parsed, err
	}
	for _, text := range b.Except {
		except, err := parseCIDR(text)
		if err != nil {
			return parsed, err
		}
		parsed.except = append(parsed.except, except)
	}
	return parsed, nil
}

// parseCIDR parses a CIDR. Old objects may have IPv4 addresses with leading zeros.
func parseCIDR(text string) (netip.Prefix, error) {
	_, network, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	bits, size := network.Mask.Size()
	address, _ := netip.AddrFromSlice(network.IP)
	if size == 32 {
		address = address.Unmap()
	}
	return netip.PrefixFrom(address, bits).Masked(), nil
}

// digest is a name for content.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
