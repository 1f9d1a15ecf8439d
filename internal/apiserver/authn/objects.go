package authn

import (
	"context"
	"errors"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// DeferredObjects are Objects that are there later: authenticators are made before the server that holds what they look up.
type DeferredObjects struct {
	objects atomic.Pointer[Objects]
}

var errNotStarted = errors.New("the server has not started yet")

// Set says what to look up in, once it is known.
func (l *DeferredObjects) Set(o Objects) { l.objects.Store(&o) }

// Get implements Objects.
func (l *DeferredObjects) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	if o := l.objects.Load(); o != nil {
		return (*o).Get(ctx, resource, namespace, name)
	}
	return nil, errNotStarted
}

// Update implements Objects.
func (l *DeferredObjects) Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(obj kind.Object) error) (kind.Object, error) {
	if o := l.objects.Load(); o != nil {
		return (*o).Update(ctx, resource, namespace, name, change)
	}
	return nil, errNotStarted
}
