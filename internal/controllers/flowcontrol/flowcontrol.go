// Package flowcontrol keeps the objects of API priority and fairness as they should be, and the API server's request queues as the objects
// say. It runs inside every API server, without leader election.
package flowcontrol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/api/flowcontrol"
	"skiff/internal/client"
	"skiff/internal/kind"
)

// The field managers of the writes, as upstream has them.
const (
	producerManager = "api-priority-and-fairness-config-producer-v1"
	consumerManager = "api-priority-and-fairness-config-consumer-v1"
)

const (
	// ensureInterval is the time between two syncs of the bootstrap objects.
	ensureInterval = time.Minute
	// retryInterval is the time after a failure until the next attempt.
	retryInterval = time.Second
	// maxConditionWrites is how often the condition of one schema is written per minute at most. Servers that disagree would otherwise
	// overwrite each other without end.
	maxConditionWrites = 6
)

type (
	// PriorityLevels and FlowSchemas are the configuration of priority and fairness.
	PriorityLevels = []*flowcontrolv1.PriorityLevelConfiguration
	FlowSchemas    = []*flowcontrolv1.FlowSchema
)

// Config is what the controller needs.
type Config struct {
	Client *client.Client
	// Configure applies the objects to the request queues; nil: only the bootstrap objects are kept.
	Configure func(PriorityLevels, FlowSchemas)
	// DanglingCondition is the condition of a schema for the levels that exist, and whether it has to be written.
	DanglingCondition func(*flowcontrolv1.FlowSchema, PriorityLevels, time.Time) (flowcontrolv1.FlowSchemaCondition, bool)
	// OnBootstrapped and OnConfigured are called once, when the bootstrap objects exist and when Configure was first called.
	OnBootstrapped, OnConfigured func()
	// WaitReady returns true when the server is ready, or false when ctx is done first. Conditions are not written before.
	WaitReady func(ctx context.Context) bool
	Log       *slog.Logger
}

// Controller keeps the bootstrap objects and applies the configuration.
type Controller struct {
	Config
	schemas client.Resource[*flowcontrolv1.FlowSchema]
	levels  client.Resource[*flowcontrolv1.PriorityLevelConfiguration]
	// conditionWrites are the times of recent writes of conditions, by schema.
	conditionWrites map[string][]time.Time
}

// New returns a controller. It starts nothing.
func New(c Config) *Controller {
	return &Controller{
		Config: c, conditionWrites: map[string][]time.Time{},
		schemas: client.For[*flowcontrolv1.FlowSchema](c.Client), levels: client.For[*flowcontrolv1.PriorityLevelConfiguration](c.Client),
	}
}

// Run runs the controller until ctx is done.
func (c *Controller) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { c.runBootstrap(ctx); return nil })
	if c.Configure != nil {
		group.Go(func() error { return c.runConfigure(ctx) })
	}
	return group.Wait()
}

