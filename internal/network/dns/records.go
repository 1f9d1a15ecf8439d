package dns

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

const (
	// specification is the version of the Kubernetes DNS specification that the zone follows.
	specification = "1.1.0"
	// recordTTL is the time to live of the cluster's records in seconds, CoreDNS's default.
	recordTTL = 5
	// versionTTL is the time to live of the record with the specification's version, CoreDNS's too.
	versionTTL = 28800
	// maxChain is the number of CNAMEs that are followed.
	maxChain = 10
)

// outcome is the result of a lookup in the cluster's zones.
type outcome int

const (
	// found: the records have been written.
	found outcome = iota
	// noData: the name exists, but has no records of the type.
	noData
	// noName: the name does not exist.
	noName
	// notOurs: the name does not belong to the cluster's zones, or its CNAME leads out of them.
	notOurs
)

// scratch is memory that lookups reuse.
type scratch struct {
	addresses map[netip.Addr]struct{}
	targets   map[srvTarget]int
	name      []byte
}

// srvTarget identifies an SRV record of a response, or with port -1 its target.
type srvTarget struct {
	name string
	port int
}

func newScratch() scratch {
	return scratch{addresses: map[netip.Addr]struct{}{}, targets: map[srvTarget]int{}}
}

// lookup writes the records of a name of the cluster's zone. owner is the offset of the name in the response.
type lookup struct {
	*index
	q     *query
	r     *response
	owner int
	*scratch
	// chain is the number of CNAMEs that have been followed.
	chain int
	// external is the target of a CNAME that leads out of the zone, and externalOwner its offset in the response.
	external domain
	// nameServers are the addresses of the DNS server itself.
	nameServers []netip.Addr
}

// answer looks the name up and writes its records. For noData and noName the caller writes the SOA record.
func (l *lookup) answer() outcome {
	q := l.q
	n := q.labelCount - l.zone.labels
	if n == 0 {
		return l.apex()
	}
	switch last := string(q.label(n - 1)); {
	case last == "svc" || last == "pod":
	case n == 1 && last == "dns-version":
		if q.qtype != dns.TypeTXT {
			return noData
		}
		l.r.record(answerSection, l.owner, dns.TypeTXT, versionTTL, []byte("\x05"+specification))
		return found
	case n == 1 && last == "dns":
		return noData
	case n == 2 && last == "dns" && string(q.label(0)) == "ns":
		return l.addresses(l.nameServers)
	default:
		return noName
	}
	if n == 1 {
		return noData
	}
	if !l.hasNamespace(q.label(n - 2)) {
		return noName
	}
	switch {
	case n == 2:
		return noData
	case string(q.label(n-1)) == "pod":
		return l.pod(n)
	}
	return l.service(n)
}

// apex answers for the zone itself.
func (l *lookup) apex() outcome {
	switch l.q.qtype {
	case dns.TypeSOA:
		l.r.soa(answerSection, l.owner, l.serial.Load())
	case dns.TypeNS:
		var data [9]byte
		copy(data[:], "\x02ns\x03dns")
		binary.BigEndian.PutUint16(data[7:], 0xc000|uint16(l.owner))
		name := l.r.record(answerSection, l.owner, dns.TypeNS, recordTTL, data[:])
		for _, ip := range l.nameServers {
			l.r.address(additionalSection, name, ip)
		}
	default:
		return noData
	}
	return found
}

// addresses writes the addresses of the queried family, beginning with a random one. The addresses must be distinct.
func (l *lookup) addresses(all []netip.Addr) outcome {
	result := noData
	start := 0
	if len(all) > 1 {
		start = rand.IntN(len(all))
	}
	for i := range all {
		ip := all[(start+i)%len(all)]
		if l.queried(ip) {
			l.r.address(answerSection, l.owner, ip)
			result = found
		}
	}
	return result
}

// queried reports whether the query is for addresses of this family.
func (l *lookup) queried(ip netip.Addr) bool {
	return l.q.qtype == dns.TypeA && ip.Is4() || l.q.qtype == dns.TypeAAAA && ip.Is6()
}

// pod answers for a pod's address, 10-1-2-3.namespace.pod, whether a pod has it or not, as CoreDNS does with "pods insecure".
func (l *lookup) pod(n int) outcome {
	if n != 3 {
		return noName
	}
	label := l.q.label(0)
	ip, ok := parseDashed(label)
	if !ok {
		return noName
	}
	if l.queried(ip) {
		l.r.address(answerSection, l.owner, ip)
		return found
	}
	return noData
}

// parseDashed parses an address with dashes instead of dots or colons.
func parseDashed(label []byte) (netip.Addr, bool) {
	text := string(label)
	separator := ":"
	if strings.Count(text, "-") == 3 && !strings.Contains(text, "--") {
		separator = "."
	}
	ip, err := netip.ParseAddr(strings.ReplaceAll(text, "-", separator))
	return ip.Unmap(), err == nil && ip.Zone() == ""
}

