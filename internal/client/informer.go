package client

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"skiff/internal/kind"
)

// PatchType is the type of a patch.
type PatchType = types.PatchType

// The types of patches.
const (
	JSONPatch      = types.JSONPatchType
	MergePatch     = types.MergePatchType
	StrategicPatch = types.StrategicMergePatchType
	ApplyPatch     = types.ApplyYAMLPatchType
)

// Patch is a patch and its type.
type Patch struct {
	Type PatchType
	Data []byte
}

// RawPatch returns the patch of a type with the encoded data.
func RawPatch(patchType PatchType, data []byte) Patch { return Patch{Type: patchType, Data: data} }

// Informers is a set of shared informers, one for each type that a component of the process uses.
type Informers struct {
	client      *Client
	objectsRead atomic.Uint64

	mu      sync.Mutex
	byType  map[reflect.Type]cache.SharedIndexInformer
	started map[reflect.Type]bool
}

// NewInformers creates an empty set. Nothing is listed before Run.
func NewInformers(c *Client) *Informers {
	return &Informers{client: c, byType: map[reflect.Type]cache.SharedIndexInformer{}, started: map[reflect.Type]bool{}}
}

// Informer holds all objects of one type in memory, kept up to date by a watch. Objects are read-only.
type Informer[T kind.Object] struct {
	shared      cache.SharedIndexInformer
	namespaced  bool
	inProcess   bool
	objectsRead *atomic.Uint64
}

// InformerFor returns the shared informer of a type. Request all informers, handlers and indexes before Run.
func InformerFor[T kind.Object](s *Informers) Informer[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, r := reflect.TypeFor[T](), For[T](s.client)
	if s.byType[key] == nil {
		s.byType[key] = cache.NewSharedIndexInformer(r.listWatch(), reflect.New(key.Elem()).Interface().(runtime.Object), 0,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	return Informer[T]{shared: s.byType[key], namespaced: r.namespaced, inProcess: s.client.local != nil, objectsRead: &s.objectsRead}
}

// ObjectsRead is the number of objects that Get, List and ByIndex have read from the caches, whether they matched or not. It measures
// the work of the components that use the informers independently of the speed of the host.
func (s *Informers) ObjectsRead() uint64 { return s.objectsRead.Load() }

// Run starts all informers requested so far and returns when ctx is done and all have stopped.
func (s *Informers) Run(ctx context.Context) error {
	var running sync.WaitGroup
	s.mu.Lock()
	for key, informer := range s.byType {
		if !s.started[key] {
			s.started[key] = true
			running.Go(func() { informer.RunWithContext(ctx) })
		}
	}
	s.mu.Unlock()
	running.Wait()
	return nil
}

// WaitForSync waits until every informer has synced. It returns an error if ctx is done first.
func (s *Informers) WaitForSync(ctx context.Context) error {
	s.mu.Lock()
	var synced []cache.InformerSynced
	for _, informer := range s.byType {
		synced = append(synced, informer.HasSynced)
	}
	s.mu.Unlock()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("wait for informers: %w", context.Cause(ctx))
	}
	return nil
}

// Check is a health check. It fails while an informer has not synced.
func (s *Informers) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	unsynced := 0
	for _, informer := range s.byType {
		if !informer.HasSynced() {
			unsynced++
		}
	}
	if unsynced > 0 {
		return fmt.Errorf("%d informers not synced", unsynced)
	}
	return nil
}

// Get returns the cached object, or false.
func (i Informer[T]) Get(namespace, name string) (T, bool) {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	obj, ok, err := i.shared.GetIndexer().GetByKey(key)
	i.objectsRead.Add(1)
	if err != nil || !ok {
		return *new(T), false
	}
	return decoded[T](obj), true
}

// Keys returns the namespaces and names of all objects.
func (i Informer[T]) Keys() []types.NamespacedName {
	texts := i.shared.GetIndexer().ListKeys()
	keys := make([]types.NamespacedName, len(texts))
	for n, text := range texts {
		// The informer has made the text.
		keys[n].Namespace, keys[n].Name, _ = cache.SplitMetaNamespaceKey(text)
	}
	return keys
}

// List returns the objects that match, of one namespace or of all. A nil selector matches everything.
func (i Informer[T]) List(namespace string, selector labels.Selector) []T {
	objs := i.candidates(namespace, selector)
	i.objectsRead.Add(uint64(len(objs)))
	matching := make([]T, 0, len(objs))
	for _, obj := range objs {
		typed := decoded[T](obj)
		if selector == nil || selector.Matches(labels.Set(typed.GetLabels())) {
			matching = append(matching, typed)
		}
	}
	return matching
}

// candidates returns the objects of a namespace, or of all, that may match the selector.
func (i Informer[T]) candidates(namespace string, selector labels.Selector) []any {
	indexer := i.shared.GetIndexer()
	if namespace != "" || !i.namespaced {
		if key, value, ok := RequiredLabel(selector); ok {
			// It fails if EnsureLabelIndex was not called.
			if objs, err := indexer.ByIndex(labelIndex, LabelIndexValue(namespace, key, value)); err == nil {
				return objs
			}
		}
	}
	if namespace == "" {
		return indexer.List()
	}
	// The index exists: InformerFor made it.
	objs, _ := indexer.ByIndex(cache.NamespaceIndex, namespace)
	return objs
}

// AddIndex adds an index for ByIndex. Call it before Run.
func (i Informer[T]) AddIndex(name string, values func(obj T) []string) error {
	return i.shared.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) { return values(decoded[T](obj)), nil }})
}

