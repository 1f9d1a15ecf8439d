// Package customresource maintains the status of CustomResourceDefinitions: which names are accepted, whether the resource is
// established, and the progress of its deletion. It runs inside every API server, without leader election. Servers that share a store may
// write the same status; a conflict is resolved by the next sync.
//
// Whoever sees the condition Established can use the resource. A server that is alone serves a definition before it accepts the names, and both conditions
// become true in one write. Servers that share a store need two: the first accepts the names, after which every server serves the definition; the second
// sets the condition Established after a delay.
package customresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/customresource"
	"skiff/internal/kind"
)

type definition = apiextensionsv1.CustomResourceDefinition

// Config is what the controllers need.
type Config struct {
	Client *client.Client
	// Served reports whether this server serves the definition in this state, or why it cannot.
	Served func(crd *apiextensionsv1.CustomResourceDefinition) (served bool, err error)
	// Serve serves a definition before it is written in this state, which differs from the stored one only in its status. It returns why it cannot.
	Serve func(crd *apiextensionsv1.CustomResourceDefinition) error
	// Unserve stops serving a definition for which Serve was called, unless it has been observed since as it was written.
	Unserve func(name string)
	// Instances reads and deletes custom resources in any version, without admission.
	Instances kind.Client
	// EstablishingDelay is the time between the acceptance of names and Established. Servers that share a store need it: all must serve the
	// resource before a client of one of them can use it. Zero: this server is alone.
	EstablishingDelay time.Duration
	Log               *slog.Logger
}

// DefaultEstablishingDelay is for servers that share a store, as upstream has it.
const DefaultEstablishingDelay = 5 * time.Second

// Controllers are the controllers of definitions.
type Controllers struct {
	*controller.Group
	conditions *conditions
	finalizer  *finalizer
}

// New returns the controllers. It starts nothing.
func New(c Config) (*Controllers, error) {
	all := &Controllers{}
	var err error
	all.Group, err = controller.NewGroup(c.Client, c.Log,
		controller.Definition{Name: "crd-conditions-controller", Workers: 5, New: func(s *controller.Setup) (controller.Syncer, error) {
			all.conditions = newConditions(c, s)
			return all.conditions.watch()
		}},
		controller.Definition{Name: "crd-finalizer-controller", Workers: 5, New: func(s *controller.Setup) (controller.Syncer, error) {
			all.finalizer = newFinalizer(c, s)
			return all.finalizer, controller.WatchPrimary[*definition](s)
		}})
	return all, err
}

// trimmed returns a definition with what decides whether its status has to change. The rest is much larger, and read when there is something to do.
func trimmed(crd *definition) *definition {
	small := customresource.WithoutSchemas(crd)
	small.CreationTimestamp, small.Finalizers = crd.CreationTimestamp, crd.Finalizers
	if approval, ok := crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation]; ok {
		small.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: approval}
	}
	return small
}

// Enqueue syncs a definition again, because what Served reports of it has changed.
func (c *Controllers) Enqueue(name string) {
	c.conditions.setup.Enqueue(controller.Key{Name: name})
	c.finalizer.setup.Enqueue(controller.Key{Name: name})
}

// conditions maintains the conditions of definitions that are not about their deletion. Several definitions are synced at the same time; the names
// that each may get are reserved meanwhile.
type conditions struct {
	Config
	setup       *controller.Setup
	definitions client.Resource[*definition]
	informer    client.Informer[*definition]

	mu      sync.Mutex
	names   names
	checked map[string]checked
}

// checked is what the conditions NonStructuralSchema and KubernetesAPIApprovalPolicyConformant were last computed from. Servers of different
// versions may disagree about them, so each server writes them once per change of the definition.
type checked struct {
	uid        types.UID
	generation int64
	approval   string
}

func checkedOf(crd *definition) checked {
	return checked{uid: crd.UID, generation: crd.Generation, approval: crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation]}
}

func newConditions(c Config, s *controller.Setup) *conditions {
	return &conditions{
		Config: c, setup: s, definitions: client.For[*definition](c.Client), informer: client.InformerFor[*definition](s.Informers),
		names: newNames(), checked: map[string]checked{},
	}
}

// watch keeps track of the names in use, and enqueues definitions. No definition is synced before the names of all are known.
func (c *conditions) watch() (controller.Syncer, error) {
	if err := c.informer.SetTransformInProcess(trimmed); err != nil {
		return nil, fmt.Errorf("watch definitions: %w", err)
	}
	hasSynced, err := c.informer.AddEventHandlerWithSync(c.observe, func(_, crd *definition) { c.observe(crd) }, c.observeDeletion)
	if err != nil {
		return nil, fmt.Errorf("watch definitions: %w", err)
	}
	return controller.AfterInitialEvents(c.setup, hasSynced, c), nil
}

// observe records the names of a definition.
func (c *conditions) observe(crd *definition) {
	c.record(crd)
	c.setup.Enqueue(controller.KeyOf(crd))
}

// observeDeletion makes the names of a definition available, and enqueues it: it may be served because of Serve.
func (c *conditions) observeDeletion(crd *definition) {
	c.forget(crd.Name)
	c.setup.Enqueue(controller.KeyOf(crd))
}

// forget removes a definition that was deleted.
func (c *conditions) forget(name string) {
	c.mu.Lock()
	next := c.names.remove(name)
	delete(c.checked, name)
	c.mu.Unlock()
	c.enqueueAll(next)
}

