package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Client lists and removes the servers of a cluster.
type Client struct{ rest rest.Interface }

// NewClient returns a client for the API server of config.
func NewClient(config *rest.Config) (Client, error) {
	// Only Status objects of errors are decoded by the client.
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return Client{}, fmt.Errorf("make client of the API server: %w", err)
	}
	return Client{rest: client}, nil
}

// List returns the servers.
func (c Client) List(ctx context.Context) ([]Server, error) {
	data, err := c.rest.Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("list the servers: %w", explain(err))
	}
	var list ServerList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("decode the servers: %w", err)
	}
	return list.Items, nil
}

// Remove removes a server, given by its name or ID.
func (c Client) Remove(ctx context.Context, name string) error {
	if err := c.rest.Delete().AbsPath(path, name).Do(ctx).Error(); err != nil {
		return fmt.Errorf("remove server %s: %w", name, err)
	}
	return nil
}
