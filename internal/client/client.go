// Package client is the one door through which controllers, scheduler, kubelet, proxy and DNS reach the API.
//
// It has two hinges. Inside the server's process reads come straight from the server's cache: the cache's own immutable
// objects, no HTTP, no copy. Across processes everything travels over HTTPS as protobuf. The code that uses the
// client cannot tell which: Resource and Informer are the same on both, also against an upstream API server.
//
// Objects a client returns are read-only: they may be shared with the server and with every other part. Copy before you
// change (obj.DeepCopy()).
package client

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"skiff/internal/kind"
)

// Local is what a server offers to parts in its own process.
type Local interface {
	// Get returns the cache's own object. Selectors below may be nil: they select everything.
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (kind.Object, error)
	// List returns the cache's own objects that match, and the revision of the list.
	List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector) ([]kind.Object, string, error)
	// Watch streams the cache's own objects: first those that match now, when initial is set, with a bookmark behind them;
	// otherwise all changes after the revision.
	Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector, after string, initial bool) (watch.Interface, error)
	// Transport carries requests to the server's handler without a connection.
	Transport() http.RoundTripper
}

// Match selects objects. The zero value selects all.
type Match struct {
	Labels labels.Selector
	Fields fields.Selector
}

// Client reaches one API server.
type Client struct {
	local Local
	rest  map[schema.GroupVersion]rest.Interface
	kinds map[reflect.Type]target
	// Config is for libraries that want to make clients of their own (leader election, discovery).
	Config *rest.Config
	Scheme *runtime.Scheme
}

// target is where objects of a Go type live.
type target struct {
	gvk        schema.GroupVersionKind
	gvr        schema.GroupVersionResource
	namespaced bool
	newList    func() runtime.Object
}

// New makes a client of a server across the network. kinds are the resources it can name; scheme knows their types.
func New(config *rest.Config, scheme *runtime.Scheme, kinds []*kind.Kind) (*Client, error) {
	return newClient(config, nil, scheme, kinds)
}

// NewLocal makes a client inside the server's own process.
func NewLocal(local Local, scheme *runtime.Scheme, kinds []*kind.Kind) (*Client, error) {
	return newClient(&rest.Config{Host: "http://skiff.local", Transport: local.Transport()}, local, scheme, kinds)
}

func newClient(config *rest.Config, local Local, scheme *runtime.Scheme, kinds []*kind.Kind) (*Client, error) {
	c := &Client{local: local, Scheme: scheme, kinds: map[reflect.Type]target{}}
	for _, k := range kinds {
		for i := range k.Versions {
			v := &k.Versions[i]
			newObject, newList := v.New, v.NewList
			if newObject == nil {
				newObject, newList = k.New, k.NewList
			}
			c.kinds[reflect.TypeOf(newObject())] = target{gvk: v.GVK, gvr: v.GVK.GroupVersion().WithResource(k.Plural), namespaced: k.Namespaced, newList: newList}
		}
	}
	if err := c.dial(config); err != nil {
		return nil, err
	}
	return c, nil
}

// dial makes the client speak to the server that the configuration names, about the kinds it can name.
func (c *Client) dial(config *rest.Config) error {
	config = rest.CopyConfig(config)
	// Fairness belongs to the server; nobody is throttled here.
	config.QPS, config.RateLimiter = -1, flowcontrol.NewFakeAlwaysRateLimiter()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// Warnings are for people; parts that use what is deprecated do so because users have it.
	config.WarningHandler = rest.NoWarnings{}
	if config.UserAgent == "" {
		config.UserAgent = "skiff"
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("make HTTP client: %w", err)
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
			return fmt.Errorf("make client of %s: %w", gv, err)
		}
	}
	return nil
}

// Resource reads and writes the objects of one type.
type Resource[T kind.Object] struct {
	client *Client
	target
	rest rest.Interface
}

// For returns the resource of a type. It panics for a type that is no kind: a programmer's mistake.
func For[T kind.Object](c *Client) Resource[T] {
	t, ok := c.kinds[reflect.TypeFor[T]()]
	if !ok {
		panic(fmt.Sprintf("client: %v is not a kind", reflect.TypeFor[T]()))
	}
	return Resource[T]{client: c, target: t, rest: c.rest[t.gvk.GroupVersion()]}
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
	return r.into(r.rest.Get().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).Name(name).Do(ctx))
}

