package proxy

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"skiff/test/netns"
)

// The oracle says where packets of a client go, straight from the objects of the API. It shares no code with what computes the rules.

// outcome is what happens to a packet.
type outcome struct {
	// pods are those that may receive it. Without any, it is refused or, if dropped is set, dropped.
	pods    []string
	dropped bool
	// masqueraded is whether the pod sees an address of the node instead of the client's.
	masqueraded bool
}

// The clients, besides the pods.
const (
	onHost  = netns.Host
	outside = netns.Outside
)

// flow is a packet to a frontend of a Service.
type flow struct {
	client, network string
	to              netip.AddrPort
	want            outcome
	affinity        bool
}

// flows lists all packets of the clients to all frontends of a shape's Services.
func flows(s shape, clients []string) (all []flow) {
	settings, node := testSettings(), testNode()
	if s.settings != nil {
		s.settings(&settings)
	}
	if s.node != nil {
		s.node(&node)
	}
	taken := map[netip.AddrPort]bool{}
	for _, o := range s.objects {
		sv := o.service.Spec
		if sv.ClusterIP == corev1.ClusterIPNone || sv.Type == corev1.ServiceTypeExternalName || len(o.service.Labels) > 0 {
			continue
		}
		for _, port := range sv.Ports {
			for _, ip := range sv.ClusterIPs {
				q := question{object: o, port: port, is4: !strings.Contains(ip, ":"), settings: settings, node: node}
				for _, f := range q.frontends(ip) {
					if taken[f.address] && port.Protocol == corev1.ProtocolTCP {
						continue // of another Service
					}
					taken[f.address] = true
					for _, client := range clients {
						all = append(all, flow{client, strings.ToLower(string(port.Protocol)), f.address, q.answer(client, f.kind), sv.SessionAffinity == corev1.ServiceAffinityClientIP})
					}
				}
			}
		}
	}
	return all
}

type frontendKind int

const (
	kindClusterIP frontendKind = iota
	kindExternalIP
	kindLoadBalancer
	kindNodePort
)

type frontend struct {
	address netip.AddrPort
	kind    frontendKind
}

// question asks about one port of a Service in one family.
type question struct {
	object
	port     corev1.ServicePort
	is4      bool
	settings Settings
	node     Node
}

func (q question) frontends(clusterIP string) (all []frontend) {
	add := func(text string, port int32, kind frontendKind) {
		if a := netip.MustParseAddr(text); a.Is4() == q.is4 {
			all = append(all, frontend{netip.AddrPortFrom(a, uint16(port)), kind})
		}
	}
	add(clusterIP, q.port.Port, kindClusterIP)
	for _, ip := range q.service.Spec.ExternalIPs {
		add(ip, q.port.Port, kindExternalIP)
	}
	for _, ingress := range q.service.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil {
			add(ingress.IP, q.port.Port, kindLoadBalancer)
		}
	}
	if q.port.NodePort != 0 {
		add(nodeIP4, q.port.NodePort, kindNodePort)
		add(nodeIP6, q.port.NodePort, kindNodePort)
		if q.node.AllIPv4NodePorts {
			add(gateway4, q.port.NodePort, kindNodePort)
		}
	}
	return all
}

// candidate is an endpoint with the facts that matter.
type candidate struct {
	pod                string
	local, ready, last bool
	zones, nodes       []string
}

// candidates reads the slices. Of two entries of one pod, the ready one counts.
func (q question) candidates() (all []candidate) {
	want := discoveryv1.AddressTypeIPv6
	if q.is4 {
		want = discoveryv1.AddressTypeIPv4
	}
	for _, slice := range q.slices {
		if len(slice.Labels) > 1 {
			continue // for another proxy, or for clients without one
		}
		for _, e := range slice.Endpoints {
			if slice.AddressType != want {
				continue
			}
			c := candidate{ready: ptr.Deref(e.Conditions.Ready, true), local: *e.NodeName == q.node.Name}
			c.last = !c.ready && ptr.Deref(e.Conditions.Serving, true) && ptr.Deref(e.Conditions.Terminating, false)
			for name, ips := range podIPs {
				if slices.Contains(ips[:], e.Addresses[0]) {
					c.pod = name
				}
			}
			if e.Hints != nil {
				for _, z := range e.Hints.ForZones {
					c.zones = append(c.zones, z.Name)
				}
				for _, n := range e.Hints.ForNodes {
					c.nodes = append(c.nodes, n.Name)
				}
			}
			if i := slices.IndexFunc(all, func(o candidate) bool { return o.pod == c.pod }); i >= 0 {
				if c.ready && !all[i].ready {
					all[i] = c
				}
				continue
			}
			all = append(all, c)
		}
	}
	return all
}

