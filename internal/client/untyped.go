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

// The methods below write objects whose type is known only at run time: the controllers' applier carries out plans of any
// kinds. Code that knows the type uses For.

// KindOf returns the group, version and kind of an object's type. It panics for a type that is no kind.
func (c *Client) KindOf(obj kind.Object) schema.GroupVersionKind { return c.targetOf(obj).gvk }

// Create writes a new object.
func (c *Client) Create(ctx context.Context, obj kind.Object, o WriteOptions) (kind.Object, error) {
	t := c.targetOf(obj)
	return sameType(obj, c.restOf(t).Post().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).
		VersionedParams(&metav1.CreateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallow(obj)).Do(ctx))
}

// Update replaces an object, or its subresource.
func (c *Client) Update(ctx context.Context, obj kind.Object, o WriteOptions) (kind.Object, error) {
	t := c.targetOf(obj)
	return sameType(obj, c.restOf(t).Put().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).
		SubResource(o.subresource()...).
		VersionedParams(&metav1.UpdateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallow(obj)).Do(ctx))
}

// Patch changes the object with obj's type, namespace and name.
func (c *Client) Patch(ctx context.Context, obj kind.Object, form PatchForm, patch []byte, o WriteOptions) (kind.Object, error) {
	t := c.targetOf(obj)
	options := &metav1.PatchOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}
	if form == ApplyPatch {
		options.Force = &o.Force
	}
	return sameType(obj, c.restOf(t).Patch(form).NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).
		SubResource(o.subresource()...).VersionedParams(options, metav1.ParameterCodec).Body(patch).Do(ctx))
}

// Delete deletes the object with obj's type, namespace and name.
func (c *Client) Delete(ctx context.Context, obj kind.Object, options metav1.DeleteOptions) error {
	t := c.targetOf(obj)
	return c.restOf(t).Delete().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).
		Body(&options).Do(ctx).Error()
}

// Read reads the object with obj's type, namespace and name from the server itself.
func (c *Client) Read(ctx context.Context, obj kind.Object) (kind.Object, error) {
	t := c.targetOf(obj)
	return sameType(obj, c.restOf(t).Get().NamespaceIfScoped(obj.GetNamespace(), t.namespaced).Resource(t.gvr.Resource).Name(obj.GetName()).Do(ctx))
}

// Seen is what an informer knows of one object.
type Seen struct {
	// Object is the object with the type, namespace and name asked for, nil when there is none.
	Object kind.Object
	// Revision is the last the informer has taken in, of any object of the type.
	Revision string
}

// Look returns what the informer of obj's type knows of it. It returns false when nobody asked for that informer.
func (s *Informers) Look(obj kind.Object) (Seen, bool) {
	s.mu.Lock()
	informer := s.byType[reflect.TypeOf(obj)]
	s.mu.Unlock()
	if informer == nil {
		return Seen{}, false
	}
	indexer := informer.GetIndexer()
	// The revision first: it must not be newer than the object seen.
	seen := Seen{Revision: indexer.LastStoreSyncResourceVersion()}
	if found, ok, err := indexer.GetByKey(cache.MetaObjectToName(obj).String()); err == nil && ok {
		seen.Object = found.(kind.Object)
	}
	return seen, true
}

// EnsureIndex is AddIndex for an index that several parts share: the first to ask makes it.
func (i Informer[T]) EnsureIndex(name string, values func(obj T) []string) error {
	if _, ok := i.shared.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	return i.AddIndex(name, values)
}

func (c *Client) targetOf(obj kind.Object) target {
	t, ok := c.kinds[reflect.TypeOf(obj)]
	if !ok {
		panic(fmt.Sprintf("client: %T is not a kind", obj))
	}
	return t
}

func (c *Client) restOf(t target) rest.Interface { return c.rest[t.gvk.GroupVersion()] }

// shallow copies the outer struct of an object. Encoding an object writes its kind into it for a moment, and the same object may be
// sent by several at once, or be a cache's.
func shallow(obj kind.Object) kind.Object {
	outer := reflect.New(reflect.TypeOf(obj).Elem())
	outer.Elem().Set(reflect.ValueOf(obj).Elem())
	return outer.Interface().(kind.Object)
}

// sameType decodes an answer into a new object of obj's type.
func sameType(obj kind.Object, result rest.Result) (kind.Object, error) {
	answer := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(kind.Object)
	if err := result.Into(answer); err != nil {
		return nil, err
	}
	return answer, nil
}