// List reads all objects that match, of one namespace or of all, and the revision of the list.
func (r Resource[T]) List(ctx context.Context, namespace string, match Match) ([]T, string, error) {
	if r.client.local != nil {
		objs, revision, err := r.client.local.List(ctx, r.gvr, namespace, match.Labels, match.Fields)
		if err != nil {
			return nil, "", err
		}
		typed := make([]T, len(objs))
		for i, obj := range objs {
			typed[i] = obj.(T)
		}
		return typed, revision, nil
	}
	options := match.options()
	var all []T
	for {
		list := r.newList()
		err := r.rest.Get().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).
			VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
		if err != nil {
			return nil, "", err
		}
		items, meta, err := itemsOf[T](list)
		if err != nil {
			return nil, "", err
		}
		all = append(all, items...)
		if options.Continue = meta.GetContinue(); options.Continue == "" {
			return all, meta.GetResourceVersion(), nil
		}
	}
}

// WriteOptions are what a write may say besides the object. The zero value is an ordinary write.
type WriteOptions struct {
	FieldManager string
	DryRun       bool
	// Subresource is written instead of the object itself ("status").
	Subresource string
	// Force overrides the fields of others when applying.
	Force bool
}

// Create writes a new object.
func (r Resource[T]) Create(ctx context.Context, obj T, o WriteOptions) (T, error) {
	return r.into(r.rest.Post().NamespaceIfScoped(obj.GetNamespace(), r.namespaced).Resource(r.gvr.Resource).
		VersionedParams(&metav1.CreateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallow(obj)).Do(ctx))
}

// Update replaces an object, or its subresource.
func (r Resource[T]) Update(ctx context.Context, obj T, o WriteOptions) (T, error) {
	return r.into(r.rest.Put().NamespaceIfScoped(obj.GetNamespace(), r.namespaced).Resource(r.gvr.Resource).Name(obj.GetName()).
		SubResource(o.subresource()...).
		VersionedParams(&metav1.UpdateOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}, metav1.ParameterCodec).Body(shallow(obj)).Do(ctx))
}

// UpdateStatus replaces the status of an object.
func (r Resource[T]) UpdateStatus(ctx context.Context, obj T) (T, error) {
	return r.Update(ctx, obj, WriteOptions{Subresource: "status"})
}

// Patch changes an object by a patch of the given form.
func (r Resource[T]) Patch(ctx context.Context, namespace, name string, form PatchForm, patch []byte, o WriteOptions) (T, error) {
	options := &metav1.PatchOptions{FieldManager: o.FieldManager, DryRun: o.dryRun()}
	if form == ApplyPatch {
		options.Force = &o.Force
	}
	return r.into(r.rest.Patch(form).NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).Name(name).
		SubResource(o.subresource()...).VersionedParams(options, metav1.ParameterCodec).Body(patch).Do(ctx))
}

// Delete deletes an object.
func (r Resource[T]) Delete(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return r.rest.Delete().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).Name(name).Body(&options).Do(ctx).Error()
}

// Act posts a body to a subresource that is an action: binding, eviction, token. answer may be nil.
func (r Resource[T]) Act(ctx context.Context, namespace, name, subresource string, body, answer runtime.Object) error {
	result := r.rest.Post().NamespaceIfScoped(namespace, r.namespaced).Resource(r.gvr.Resource).Name(name).SubResource(subresource).Body(body).Do(ctx)
	if answer == nil {
		return result.Error()
	}
	return result.Into(answer)
}

// Watch streams changes after a revision.
func (r Resource[T]) Watch(ctx context.Context, namespace string, match Match, after string) (watch.Interface, error) {
	if r.client.local != nil {
		return r.client.local.Watch(ctx, r.gvr, namespace, match.Labels, match.Fields, after, false)
	}
	options := match.options()
	options.ResourceVersion = after
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

func (r Resource[T]) into(result rest.Result) (T, error) {
	obj := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	if err := result.Into(obj); err != nil {
		return *new(T), err
	}
	return obj, nil
}

func (m Match) options() metav1.ListOptions {
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
