package system

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	streams "skiff/internal/apiserver/connect"
	"skiff/internal/config"
	"skiff/internal/egress"
	"skiff/internal/kind"
)

// proxiedObjects are the objects that connectors look up. The server that holds them is made after the connectors.
type proxiedObjects struct{ *accessControl }

// Get implements connect.Objects.
func (o proxiedObjects) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	return o.client.Get(ctx, resource, namespace, name)
}

// List implements connect.Objects.
func (o proxiedObjects) List(resource schema.GroupResource, namespace string, selector labels.Selector) ([]kind.Object, error) {
	return o.policy.Objects.List(resource, namespace, selector)
}

// proxyConfig is how the API server reaches kubelets, pods and services.
func proxyConfig(c config.KubeletClient, a *accessControl, certs *certificates) streams.Config {
	s := streams.Config{Objects: proxiedObjects{a}, Kubelet: certs.kubelet, Dial: a.egress.Dialer(egress.Cluster)}
	for _, addressType := range c.AddressTypes {
		s.AddressTypes = append(s.AddressTypes, corev1.NodeAddressType(addressType))
	}
	return s
}

// proxyConfig is how the API server of a server reaches kubelets, pods and services. The pod network is on the hosts of nodes. An egress selector
// with the cluster's network, be it a direct connection, says that there is another way.
func (s *server) proxyConfig() streams.Config {
	c := proxyConfig(s.config.KubeletClient, s.access, s.certs)
	c.ThroughKubelets = s.config.NoNode && !s.egress.Has(egress.Cluster)
	return c
}
