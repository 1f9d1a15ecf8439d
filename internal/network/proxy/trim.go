package proxy

import (
	"maps"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node has all Services and EndpointSlices of the cluster in memory. The informers are shared with the other components of the node, so that
// what any of them uses is kept.

// trimService returns a Service without its managed fields, its selector, and the annotation in which kubectl keeps all of it.
func trimService(s *corev1.Service) *corev1.Service {
	trimmed := *s
	trimmed.ManagedFields, trimmed.Spec.Selector = nil, nil
	if _, ok := s.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		trimmed.Annotations = maps.Clone(s.Annotations)
		delete(trimmed.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	return &trimmed
}

// yes and no are the values of all conditions.
var yes, no = true, false

// trimSlice returns an EndpointSlice with what proxies and DNS servers use of it. Its endpoints share what is equal.
func trimSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	trimmed := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion, CreationTimestamp: s.CreationTimestamp, Labels: s.Labels,
		},
		AddressType: s.AddressType, Ports: s.Ports, Endpoints: make([]discoveryv1.Endpoint, len(s.Endpoints)),
	}
	if at, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]; ok {
		trimmed.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at}
	}
	trimEndpoints(trimmed.Endpoints, s.Endpoints)
	return trimmed
}

// trimEndpoints copies endpoints. Few objects of memory have the addresses and names of all of them.
func trimEndpoints(trimmed, endpoints []discoveryv1.Endpoint) {
	count, size := 0, 0
	for i := range endpoints {
		for _, a := range endpoints[i].Addresses {
			count, size = count+1, size+len(a)
		}
	}
	var joined strings.Builder
	joined.Grow(size)
	for i := range endpoints {
		for _, a := range endpoints[i].Addresses {
			joined.WriteString(a)
		}
	}
	text := joined.String()
	addresses, names := make([]string, 0, count), make([]string, 0, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		first := len(addresses)
		for _, a := range e.Addresses {
			addresses, text = append(addresses, text[:len(a)]), text[len(a):]
		}
		trimmed[i] = discoveryv1.Endpoint{
			Addresses: addresses[first:len(addresses):len(addresses)], Hostname: e.Hostname, Hints: e.Hints,
			Conditions: discoveryv1.EndpointConditions{
				Ready: condition(e.Conditions.Ready), Serving: condition(e.Conditions.Serving), Terminating: condition(e.Conditions.Terminating),
			},
		}
		if e.NodeName != nil {
			// Few nodes have all endpoints.
			names = append(names, unique.Make(*e.NodeName).Value())
			trimmed[i].NodeName = &names[len(names)-1]
		}
	}
}

// condition returns a pointer to the same value that is shared by all endpoints.
func condition(value *bool) *bool {
	switch {
	case value == nil:
		return nil
	case *value:
		return &yes
	}
	return &no
}
