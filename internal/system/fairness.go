package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api"
	"skiff/internal/api/flowcontrol"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/kind"
)

// The steps of starting that have to do with fairness, and the names under which they write objects.
const (
	stepProducer     = "priority-and-fairness-config-producer"
	stepConsumer     = "priority-and-fairness-config-consumer"
	fairnessProducer = "api-priority-and-fairness-config-producer-v1"
	fairnessConsumer = "api-priority-and-fairness-config-consumer-v1"
)

const (
	// ensureInterval is how often the server's own flow schemas and priority levels are put right.
	ensureInterval = time.Minute
	// fairnessRetry is how long after a failure it is tried again.
	fairnessRetry = time.Second
	// conditionWrites is how often the condition of one schema is written in a minute at most: another server may see it otherwise.
	conditionWrites = 6
)

// newFairness makes what gives requests their turns, or nil when they are only to be counted.
func newFairness(l config.Limits) *fairness.Fairness {
	if !l.PriorityAndFairness {
		return nil
	}
	return fairness.New(l.MaxRequestsInflight + l.MaxMutatingRequestsInflight)
}

// fairnessSteps are the steps that the server's start takes for fairness.
func fairnessSteps(f *fairness.Fairness) []string {
	if f == nil {
		return []string{stepProducer}
	}
	return []string{stepProducer, stepConsumer}
}

// flowControl keeps the objects of fairness as they should be, and fairness as the objects say.
type flowControl struct {
	fairness *fairness.Fairness // nil: only the objects are kept
	local    *apiserver.Local
	schemas  client.Resource[*flowcontrolv1.FlowSchema]
	levels   client.Resource[*flowcontrolv1.PriorityLevelConfiguration]
	log      *slog.Logger
	started  *steps
	written  map[string][]time.Time // conditions, by schema
}

// runFlowControl keeps both until ctx ends. The cache must be ready.
func runFlowControl(ctx context.Context, server *apiserver.Server, f *fairness.Fairness, started *steps, log *slog.Logger) error {
	local := server.Local(gatekeeper)
	c, err := client.NewLocal(local, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		return err
	}
	control := &flowControl{
		fairness: f, local: local, started: started, log: log.With("part", "fairness"), written: map[string][]time.Time{},
		schemas: client.For[*flowcontrolv1.FlowSchema](c), levels: client.For[*flowcontrolv1.PriorityLevelConfiguration](c),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { control.keep(ctx, sync.OnceFunc(func() { started.done(stepProducer) })); return nil })
	if f != nil {
		group.Go(func() error { return f.Run(ctx) })
		group.Go(func() error { return control.follow(ctx, func() { started.done(stepConsumer) }) })
	}
	return group.Wait()
}

