// Package client is the API client of controllers, scheduler, kubelet, proxy and DNS.
//
// It has two transports. Inside the API server's process, reads return the server's cached, immutable objects, without HTTP and
// without a copy. From other processes, all requests use HTTPS with protobuf. Resource and Informer behave the same on both, and
// also against an upstream API server.
//
// Objects a client returns are read-only: they may be shared with the server and with other components. Copy an object before
// changing it (obj.DeepCopy()).
package client

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"skiff/internal/kind"
)

// Local is the API server as seen from its own process.
type Local interface {
	// Get returns the cached object itself. In the methods below, a nil selector selects everything.
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (kind.Object, error)
	// List returns the cached objects that match, and the resource version of the list.
	List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector) ([]kind.Object, string, error)
	// Watch streams the cached objects: with SendInitialEvents, first those that match now, followed by a bookmark; otherwise all
	// changes after ResourceVersion. Other options than these and the selectors are ignored.
	Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, options *internalversion.ListOptions) (watch.Interface, error)
	// Transport sends requests to the server's handler without a connection.
	Transport() http.RoundTripper
}

// Selector selects objects by labels and fields. The zero value selects all.
type Selector struct {
	Labels labels.Selector
	Fields fields.Selector
}

// Client is a client of one API server.
type Client struct {
	local Local
	rest  map[schema.GroupVersion]rest.Interface
	kinds map[reflect.Type]mapping
	// Config is for libraries that create clients of their own (leader election, discovery).
	Config *rest.Config
	Scheme *runtime.Scheme
}

// mapping maps a Go type to its kind and resource.
type mapping struct {
	gvk        schema.GroupVersionKind
	gvr        schema.GroupVersionResource
	namespaced bool
	newList    func() runtime.Object
}

// New creates a client of a remote server for the given kinds, whose types are registered in scheme.
func New(config *rest.Config, scheme *runtime.Scheme, kinds []*kind.Kind) (*Client, error) {
	return newClient(config, nil, scheme, kinds)
}

// NewLocal creates a client inside the server's process.
func NewLocal(local Local, scheme *runtime.Scheme, kinds []*kind.Kind) (*Client, error) {
	return newClient(&rest.Config{Host: "http://skiff.local", Transport: local.Transport()}, local, scheme, kinds)
}

func newClient(config *rest.Config, local Local, scheme *runtime.Scheme, kinds []*kind.Kind) (*Client, error) {
	c := &Client{local: local, Scheme: scheme, kinds: map[reflect.Type]mapping{}}
	for _, k := range kinds {
		for i := range k.Versions {
			v := &k.Versions[i]
			newObject, newList := v.New, v.NewList
			if newObject == nil {
				newObject, newList = k.New, k.NewList
			}
			c.kinds[reflect.TypeOf(newObject())] = mapping{gvk: v.GVK, gvr: v.GVK.GroupVersion().WithResource(k.Plural), namespaced: k.Namespaced, newList: newList}
		}
	}
	if err := c.buildRESTClients(config); err != nil {
		return nil, err
	}
	return c, nil
}

// buildRESTClients sets Config and creates one REST client per group and version.
func (c *Client) buildRESTClients(config *rest.Config) error {
	config = rest.CopyConfig(config)
	// No client-side throttling: API priority and fairness is done by the server.
	config.QPS, config.RateLimiter = -1, flowcontrol.NewFakeAlwaysRateLimiter()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// Warnings are meant for users; components access deprecated APIs on behalf of users.
	config.WarningHandler = rest.NoWarnings{}
	if config.UserAgent == "" {
		config.UserAgent = "skiff"
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("create HTTP client: %w", err)
	}
	c.Config, c.rest = config, map[schema.GroupVersion]rest.Interface{}
	codecs := serializer.NewCodecFactory(c.Scheme).WithoutConversion()
	for _, t := range c.kinds {
		gv := t.gvk.GroupVersion()
		if c.rest[gv] != nil {
			continue
		}
		perVersion := rest.CopyConfig(config)
		perVersion.GroupVersion, perVersion.NegotiatedSerializer = &gv, codecs
		perVersion.APIPath = "/apis"
		if gv.Group == "" {
			perVersion.APIPath = "/api"
		}
		if c.rest[gv], err = rest.RESTClientForConfigAndClient(perVersion, httpClient); err != nil {
			return fmt.Errorf("create REST client for %s: %w", gv, err)
		}
	}
	return nil
}

