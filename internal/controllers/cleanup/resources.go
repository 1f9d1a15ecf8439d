// Package cleanup holds the controllers that take away what is no longer needed: what remains of deleted namespaces, objects
// whose owners are gone, pods that nothing runs, tokens that nothing uses. They work on every resource the server has, custom
// ones included, and therefore on metadata alone.
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

// resource is one resource of the server, in the version the server prefers.
type resource struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
	verbs      []string
}

func (r resource) can(verbs ...string) bool {
	for _, verb := range verbs {
		if !slices.Contains(r.verbs, verb) {
			return false
		}
	}
	return true
}

// server is the API as far as it concerns objects of unknown types.
type server struct {
	discovery *discovery.DiscoveryClient
	metadata  metadata.Interface
}

func newServer(config *rest.Config) (*server, error) {
	config = rest.CopyConfig(config)
	// Old versions of resources are read because they are there; nothing is to be warned of that.
	config.WarningHandler = rest.NoWarnings{}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make discovery client: %w", err)
	}
	m, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make metadata client: %w", err)
	}
	return &server{discovery: d, metadata: m}, nil
}

// parseError is the failure to understand what discovery answered, as opposed to the failure to get an answer.
type parseError struct{ err error }

func (m *parseError) Error() string { return m.err.Error() }
func (m *parseError) Unwrap() error { return m.err }

// resources asks the server what it has. Beside an error there may still be resources: groups fail one by one, when the
// server behind one of them is away.
func (s *server) resources(ctx context.Context) ([]resource, error) {
	lists, err := s.discovery.ServerPreferredResourcesWithContext(ctx)
	var all []resource
	var unread []error
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			unread = append(unread, parseErr)
			continue
		}
		for _, r := range list.APIResources {
			// A resource may name another group or version for its objects; the path it is served at counts.
			all = append(all, resource{GroupVersionResource: gv.WithResource(r.Name), kind: r.Kind, namespaced: r.Namespaced, verbs: r.Verbs})
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

// in returns the client of a resource, in a namespace or, for an empty one, in the whole cluster.
func (s *server) in(gvr schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	if namespace == "" {
		return s.metadata.Resource(gvr)
	}
	return s.metadata.Resource(gvr).Namespace(namespace)
}

// list reads the metadata of all objects of a resource in a namespace.
func (s *server) list(ctx context.Context, gvr schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := s.in(gvr, namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}