// keep puts the server's own objects right, now and again. done is called whenever that has succeeded.
func (f *flowControl) keep(ctx context.Context, done func()) {
	for {
		err, wait := f.ensure(ctx), ensureInterval
		if err == nil {
			done()
		}
		if err != nil && ctx.Err() == nil {
			f.log.Warn("the server's own flow schemas and priority levels are not as they should be", "error", err)
			wait = fairnessRetry
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// sleep reports false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// ensure creates the server's own objects, repairs them as far as they are the server's to change, and deletes those that a
// former version had.
func (f *flowControl) ensure(ctx context.Context) error {
	mandatory, suggested := flowcontrol.Mandatory(), flowcontrol.Suggested()
	levels, levelNames := errgroup.Group{}, map[string]bool{}
	for i, l := range slices.Concat(mandatory.PriorityLevels, suggested.PriorityLevels) {
		levelNames[l.Name] = true
		levels.Go(func() error {
			return ensureOwn(ctx, f.levels, l, i < len(mandatory.PriorityLevels), flowcontrol.RevisePriorityLevel)
		})
	}
	if err := levels.Wait(); err != nil {
		return err
	}
	schemas, schemaNames := errgroup.Group{}, map[string]bool{}
	for i, s := range slices.Concat(mandatory.FlowSchemas, suggested.FlowSchemas) {
		schemaNames[s.Name] = true
		schemas.Go(func() error {
			return ensureOwn(ctx, f.schemas, s, i < len(mandatory.FlowSchemas), flowcontrol.ReviseFlowSchema)
		})
	}
	if err := schemas.Wait(); err != nil {
		return err
	}
	return errors.Join(removeOutdated(ctx, f.schemas, schemaNames), removeOutdated(ctx, f.levels, levelNames))
}

// ensureOwn creates an object, or makes it what it should be. Whoever was faster is right until the next time.
func ensureOwn[T kind.Object](ctx context.Context, resource client.Resource[T], wanted T, mandatory bool, revise func(current, wanted T, mandatory bool) (T, bool)) error {
	options := client.WriteOptions{FieldManager: fairnessProducer}
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
	revised, needed := revise(current, wanted, mandatory)
	if !needed {
		return nil
	}
	if _, err := resource.Update(ctx, revised, options); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update %s: %w", wanted.GetName(), err)
	}
	return nil
}

// removeOutdated deletes what the server made once and has no use for any more.
func removeOutdated[T kind.Object](ctx context.Context, resource client.Resource[T], wanted map[string]bool) error {
	objs, _, err := resource.List(ctx, "", client.Selector{})
	if err != nil {
		return err
	}
	for _, obj := range objs {
		if wanted[obj.GetName()] || !flowcontrol.Outdated(obj) {
			continue
		}
		if err := resource.Delete(ctx, "", obj.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", obj.GetName(), err)
		}
	}
	return nil
}

// follow makes fairness obey the objects whenever they change. done is called when it does for the first time.
func (f *flowControl) follow(ctx context.Context, done func()) error {
	changed := make(chan struct{}, 1)
	group, ctx := errgroup.WithContext(ctx)
	for _, resource := range []string{"flowschemas", "prioritylevelconfigurations"} {
		group.Go(func() error {
			return f.notice(ctx, flowcontrolv1.SchemeGroupVersion.WithResource(resource), changed)
		})
	}
	group.Go(func() error {
		// Conditions can wait; the server's start cannot.
		if _, _, err := f.configure(ctx); err != nil {
			return err
		}
		done()
		if !f.started.wait(ctx) {
			return nil
		}
		for {
			again, err := f.obey(ctx)
			if err != nil && ctx.Err() == nil {
				f.log.Warn("the conditions of flow schemas could not be written", "error", err)
				again = fairnessRetry
			}
			var later <-chan time.Time
			if again > 0 {
				later = time.After(again)
			}
			select {
			case <-changed:
			case <-later:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}

// notice tells of every change of a resource until ctx ends; several may be told as one.
func (f *flowControl) notice(ctx context.Context, resource schema.GroupVersionResource, changed chan<- struct{}) error {
	for ctx.Err() == nil {
		w, err := f.local.Watch(ctx, resource, "", &internalversion.ListOptions{SendInitialEvents: new(true)})
		if err != nil {
			return fmt.Errorf("watch %s for fairness: %w", resource.Resource, err)
		}
		for range w.ResultChan() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

// configure gives fairness the objects as they are.
func (f *flowControl) configure(ctx context.Context) (levels []*flowcontrolv1.PriorityLevelConfiguration, schemas []*flowcontrolv1.FlowSchema, err error) {
	if levels, _, err = f.levels.List(ctx, "", client.Selector{}); err != nil {
		return nil, nil, err
	}
	if schemas, _, err = f.schemas.List(ctx, "", client.Selector{}); err != nil {
		return nil, nil, err
	}
	f.fairness.Configure(levels, schemas)
	return levels, schemas, nil
}

// obey gives fairness the objects as they are and writes into the schemas whether their levels exist. It says when it should be
// called again though nothing changes; zero means not at all.
func (f *flowControl) obey(ctx context.Context) (again time.Duration, err error) {
	levels, schemas, err := f.configure(ctx)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	var errs []error
	for _, s := range schemas {
		condition, needed := fairness.Dangling(s, levels, now)
		if !needed {
			continue
		}
		if !f.mayWrite(s.Name, now) {
			again = ensureInterval
			continue
		}
		if err := f.apply(ctx, s.Name, condition); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("condition of %s: %w", s.Name, err))
		}
	}
	return again, errors.Join(errs...)
}

// mayWrite counts a write of a schema's condition, unless there were too many in the last minute.
func (f *flowControl) mayWrite(name string, now time.Time) bool {
	recent := slices.DeleteFunc(f.written[name], func(at time.Time) bool { return now.Sub(at) > time.Minute })
	if f.written[name] = recent; len(recent) >= conditionWrites {
		return false
	}
	f.written[name] = append(recent, now)
	return true
}

// apply writes the condition, whoever wrote it before, and leaves other conditions alone.
func (f *flowControl) apply(ctx context.Context, name string, condition flowcontrolv1.FlowSchemaCondition) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": flowcontrolv1.SchemeGroupVersion.String(), "kind": "FlowSchema",
		"metadata": map[string]any{"name": name},
		"status":   map[string]any{"conditions": []flowcontrolv1.FlowSchemaCondition{condition}},
	})
	if err != nil {
		return err
	}
	_, err = f.schemas.Patch(ctx, "", name, client.RawPatch(client.ApplyPatch, patch),
		client.WriteOptions{FieldManager: fairnessConsumer, Subresource: "status", Force: true})
	return err
}