// filter selects ports and endpoints of a Service by the labels before its name. A nil slice selects all.
type filter struct {
	endpoint, port, protocol []byte
}

func (f filter) matches(p port) bool {
	return (f.port == nil || string(f.port) == p.name) && (f.protocol == nil || string(f.protocol) == p.protocol)
}

// service answers for a Service and the names below it.
func (l *lookup) service(n int) outcome {
	q := l.q
	s, endpoints := l.lookup(q.name[q.labels[n-3]:q.labels[n-1]])
	if s == nil {
		return noName
	}
	var f filter
	switch n {
	case 3:
	case 4:
		f.endpoint = q.label(0)
	case 5:
		first, second := q.label(0), q.label(1)
		// A port without name has no SRV record of its own.
		if first[0] != '_' || second[0] != '_' || len(first) == 1 || len(second) == 1 {
			return noName
		}
		f.port, f.protocol = first[1:], second[1:]
	default:
		return noName
	}
	if s.kind == externalService {
		if n != 3 || s.external.wire == "" {
			return noName
		}
		return l.cname(s.external)
	}
	if n == 4 && f.endpoint[0] == '_' {
		return protocolName(s, endpoints, f.endpoint[1:])
	}
	if s.kind == headlessService || f.endpoint != nil {
		return l.endpoints(s, endpoints, f)
	}
	return l.clusterIP(s, f)
}

// protocolName answers for _tcp.service.namespace.svc, which has no records itself but exists if there are ports below it.
func protocolName(s *service, endpoints []*endpointSlice, protocol []byte) outcome {
	ports := s.ports
	if s.kind == headlessService {
		ports = nil
		for _, slice := range endpoints {
			if len(slice.endpoints) > 0 {
				ports = append(ports, slice.ports...)
			}
		}
	}
	for _, p := range ports {
		if (filter{protocol: protocol}).matches(p) && p.name != "" {
			return noData
		}
	}
	return noName
}

// clusterIP answers for a Service with cluster IPs.
func (l *lookup) clusterIP(s *service, f filter) outcome {
	matching := 0
	for _, p := range s.ports {
		if f.matches(p) {
			matching++
		}
	}
	if matching == 0 {
		return noName
	}
	if l.q.qtype != dns.TypeSRV {
		return l.addresses(s.clusterIPs)
	}
	weight := srvWeight(matching * len(s.clusterIPs))
	target := 0
	for _, p := range s.ports {
		if f.matches(p) {
			target = l.srv(p.number, weight, "", s.name)
		}
	}
	for _, ip := range s.clusterIPs {
		l.additional(target, ip)
	}
	return found
}

// endpoints answers for endpoints of a Service. A Service without ready endpoints does not exist, as in CoreDNS.
func (l *lookup) endpoints(s *service, all []*endpointSlice, f filter) outcome {
	matching := 0
	for _, slice := range all {
		matching += len(slice.named(f.endpoint)) * slice.matchingPorts(f)
	}
	if matching == 0 {
		return noName
	}
	if l.q.qtype == dns.TypeSRV {
		return l.endpointServices(s, all, f, srvWeight(matching))
	}
	if l.q.qtype != dns.TypeA && l.q.qtype != dns.TypeAAAA {
		return noData
	}
	clear(l.scratch.addresses)
	result := noData
	// The first address is a random one, and so is what is left out of a response that is too long.
	firstSlice := rand.IntN(len(all))
	for i := range all {
		slice := all[(firstSlice+i)%len(all)]
		if slice.matchingPorts(f) == 0 {
			continue
		}
		named := slice.named(f.endpoint)
		if len(named) == 0 {
			continue
		}
		first := rand.IntN(len(named))
		for j := range named {
			ip := named[(first+j)%len(named)].ip
			if !l.queried(ip) {
				continue
			}
			if _, written := l.scratch.addresses[ip]; written {
				continue
			}
			if !l.r.address(answerSection, l.owner, ip) {
				return found
			}
			l.scratch.addresses[ip] = struct{}{}
			result = found
		}
	}
	return result
}

// matchingPorts is the number of ports that the filter selects. Endpoints without ports count as one port without name.
func (s *endpointSlice) matchingPorts(f filter) int {
	if len(s.ports) == 0 && f.port == nil && f.protocol == nil {
		return 1
	}
	matching := 0
	for _, p := range s.ports {
		if f.matches(p) {
			matching++
		}
	}
	return matching
}

