package dns

import (
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// index holds what is answered from: Services, EndpointSlices, Namespaces and the cluster's ranges, in the form in which queries need them.
// Each event replaces the values of one object; values are immutable, so that a query reads them without a lock once it has found them.
// The index is as large as the objects it is made from.
type index struct {
	zone domain
	// serial is the time of the last change, in seconds: the serial number of the zone.
	serial atomic.Uint32

	mu         sync.RWMutex
	namespaces map[string]struct{}
	// services and endpoints have keys of serviceKey.
	services  map[string]*service
	endpoints map[string][]*endpointSlice
	slices    map[types.NamespacedName]*endpointSlice
	// clusterIPs and endpointIPs are for reverse lookups.
	clusterIPs  map[netip.Addr]*service
	endpointIPs map[netip.Addr][]*endpointSlice
	ranges      ranges
}

// serviceType says how a Service is resolved.
type serviceType int

const (
	clusterIPService serviceType = iota
	headlessService
	externalService
)

// service is a Service.
type service struct {
	key string
	// name is the Service's name in wire format.
	name       string
	kind       serviceType
	clusterIPs []netip.Addr
	ports      []port
	// external is the target of an ExternalName; its wire format is empty if the name is invalid.
	external domain
}

// port is a port of a Service or EndpointSlice. Name and protocol are in lower case.
type port struct {
	name, protocol string
	number         uint16
}

// endpointSlice is an EndpointSlice. It has only ready endpoints, sorted by name.
type endpointSlice struct {
	key       string
	endpoints []endpoint
	// ports are empty for endpoints without ports, which have addresses but no SRV records.
	ports []port
	// service is the name of its Service in wire format.
	service string
}

// endpoint is an address of an endpoint. Its name is the hostname, or the address with dashes, in lower case.
type endpoint struct {
	name string
	ip   netip.Addr
}

func newIndex(zone domain) *index {
	return &index{
		zone: zone, namespaces: map[string]struct{}{}, services: map[string]*service{}, endpoints: map[string][]*endpointSlice{},
		slices: map[types.NamespacedName]*endpointSlice{}, clusterIPs: map[netip.Addr]*service{}, endpointIPs: map[netip.Addr][]*endpointSlice{},
		ranges: ranges{owners: map[string][]netip.Prefix{}, count: map[netip.Prefix]int{}, bits: map[int]int{}},
	}
}

// serviceKey is the key of a Service: the labels of its name and namespace in wire format, as they are in a query.
func serviceKey(namespace, name string) string {
	b := make([]byte, 0, 2+len(name)+len(namespace))
	for _, label := range []string{name, namespace} {
		b = append(append(b, byte(len(label))), strings.ToLower(label)...)
	}
	return string(b)
}

// serviceName is the name of the Service with the key in wire format; empty if it is too long for DNS.
func (x *index) serviceName(key string) string {
	name := key + "\x03svc" + x.zone.wire
	if len(name) > maxNameSize {
		return ""
	}
	return name
}

// changed records the time of a change. It is called with mu held.
func (x *index) changed() { x.serial.Store(uint32(time.Now().Unix())) }

func (x *index) setNamespace(namespace *corev1.Namespace) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.namespaces[namespace.Name] = struct{}{}
	x.changed()
}

func (x *index) deleteNamespace(namespace *corev1.Namespace) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.namespaces, namespace.Name)
	x.changed()
}

func (x *index) setService(object *corev1.Service) {
	s := x.newService(object)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeService(s.key)
	if s.name != "" {
		x.services[s.key] = s
		for _, ip := range s.clusterIPs {
			x.clusterIPs[ip] = s
		}
	}
	x.changed()
}

func (x *index) deleteService(object *corev1.Service) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeService(serviceKey(object.Namespace, object.Name))
	x.changed()
}

// removeService removes a Service. It is called with mu held.
func (x *index) removeService(key string) {
	old := x.services[key]
	if old == nil {
		return
	}
	delete(x.services, key)
	for _, ip := range old.clusterIPs {
		// Another Service may have got the address meanwhile.
		if x.clusterIPs[ip] == old {
			delete(x.clusterIPs, ip)
		}
	}
}

func (x *index) newService(object *corev1.Service) *service {
	s := &service{key: serviceKey(object.Namespace, object.Name)}
	s.name = x.serviceName(s.key)
	switch {
	case object.Spec.Type == corev1.ServiceTypeExternalName:
		s.kind = externalService
		if _, err := netip.ParseAddr(object.Spec.ExternalName); err != nil {
			// An invalid name has no records.
			s.external, _ = parseDomain(object.Spec.ExternalName)
		}
		return s
	case object.Spec.ClusterIP == corev1.ClusterIPNone || object.Spec.ClusterIP == "":
		s.kind = headlessService
	}
	texts := object.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{object.Spec.ClusterIP}
	}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && s.kind == clusterIPService {
			s.clusterIPs = append(s.clusterIPs, ip.Unmap())
		}
	}
	for _, p := range object.Spec.Ports {
		s.ports = append(s.ports, port{name: strings.ToLower(p.Name), protocol: strings.ToLower(string(p.Protocol)), number: uint16(p.Port)})
	}
	return s
}

func (x *index) setEndpointSlice(object *discoveryv1.EndpointSlice) {
	s := x.newEndpointSlice(object)
	id := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeEndpointSlice(id)
	if s != nil {
		x.slices[id] = s
		x.endpoints[s.key] = append(slices.Clip(x.endpoints[s.key]), s)
		for _, ip := range s.addresses() {
			x.endpointIPs[ip] = append(slices.Clip(x.endpointIPs[ip]), s)
		}
	}
	x.changed()
}

