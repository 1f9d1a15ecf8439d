package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// Cached reads built-in resources as the cache has them, in their storage version, whether they are served or not. A read never waits for
// the store: it may lack what another server has just written. Admission and authorization read this way, with requests waiting for
// them. Objects are shared and read-only.
type Cached struct{ server *Server }

// Cached returns the access to the cache.
func (s *Server) Cached() Cached { return Cached{s} }

// find returns a resource of a cache that is loaded.
func (c Cached) find(resource schema.GroupResource) (*resource, error) {
	select {
	case <-c.server.config.Cache.Ready():
	default:
		return nil, fmt.Errorf("read %s: the cache is not loaded", resource)
	}
	return kindClient{c.server}.resource(resource)
}

// Get returns an object.
func (c Cached) Get(resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	res, err := c.find(resource)
	if err != nil {
		return nil, err
	}
	entry := res.table.Get(res.kind.Key(namespace, name))
	if entry == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return entry.Object()
}

// List returns the objects of a namespace, or of all if it is empty, that match; a nil selector matches everything. Objects that do not
// match are not decoded.
func (c Cached) List(resource schema.GroupResource, namespace string, selector labels.Selector) ([]kind.Object, error) {
	res, err := c.find(resource)
	if err != nil {
		return nil, err
	}
	// Built-in resources need no webhook, so there is nothing to wait for.
	return res.objectsOf(res.table.Snapshot(), localMatcher(context.Background(), res, namespace, &listOptions{labels: selector}))
}

// LastChange is the revision of the last write to a resource, zero if there was none. It is cheap.
func (c Cached) LastChange(resource schema.GroupResource) int64 {
	res, err := c.find(resource)
	if err != nil {
		return 0
	}
	return res.table.LastChange()
}
