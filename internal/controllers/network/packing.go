package network

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// endpointKey identifies an endpoint; its other fields may change.
type endpointKey struct{ addresses, hostname, namespace, name string }

func keyOfEndpoint(e *discoveryv1.Endpoint) endpointKey {
	addresses := slices.Sorted(slices.Values(e.Addresses))
	key := endpointKey{addresses: strings.Join(addresses, ",")}
	if e.Hostname != nil {
		key.hostname = *e.Hostname
	}
	if e.TargetRef != nil {
		key.namespace, key.name = e.TargetRef.Namespace, e.TargetRef.Name
	}
	return key
}

// endpointSet is the set of endpoints to place into slices, in the order they were added.
type endpointSet struct {
	order []endpointKey
	byKey map[endpointKey]*discoveryv1.Endpoint
}

func (s *endpointSet) add(e *discoveryv1.Endpoint) {
	key := keyOfEndpoint(e)
	if s.byKey == nil {
		s.byKey = map[endpointKey]*discoveryv1.Endpoint{}
	}
	if s.byKey[key] == nil {
		s.order = append(s.order, key)
	}
	s.byKey[key] = e
}

func (s *endpointSet) len() int { return len(s.byKey) }

// take removes and returns the endpoint with the key of e, or nil.
func (s *endpointSet) take(e *discoveryv1.Endpoint) *discoveryv1.Endpoint {
	key := keyOfEndpoint(e)
	found := s.byKey[key]
	delete(s.byKey, key)
	return found
}

// fill moves endpoints into a slice until it has maxEndpoints.
func (s *endpointSet) fill(slice *discoveryv1.EndpointSlice, maxEndpoints int) {
	for len(s.order) > 0 && len(slice.Endpoints) < maxEndpoints {
		if e := s.byKey[s.order[0]]; e != nil {
			slice.Endpoints = append(slice.Endpoints, *e)
			delete(s.byKey, s.order[0])
		}
		s.order = s.order[1:]
	}
}

// sameEndpoint compares the mutable fields of an endpoint, without hints.
func sameEndpoint(a, b *discoveryv1.Endpoint) bool {
	reference := func(r *corev1.ObjectReference) corev1.ObjectReference {
		if r == nil {
			return corev1.ObjectReference{}
		}
		plain := *r
		plain.ResourceVersion = "" // irrelevant changes of the pod
		return plain
	}
	return apiequality.Semantic.DeepEqual(a.NodeName, b.NodeName) && apiequality.Semantic.DeepEqual(a.Zone, b.Zone) &&
		apiequality.Semantic.DeepEqual(a.Conditions, b.Conditions) && reference(a.TargetRef) == reference(b.TargetRef)
}

// portsKey is a key for a set of ports, independent of their order.
func portsKey(ports []discoveryv1.EndpointPort) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprintf("%s %s %s %s", formatPointer(p.Name), formatPointer(p.Protocol), formatPointer(p.Port), formatPointer(p.AppProtocol))
	}
	slices.Sort(texts)
	return strings.Join(texts, ";")
}

// formatPointer formats the value of a pointer; nil differs from empty.
func formatPointer[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%q", fmt.Sprint(*p))
}

// sliceChanges are the slices to create, update and delete.
type sliceChanges struct {
	create, update, remove []*discoveryv1.EndpointSlice
}

// recycle turns a create and a delete into an update, if the address types match and the slice is reusable.
func (c *sliceChanges) recycle(reusable func(*discoveryv1.EndpointSlice) bool) {
	var remove []*discoveryv1.EndpointSlice
	for _, old := range c.remove {
		i := slices.IndexFunc(c.create, func(s *discoveryv1.EndpointSlice) bool { return s.AddressType == old.AddressType })
		if i < 0 || !reusable(old) {
			remove = append(remove, old)
			continue
		}
		reused := old.DeepCopy()
		created := c.create[i]
		reused.Labels, reused.Annotations, reused.OwnerReferences = created.Labels, created.Annotations, created.OwnerReferences
		reused.Ports, reused.Endpoints = created.Ports, created.Endpoints
		c.update = append(c.update, reused)
		c.create = slices.Delete(c.create, i, i+1)
	}
	c.remove = remove
}

