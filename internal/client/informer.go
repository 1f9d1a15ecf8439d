package client

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"skiff/internal/kind"
)

// PatchForm is the form of a patch.
type PatchForm = types.PatchType

// The forms of patches.
const (
	JSONPatch      = types.JSONPatchType
	MergePatch     = types.MergePatchType
	StrategicPatch = types.StrategicMergePatchType
	ApplyPatch     = types.ApplyYAMLPatchType
)

// Informers are shared: the parts of one process that look at pods look at the same copy of them.
type Informers struct {
	client *Client

	mu      sync.Mutex
	byType  map[reflect.Type]cache.SharedIndexInformer
	started map[reflect.Type]bool
}

// NewInformers makes an empty set. Nothing is read before Run.
func NewInformers(c *Client) *Informers {
	return &Informers{client: c, byType: map[reflect.Type]cache.SharedIndexInformer{}, started: map[reflect.Type]bool{}}
}

// Informer holds all objects of one type in memory, kept up to date by a watch. Objects are read-only.
type Informer[T kind.Object] struct {
	shared cache.SharedIndexInformer
}

// InformerFor returns the shared informer of a type. Ask for all informers, handlers and indexes before Run.
func InformerFor[T kind.Object](s *Informers) Informer[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := reflect.TypeFor[T]()
	if s.byType[key] == nil {
		r := For[T](s.client)
		s.byType[key] = cache.NewSharedIndexInformer(r.listWatch(), reflect.New(key.Elem()).Interface().(runtime.Object), 0,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	return Informer[T]{shared: s.byType[key]}
}

// Run starts every informer asked for so far and returns when ctx ends and all have stopped.
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

// WaitForSync returns when every informer has read the first list, or with ctx's error.
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

// Check fails while an informer has not read its first list.
func (s *Informers) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := 0
	for _, informer := range s.byType {
		if !informer.HasSynced() {
			waiting++
		}
	}
	if waiting > 0 {
		return fmt.Errorf("%d informers not started yet", waiting)
	}
	return nil
}

// Get returns the object as last seen, or false.
func (i Informer[T]) Get(namespace, name string) (T, bool) {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	obj, ok, err := i.shared.GetIndexer().GetByKey(key)
	if err != nil || !ok {
		return *new(T), false
	}
	return obj.(T), true
}

// List returns the objects that match, of one namespace or of all. A nil selector matches everything.
func (i Informer[T]) List(namespace string, selector labels.Selector) []T {
	var objs []any
	if namespace == "" {
		objs = i.shared.GetIndexer().List()
	} else {
		// The index exists: InformerFor made it.
		objs, _ = i.shared.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	}
	matching := make([]T, 0, len(objs))
	for _, obj := range objs {
		typed := obj.(T)
		if selector == nil || selector.Matches(labels.Set(typed.GetLabels())) {
			matching = append(matching, typed)
		}
	}
	return matching
}

// AddIndex lets ByIndex find objects by further values. Call it before Run.
func (i Informer[T]) AddIndex(name string, values func(obj T) []string) error {
	return i.shared.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) { return values(obj.(T)), nil }})
}

// ByIndex returns the objects that have the value in the index.
func (i Informer[T]) ByIndex(name, value string) ([]T, error) {
	objs, err := i.shared.GetIndexer().ByIndex(name, value)
	if err != nil {
		return nil, err
	}
	typed := make([]T, len(objs))
	for n, obj := range objs {
		typed[n] = obj.(T)
	}
	return typed, nil
}

// HasSynced reports whether the first list has been read.
func (i Informer[T]) HasSynced() bool { return i.shared.HasSynced() }

// Handle calls the functions for every change, in order; any may be nil. They must not block for long.
func (i Informer[T]) Handle(added func(T), changed func(old, obj T), deleted func(T)) error {
	_, err := i.HandleSynced(added, changed, deleted)
	return err
}

// HandleSynced is Handle with a function that reports whether the functions have been called for everything in the first list.
func (i Informer[T]) HandleSynced(added func(T), changed func(old, obj T), deleted func(T)) (handled func() bool, err error) {
	registration, err := i.shared.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if added != nil {
				added(obj.(T))
			}
		},
		UpdateFunc: func(old, obj any) {
			if changed != nil {
				changed(old.(T), obj.(T))
			}
		},
		DeleteFunc: func(obj any) {
			// A deletion the watch missed arrives as the last state known.
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if typed, ok := obj.(T); ok && deleted != nil {
				deleted(typed)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return registration.HasSynced, nil
}

// listWatch is the informer's source: the cache's own objects in process, the API across the network.
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
			objs, revision, err := local.List(ctx, r.gvr, "", nil, nil)
			if err != nil {
				return nil, err
			}
			// A list of references, not of values: the informer keeps the cache's own objects.
			list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: revision}, Items: make([]runtime.RawExtension, len(objs))}
			for i, obj := range objs {
				list.Items[i].Object = obj
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			initial := options.SendInitialEvents != nil && *options.SendInitialEvents
			if options.TimeoutSeconds != nil {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(*options.TimeoutSeconds)*time.Second)
				context.AfterFunc(ctx, cancel)
			}
			return local.Watch(ctx, r.gvr, "", nil, nil, options.ResourceVersion, initial)
		},
	}
}

// itemsOf takes the items out of a typed list, without copying them.
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
