package system

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	streams "skiff/internal/apiserver/connect"
	"skiff/internal/kind"
)

// proxiedObjects are the objects that connectors look up. The server that holds them is made after the connectors.
type proxiedObjects struct{ *accessControl }

// Get implements connect.Objects.
func (o proxiedObjects) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	return o.client.Get(ctx, resource, namespace, name)
}

// List implements connect.Objects.
func (o proxiedObjects) List(ctx context.Context, resource schema.GroupResource, namespace string) ([]kind.Object, error) {
	return o.client.List(ctx, resource, namespace)
}

// proxyConfig is how the API server reaches kubelets, pods and services.
func proxyConfig(a *accessControl, certs *certificates) streams.Config {
	return streams.Config{
		Objects: proxiedObjects{a},
		Kubelet: certs.kubelet,
	}
}
