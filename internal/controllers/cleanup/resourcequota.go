package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
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
// objects being written, and longest while a resource is not served; resyncPeriod is the period of the recalculation of all quotas.
// Because of unknown resources, discovery is repeated once in rediscoverPeriod.
const (
	recalculateAfterFree    = 50 * time.Millisecond
	recalculateAfterCreate  = 5 * time.Second
	recalculateAfterNoMatch = 30 * time.Second
	rediscoverPeriod        = 10 * time.Second
	resyncPeriod            = 5 * time.Minute
)

// ResourceQuota recalculates the usage of quotas. Admission only adds usage; this controller releases it.
var ResourceQuota = controller.Definition{
	Name: "resourcequota-controller", Aliases: []string{"resourcequota"}, Queue: "resourcequota_primary", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		metadataClient, err := newMetadataClient(s.Client.Config)
		if err != nil {
			return nil, err
		}
		q := &quotas{
			metadataClient: metadataClient, setup: s, informer: client.InformerFor[*corev1.ResourceQuota](s.Informers),
			mapper:          restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(metadataClient.discovery)),
			rediscovery:     rate.NewLimiter(rate.Every(rediscoverPeriod), 1),
			monitorRequests: make(chan schema.GroupResource, 100), notServed: make(chan *quotaMonitor), monitors: map[schema.GroupResource]*quotaMonitor{},
			fullListers: map[schema.GroupResource]func(context.Context, string) ([]runtime.Object, error){},
		}
		claims, err := controller.DependentsOf[*resourcev1.ResourceClaim](s)
		if err != nil {
			return nil, err
		}
		q.registry = quota.NewRegistry(claimUsageLister{
			classes: client.InformerFor[*resourcev1.DeviceClass](s.Informers),
			pods:    client.InformerFor[*corev1.Pod](s.Informers),
			claims:  claims,
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
			watchFull[*corev1.Pod](q, "", "pods"), watchFull[*corev1.Service](q, "", "services"),
			watchFull[*corev1.PersistentVolumeClaim](q, "", "persistentvolumeclaims"),
			watchFull[*resourcev1.ResourceClaim](q, resourcev1.GroupName, "resourceclaims"))
	},
}

type quotas struct {
	*metadataClient
	setup  *controller.Setup
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// rediscovery limits how often unknown resources cause discovery: a quota may name one that never exists.
	rediscovery *rate.Limiter
	registry    *quota.Registry
	informer    client.Informer[*corev1.ResourceQuota]
	// fullListers list the resources whose usage depends on the whole object, not only on the number of objects.
	fullListers map[schema.GroupResource]func(ctx context.Context, namespace string) ([]runtime.Object, error)
	// monitorRequests are resources that a quota counts and that may have no monitor yet; notServed are monitors whose resource is not served.
	monitorRequests chan schema.GroupResource
	notServed       chan *quotaMonitor

	mu       sync.Mutex
	monitors map[schema.GroupResource]*quotaMonitor
}

// quotaMonitor is the running monitor of a resource that quotas count.
type quotaMonitor struct {
	resource schema.GroupResource
	cancel   context.CancelFunc
}

