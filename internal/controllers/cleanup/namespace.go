package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/podstate"
)

// NamespaceDeletionDelay is the time before the content of a deleted namespace is deleted, if several API servers share a store:
// all of them must have stopped creating objects in it.
const NamespaceDeletionDelay = 5 * time.Second

// finalizerRetryDelay is the assumed time that finalizers take.
const finalizerRetryDelay = 15 * time.Second

// maxConcurrentResources is the maximum number of concurrent requests for one namespace.
const maxConcurrentResources = 10

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// Namespace deletes the content of terminating namespaces, pods first, and then finalizes them. grace is the delay before it
// starts: NamespaceDeletionDelay, or less for a single API server.
func Namespace(grace time.Duration) controller.Definition {
	return controller.Definition{
		Name: "namespace-controller", Aliases: []string{"namespace"}, Queue: "namespace", Workers: 10,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			metadataClient, err := newMetadataClient(s.Client.Config)
			if err != nil {
				return nil, err
			}
			n := &namespaces{metadataClient: metadataClient, setup: s, grace: grace, informer: client.InformerFor[*corev1.Namespace](s.Informers), pods: map[string]int{}}
			enqueue := func(namespace *corev1.Namespace) {
				if namespace.DeletionTimestamp != nil {
					s.EnqueueAfter(controller.KeyOf(namespace), grace)
				}
			}
			if err := n.informer.AddEventHandler(enqueue, func(_, namespace *corev1.Namespace) { enqueue(namespace) }, nil); err != nil {
				return nil, fmt.Errorf("watch namespaces: %w", err)
			}
			onPodAdd := func(pod *corev1.Pod) { n.countPod(pod.Namespace, 1) }
			onPodDelete := func(pod *corev1.Pod) {
				if n.countPod(pod.Namespace, -1) == 0 {
					n.enqueueWithoutPods(pod.Namespace)
				}
			}
			if err := client.InformerFor[*corev1.Pod](s.Informers).AddEventHandler(onPodAdd, nil, onPodDelete); err != nil {
				return nil, fmt.Errorf("watch pods: %w", err)
			}
			return n, nil
		},
	}
}

type namespaces struct {
	*metadataClient
	setup    *controller.Setup
	grace    time.Duration
	informer client.Informer[*corev1.Namespace]

	mu   sync.Mutex
	pods map[string]int // number of pods by namespace
}

// countPod changes the number of pods of a namespace and returns it.
func (n *namespaces) countPod(namespace string, by int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods[namespace] += by; n.pods[namespace] == 0 {
		delete(n.pods, namespace)
	}
	return n.pods[namespace]
}

// enqueueWithoutPods enqueues a terminating namespace whose last pod is deleted, because all other content waits for that.
func (n *namespaces) enqueueWithoutPods(name string) {
	namespace, ok := n.informer.Get("", name)
	if !ok || namespace.DeletionTimestamp == nil {
		return
	}
	n.setup.EnqueueAfter(controller.KeyOf(namespace), max(0, time.Until(namespace.DeletionTimestamp.Add(n.grace))))
}

// Sync deletes the content of a namespace as far as possible, updates the status, and finalizes the namespace when it is empty.
func (n *namespaces) Sync(ctx context.Context, key controller.Key) error {
	if seen, ok := n.informer.Get("", key.Name); !ok || seen.DeletionTimestamp == nil {
		return nil
	}
	all := client.For[*corev1.Namespace](n.setup.Client)
	namespace, err := all.Get(ctx, "", key.Name)
	if err != nil || namespace.DeletionTimestamp == nil || len(namespace.Spec.Finalizers) == 0 {
		return ignoreNotFound(err)
	}
	found, err := n.deleteContent(ctx, namespace)
	if err != nil {
		return err
	}
	namespace, err = n.updateStatus(ctx, namespace, found)
	if err != nil {
		return errors.Join(ignoreNotFound(err), found.err())
	}
	if err := found.err(); err != nil {
		return fmt.Errorf("delete content of namespace: %w", err)
	}
	if found.delay > 0 {
		n.setup.EnqueueAfter(key, found.delay/2+time.Second)
		return nil
	}
	final := namespace.DeepCopy()
	final.Spec.Finalizers = slices.DeleteFunc(final.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err = all.Update(ctx, final, client.WriteOptions{Subresource: "finalize"})
	return ignoreNotFound(err)
}

// updateStatus updates the conditions and the phase.
func (n *namespaces) updateStatus(ctx context.Context, namespace *corev1.Namespace, found namespaceContent) (*corev1.Namespace, error) {
	conditions, changed := found.conditions(namespace.Status.Conditions, metav1.Now())
	if !changed && namespace.Status.Phase == corev1.NamespaceTerminating {
		return namespace, nil
	}
	next := namespace.DeepCopy()
	next.Status.Phase, next.Status.Conditions = corev1.NamespaceTerminating, conditions
	return client.For[*corev1.Namespace](n.setup.Client).UpdateStatus(ctx, next)
}

// deleteContent deletes the content of the namespace: first the pods, and when none are left, the rest. Pods may create objects,
// and may need objects until they terminate.
func (n *namespaces) deleteContent(ctx context.Context, namespace *corev1.Namespace) (namespaceContent, error) {
	var found namespaceContent
	all, err := n.resources(ctx)
	found.recordDiscovery(err)
	var rest []resource
	for _, r := range all {
		if !r.namespaced || !r.can("delete") {
			continue
		}
		if r.GroupVersionResource != podResource {
			rest = append(rest, r)
			continue
		}
		grace, err := n.podTerminationGrace(ctx, namespace)
		var left remainingContent
		if err == nil {
			left, err = n.deleteResource(ctx, r, namespace.Name, grace)
		}
		found.add(r.GroupVersionResource, left, err)
	}
	if found.objects[podResource] > 0 || ctx.Err() != nil {
		return found, ctx.Err()
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, maxConcurrentResources)
	for _, r := range rest {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			left, err := n.deleteResource(ctx, r, namespace.Name, 0)
			mu.Lock()
			defer mu.Unlock()
			found.add(r.GroupVersionResource, left, err)
		})
	}
	running.Wait()
	return found, ctx.Err()
}