func pods(all []candidate, keep func(candidate) bool) (names []string) {
	for _, c := range all {
		if keep(c) {
			names = append(names, c.pod)
		}
	}
	return names
}

// clusterPods are the pods of the policy Cluster.
func (q question) clusterPods(all []candidate) []string {
	ready := pods(all, func(c candidate) bool { return c.ready })
	if len(ready) == 0 {
		return pods(all, func(c candidate) bool { return c.last })
	}
	hinted := func(hints func(candidate) []string, here string) []string {
		if len(pods(all, func(c candidate) bool { return c.ready && len(hints(c)) == 0 })) > 0 {
			return nil
		}
		return pods(all, func(c candidate) bool { return c.ready && slices.Contains(hints(c), here) })
	}
	if forNode := hinted(func(c candidate) []string { return c.nodes }, q.node.Name); len(forNode) > 0 {
		return forNode
	}
	if forZone := hinted(func(c candidate) []string { return c.zones }, q.node.Zone); len(forZone) > 0 {
		return forZone
	}
	return ready
}

// localPods are the pods of the policy Local.
func (q question) localPods(all []candidate) []string {
	if ready := pods(all, func(c candidate) bool { return c.local && c.ready }); len(ready) > 0 {
		return ready
	}
	return pods(all, func(c candidate) bool { return c.local && c.last })
}

// answer is what happens to a packet of a client.
func (q question) answer(client string, kind frontendKind) outcome {
	all := q.candidates()
	anywhere := len(pods(all, func(c candidate) bool { return c.ready || c.last })) > 0
	spec := q.service.Spec
	isPod := client != onHost && client != outside
	if kind == kindLoadBalancer && !q.allowed(client) {
		return outcome{dropped: true}
	}
	if !anywhere {
		return outcome{}
	}
	if kind == kindClusterIP {
		chosen := q.clusterPods(all)
		if ptr.Deref(spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal {
			chosen = q.localPods(all)
		}
		detects := len(q.settings.Local.CIDRs) > 0
		return outcome{pods: chosen, dropped: len(chosen) == 0, masqueraded: q.settings.MasqueradeAll || detects && !isPod}
	}
	if spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return outcome{pods: q.clusterPods(all), masqueraded: true}
	}
	if client == onHost || isPod && len(q.settings.Local.CIDRs) > 0 {
		return outcome{pods: q.clusterPods(all), masqueraded: client == onHost}
	}
	chosen := q.localPods(all)
	return outcome{pods: chosen, dropped: len(chosen) == 0}
}

// allowed reports whether the source ranges let a client reach the load balancer.
func (q question) allowed(client string) bool {
	var address netip.Addr
	i := 1
	if q.is4 {
		i = 0
	}
	switch client {
	case onHost:
		address = netip.MustParseAddr([]string{nodeIP4, nodeIP6}[i])
	case outside:
		address = netip.MustParseAddr([]string{outsideIP4, outsideIP6}[i])
	default:
		address = netip.MustParseAddr(podIPs[client][i])
	}
	// Ranges of one family do not restrict the other.
	ranges := slices.DeleteFunc(slices.Clone(q.service.Spec.LoadBalancerSourceRanges), func(text string) bool { return strings.Contains(text, ":") == q.is4 })
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(text string) bool {
		return netip.MustParsePrefix(strings.TrimSpace(text)).Contains(address)
	})
}
