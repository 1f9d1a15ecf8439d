package proxy

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node has all Services and EndpointSlices of the cluster in memory. The informers are shared with the other components of the node, so that
// what any of them uses is kept.

// trimService returns a Service without managed fields.
func trimService(s *corev1.Service) *corev1.Service {
	trimmed := *s
	trimmed.ManagedFields = nil
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
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		trimmed.Endpoints[i] = discoveryv1.Endpoint{
			Addresses: e.Addresses, Hostname: e.Hostname, NodeName: shared(e.NodeName), Hints: e.Hints,
			Conditions: discoveryv1.EndpointConditions{
				Ready: condition(e.Conditions.Ready), Serving: condition(e.Conditions.Serving), Terminating: condition(e.Conditions.Terminating),
			},
		}
	}
	return trimmed
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

// shared returns a pointer to the same text, whose bytes are shared by all endpoints.
func shared(text *string) *string {
	if text == nil {
		return nil
	}
	canonical := unique.Make(*text).Value()
	return &canonical
}