// AddMetadataIndex is AddIndex for values that depend on metadata alone.
func (i Informer[T]) AddMetadataIndex(name string, values func(obj Metadata) []string) error {
	return i.shared.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) { return values(obj.(Metadata)), nil }})
}

// SetTransform makes the informer keep, instead of an object it reads, what transform returns for it: less of it. All users of the informer get that.
// Objects in the server's process are kept as they are, because they are those of the server's cache. transform must not change its argument.
// Call SetTransform before Run.
func (i Informer[T]) SetTransform(transform func(obj T) T) error {
	if i.inProcess {
		return nil
	}
	return i.SetTransformInProcess(transform)
}

// SetTransformInProcess is SetTransform also for objects in the server's process: those that are so large that the server's cache keeps them only
// while they are in use.
func (i Informer[T]) SetTransformInProcess(transform func(obj T) T) error {
	return i.shared.SetTransform(func(obj any) (any, error) {
		if typed, ok := obj.(T); ok {
			return transform(typed), nil
		}
		return obj, nil
	})
}

// ByIndex returns the objects that have the value in the index.
func (i Informer[T]) ByIndex(name, value string) ([]T, error) {
	objs, err := i.shared.GetIndexer().ByIndex(name, value)
	if err != nil {
		return nil, err
	}
	i.objectsRead.Add(uint64(len(objs)))
	typed := make([]T, len(objs))
	for n, obj := range objs {
		typed[n] = decoded[T](obj)
	}
	return typed, nil
}

// HasSynced reports whether the initial list is in the cache.
func (i Informer[T]) HasSynced() bool { return i.shared.HasSynced() }

// AddEventHandler calls the functions for every change, in order; any may be nil. They must not block for long.
func (i Informer[T]) AddEventHandler(onAdd func(T), onUpdate func(old, obj T), onDelete func(T)) error {
	_, err := i.AddEventHandlerWithSync(onAdd, onUpdate, onDelete)
	return err
}

// AddEventHandlerWithSync is AddEventHandler that also returns whether the handler has been called for the whole initial list.
func (i Informer[T]) AddEventHandlerWithSync(onAdd func(T), onUpdate func(old, obj T), onDelete func(T)) (hasSynced func() bool, err error) {
	return addEventHandler(i.shared, eventHandler[T]{onAdd: onAdd, onUpdate: onUpdate, onDelete: onDelete, view: decoded[T]})
}

// AddChangeHandlerWithSync is AddEventHandlerWithSync for functions that need no former state: onChange is called with objects that were added or changed.
func (i Informer[T]) AddChangeHandlerWithSync(onChange, onDelete func(T)) (hasSynced func() bool, err error) {
	return addEventHandler(i.shared, eventHandler[T]{onAdd: onChange, onChange: onChange, onDelete: onDelete, view: decoded[T]})
}

// AddMetadataHandlerWithSync is AddEventHandlerWithSync for functions that need metadata alone.
func (i Informer[T]) AddMetadataHandlerWithSync(onAdd func(Metadata), onUpdate func(old, obj Metadata), onDelete func(Metadata)) (hasSynced func() bool, err error) {
	view := func(obj any) Metadata { return obj.(Metadata) }
	return addEventHandler(i.shared, eventHandler[Metadata]{onAdd: onAdd, onUpdate: onUpdate, onDelete: onDelete, view: view})
}

// eventHandler has the functions that are called for changes of objects; any may be nil. onChange is onUpdate without the former state.
type eventHandler[V any] struct {
	onAdd, onChange, onDelete func(V)
	onUpdate                  func(old, obj V)
	// view is how the functions see an object of the cache, which it may have to decode.
	view func(obj any) V
}

func addEventHandler[V any](shared cache.SharedIndexInformer, h eventHandler[V]) (hasSynced func() bool, err error) {
	registration, err := shared.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if h.onAdd != nil {
				h.onAdd(h.view(obj))
			}
		},
		UpdateFunc: func(old, obj any) {
			if h.onUpdate != nil {
				h.onUpdate(h.view(old), h.view(obj))
			}
			if h.onChange != nil {
				h.onChange(h.view(obj))
			}
		},
		DeleteFunc: func(obj any) {
			// A deletion that the watch missed arrives as a tombstone with the last known state.
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if _, ok := obj.(Metadata); ok && h.onDelete != nil {
				h.onDelete(h.view(obj))
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return registration.HasSynced, nil
}

// listWatch is the source of the informer: the server's cached objects in process, the API otherwise.
func (r Resource[T]) listWatch() cache.ListerWatcher {
	if r.client.local == nil {
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				list := r.newList()
				err := r.rest.Get().Resource(r.gvr.Resource).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return r.watch(ctx, "", options)
			},
		}
	}
	local := r.client.local
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			objs, resourceVersion, err := local.List(ctx, r.gvr, "", nil, nil)
			if err != nil {
				return nil, err
			}
			// A list of pointers: the informer shares the objects of the server's cache.
			list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: resourceVersion}, Items: make([]runtime.RawExtension, len(objs))}
			for i, obj := range objs {
				list.Items[i].Object = obj
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if options.TimeoutSeconds != nil {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(*options.TimeoutSeconds)*time.Second)
				context.AfterFunc(ctx, cancel)
			}
			return local.Watch(ctx, r.gvr, "", &internalversion.ListOptions{
				ResourceVersion: options.ResourceVersion, SendInitialEvents: options.SendInitialEvents,
			})
		},
	}
}

// itemsOf returns the items of a typed list without copying them.
func itemsOf[T kind.Object](list runtime.Object) ([]T, metav1.ListInterface, error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, nil, err
	}
	var items []T
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		items = append(items, obj.(T))
		return nil
	})
	return items, m, err
}