// watchFull watches a resource of which whole objects are needed, not only their metadata.
func watchFull[T kind.Object](q *quotas, group, name string) error {
	gr := schema.GroupResource{Group: group, Resource: name}
	q.fullListers[gr] = func(ctx context.Context, namespace string) ([]runtime.Object, error) {
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
	for _, resourceQuota := range q.informer.List(namespace, nil) {
		if len(evaluator.MatchingResources(quota.Names(resourceQuota.Spec.Hard))) > 0 {
			q.setup.EnqueueAfter(controller.KeyOf(resourceQuota), after)
		}
	}
}

// Sync recalculates one quota.
func (q *quotas) Sync(ctx context.Context, key controller.Key) error {
	resourceQuota, ok := q.informer.Get(key.Namespace, key.Name)
	if !ok {
		q.setup.SpaceSyncs(key, 0)
		return nil
	}
	for _, evaluator := range q.registry.Matching(quota.Names(resourceQuota.Spec.Hard)) {
		if q.fullListers[evaluator.Resource] == nil {
			select {
			case q.monitorRequests <- evaluator.Resource:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	counted := 0
	list := func(gr schema.GroupResource) ([]runtime.Object, error) {
		objects, err := q.objects(ctx, gr, key.Namespace)
		counted += len(objects)
		return objects, err
	}
	used, err := q.registry.Used(resourceQuota, list, time.Now())
	q.setup.SpaceSyncs(key, counted)
	if err != nil && isOnlyNoMatch(err) {
		q.setup.EnqueueAfter(key, recalculateAfterNoMatch)
		err = nil
	}
	if status, changed := calculatedStatus(resourceQuota, used); changed {
		next := resourceQuota.DeepCopy()
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
func calculatedStatus(resourceQuota *corev1.ResourceQuota, calculated corev1.ResourceList) (corev1.ResourceQuotaStatus, bool) {
	used := corev1.ResourceList{}
	for name := range resourceQuota.Spec.Hard {
		if amount, ok := calculated[name]; ok {
			used[name] = amount
		} else if amount, ok := resourceQuota.Status.Used[name]; ok {
			used[name] = amount
		}
	}
	changed := !equality.Semantic.DeepEqual(resourceQuota.Spec.Hard, resourceQuota.Status.Hard) || !quota.Equal(used, resourceQuota.Status.Used)
	return corev1.ResourceQuotaStatus{Hard: resourceQuota.Spec.Hard.DeepCopy(), Used: used}, changed
}

// objects lists the live objects of a namespace: with a stale cache, the usage could be too low and admission would allow too
// much.
func (q *quotas) objects(ctx context.Context, gr schema.GroupResource, namespace string) ([]runtime.Object, error) {
	if list := q.fullListers[gr]; list != nil {
		return list(ctx, namespace)
	}
	gvr, err := q.resourceFor(gr)
	if err != nil {
		return nil, fmt.Errorf("%w for %s", errNoMatch, gr)
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

// resourceFor returns the version of a resource. An unknown one may be served since the last discovery: the mapper would not look again.
func (q *quotas) resourceFor(gr schema.GroupResource) (schema.GroupVersionResource, error) {
	gvr, err := q.mapper.ResourceFor(gr.WithVersion(""))
	if meta.IsNoMatchError(err) && q.rediscovery.Allow() {
		q.mapper.Reset()
		gvr, err = q.mapper.ResourceFor(gr.WithVersion(""))
	}
	return gvr, err
}

// isOnlyNoMatch reports whether all errors are errNoMatch.
func isOnlyNoMatch(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return errors.Is(err, errNoMatch)
	}
	for _, one := range joined.Unwrap() {
		if !errors.Is(one, errNoMatch) {
			return false
		}
	}
	return true
}

// Run recalculates all quotas periodically, and monitors the resources that quotas count.
func (q *quotas) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ticker := time.NewTicker(resyncPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			q.mapper.Reset()
			q.stopUnusedMonitors()
			for _, resourceQuota := range q.informer.List("", nil) {
				q.setup.Enqueue(controller.KeyOf(resourceQuota))
			}
		case gr := <-q.monitorRequests:
			q.startMonitor(ctx, gr, &running)
		case m := <-q.notServed:
			// Its definition was deleted. If it is created again, perhaps with another version, the quotas request a monitor again.
			q.stopMonitor(m)
			if q.rediscovery.Allow() {
				q.mapper.Reset()
			}
			q.enqueueQuotas(m.resource, "", recalculateAfterNoMatch)
		}
	}
}

// startMonitor starts an informer that enqueues quotas when objects of a resource are created or deleted, unless there is one.
func (q *quotas) startMonitor(ctx context.Context, gr schema.GroupResource, running *sync.WaitGroup) {
	if q.monitorOf(gr) != nil {
		return
	}
	gvr, err := q.resourceFor(gr)
	if err != nil {
		return // unknown resource: the quota is retried
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &quotaMonitor{resource: gr, cancel: cancel}
	q.setMonitor(gr, m)
	informer := newMonitor(q.metadataClient, gvr, metadataHandler{
		onAdd:    func(obj *metav1.PartialObjectMetadata) { q.enqueueQuotas(gr, obj.Namespace, recalculateAfterCreate) },
		onDelete: func(obj *metav1.PartialObjectMetadata) { q.enqueueQuotas(gr, obj.Namespace, recalculateAfterFree) },
		onNotServed: func(ctx context.Context) {
			select {
			case q.notServed <- m:
			case <-ctx.Done():
			}
		},
	})
	running.Go(func() { informer.RunWithContext(ctx) })
	// Recalculate after the initial list: earlier changes were not observed.
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			q.enqueueQuotas(gr, "", 0)
		}
	})
}

func (q *quotas) monitorOf(gr schema.GroupResource) *quotaMonitor {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.monitors[gr]
}

func (q *quotas) setMonitor(gr schema.GroupResource, m *quotaMonitor) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.monitors[gr] = m
}

// stopMonitor stops a monitor, unless it was stopped before.
func (q *quotas) stopMonitor(m *quotaMonitor) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.monitors[m.resource] == m {
		m.cancel()
		delete(q.monitors, m.resource)
	}
}

// stopUnusedMonitors stops the monitors of resources that no quota counts any more.
func (q *quotas) stopUnusedMonitors() {
	counted := map[schema.GroupResource]bool{}
	for _, resourceQuota := range q.informer.List("", nil) {
		for _, evaluator := range q.registry.Matching(quota.Names(resourceQuota.Spec.Hard)) {
			counted[evaluator.Resource] = true
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for gr, m := range q.monitors {
		if !counted[gr] {
			m.cancel()
			delete(q.monitors, gr)
		}
	}
}

// claimUsageLister lists the objects that the usage of resource claims depends on.
type claimUsageLister struct {
	classes client.Informer[*resourcev1.DeviceClass]
	pods    client.Informer[*corev1.Pod]
	claims  controller.Dependents[*resourcev1.ResourceClaim]
}

func (l claimUsageLister) DeviceClasses() ([]*resourcev1.DeviceClass, error) {
	return l.classes.List("", nil), nil
}

func (l claimUsageLister) Pod(namespace, name string) *corev1.Pod {
	pod, _ := l.pods.Get(namespace, name)
	return pod
}

func (l claimUsageLister) ExtendedClaims(pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	return slices.DeleteFunc(l.claims.ControlledBy(pod.UID), func(c *resourcev1.ResourceClaim) bool { return quota.PodOfExtendedClaim(c) == nil }), nil
}
