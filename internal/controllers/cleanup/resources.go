// Package cleanup contains the controllers that delete what is no longer needed: the content of deleted namespaces, objects whose
// owners are gone, orphaned and terminated pods, unused tokens. It also contains the controllers that recalculate the usage of
// ResourceQuotas and that rewrite stored objects, because they need the same client. They handle all resources of the server, including custom ones, through their
// metadata.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// resource is a resource of the server in its preferred version.
type resource struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
	verbs      []string
	// storageVersionHash identifies the version in which the server stores objects; empty: it does not say.
	storageVersionHash string
}

func (r resource) can(verbs ...string) bool {
	for _, verb := range verbs {
		if !slices.Contains(r.verbs, verb) {
			return false
		}
	}
	return true
}

// metadataClient discovers resources and reads the metadata of their objects, whatever their types.
type metadataClient struct {
	discovery *discovery.DiscoveryClient
	metadata  metadata.Interface
}

func newMetadataClient(config *rest.Config) (*metadataClient, error) {
	config = rest.CopyConfig(config)
	// Deprecated versions are read only because they are served: suppress the warnings.
	config.WarningHandler = rest.NoWarnings{}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create discovery client: %w", err)
	}
	m, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create metadata client: %w", err)
	}
	return &metadataClient{discovery: d, metadata: m}, nil
}

// parseError is an invalid discovery response, as opposed to a failed discovery request.
type parseError struct{ err error }

func (e *parseError) Error() string { return e.err.Error() }
func (e *parseError) Unwrap() error { return e.err }

// resources discovers the resources of the server. It may return both resources and an error: API groups fail independently.
func (c *metadataClient) resources(ctx context.Context) ([]resource, error) {
	lists, err := c.discovery.ServerPreferredResourcesWithContext(ctx)
	var all []resource
	var unread []error
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			unread = append(unread, parseErr)
			continue
		}
		for _, r := range list.APIResources {
			// A resource may specify another group or version for its objects; use the one it is served at.
			all = append(all, resource{
				GroupVersionResource: gv.WithResource(r.Name), kind: r.Kind, namespaced: r.Namespaced, verbs: r.Verbs, storageVersionHash: r.StorageVersionHash,
			})
		}
	}
	switch {
	case len(unread) == 0:
		return all, err
	case err == nil:
		return all, &parseError{errors.Join(unread...)}
	}
	return all, errors.Join(err, &parseError{errors.Join(unread...)})
}

// in returns the client of a resource in a namespace, or in all namespaces if it is empty.
func (c *metadataClient) in(gvr schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	if namespace == "" {
		return c.metadata.Resource(gvr)
	}
	return c.metadata.Resource(gvr).Namespace(namespace)
}

// list lists the metadata of all objects of a resource in a namespace.
func (c *metadataClient) list(ctx context.Context, gvr schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := c.in(gvr, namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}
