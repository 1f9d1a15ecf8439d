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

// endpointKey is what makes two endpoints the same one; the rest of it may change.
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

// endpointSet are endpoints that need a place in a slice, in the order they were added.
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

// take removes and returns the endpoint that is the same as e, or nil.
func (s *endpointSet) take(e *discoveryv1.Endpoint) *discoveryv1.Endpoint {
	key := keyOfEndpoint(e)
	found := s.byKey[key]
	delete(s.byKey, key)
	return found
}

// fill moves endpoints into a slice until it has most of them.
func (s *endpointSet) fill(slice *discoveryv1.EndpointSlice, maxEndpoints int) {
	for len(s.order) > 0 && len(slice.Endpoints) < maxEndpoints {
		if e := s.byKey[s.order[0]]; e != nil {
			slice.Endpoints = append(slice.Endpoints, *e)
			delete(s.byKey, s.order[0])
		}
		s.order = s.order[1:]
	}
}

// sameEndpoint compares what may change of an endpoint. Hints are somebody else's.
func sameEndpoint(a, b *discoveryv1.Endpoint) bool {
	reference := func(r *corev1.ObjectReference) corev1.ObjectReference {
		if r == nil {
			return corev1.ObjectReference{}
		}
		plain := *r
		plain.ResourceVersion = "" // a pod that changed otherwise is the same endpoint
		return plain
	}
	return apiequality.Semantic.DeepEqual(a.NodeName, b.NodeName) && apiequality.Semantic.DeepEqual(a.Zone, b.Zone) &&
		apiequality.Semantic.DeepEqual(a.Conditions, b.Conditions) && reference(a.TargetRef) == reference(b.TargetRef)
}

// portsKey is equal for equal sets of ports, in whatever order.
func portsKey(ports []discoveryv1.EndpointPort) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprintf("%s %s %s %s", formatPointer(p.Name), formatPointer(p.Protocol), formatPointer(p.Port), formatPointer(p.AppProtocol))
	}
	slices.Sort(texts)
	return strings.Join(texts, ";")
}

// formatPointer writes what a pointer leads to; nothing is not the same as empty.
func formatPointer[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%q", fmt.Sprint(*p))
}

// sliceChanges are what has to be done to slices.
type sliceChanges struct {
	create, update, remove []*discoveryv1.EndpointSlice
}

// recycle turns a creation and a deletion into an update, where the address type allows it and mine says that the slice may be used again.
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

// unchanged returns the slices that neither change nor go.
func (c *sliceChanges) unchanged(all []*discoveryv1.EndpointSlice) (rest []*discoveryv1.EndpointSlice) {
	for _, slice := range all {
		same := func(s *discoveryv1.EndpointSlice) bool { return s.Name == slice.Name }
		if !slices.ContainsFunc(c.update, same) && !slices.ContainsFunc(c.remove, same) {
			rest = append(rest, slice)
		}
	}
	return rest
}

// slicePacker distributes endpoints over slices so that few slices change.
type slicePacker struct {
	maxEndpoints int // endpoints per slice
	// relabel returns the labels a slice should have, and whether they differ from those it has.
	relabel func(*discoveryv1.EndpointSlice) (map[string]string, bool)
	// newSlice makes an empty slice.
	newSlice func() *discoveryv1.EndpointSlice
}

// pack brings the slices, which all have the same ports, to hold exactly the wanted endpoints.
//
// First endpoints that stay are updated where they are and the others are removed; slices that lose all go. Then the slices that
// change anyway are filled up, the fullest first. What is left goes into the one unchanged slice that is the fullest afterwards,
// if all of it fits there, and into new slices otherwise.
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

// keep returns the endpoints of a slice that stay, as they should be, and whether that is another list than the slice has.
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

// bestFit finds the slice that has room for n more endpoints and the least room beyond, or -1.
func (p slicePacker) bestFit(n int, all []*discoveryv1.EndpointSlice) int {
	best, leastFree := -1, p.maxEndpoints
	for i, slice := range all {
		if free := p.maxEndpoints - len(slice.Endpoints) - n; n < p.maxEndpoints && free >= 0 && free < leastFree {
			best, leastFree = i, free
		}
	}
	return best
}
