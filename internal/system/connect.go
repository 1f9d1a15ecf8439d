package system

import (
	"context"
	"crypto/tls"

	"k8s.io/apimachinery/pkg/runtime/schema"

	streams "skiff/internal/apiserver/connect"
	"skiff/internal/kind"
)

// connectObjects are what connectors look up. The server that holds it is made after them and before the first request.
type connectObjects struct{ *gate }

// Get implements connect.Objects.
func (o connectObjects) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	return o.env.Get(ctx, resource, namespace, name)
}

// List implements connect.Objects.
func (o connectObjects) List(ctx context.Context, resource schema.GroupResource, namespace string) ([]kind.Object, error) {
	return o.env.List(ctx, resource, namespace)
}

// connection is how the server reaches kubelets, which know it by a certificate of its own and are known by the cluster's
// authority, and pods and services.
func connection(g *gate, certs *certificates) streams.Config {
	return streams.Config{
		Objects: connectObjects{g},
		Kubelet: &tls.Config{
			MinVersion:           tls.VersionTLS12,
			RootCAs:              certs.authority.Pool(),
			GetClientCertificate: certs.kubeletClient.GetClientCertificate,
		},
	}
}