// runBootstrap keeps the bootstrap objects as they should be until ctx is done.
func (c *Controller) runBootstrap(ctx context.Context) {
	bootstrapped := false
	for {
		err, wait := c.ensure(ctx), ensureInterval
		if err == nil && !bootstrapped {
			bootstrapped = true
			c.OnBootstrapped()
		}
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("failed to ensure the bootstrap flow schemas and priority levels", "error", err)
			wait = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// ensure creates the bootstrap objects, updates them as far as the server may change them, and deletes those of former versions.
func (c *Controller) ensure(ctx context.Context) error {
	mandatory, suggested := flowcontrol.Mandatory(), flowcontrol.Suggested()
	levels, err := ensureObjects(ctx, c.levels, mandatory.PriorityLevels, suggested.PriorityLevels, flowcontrol.RevisePriorityLevel)
	if err != nil {
		return err
	}
	schemas, err := ensureObjects(ctx, c.schemas, mandatory.FlowSchemas, suggested.FlowSchemas, flowcontrol.ReviseFlowSchema)
	if err != nil {
		return err
	}
	return errors.Join(removeOutdated(ctx, c.schemas, schemas), removeOutdated(ctx, c.levels, levels))
}

// ensureObjects ensures the mandatory and the suggested objects of a kind, and returns their names.
func ensureObjects[T kind.Object](
	ctx context.Context, resource client.Resource[T], mandatory, suggested []T, revise func(current, wanted T, mandatory bool) (T, bool),
) (map[string]bool, error) {
	group, names := errgroup.Group{}, map[string]bool{}
	for i, wanted := range slices.Concat(mandatory, suggested) {
		names[wanted.GetName()] = true
		group.Go(func() error {
			return ensureObject(ctx, resource, wanted, func(current, wanted T) (T, bool) { return revise(current, wanted, i < len(mandatory)) })
		})
	}
	return names, group.Wait()
}

// ensureObject creates an object, or updates it where revise says so. Conflicts with other writers are left to the next sync.
func ensureObject[T kind.Object](ctx context.Context, resource client.Resource[T], wanted T, revise func(current, wanted T) (T, bool)) error {
	options := client.WriteOptions{FieldManager: producerManager}
	current, err := resource.Get(ctx, "", wanted.GetName())
	if apierrors.IsNotFound(err) {
		if _, err = resource.Create(ctx, wanted, options); !apierrors.IsAlreadyExists(err) {
			return err
		}
		current, err = resource.Get(ctx, "", wanted.GetName())
	}
	if err != nil {
		return err
	}
	revised, needed := revise(current, wanted)
	if !needed {
		return nil
	}
	if _, err := resource.Update(ctx, revised, options); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update %s: %w", wanted.GetName(), err)
	}
	return nil
}

// removeOutdated deletes the bootstrap objects of former versions: objects that are updated automatically and are no longer wanted.
func removeOutdated[T kind.Object](ctx context.Context, resource client.Resource[T], wanted map[string]bool) error {
	objs, _, err := resource.List(ctx, "", client.Selector{})
	if err != nil {
		return err
	}
	for _, obj := range objs {
		if wanted[obj.GetName()] || !flowcontrol.HasAutoUpdateAnnotation(obj) {
			continue
		}
		if err := resource.Delete(ctx, "", obj.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", obj.GetName(), err)
		}
	}
	return nil
}

// runConfigure applies the objects whenever they change, and writes the conditions of schemas.
func (c *Controller) runConfigure(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	informers := client.NewInformers(c.Client)
	if err := errors.Join(notify(client.InformerFor[*flowcontrolv1.FlowSchema](informers), changed),
		notify(client.InformerFor[*flowcontrolv1.PriorityLevelConfiguration](informers), changed)); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return informers.Run(ctx) })
	group.Go(func() error {
		// The server is not ready before this; conditions can be written later.
		if _, _, err := c.configure(ctx); err != nil {
			return err
		}
		c.OnConfigured()
		if !c.WaitReady(ctx) {
			return nil
		}
		for {
			requeueAfter, err := c.sync(ctx)
			if err != nil && ctx.Err() == nil {
				c.Log.Warn("failed to write the conditions of flow schemas", "error", err)
				requeueAfter = retryInterval
			}
			var requeue <-chan time.Time
			if requeueAfter > 0 {
				requeue = time.After(requeueAfter)
			}
			select {
			case <-changed:
			case <-requeue:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}

// notify sends to changed after every change of a resource. Several changes may be sent as one.
func notify[T kind.Object](informer client.Informer[T], changed chan<- struct{}) error {
	send := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return informer.AddEventHandler(func(T) { send() }, func(_, _ T) { send() }, func(T) { send() })
}

// configure applies the objects to the request queues.
func (c *Controller) configure(ctx context.Context) (levels PriorityLevels, schemas FlowSchemas, err error) {
	if levels, _, err = c.levels.List(ctx, "", client.Selector{}); err != nil {
		return nil, nil, err
	}
	if schemas, _, err = c.schemas.List(ctx, "", client.Selector{}); err != nil {
		return nil, nil, err
	}
	c.Configure(levels, schemas)
	return levels, schemas, nil
}

// sync applies the objects and writes the conditions of the schemas. It must be called again after requeueAfter, unless that is 0.
func (c *Controller) sync(ctx context.Context) (requeueAfter time.Duration, err error) {
	levels, schemas, err := c.configure(ctx)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	var errs []error
	for _, s := range schemas {
		condition, needed := c.DanglingCondition(s, levels, now)
		if !needed {
			continue
		}
		if !c.mayWriteCondition(s.Name, now) {
			requeueAfter = ensureInterval
			continue
		}
		if err := c.writeCondition(ctx, s.Name, condition); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("write condition of %s: %w", s.Name, err))
		}
	}
	return requeueAfter, errors.Join(errs...)
}

// mayWriteCondition records a write of a schema's condition and returns true, unless there were too many in the last minute.
func (c *Controller) mayWriteCondition(name string, now time.Time) bool {
	recent := slices.DeleteFunc(c.conditionWrites[name], func(at time.Time) bool { return now.Sub(at) > time.Minute })
	if c.conditionWrites[name] = recent; len(recent) >= maxConditionWrites {
		return false
	}
	c.conditionWrites[name] = append(recent, now)
	return true
}

// writeCondition writes a schema's condition by server-side apply, so that other conditions are kept.
func (c *Controller) writeCondition(ctx context.Context, name string, condition flowcontrolv1.FlowSchemaCondition) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": flowcontrolv1.SchemeGroupVersion.String(), "kind": "FlowSchema",
		"metadata": map[string]any{"name": name},
		"status":   map[string]any{"conditions": []flowcontrolv1.FlowSchemaCondition{condition}},
	})
	if err != nil {
		return err
	}
	_, err = c.schemas.Patch(ctx, "", name, client.RawPatch(client.ApplyPatch, patch),
		client.WriteOptions{FieldManager: consumerManager, Subresource: "status", Force: true})
	return err
}