// record records the accepted names of a definition and enqueues the definitions that can have a name it no longer has.
func (c *conditions) record(crd *definition) {
	c.mu.Lock()
	next := c.names.record(crd)
	if _, ok := c.checked[crd.Name]; !ok && isTrue(&crd.Status, apiextensionsv1.Established) && hasCurrentConditions(crd) {
		// They were computed by an earlier process. What it has not computed before it ended is computed now.
		c.checked[crd.Name] = checkedOf(crd)
	}
	c.mu.Unlock()
	c.enqueueAll(next)
}

func (c *conditions) enqueueAll(definitions []string) {
	for _, name := range definitions {
		c.setup.Enqueue(controller.Key{Name: name})
	}
}

// Sync writes the status of a definition if it has to change. A definition that may be served because of Serve has accepted names, or they are reserved:
// no other one is served with them.
func (c *conditions) Sync(ctx context.Context, key controller.Key) error {
	crd, ok := c.informer.Get("", key.Name)
	if !ok {
		c.forget(key.Name)
		c.Unserve(key.Name)
		return nil
	}
	err := c.syncStatus(ctx, key, crd)
	if err != nil && !isRefused(err) {
		return err // what was to be written is perhaps stored: the names stay reserved until the next attempt
	}
	if err != nil {
		c.Unserve(key.Name) // whoever observes a deletion may have done so before Serve
	}
	c.releaseNames(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// syncStatus is Sync for a definition as the informer has it.
func (c *conditions) syncStatus(ctx context.Context, key controller.Key, crd *definition) error {
	v := c.view(crd)
	status, requeueAfter := c.reconcile(v)
	if !v.unchecked && equality.Semantic.DeepEqual(status, crd.Status) {
		if requeueAfter > 0 {
			c.setup.EnqueueAfter(key, requeueAfter)
		}
		return nil
	}
	crd, err := c.definitions.Get(ctx, "", key.Name) // with its schemas
	if err != nil {
		return fmt.Errorf("read custom resource definition: %w", err)
	}
	v = c.view(crd)
	status, requeueAfter = c.reconcileAndServe(v)
	if requeueAfter > 0 {
		c.setup.EnqueueAfter(key, requeueAfter)
	}
	if equality.Semantic.DeepEqual(status, crd.Status) {
		c.setChecked(crd)
		return nil
	}
	written, err := updateStatus(ctx, c.definitions, crd, status)
	if err != nil {
		return fmt.Errorf("update status of custom resource definition: %w", err)
	}
	c.setChecked(crd)
	c.record(written)
	c.setup.RecordWrite(key, written)
	return nil
}

// isRefused reports whether a request failed and the next attempt may fail for the same reason, such as an admission policy. After other errors a write
// may have succeeded, or is tried again at once.
func isRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusConflict && code != http.StatusTooManyRequests
}

// reconcile is the function of this name. A definition that gets no names is not served any more because of an earlier attempt to write it with them.
func (c *conditions) reconcile(v view) (next status, requeueAfter time.Duration) {
	next, requeueAfter = reconcile(v)
	if !isTrue(&next, apiextensionsv1.NamesAccepted) && !isTrue(&next, apiextensionsv1.Established) {
		c.Unserve(v.crd.Name)
	}
	return next, requeueAfter
}

// reconcileAndServe is reconcile. A server that is alone serves a definition whose names are accepted, so that it is established at the same time.
func (c *conditions) reconcileAndServe(v view) (next status, requeueAfter time.Duration) {
	next, requeueAfter = c.reconcile(v)
	if c.EstablishingDelay > 0 || isTrue(&v.crd.Status, apiextensionsv1.NamesAccepted) || !isTrue(&next, apiextensionsv1.NamesAccepted) || isTrue(&next, apiextensionsv1.Established) {
		return next, requeueAfter
	}
	accepted := *v.crd
	accepted.Status = next
	v.crd, v.unchecked = &accepted, false
	v.servingErr = c.Serve(&accepted)
	v.served = v.servingErr == nil
	return reconcile(v)
}

// updateStatus writes the status of a definition, and returns what was written, without the schemas. Finalizers are written too.
func updateStatus(ctx context.Context, definitions client.Resource[*definition], crd *definition, status status) (*definition, error) {
	next := customresource.WithoutSchemas(crd)
	next.ObjectMeta, next.Status = crd.ObjectMeta, status
	next.ManagedFields = nil // the server keeps them
	written, err := definitions.UpdateLargeStatus(ctx, next)
	if err != nil {
		return nil, err
	}
	next.ObjectMeta = written.ObjectMeta
	return next, nil
}

// view gathers what reconcile needs, and reserves the names that the definition may get.
func (c *conditions) view(crd *definition) view {
	v := view{crd: crd, now: metav1.Now(), delay: c.EstablishingDelay}
	if isTrue(&crd.Status, apiextensionsv1.NamesAccepted) && !isTrue(&crd.Status, apiextensionsv1.Established) {
		v.served, v.servingErr = c.Served(crd)
	}
	c.mu.Lock()
	var next []string
	v.conflicts, next = c.names.reserve(crd)
	v.unchecked = c.checked[crd.Name] != checkedOf(crd)
	c.mu.Unlock()
	c.enqueueAll(next)
	return v
}

// releaseNames ends the reservations of a definition.
func (c *conditions) releaseNames(name string) {
	c.mu.Lock()
	next := c.names.release(name)
	c.mu.Unlock()
	c.enqueueAll(next)
	if _, ok := c.informer.Get("", name); !ok {
		c.forget(name) // it was deleted while its names were reserved
	}
}

func (c *conditions) setChecked(crd *definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checked[crd.Name] = checkedOf(crd)
}