// unchanged returns the slices that are neither updated nor removed.
func (c *sliceChanges) unchanged(all []*discoveryv1.EndpointSlice) (rest []*discoveryv1.EndpointSlice) {
	for _, slice := range all {
		same := func(s *discoveryv1.EndpointSlice) bool { return s.Name == slice.Name }
		if !slices.ContainsFunc(c.update, same) && !slices.ContainsFunc(c.remove, same) {
			rest = append(rest, slice)
		}
	}
	return rest
}

// slicePacker distributes endpoints over slices with as few changed slices as possible.
type slicePacker struct {
	maxEndpoints int // per slice
	// relabel returns the desired labels of a slice, and whether they differ from the current ones.
	relabel func(*discoveryv1.EndpointSlice) (map[string]string, bool)
	// newSlice returns an empty slice.
	newSlice func() *discoveryv1.EndpointSlice
}

// pack changes the slices, which all have the same ports, to contain exactly the desired endpoints.
//
// First, remaining endpoints are updated in place and others are removed; slices that become empty are deleted. Then the slices
// that change anyway are filled up, the fullest first. The rest is added to the unchanged slice that is fullest afterwards, if all
// of it fits, and to new slices otherwise.
func (p slicePacker) pack(existing []*discoveryv1.EndpointSlice, want *endpointSet) (changes sliceChanges) {
	var unchanged []*discoveryv1.EndpointSlice
	for _, slice := range existing {
		kept, updated := keep(slice, want)
		labels, relabelled := p.relabel(slice)
		switch {
		case len(kept) == 0 && len(slice.Endpoints) > 0:
			changes.remove = append(changes.remove, slice)
		case updated || relabelled:
			changed := slice.DeepCopy()
			changed.Endpoints, changed.Labels = kept, labels
			changes.update = append(changes.update, changed)
		default:
			unchanged = append(unchanged, slice)
		}
	}
	fullestFirst := slices.Clone(changes.update)
	slices.SortStableFunc(fullestFirst, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(len(b.Endpoints), len(a.Endpoints)) })
	for _, slice := range fullestFirst {
		want.fill(slice, p.maxEndpoints)
	}
	for want.len() > 0 {
		if i := p.bestFit(want.len(), unchanged); i >= 0 {
			changed := unchanged[i].DeepCopy()
			unchanged = slices.Delete(unchanged, i, i+1)
			want.fill(changed, p.maxEndpoints)
			changes.update = append(changes.update, changed)
			continue
		}
		slice := p.newSlice()
		want.fill(slice, p.maxEndpoints)
		changes.create = append(changes.create, slice)
	}
	return changes
}

// keep returns the desired endpoints that are in a slice already, and whether the slice changes.
func keep(slice *discoveryv1.EndpointSlice, want *endpointSet) (kept []discoveryv1.Endpoint, changed bool) {
	for i := range slice.Endpoints {
		old := &slice.Endpoints[i]
		wanted := want.take(old)
		if wanted == nil {
			changed = true
			continue
		}
		changed = changed || !sameEndpoint(old, wanted)
		kept = append(kept, *wanted)
	}
	return kept, changed
}

// bestFit returns the index of the slice with the least free space that n more endpoints fit into, or -1.
func (p slicePacker) bestFit(n int, all []*discoveryv1.EndpointSlice) int {
	best, leastFree := -1, p.maxEndpoints
	for i, slice := range all {
		if free := p.maxEndpoints - len(slice.Endpoints) - n; n < p.maxEndpoints && free >= 0 && free < leastFree {
			best, leastFree = i, free
		}
	}
	return best
}
