package customresource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

const (
	// The interval between two checks whether instances are left doubles from the first to the last.
	firstCheck = 50 * time.Millisecond
	lastCheck  = 5 * time.Second
	// checkTimeout is how long instances may take to be deleted before the condition says so.
	checkTimeout = time.Minute
	// maxConcurrentDeletes is the number of instances of one definition that are deleted at the same time.
	maxConcurrentDeletes = 10
)

// overlapping are the resources that a definition must not delete: their objects are those of built-in resources.
var overlapping = []schema.GroupResource{
	{Group: "apiregistration.k8s.io", Resource: "apiservices"},
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
}

// finalizer deletes the instances of definitions that are being deleted, and then lets the definitions go.
type finalizer struct {
	Config
	setup       *controller.Setup
	definitions client.Resource[*definition]
	informer    client.Informer[*definition]

	mu sync.Mutex
	// waits are the definitions whose instances have not all been deleted yet.
	waits map[string]wait
}

// wait is how long the instances of a definition have been waited for.
type wait struct {
	since    time.Time
	interval time.Duration
}

func newFinalizer(c Config, s *controller.Setup) *finalizer {
	return &finalizer{
		Config: c, setup: s, definitions: client.For[*definition](c.Client), informer: client.InformerFor[*definition](s.Informers), waits: map[string]wait{},
	}
}

// Sync deletes the instances of a definition.
func (f *finalizer) Sync(ctx context.Context, key controller.Key) error {
	crd, ok := f.informer.Get("", key.Name)
	if !ok || crd.DeletionTimestamp == nil || !slices.Contains(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		f.forget(key.Name)
		return nil
	}
	found := find(&crd.Status, apiextensionsv1.Terminating)
	if found == nil || found.Reason == "InstanceDeletionPending" {
		// The deletion can take a while. The write causes the next sync.
		return f.write(ctx, key, crd, terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"))
	}
	outcome, requeueAfter, err := f.deleteInstances(ctx, crd)
	if requeueAfter > 0 {
		f.setup.EnqueueAfter(key, requeueAfter)
	}
	if outcome == nil {
		return err
	}
	return errors.Join(err, f.write(ctx, key, crd, *outcome))
}

func terminating(status apiextensionsv1.ConditionStatus, reason, message string) condition {
	return condition{Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message}
}

// write sets the condition Terminating. With its status False nothing is left to do, and the finalizer is removed.
func (f *finalizer) write(ctx context.Context, key controller.Key, crd *definition, c condition) error {
	if old := find(&crd.Status, c.Type); c.Status != apiextensionsv1.ConditionFalse && old != nil && old.Reason == c.Reason && old.Message == c.Message {
		return nil
	}
	resourceVersion := crd.ResourceVersion
	crd, err := f.definitions.Get(ctx, "", key.Name) // with its schemas
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read custom resource definition: %w", err)
	}
	next := *crd
	next.ResourceVersion = resourceVersion // what was decided is about that state
	status := crd.Status.DeepCopy()
	setCondition(status, c, metav1.Now())
	if c.Status == apiextensionsv1.ConditionFalse {
		next.Finalizers = slices.DeleteFunc(slices.Clone(crd.Finalizers), func(f string) bool { return f == apiextensionsv1.CustomResourceCleanupFinalizer })
	}
	written, err := updateStatus(ctx, f.definitions, &next, *status)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update status of custom resource definition: %w", err)
	}
	if len(written.Finalizers) > 0 {
		f.setup.RecordWrite(key, written)
	}
	return nil
}

// deleteInstances deletes all instances. It returns the new condition, nil if it does not change, and when to look again.
func (f *finalizer) deleteInstances(ctx context.Context, crd *definition) (outcome *condition, requeueAfter time.Duration, err error) {
	done := func(c condition) (*condition, time.Duration, error) {
		f.forget(crd.Name)
		return &c, 0, nil
	}
	failed := func(reason, text string, err error) (*condition, time.Duration, error) {
		c := terminating(apiextensionsv1.ConditionTrue, reason, fmt.Sprintf("%s: %v", text, err))
		return &c, 0, err
	}
	gr := resourceOf(crd)
	switch {
	case slices.Contains(overlapping, gr):
		return done(terminating(apiextensionsv1.ConditionFalse, "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"))
	case !isTrue(&crd.Status, apiextensionsv1.Established):
		return done(terminating(apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established"))
	}
	// While this server could still create instances, deleting them is too early.
	served, err := f.Served(crd)
	if err != nil {
		return failed("InstanceDeletionFailed", "could not list instances", fmt.Errorf("unable to find a custom resource client for %s: %w", gr, err))
	}
	if !served {
		return nil, 0, nil // the definition is enqueued when it is
	}
	instances, err := f.Instances.List(ctx, gr, "")
	if err != nil {
		return failed("InstanceDeletionFailed", "could not list instances", err)
	}
	if err := f.deleteAll(ctx, crd, instances); err != nil {
		return failed("InstanceDeletionFailed", "could not issue all deletes", err)
	}
	if instances, err = f.Instances.List(ctx, gr, ""); err != nil {
		return failed("InstanceDeletionCheck", "could not confirm zero CustomResources remaining", err)
	}
	if len(instances) == 0 {
		return done(terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"))
	}
	requeueAfter, timedOut := f.wait(crd.Name, time.Now())
	if !timedOut {
		return nil, requeueAfter, nil
	}
	c := terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionCheck", "could not confirm zero CustomResources remaining: timed out waiting for the condition")
	return &c, requeueAfter, nil
}

func resourceOf(crd *definition) schema.GroupResource {
	return schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
}

// deleteAll requests the deletion of the instances for which it has not begun. It stops when the definition is not served in this state any more: another
// server, or a client that has removed the finalizer, may have let it go meanwhile, and one of the same name must keep its instances.
func (f *finalizer) deleteAll(ctx context.Context, crd *definition, instances []kind.Object) error {
	var mu sync.Mutex
	var failures []error
	var running sync.WaitGroup
	slots := make(chan struct{}, maxConcurrentDeletes)
	for _, instance := range instances {
		if instance.GetDeletionTimestamp() != nil {
			continue
		}
		slots <- struct{}{}
		if served, _ := f.Served(crd); !served {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(instance.GetUID()))}
			err := f.Instances.Delete(ctx, resourceOf(crd), instance.GetNamespace(), instance.GetName(), options)
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict: it was deleted and created again
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, err)
		})
	}
	running.Wait()
	return utilerrors.NewAggregate(failures)
}

// wait returns when to check again whether instances are left, and whether that has taken too long.
func (f *finalizer) wait(name string, now time.Time) (requeueAfter time.Duration, timedOut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.waits[name]
	if !ok {
		w = wait{since: now, interval: firstCheck / 2}
	}
	w.interval = min(2*w.interval, lastCheck)
	f.waits[name] = w
	return w.interval, now.Sub(w.since) >= checkTimeout
}

func (f *finalizer) forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waits, name)
}
