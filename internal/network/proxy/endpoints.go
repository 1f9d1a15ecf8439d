package proxy

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/network/nft"
	"skiff/internal/network/nodeaddr"
)

// endpoint is one endpoint of a Service's port.
type endpoint struct {
	netip.AddrPort
	local, ready, serving, terminating bool
	zoneHints, nodeHints               []string
}

// portKey identifies the port of a Service in its EndpointSlices.
type portKey struct {
	name     string
	protocol corev1.Protocol
	is4      bool
}

// endpointsByPort collects the endpoints of all slices of a Service, sorted and without duplicates.
func endpointsByPort(slicesOfService []*discoveryv1.EndpointSlice, nodeName string) map[portKey][]endpoint {
	all := map[portKey][]endpoint{}
	for _, slice := range slicesOfService {
		if isIgnored(slice.Labels) || slice.AddressType != discoveryv1.AddressTypeIPv4 && slice.AddressType != discoveryv1.AddressTypeIPv6 {
			continue
		}
		is4 := slice.AddressType == discoveryv1.AddressTypeIPv4
		for _, port := range slice.Ports {
			if port.Port == nil || *port.Port < 1 || *port.Port > 65535 {
				continue
			}
			key := portKey{ptr.Deref(port.Name, ""), ptr.Deref(port.Protocol, corev1.ProtocolTCP), is4}
			list := slices.Grow(all[key], len(slice.Endpoints))
			for i := range slice.Endpoints {
				if e, ok := newEndpoint(&slice.Endpoints[i], uint16(*port.Port), nodeName); ok && e.Addr().Is4() == is4 {
					list = append(list, e)
				}
			}
			all[key] = list
		}
	}
	for key, list := range all {
		// An endpoint may be in two slices for a moment. The local and the ready one is preferred.
		slices.SortStableFunc(list, func(a, b endpoint) int {
			return cmp.Or(a.Compare(b.AddrPort), compareTrueFirst(a.local, b.local), compareTrueFirst(a.ready, b.ready), compareTrueFirst(a.serving, b.serving))
		})
		all[key] = slices.CompactFunc(list, func(a, b endpoint) bool { return a.AddrPort == b.AddrPort })
	}
	return all
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// newEndpoint reads an endpoint of a slice. Consumers use the first address only.
func newEndpoint(e *discoveryv1.Endpoint, port uint16, nodeName string) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	address, ok := nodeaddr.Parse(e.Addresses[0])
	if !ok {
		return endpoint{}, false
	}
	made := endpoint{
		AddrPort: netip.AddrPortFrom(address, port), local: nodeName != "" && ptr.Deref(e.NodeName, "") == nodeName,
		ready: ptr.Deref(e.Conditions.Ready, true), terminating: ptr.Deref(e.Conditions.Terminating, false),
	}
	made.serving = ptr.Deref(e.Conditions.Serving, true)
	if e.Hints != nil {
		for _, zone := range e.Hints.ForZones {
			made.zoneHints = append(made.zoneHints, zone.Name)
		}
		for _, node := range e.Hints.ForNodes {
			made.nodeHints = append(made.nodeHints, node.Name)
		}
	}
	return made, true
}

// lists are the endpoints that packets to a Service's port are sent to.
type lists struct {
	// cluster and local are the endpoints of the traffic policies Cluster and Local.
	cluster, local []endpoint
	// usable is whether the port has usable endpoints on any node.
	usable bool
}

// choose selects the endpoints that a node uses.
func choose(all []endpoint, port *servicePort, node Node) (l lists) {
	if port.usesCluster() {
		hints := hintsToUse(all, node)
		l.cluster = filter(all, func(e *endpoint) bool { return e.ready && hints(e) })
		if len(l.cluster) == 0 {
			// Without ready endpoints anywhere, those that terminate and still serve are used.
			l.cluster = filter(all, (*endpoint).servesWhileTerminating)
		}
		l.usable = len(l.cluster) > 0
	}
	if port.usesLocal() {
		l.usable = l.usable || slices.ContainsFunc(all, func(e endpoint) bool { return e.ready || e.servesWhileTerminating() })
		l.local = filter(all, func(e *endpoint) bool { return e.local && e.ready })
		if len(l.local) == 0 {
			l.local = filter(all, func(e *endpoint) bool { return e.local && e.servesWhileTerminating() })
		}
	}
	return l
}

func (e *endpoint) servesWhileTerminating() bool { return !e.ready && e.serving && e.terminating }

func filter(all []endpoint, keep func(*endpoint) bool) (kept []endpoint) {
	for i := range all {
		if keep(&all[i]) {
			if kept == nil {
				kept = make([]endpoint, 0, len(all)-i)
			}
			kept = append(kept, all[i])
		}
	}
	return kept
}

// hintsToUse returns which endpoints their topology hints assign to the node. Hints count only if all ready endpoints have them and one is for
// the node, or for its zone.
func hintsToUse(all []endpoint, node Node) func(*endpoint) bool {
	forNode := func(e *endpoint) bool { return slices.Contains(e.nodeHints, node.Name) }
	forZone := func(e *endpoint) bool { return node.Zone != "" && slices.Contains(e.zoneHints, node.Zone) }
	complete := func(hints func(*endpoint) []string, matches func(*endpoint) bool) (matched bool) {
		for i := range all {
			e := &all[i]
			if !e.ready {
				continue
			}
			if len(hints(e)) == 0 {
				return false
			}
			matched = matched || matches(e)
		}
		return matched
	}
	switch {
	case complete(func(e *endpoint) []string { return e.nodeHints }, forNode):
		return forNode
	case complete(func(e *endpoint) []string { return e.zoneHints }, forZone):
		return forZone
	}
	return func(*endpoint) bool { return true }
}

// servicePort is what the proxy has to know about a port of a Service in one family.
type servicePort struct {
	// name is namespace/name/protocol/portName.
	name      string
	portName  string
	is4       bool
	clusterIP netip.Addr
	proto     nft.Proto
	port      uint16
	nodePort  uint16
	// externalIPs and loadBalancerIPs accept external traffic.
	externalIPs, loadBalancerIPs []netip.Addr
	sourceRanges                 []netip.Prefix
	// affinitySeconds is the time-out of session affinity; 0: none.
	affinitySeconds              int32
	internalLocal, externalLocal bool
}

// isExternal reports whether the port is reachable by something other than the cluster IP.
func (p *servicePort) isExternal() bool {
	return p.nodePort != 0 || len(p.externalIPs)+len(p.loadBalancerIPs) > 0
}

// usesCluster reports whether packets may be sent to the endpoints of the policy Cluster. With external policy Local, packets from this node
// are.
func (p *servicePort) usesCluster() bool { return !p.internalLocal || p.isExternal() }

func (p *servicePort) usesLocal() bool { return p.internalLocal || p.externalLocal && p.isExternal() }