func (x *index) deleteEndpointSlice(object *discoveryv1.EndpointSlice) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeEndpointSlice(types.NamespacedName{Namespace: object.Namespace, Name: object.Name})
	x.changed()
}

// removeEndpointSlice removes an EndpointSlice. It is called with mu held.
func (x *index) removeEndpointSlice(id types.NamespacedName) {
	old := x.slices[id]
	if old == nil {
		return
	}
	delete(x.slices, id)
	removeFrom(x.endpoints, old.key, old)
	for _, ip := range old.addresses() {
		removeFrom(x.endpointIPs, ip, old)
	}
}

// removeFrom removes a slice from a list without changing the list, which a query may be reading.
func removeFrom[K comparable](lists map[K][]*endpointSlice, key K, s *endpointSlice) {
	list := lists[key]
	kept := make([]*endpointSlice, 0, len(list))
	for _, other := range list {
		if other != s {
			kept = append(kept, other)
		}
	}
	if len(kept) == 0 {
		delete(lists, key)
		return
	}
	lists[key] = kept
}

// newEndpointSlice returns nil for a slice without Service or with names instead of addresses.
func (x *index) newEndpointSlice(object *discoveryv1.EndpointSlice) *endpointSlice {
	owner := object.Labels[discoveryv1.LabelServiceName]
	if owner == "" || object.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &endpointSlice{key: serviceKey(object.Namespace, owner)}
	if s.service = x.serviceName(s.key); s.service == "" {
		return nil
	}
	for _, p := range object.Ports {
		var own port
		if p.Name != nil {
			own.name = strings.ToLower(*p.Name)
		}
		if p.Protocol != nil {
			own.protocol = strings.ToLower(string(*p.Protocol))
		}
		if p.Port != nil {
			own.number = uint16(*p.Port)
		}
		s.ports = append(s.ports, own)
	}
	for i := range object.Endpoints {
		e := &object.Endpoints[i]
		// The endpoint slice controller sets the condition also for endpoints of Services with publishNotReadyAddresses. A missing
		// condition means ready.
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, text := range e.Addresses {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			own := endpoint{name: dashedAddress(text), ip: ip.Unmap()}
			if e.Hostname != nil && *e.Hostname != "" {
				own.name = strings.ToLower(*e.Hostname)
			}
			if len(own.name) <= maxLabelSize && 1+len(own.name)+len(s.service) <= maxNameSize {
				s.endpoints = append(s.endpoints, own)
			}
		}
	}
	slices.SortFunc(s.endpoints, func(a, b endpoint) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return a.ip.Compare(b.ip)
	})
	s.endpoints = slices.Clip(slices.Compact(s.endpoints))
	return s
}

// addresses are the distinct addresses of the endpoints.
func (s *endpointSlice) addresses() []netip.Addr {
	all := make([]netip.Addr, len(s.endpoints))
	for i, e := range s.endpoints {
		all[i] = e.ip
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// named returns the endpoints with a name, or all if the name is nil.
func (s *endpointSlice) named(name []byte) []endpoint {
	if name == nil {
		return s.endpoints
	}
	// Comparisons do not allocate a string, calls would.
	first := sort.Search(len(s.endpoints), func(i int) bool { return s.endpoints[i].name >= string(name) })
	end := first
	for end < len(s.endpoints) && s.endpoints[end].name == string(name) {
		end++
	}
	return s.endpoints[first:end]
}

// dashedAddress is the name of an endpoint without hostname, as CoreDNS makes it: a label must not end with a dash.
func dashedAddress(ip string) string {
	name := strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(ip), ".", "-"), ":", "-")
	if strings.HasSuffix(name, "-") {
		name += "0"
	}
	return name
}

// lookup returns a Service and its endpoints. The key is in the query.
func (x *index) lookup(key []byte) (*service, []*endpointSlice) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.services[string(key)], x.endpoints[string(key)]
}

func (x *index) hasNamespace(name []byte) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	_, ok := x.namespaces[string(name)]
	return ok
}

// reverse returns what an address belongs to: a Service, or the slices that have it as an endpoint, and whether it is in the cluster's ranges.
func (x *index) reverse(ip netip.Addr) (s *service, endpoints []*endpointSlice, inRange bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.clusterIPs[ip], x.endpointIPs[ip], x.ranges.contains(ip)
}

// setRanges sets the ranges that belong to an object; none removes them.
func (x *index) setRanges(owner string, texts []string) {
	var prefixes []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil && !slices.Contains(prefixes, p.Masked()) {
			prefixes = append(prefixes, p.Masked())
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ranges.set(owner, prefixes)
}

// ranges is a set of CIDRs by owner. The time of a lookup grows with the number of different prefix lengths, not with that of CIDRs.
type ranges struct {
	owners map[string][]netip.Prefix
	count  map[netip.Prefix]int
	bits   map[int]int
}

func (r *ranges) set(owner string, prefixes []netip.Prefix) {
	for _, p := range r.owners[owner] {
		if r.count[p]--; r.count[p] == 0 {
			delete(r.count, p)
		}
		if r.bits[p.Bits()]--; r.bits[p.Bits()] == 0 {
			delete(r.bits, p.Bits())
		}
	}
	delete(r.owners, owner)
	if len(prefixes) == 0 {
		return
	}
	r.owners[owner] = prefixes
	for _, p := range prefixes {
		r.count[p]++
		r.bits[p.Bits()]++
	}
}

func (r *ranges) contains(ip netip.Addr) bool {
	for bits := range r.bits {
		if p, err := ip.Prefix(bits); err == nil && r.count[p] > 0 {
			return true
		}
	}
	return false
}
