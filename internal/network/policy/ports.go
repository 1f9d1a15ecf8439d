package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/internal/container"
	"skiff/internal/network/nft"
)

// portRange is a range of ports of one protocol.
type portRange struct {
	proto    nft.Proto
	from, to uint16
}

func comparePortRanges(a, b portRange) int {
	return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
}

func (r portRange) String() string {
	if r.from == r.to {
		return fmt.Sprintf("%s/%d", r.proto, r.from)
	}
	return fmt.Sprintf("%s/%d-%d", r.proto, r.from, r.to)
}

// portSet is a set of ports. The zero value is empty.
type portSet struct {
	// all are the ports of all protocols, and protocols without ports.
	all bool
	// ranges are sorted, do not overlap and are not adjacent; none if all is set.
	ranges []portRange
}

// newPortSet makes the union of ranges.
func newPortSet(ranges []portRange) portSet {
	sorted := slices.SortedFunc(slices.Values(ranges), comparePortRanges)
	var merged []portRange
	for _, r := range sorted {
		if n := len(merged); n > 0 && merged[n-1].proto == r.proto && int(r.from) <= int(merged[n-1].to)+1 {
			merged[n-1].to = max(merged[n-1].to, r.to)
			continue
		}
		merged = append(merged, r)
	}
	return portSet{ranges: merged}
}

// unionPorts makes the union of sets.
func unionPorts(sets []portSet) portSet {
	if len(sets) == 1 {
		return sets[0]
	}
	var ranges []portRange
	for _, s := range sets {
		if s.all {
			return s
		}
		ranges = append(ranges, s.ranges...)
	}
	return newPortSet(ranges)
}

func (s portSet) isEmpty() bool { return !s.all && len(s.ranges) == 0 }

func (s portSet) equal(other portSet) bool {
	return s.all == other.all && slices.Equal(s.ranges, other.ranges)
}

// has reports whether a port is in the set. Protocols without ports are in the set of all ports only.
func (s portSet) has(proto nft.Proto, port uint16) bool {
	if s.all {
		return true
	}
	return slices.ContainsFunc(s.ranges, func(r portRange) bool { return r.proto == proto && r.from <= port && port <= r.to })
}

// hasIntervals reports whether the set has a range of more than one port.
func (s portSet) hasIntervals() bool {
	return slices.ContainsFunc(s.ranges, func(r portRange) bool { return r.from != r.to })
}

func (s portSet) String() string {
	if s.all {
		return "all"
	}
	texts := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		texts[i] = r.String()
	}
	return strings.Join(texts, ",")
}

// portName is a named port of a protocol.
type portName struct {
	name  string
	proto nft.Proto
}

func comparePortNames(a, b portName) int {
	return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.proto, b.proto))
}

// rulePorts are the ports of a rule of a policy.
type rulePorts struct {
	// all is set for a rule without ports.
	all    bool
	ranges []portRange
	names  []portName
}

// maxPort is the greatest port number.
const maxPort = 65535

// newRulePorts reads the ports of a rule. What the API server would not have accepted allows nothing.
func newRulePorts(ports []networkingv1.NetworkPolicyPort) (r rulePorts) {
	if len(ports) == 0 {
		return rulePorts{all: true}
	}
	for _, p := range ports {
		proto, ok := nft.ParseProto(string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)))
		switch {
		case !ok:
		case p.Port == nil:
			r.ranges = append(r.ranges, portRange{proto, 0, maxPort})
		case p.Port.Type == intstr.String:
			r.names = append(r.names, portName{p.Port.StrVal, proto})
		default:
			end := ptr.Deref(p.EndPort, p.Port.IntVal)
			if p.Port.IntVal >= 1 && end >= p.Port.IntVal && end <= maxPort {
				r.ranges = append(r.ranges, portRange{proto, uint16(p.Port.IntVal), uint16(end)})
			}
		}
	}
	return r
}

// resolve returns the ports of a rule with the named ports of the pod that receives connections.
func (r rulePorts) resolve(named map[portName]uint16) portSet {
	if r.all {
		return portSet{all: true}
	}
	ranges := slices.Clone(r.ranges)
	for _, name := range r.names {
		if port, ok := named[name]; ok {
			ranges = append(ranges, portRange{name.proto, port, port})
		}
	}
	return newPortSet(ranges)
}

// namedPorts are the named ports of a pod's containers. Of two with the same name the first counts.
func namedPorts(pod *corev1.Pod) map[portName]uint16 {
	var named map[portName]uint16
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			proto, ok := nft.ParseProto(cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)))
			key := portName{p.Name, proto}
			if _, exists := named[key]; p.Name == "" || !ok || exists || p.ContainerPort < 1 || p.ContainerPort > maxPort {
				continue
			}
			if named == nil {
				named = map[portName]uint16{}
			}
			named[key] = uint16(p.ContainerPort)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; container.IsSidecar(c) {
			add(c)
		}
	}
	return named
}
