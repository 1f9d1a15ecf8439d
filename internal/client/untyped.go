package client

import (
	"context"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"skiff/internal/kind"
)

// The methods below write objects whose type is known only at run time: the controllers' applier applies plans with objects of
// any kind. Code that knows the type uses For.

// KindOf returns the group, version and kind of an object's type. It panics if the type is not one of the client's kinds.
func (c *Client) KindOf(obj kind.Object) schema.GroupVersionKind { return c.mappingOf(obj).gvk }

// Create creates an object.
func (c *Client) Create(ctx context.Context, obj kind.Object, o WriteOptions) (kind.Object, error) {
	t := c.mappingOf(obj)
	return decodeAs(obj, c.restOf(t).Post().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).
		VersionedParams(&metav1.CreateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallowCopy(obj)).Do(ctx))
}

// Update replaces an object, or its subresource.
func (c *Client) Update(ctx context.Context, obj kind.Object, o WriteOptions) (kind.Object, error) {
	t := c.mappingOf(obj)
	return decodeAs(obj, c.restOf(t).Put().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).
		SubResource(o.subresource()...).
		VersionedParams(&metav1.UpdateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallowCopy(obj)).Do(ctx))
}

// Patch patches the object with obj's type, namespace and name.
func (c *Client) Patch(ctx context.Context, obj kind.Object, patchType PatchType, patch []byte, o WriteOptions) (kind.Object, error) {
	t := c.mappingOf(obj)
	options := &metav1.PatchOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}
	if patchType == ApplyPatch {
		options.Force = &o.Force
	}
	return decodeAs(obj, c.restOf(t).Patch(patchType).NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).
		SubResource(o.subresource()...).VersionedParams(options, metav1.ParameterCodec).Body(patch).Do(ctx))
}

// Delete deletes the object with obj's type, namespace and name.
func (c *Client) Delete(ctx context.Context, obj kind.Object, options metav1.DeleteOptions) error {
	t := c.mappingOf(obj)
	return c.restOf(t).Delete().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).
		Body(&options).Do(ctx).Error()
}

// GetLive reads the object with obj's type, namespace and name from the server, not from a cache.
func (c *Client) GetLive(ctx context.Context, obj kind.Object) (kind.Object, error) {
	t := c.mappingOf(obj)
	return decodeAs(obj, c.restOf(t).Get().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).Do(ctx))
}

// Cached is the state of one object in an informer's cache.
type Cached struct {
	// Object is the cached object, nil if there is none.
	Object kind.Object
	// ResourceVersion is the latest the informer has observed, of any object of the type.
	ResourceVersion string
}

// Cached returns the cached state of the object with obj's type, namespace and name. It returns false if that type has no informer.
func (s *Informers) Cached(obj kind.Object) (Cached, bool) {
	s.mu.Lock()
	informer := s.byType[reflect.TypeOf(obj)]
	s.mu.Unlock()
	if informer == nil {
		return Cached{}, false
	}
	indexer := informer.GetIndexer()
	// Read the resource version first: it must not be newer than the object.
	cached := Cached{ResourceVersion: indexer.LastStoreSyncResourceVersion()}
	if found, ok, err := indexer.GetByKey(cache.MetaObjectToName(obj).String()); err == nil && ok {
		cached.Object = decodedObject(found, reflect.TypeOf(obj)).(kind.Object)
	}
	return cached, true
}

// EnsureIndex adds an index that several components share, unless it exists.
func (i Informer[T]) EnsureIndex(name string, values func(obj T) []string) error {
	if _, ok := i.shared.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	return i.AddIndex(name, values)
}

func (c *Client) mappingOf(obj kind.Object) mapping {
	t, ok := c.kinds[reflect.TypeOf(obj)]
	if !ok {
		panic(fmt.Sprintf("client: %T is not a kind", obj))
	}
	return t
}

func (c *Client) restOf(t mapping) rest.Interface { return c.rest[t.gvk.GroupVersion()] }

// shallowCopy copies the outer struct of an object. Encoding an object sets its kind temporarily, and the same object may be encoded
// concurrently or belong to a cache.
func shallowCopy(obj kind.Object) kind.Object {
	clone := reflect.New(reflect.TypeOf(obj).Elem())
	clone.Elem().Set(reflect.ValueOf(obj).Elem())
	return clone.Interface().(kind.Object)
}

// decodeAs decodes a response into a new object of obj's type.
func decodeAs(obj kind.Object, result rest.Result) (kind.Object, error) {
	decoded := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(kind.Object)
	if err := result.Into(decoded); err != nil {
		return nil, err
	}
	return decoded, nil
}