// Resource reads and writes the objects of one type.
type Resource[T kind.Object] struct {
	client *Client
	mapping
	rest rest.Interface
}

// For returns the resource of a type. It panics if the type is not one of the client's kinds.
func For[T kind.Object](c *Client) Resource[T] {
	t, ok := c.kinds[reflect.TypeFor[T]()]
	if !ok {
		panic(fmt.Sprintf("client: %v is not a kind", reflect.TypeFor[T]()))
	}
	return Resource[T]{client: c, mapping: t, rest: c.rest[t.gvk.GroupVersion()]}
}

// Get reads one object.
func (r Resource[T]) Get(ctx context.Context, namespace, name string) (T, error) {
	if r.client.local != nil {
		obj, err := r.client.local.Get(ctx, r.gvr, namespace, name)
		if err != nil {
			return *new(T), err
		}
		return obj.(T), nil
	}
	return r.decode(r.rest.Get().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).Name(name).Do(ctx))
}

// List reads all objects that match, of one namespace or of all, and the resource version of the list.
func (r Resource[T]) List(ctx context.Context, namespace string, selector Selector) ([]T, string, error) {
	if r.client.local != nil {
		objs, resourceVersion, err := r.client.local.List(ctx, r.gvr, namespace, selector.Labels, selector.Fields)
		if err != nil {
			return nil, "", err
		}
		typed := make([]T, len(objs))
		for i, obj := range objs {
			typed[i] = obj.(T)
		}
		return typed, resourceVersion, nil
	}
	var all []T
	resourceVersion, err := r.listPages(ctx, namespace, selector, 0, func(page []T) error {
		all = append(all, page...)
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	return all, resourceVersion, nil
}

// EachPage reads all objects that match, of one namespace or of all, and calls visit with at most limit of them at a time, so that the memory that is needed does not
// grow with their number. It ends with the first error of visit. Objects from other pages than the first may be older than the newest.
func (r Resource[T]) EachPage(ctx context.Context, namespace string, selector Selector, limit int64, visit func(page []T) error) error {
	if r.client.local != nil {
		all, _, err := r.List(ctx, namespace, selector)
		if err != nil {
			return err
		}
		for page := range slices.Chunk(all, int(limit)) {
			if err := visit(page); err != nil {
				return err
			}
		}
		return nil
	}
	_, err := r.listPages(ctx, namespace, selector, limit, visit)
	return err
}

// listPages reads objects from a remote server in pages of at most limit, or of as many as the server likes if it is 0. It returns the resource version of the last one.
func (r Resource[T]) listPages(ctx context.Context, namespace string, selector Selector, limit int64, visit func(page []T) error) (resourceVersion string, err error) {
	options := selector.listOptions()
	options.Limit = limit
	for {
		list := r.newList()
		err := r.rest.Get().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).
			VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
		if err != nil {
			return "", err
		}
		items, meta, err := itemsOf[T](list)
		if err != nil {
			return "", err
		}
		if err := visit(items); err != nil {
			return "", err
		}
		if options.Continue = meta.GetContinue(); options.Continue == "" {
			return meta.GetResourceVersion(), nil
		}
	}
}

// WriteOptions are the options of a write. The zero value is an ordinary write.
type WriteOptions struct {
	FieldManager string
	DryRun       bool
	// Subresource, if set, is written instead of the object ("status").
	Subresource string
	// Force takes ownership of conflicting fields in an apply patch.
	Force bool
}

// Create creates an object.
func (r Resource[T]) Create(ctx context.Context, obj T, o WriteOptions) (T, error) {
	return r.decode(r.rest.Post().NamespaceIfScoped(obj.GetNamespace(), r.namespaced).Resource(r.gvr.Resource).
		VersionedParams(&metav1.CreateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallowCopy(obj)).Do(ctx))
}

// Update replaces an object, or its subresource.
func (r Resource[T]) Update(ctx context.Context, obj T, o WriteOptions) (T, error) {
	return r.decode(r.rest.Put().NamespaceIfScoped(obj.GetNamespace(), r.namespaced).Resource(r.gvr.Resource).Name(obj.GetName()).
		SubResource(o.subresource()...).
		VersionedParams(&metav1.UpdateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallowCopy(obj)).Do(ctx))
}

// UpdateStatus replaces the status of an object.
func (r Resource[T]) UpdateStatus(ctx context.Context, obj T) (T, error) {
	return r.Update(ctx, obj, WriteOptions{Subresource: "status"})
}

// metadataOnly is the Accept header of a write whose result is needed without what makes it large.
const metadataOnly = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + runtime.ContentTypeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// UpdateLargeStatus is UpdateStatus for objects that are large besides their status: it returns only the metadata of the result. The server keeps what
// it has stored besides metadata and status, so obj need not have it.
func (r Resource[T]) UpdateLargeStatus(ctx context.Context, obj T) (*metav1.PartialObjectMetadata, error) {
	written := &metav1.PartialObjectMetadata{}
	err := r.rest.Put().NamespaceIfScoped(obj.GetNamespace(), r.namespaced).Resource(r.gvr.Resource).Name(obj.GetName()).SubResource("status").
		SetHeader("Accept", metadataOnly).Body(shallowCopy(obj)).Do(ctx).Into(written)
	if err != nil {
		return nil, err
	}
	return written, nil
}

// Patch patches an object.
func (r Resource[T]) Patch(ctx context.Context, namespace, name string, patch Patch, o WriteOptions) (T, error) {
	options := &metav1.PatchOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}
	if patch.Type == ApplyPatch {
		options.Force = &o.Force
	}
	return r.decode(r.rest.Patch(patch.Type).NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).Name(name).
		SubResource(o.subresource()...).VersionedParams(options, metav1.ParameterCodec).Body(patch.Data).Do(ctx))
}

