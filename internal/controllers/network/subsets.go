package network

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// portKey is a comparable EndpointPort. The zero value stands for addresses without ports.
type portKey struct {
	name, appProtocol string
	protocol          corev1.Protocol
	port              int32
	hasAppProtocol    bool
}

func keyOfPort(p corev1.EndpointPort) portKey {
	key := portKey{name: p.Name, protocol: p.Protocol, port: p.Port}
	if p.AppProtocol != nil {
		key.appProtocol, key.hasAppProtocol = *p.AppProtocol, true
	}
	return key
}

func (k portKey) endpointPort() corev1.EndpointPort {
	p := corev1.EndpointPort{Name: k.name, Port: k.port, Protocol: k.protocol}
	if k.hasAppProtocol {
		p.AppProtocol = &k.appProtocol
	}
	return p
}

func comparePorts(a, b portKey) int {
	return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol), strings.Compare(a.appProtocol, b.appProtocol))
}

// addressID identifies an address: pods on the host network share the IP of their node.
type addressID struct {
	ip  string
	uid types.UID
}

func idOfAddress(a *corev1.EndpointAddress) addressID {
	id := addressID{ip: a.IP}
	if a.TargetRef != nil {
		id.uid = a.TargetRef.UID
	}
	return id
}

func compareAddresses(a, b addressID) int {
	return cmp.Or(strings.Compare(a.ip, b.ip), cmp.Compare(a.uid, b.uid))
}

// repack converts subsets to a canonical form: addresses with the same ports are in one subset, without duplicates and sorted. An
// address that is both ready and not ready counts as not ready.
func repack(subsets []corev1.EndpointSubset) []corev1.EndpointSubset {
	addresses := map[addressID]corev1.EndpointAddress{}
	byPort := map[portKey]map[addressID]bool{} // true: ready
	add := func(port portKey, list []corev1.EndpointAddress, ready bool) {
		for i := range list {
			id := idOfAddress(&list[i])
			if _, known := addresses[id]; !known {
				addresses[id] = list[i]
			}
			if byPort[port] == nil {
				byPort[port] = map[addressID]bool{}
			}
			if wasReady, known := byPort[port][id]; !known || wasReady {
				byPort[port][id] = ready
			}
		}
	}
	for i := range subsets {
		ports := []portKey{{}}
		if len(subsets[i].Ports) > 0 {
			ports = nil
			for _, p := range subsets[i].Ports {
				ports = append(ports, keyOfPort(p))
			}
		}
		for _, port := range ports {
			add(port, subsets[i].Addresses, true)
			add(port, subsets[i].NotReadyAddresses, false)
		}
	}
	// Merge ports with the same addresses.
	byAddresses := map[string]*corev1.EndpointSubset{}
	for _, port := range slices.SortedFunc(maps.Keys(byPort), comparePorts) {
		ids := slices.SortedFunc(maps.Keys(byPort[port]), compareAddresses)
		var key strings.Builder
		for _, id := range ids {
			fmt.Fprintf(&key, "%s %s %t;", id.ip, id.uid, byPort[port][id])
		}
		subset := byAddresses[key.String()]
		if subset == nil {
			subset = &corev1.EndpointSubset{}
			byAddresses[key.String()] = subset
			for _, id := range ids {
				if byPort[port][id] {
					subset.Addresses = append(subset.Addresses, addresses[id])
				} else {
					subset.NotReadyAddresses = append(subset.NotReadyAddresses, addresses[id])
				}
			}
		}
		if port != (portKey{}) {
			subset.Ports = append(subset.Ports, port.endpointPort())
		}
	}
	packed := []corev1.EndpointSubset{}
	for _, key := range slices.Sorted(maps.Keys(byAddresses)) {
		packed = append(packed, *byAddresses[key])
	}
	return packed
}

// maxAddresses is the maximum number of addresses of an Endpoints object.
const maxAddresses = 1000

// truncate reduces the subsets to maxAddresses in proportion to their size, addresses that are not ready first. It reports whether
// it removed any. It modifies the subsets.
func truncate(subsets []corev1.EndpointSubset) bool {
	ready, notReady := 0, 0
	for _, s := range subsets {
		ready += len(s.Addresses)
		notReady += len(s.NotReadyAddresses)
	}
	if ready+notReady <= maxAddresses {
		return false
	}
	limit, total := maxAddresses-ready, notReady
	cutReady := ready > maxAddresses
	if cutReady {
		limit, total = maxAddresses, ready
	}
	remaining := limit
	for i := range subsets {
		s := &subsets[i]
		list := &s.NotReadyAddresses
		if cutReady {
			list, s.NotReadyAddresses = &s.Addresses, nil
		}
		n := min((len(*list)*limit+total-1)/total, remaining, len(*list)) // rounded up, limited by what remains
		*list = (*list)[:n]
		remaining -= n
	}
	return true
}