// podTerminationGrace is the maximum termination grace period of running pods, zero if it has passed already.
func (n *namespaces) podTerminationGrace(ctx context.Context, namespace *corev1.Namespace) (time.Duration, error) {
	pods, _, err := client.For[*corev1.Pod](n.setup.Client).List(ctx, namespace.Name, client.Selector{})
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for _, pod := range pods {
		if seconds := pod.Spec.TerminationGracePeriodSeconds; !podstate.IsTerminal(pod) && seconds != nil {
			longest = max(longest, time.Duration(*seconds)*time.Second)
		}
	}
	if time.Since(namespace.DeletionTimestamp.Time) >= longest {
		return 0, nil
	}
	return longest, nil
}

// deleteResource deletes the objects of one resource. It returns the remaining objects, and an error if some remain without a
// grace period or finalizer.
func (n *namespaces) deleteResource(ctx context.Context, r resource, namespace string, grace time.Duration) (remainingContent, error) {
	items, listed, err := n.listResource(ctx, r, namespace)
	if err != nil || listed && len(items) == 0 {
		return remainingContent{}, err
	}
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	err = apierrors.NewMethodNotSupported(r.GroupResource(), "deletecollection")
	if r.can("deletecollection") {
		err = n.in(r.GroupVersionResource, namespace).DeleteCollection(ctx, options, metav1.ListOptions{})
	}
	if isUnsupported(err) {
		if err = n.deleteEach(ctx, r, namespace, items, options); err != nil {
			return remainingContent{delay: grace}, err
		}
	}
	if err != nil || !listed {
		return remainingContent{delay: grace}, err
	}
	if items, listed, err = n.listResource(ctx, r, namespace); err != nil || !listed || len(items) == 0 {
		return remainingContent{}, err
	}
	left := remainingContent{objects: len(items), finalizers: map[string]int{}, delay: grace}
	for _, item := range items {
		for _, finalizer := range item.Finalizers {
			left.finalizers[finalizer]++
		}
	}
	if grace == 0 && len(left.finalizers) == 0 {
		return left, fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %v", namespace, r.GroupVersionResource)
	}
	if grace == 0 {
		left.delay = finalizerRetryDelay
	}
	return left, nil
}

func (n *namespaces) listResource(ctx context.Context, r resource, namespace string) ([]metav1.PartialObjectMetadata, bool, error) {
	if !r.can("list") {
		return nil, false, nil
	}
	items, err := n.list(ctx, r.GroupVersionResource, namespace)
	if isUnsupported(err) {
		return nil, false, nil
	}
	return items, true, err
}

func (n *namespaces) deleteEach(ctx context.Context, r resource, namespace string, items []metav1.PartialObjectMetadata, options metav1.DeleteOptions) error {
	for _, item := range items {
		if err := n.in(r.GroupVersionResource, namespace).Delete(ctx, item.Name, options); err != nil && !isUnsupported(err) {
			return err
		}
	}
	return nil
}

// isUnsupported reports whether the server does not, or no longer, support the request.
func isUnsupported(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// remainingContent describes the remaining objects of one resource in a namespace.
type remainingContent struct {
	objects    int
	finalizers map[string]int
	// delay is the expected time until they are gone.
	delay time.Duration
}

// namespaceContent describes the remaining content of a namespace.
type namespaceContent struct {
	discovery, parsing error
	failures           []error
	objects            map[schema.GroupVersionResource]int
	finalizers         map[string]int
	delay              time.Duration
}

func (c *namespaceContent) recordDiscovery(err error) {
	var unread *parseError
	if errors.As(err, &unread) {
		c.parsing = unread
	}
	if err != nil && err != error(unread) {
		c.discovery = err
	}
}

func (c *namespaceContent) add(gvr schema.GroupVersionResource, left remainingContent, err error) {
	if err != nil {
		c.failures = append(c.failures, err)
	}
	c.delay = max(c.delay, left.delay)
	if left.objects == 0 {
		return
	}
	if c.objects == nil {
		c.objects, c.finalizers = map[schema.GroupVersionResource]int{}, map[string]int{}
	}
	c.objects[gvr] = left.objects
	for finalizer, count := range left.finalizers {
		c.finalizers[finalizer] += count
	}
}

// err is why it is unknown whether the namespace is empty.
func (c *namespaceContent) err() error {
	return errors.Join(append([]error{c.discovery, c.parsing}, c.failures...)...)
}