// endpointServices writes the SRV records of endpoints: one for each name and port, with the addresses as additional records.
func (l *lookup) endpointServices(s *service, all []*endpointSlice, f filter, weight uint16) outcome {
	clear(l.targets)
	result := noData
	for _, slice := range all {
		for _, e := range slice.named(f.endpoint) {
			for _, p := range slice.ports {
				if !f.matches(p) || p.number == 0 {
					continue
				}
				// The same endpoint of another family has the same name.
				if _, written := l.targets[srvTarget{e.name, int(p.number)}]; written {
					continue
				}
				result = found
				target := l.srv(p.number, weight, e.name, s.name)
				if target == 0 {
					return found
				}
				l.targets[srvTarget{e.name, int(p.number)}] = target
				l.targets[srvTarget{e.name, -1}] = target
			}
		}
	}
	for _, slice := range all {
		for _, e := range slice.named(f.endpoint) {
			if target := l.targets[srvTarget{e.name, -1}]; target != 0 && !l.additional(target, e.ip) {
				return result
			}
		}
	}
	return result
}

// srvWeight is the weight of each of a number of SRV records, as CoreDNS computes it.
func srvWeight(records int) uint16 { return uint16(max(1, 100/max(1, records))) }

// srv writes an SRV record and returns the offset of its target: the endpoint, if any, of the Service.
func (l *lookup) srv(number, weight uint16, endpoint, service string) int {
	b := binary.BigEndian.AppendUint16(l.name[:0], 0)
	b = binary.BigEndian.AppendUint16(b, weight)
	b = binary.BigEndian.AppendUint16(b, number)
	if endpoint != "" {
		b = append(append(b, byte(len(endpoint))), endpoint...)
	}
	b = append(b, service...)
	l.name = b
	data := l.r.record(answerSection, l.owner, dns.TypeSRV, recordTTL, b)
	if data == 0 {
		return 0
	}
	return data + 6
}

// additional writes an address of the name at an offset, of whichever family, as additional record.
func (l *lookup) additional(owner int, ip netip.Addr) bool {
	return owner != 0 && l.r.address(additionalSection, owner, ip)
}

// cname writes the CNAME of an ExternalName Service and follows it within the zone.
func (l *lookup) cname(target domain) outcome {
	if l.chain++; l.chain > maxChain {
		return found
	}
	data := l.r.record(answerSection, l.owner, dns.TypeCNAME, recordTTL, []byte(target.wire))
	if l.q.qtype == dns.TypeCNAME || data == 0 {
		return found
	}
	if !target.isBelow(l.zone) {
		l.external = target
		return notOurs
	}
	l.q.setName(target.wire)
	l.owner = data
	return l.answer()
}

// reverse answers for a name below in-addr.arpa or ip6.arpa: the names of a Service's address or of an endpoint's.
func (l *lookup) reverse() outcome {
	ip, ok := l.q.reverseAddress()
	if !ok {
		return notOurs
	}
	s, endpoints, inRange := l.index.reverse(ip)
	switch {
	case s == nil && len(endpoints) == 0 && inRange:
		return noName
	case s == nil && len(endpoints) == 0:
		return notOurs
	case l.q.qtype != dns.TypePTR:
		return noData
	case s != nil:
		l.r.record(answerSection, l.owner, dns.TypePTR, recordTTL, []byte(s.name))
		return found
	}
	for _, slice := range endpoints {
		for _, e := range slice.endpoints {
			if e.ip != ip {
				continue
			}
			b := append(append(l.name[:0], byte(len(e.name))), e.name...)
			l.name = append(b, slice.service...)
			if l.r.record(answerSection, l.owner, dns.TypePTR, recordTTL, l.name) == 0 {
				return found
			}
		}
	}
	return found
}

var (
	reverse4 = domain{wire: "\x07in-addr\x04arpa\x00", labels: 2}
	reverse6 = domain{wire: "\x03ip6\x04arpa\x00", labels: 2}
)

// reverseAddress is the address that a name below in-addr.arpa or ip6.arpa stands for.
func (q *query) reverseAddress() (netip.Addr, bool) {
	switch {
	case q.labelCount == 6 && q.isBelow(reverse4):
		var ip [4]byte
		for i := range ip {
			value := 0
			label := q.label(3 - i)
			if len(label) > 3 || len(label) > 1 && label[0] == '0' {
				return netip.Addr{}, false
			}
			for _, digit := range label {
				if digit < '0' || digit > '9' {
					return netip.Addr{}, false
				}
				value = value*10 + int(digit-'0')
			}
			if value > 255 {
				return netip.Addr{}, false
			}
			ip[i] = byte(value)
		}
		return netip.AddrFrom4(ip), true
	case q.labelCount == 34 && q.isBelow(reverse6):
		var ip [16]byte
		for i := range 32 {
			label := q.label(31 - i)
			digit := strings.IndexByte("0123456789abcdef", label[0])
			if len(label) != 1 || digit < 0 {
				return netip.Addr{}, false
			}
			ip[i/2] |= byte(digit) << (4 * (1 - i%2))
		}
		return netip.AddrFrom16(ip).Unmap(), true
	}
	return netip.Addr{}, false
}
