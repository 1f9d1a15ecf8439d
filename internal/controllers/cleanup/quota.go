package cleanup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/quota"
)

// Delays of recalculations: short after usage was freed, longer after an object was created, because the calculation could miss
// objects being written, and a periodic resync.
const (
	recalculateAfterFree   = 50 * time.Millisecond
	recalculateAfterCreate = 5 * time.Second
	recalculateUnknown     = 30 * time.Second
	resyncPeriod           = 5 * time.Minute
)

// ResourceQuota recalculates the usage of quotas. Admission only adds usage; this controller releases it.
var ResourceQuota = controller.Definition{
	Name: "resourcequota-controller", Aliases: []string{"resourcequota"}, Queue: "resourcequota_primary", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		api, err := newServer(s.Client.Config)
		if err != nil {
			return nil, err
		}
		q := &quotas{
			server: api, setup: s, informer: client.InformerFor[*corev1.ResourceQuota](s.Informers),
			mapper:          restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(api.discovery)),
			monitorRequests: make(chan schema.GroupResource, 100), typed: map[schema.GroupResource]func(context.Context, string) ([]runtime.Object, error){},
		}
		q.registry = quota.NewRegistry(deviceLister{
			classes: client.InformerFor[*resourcev1.DeviceClass](s.Informers),
			pods:    client.InformerFor[*corev1.Pod](s.Informers),
			claims:  client.InformerFor[*resourcev1.ResourceClaim](s.Informers),
		})
		changed := func(old, quota *corev1.ResourceQuota) {
			// Ignore the status updates of admission.
			if !equality.Semantic.DeepEqual(old.Spec, quota.Spec) || !equality.Semantic.DeepEqual(old.Status.Hard, quota.Status.Hard) {
				s.Enqueue(controller.KeyOf(quota))
			}
		}
		if err := q.informer.AddEventHandler(func(quota *corev1.ResourceQuota) { s.Enqueue(controller.KeyOf(quota)) }, changed, nil); err != nil {
			return nil, fmt.Errorf("watch quotas: %w", err)
		}
		return q, errors.Join(
			watchTyped[*corev1.Pod](q, "", "pods"), watchTyped[*corev1.Service](q, "", "services"),
			watchTyped[*corev1.PersistentVolumeClaim](q, "", "persistentvolumeclaims"),
			watchTyped[*resourcev1.ResourceClaim](q, resourcev1.GroupName, "resourceclaims"))
	},
}

type quotas struct {
	*server
	setup    *controller.Setup
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	registry *quota.Registry
	informer client.Informer[*corev1.ResourceQuota]
	// typed are the resources whose usage depends on the whole object, not only on the number of objects.
	typed map[schema.GroupResource]func(ctx context.Context, namespace string) ([]runtime.Object, error)
	// monitorRequests are resources that a quota counts and that may have no monitor yet.
	monitorRequests chan schema.GroupResource
}

// watchTyped watches a resource whose whole objects are needed.
func watchTyped[T kind.Object](q *quotas, group, name string) error {
	gr := schema.GroupResource{Group: group, Resource: name}
	q.typed[gr] = func(ctx context.Context, namespace string) ([]runtime.Object, error) {
		objects, _, err := client.For[T](q.setup.Client).List(ctx, namespace, client.Selector{})
		if err != nil {
			return nil, err
		}
		result := make([]runtime.Object, len(objects))
		for i, obj := range objects {
			result[i] = obj
		}
		return result, nil
	}
	err := client.InformerFor[T](q.setup.Informers).AddEventHandler(
		func(obj T) { q.enqueueQuotas(gr, obj.GetNamespace(), recalculateAfterCreate) },
		func(old, obj T) {
			if quota.ReducesUsage(obj, old, time.Now()) {
				q.enqueueQuotas(gr, obj.GetNamespace(), recalculateAfterFree)
			}
		},
		func(obj T) { q.enqueueQuotas(gr, obj.GetNamespace(), recalculateAfterFree) })
	if err != nil {
		return fmt.Errorf("watch %s: %w", gr, err)
	}
	return nil
}

// enqueueQuotas enqueues the quotas of a namespace, or of all namespaces, that count the resource.
func (q *quotas) enqueueQuotas(gr schema.GroupResource, namespace string, after time.Duration) {
	evaluator := q.registry.For(gr)
	if evaluator == nil {
		return
	}
	for _, found := range q.informer.List(namespace, nil) {
		if len(evaluator.Counted(quota.Names(found.Spec.Hard))) > 0 {
			q.setup.EnqueueAfter(controller.KeyOf(found), after)
		}
	}
}

