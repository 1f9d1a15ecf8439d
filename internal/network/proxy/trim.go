package proxy

import (
	"maps"

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

// trimSlice returns an EndpointSlice with what proxies and DNS servers use of it.
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
		trimmed.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, Hostname: e.Hostname, NodeName: e.NodeName, Hints: e.Hints}
	}
	return trimmed
}