// Delete deletes an object.
func (r Resource[T]) Delete(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return r.rest.Delete().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).Name(name).Body(&options).Do(ctx).Error()
}

// DeleteCollection deletes all objects that match, of one namespace or of all.
func (r Resource[T]) DeleteCollection(ctx context.Context, namespace string, selector Selector, options metav1.DeleteOptions) error {
	list := selector.listOptions()
	return r.rest.Delete().NamespaceIfScoped(namespace, r.namespaced && namespace != "").Resource(r.gvr.Resource).
		VersionedParams(&list, metav1.ParameterCodec).Body(&options).Do(ctx).Error()
}

// CreateSubresource posts a body to a subresource such as binding, eviction or token. into may be nil.
func (r Resource[T]) CreateSubresource(ctx context.Context, key types.NamespacedName, subresource string, body, into runtime.Object) error {
	result := r.rest.Post().NamespaceIfScoped(key.Namespace, r.namespaced).Resource(r.gvr.Resource).Name(key.Name).SubResource(subresource).Body(body).Do(ctx)
	if into == nil {
		return result.Error()
	}
	return result.Into(into)
}

// Watch streams changes after a resource version.
func (r Resource[T]) Watch(ctx context.Context, namespace string, selector Selector, resourceVersion string) (watch.Interface, error) {
	if r.client.local != nil {
		return r.client.local.Watch(ctx, r.gvr, namespace, &internalversion.ListOptions{
			LabelSelector: selector.Labels, FieldSelector: selector.Fields, ResourceVersion: resourceVersion,
		})
	}
	options := selector.listOptions()
	options.ResourceVersion = resourceVersion
	return r.watch(ctx, namespace, options)
}

func (r Resource[T]) watch(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	var timeout time.Duration
	if options.TimeoutSeconds != nil {
		timeout = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	return r.rest.Get().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).
		VersionedParams(&options, metav1.ParameterCodec).Timeout(timeout).Watch(ctx)
}

func (r Resource[T]) decode(result rest.Result) (T, error) {
	obj := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	if err := result.Into(obj); err != nil {
		return *new(T), err
	}
	return obj, nil
}

func (m Selector) listOptions() metav1.ListOptions {
	var o metav1.ListOptions
	if m.Labels != nil {
		o.LabelSelector = m.Labels.String()
	}
	if m.Fields != nil {
		o.FieldSelector = m.Fields.String()
	}
	return o
}

func (o WriteOptions) dryRun() []string {
	if o.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func (o WriteOptions) subresource() []string {
	if o.Subresource == "" {
		return nil
	}
	return []string{o.Subresource}
}