// Sync recalculates one quota.
func (q *quotas) Sync(ctx context.Context, key controller.Key) error {
	found, ok := q.informer.Get(key.Namespace, key.Name)
	if !ok {
		return nil
	}
	for _, evaluator := range q.registry.Counting(quota.Names(found.Spec.Hard)) {
		if q.typed[evaluator.Resource] == nil {
			select {
			case q.monitorRequests <- evaluator.Resource:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	list := func(gr schema.GroupResource) ([]runtime.Object, error) { return q.objects(ctx, gr, key.Namespace) }
	sum, err := q.registry.Used(found, list, time.Now())
	if err != nil && isOnlyUnknownKinds(err) {
		q.setup.EnqueueAfter(key, recalculateUnknown)
		err = nil
	}
	if status, changed := calculatedStatus(found, sum); changed {
		next := found.DeepCopy()
		next.Status = status
		written, writeErr := client.For[*corev1.ResourceQuota](q.setup.Client).UpdateStatus(ctx, next)
		if writeErr == nil {
			q.setup.RecordWrite(key, written)
		}
		err = errors.Join(err, writeErr)
	}
	return err
}

// calculatedStatus is the new status of a quota. Resources that could not be counted keep their usage.
func calculatedStatus(found *corev1.ResourceQuota, sum corev1.ResourceList) (corev1.ResourceQuotaStatus, bool) {
	used := corev1.ResourceList{}
	for name := range found.Spec.Hard {
		if amount, ok := sum[name]; ok {
			used[name] = amount
		} else if amount, ok := found.Status.Used[name]; ok {
			used[name] = amount
		}
	}
	changed := !equality.Semantic.DeepEqual(found.Spec.Hard, found.Status.Hard) || !quota.Equal(used, found.Status.Used)
	return corev1.ResourceQuotaStatus{Hard: found.Spec.Hard.DeepCopy(), Used: used}, changed
}

// objects lists the live objects of a namespace: with a stale cache, the usage could be too low and admission would allow too
// much.
func (q *quotas) objects(ctx context.Context, gr schema.GroupResource, namespace string) ([]runtime.Object, error) {
	if list := q.typed[gr]; list != nil {
		return list(ctx, namespace)
	}
	gvr, err := q.mapper.ResourceFor(gr.WithVersion(""))
	if err != nil {
		return nil, fmt.Errorf("%w for %s", errUnknownKind, gr)
	}
	items, err := q.list(ctx, gvr, namespace)
	if err != nil {
		return nil, err
	}
	objects := make([]runtime.Object, len(items))
	for i := range items {
		objects[i] = &items[i]
	}
	return objects, nil
}

// isOnlyUnknownKinds reports whether all errors are about unknown resources.
func isOnlyUnknownKinds(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return errors.Is(err, errUnknownKind)
	}
	for _, one := range joined.Unwrap() {
		if !errors.Is(one, errUnknownKind) {
			return false
		}
	}
	return true
}

// Run recalculates all quotas periodically, and monitors the resources that quotas count.
func (q *quotas) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	watched := map[schema.GroupResource]bool{}
	ticker := time.NewTicker(resyncPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			q.mapper.Reset()
			for _, found := range q.informer.List("", nil) {
				q.setup.Enqueue(controller.KeyOf(found))
			}
		case gr := <-q.monitorRequests:
			if watched[gr] {
				continue
			}
			gvr, err := q.mapper.ResourceFor(gr.WithVersion(""))
			if err != nil {
				continue // unknown resource: the quota is retried
			}
			watched[gr] = true
			monitor := q.monitor(gr, gvr)
			running.Go(func() { monitor.RunWithContext(ctx) })
			// Recalculate after the initial list: earlier changes were not observed.
			running.Go(func() {
				if cache.WaitForCacheSync(ctx.Done(), monitor.HasSynced) {
					q.enqueueQuotas(gr, "", 0)
				}
			})
		}
	}
}

// monitor creates an informer that enqueues quotas when objects of a resource are created or deleted.
func (q *quotas) monitor(gr schema.GroupResource, gvr schema.GroupVersionResource) cache.Controller {
	return newMonitor(q.server, gvr, metadataHandler{
		onAdd:    func(obj *metav1.PartialObjectMetadata) { q.enqueueQuotas(gr, obj.Namespace, recalculateAfterCreate) },
		onDelete: func(obj *metav1.PartialObjectMetadata) { q.enqueueQuotas(gr, obj.Namespace, recalculateAfterFree) },
	})
}

// deviceLister lists the objects that the usage of resource claims depends on.
type deviceLister struct {
	classes client.Informer[*resourcev1.DeviceClass]
	pods    client.Informer[*corev1.Pod]
	claims  client.Informer[*resourcev1.ResourceClaim]
}

func (d deviceLister) DeviceClasses() ([]*resourcev1.DeviceClass, error) {
	return d.classes.List("", nil), nil
}

func (d deviceLister) Pod(namespace, name string) *corev1.Pod {
	pod, _ := d.pods.Get(namespace, name)
	return pod
}

func (d deviceLister) ResourceClaims(namespace string) ([]*resourcev1.ResourceClaim, error) {
	return d.claims.List(namespace, nil), nil
}
