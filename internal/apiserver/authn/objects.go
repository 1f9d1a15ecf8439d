package authn

import (
	"context"
	"errors"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// DeferredObjects are Objects that are set later: authenticators are made before the server that has the objects.
type DeferredObjects struct {
	objects atomic.Pointer[Objects]
}

var errNotStarted = errors.New("the server has not started yet")

// Set sets the objects. Until then, all methods return an error.
func (d *DeferredObjects) Set(o Objects) { d.objects.Store(&o) }

// Get implements Objects.
func (d *DeferredObjects) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	if o := d.objects.Load(); o != nil {
		return (*o).Get(ctx, resource, namespace, name)
	}
	return nil, errNotStarted
}

// Update implements Objects.
func (d *DeferredObjects) Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(obj kind.Object) error) (kind.Object, error) {
	if o := d.objects.Load(); o != nil {
		return (*o).Update(ctx, resource, namespace, name, change)
	}
	return nil, errNotStarted
}
