package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"skiff/internal/client"
	"skiff/internal/controller"
)

type migration = storagemigrationv1.StorageVersionMigration

const (
	migratorName = "storage-version-migrator-controller"
	// byResource is the index of migrations by their resource.
	byResource = "resource"
	// unknownResourceWait is how long a migration waits for its resource to be served.
	unknownResourceWait = time.Minute
	// definitionWait is how long a migration of a custom resource waits, so that other API servers that share the store have its definition. It is
	// the time that a definition needs to be established.
	definitionWait = 5 * time.Second
)

// migrationVerbs are the verbs that a resource must have to be migrated.
var migrationVerbs = []string{"update", "patch", "list"}

// StorageVersionMigrator rewrites all objects of a resource, so that they are stored in the current version and with the current encryption
// key. Its keys are resources: the migrations of one resource run one after another, the oldest first.
var StorageVersionMigrator = controller.Definition{
	Name: migratorName, Aliases: []string{"svm"}, Queue: migratorName, Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		metadataClient, err := newMetadataClient(s.Client.Config)
		if err != nil {
			return nil, err
		}
		m := &migrator{
			metadataClient: metadataClient, setup: s,
			migrations: client.For[*migration](s.Client), informer: client.InformerFor[*migration](s.Informers),
		}
		return m, errors.Join(
			m.informer.AddIndex(byResource, func(obj *migration) []string { return []string{resourceKey(obj).Name} }),
			m.informer.AddEventHandler(m.enqueue, func(old, obj *migration) {
				// A message that was written does not cause the next attempt: the text of a transient error may differ each time.
				if migrationPhaseOf(old) != migrationPhaseOf(obj) {
					m.enqueue(obj)
				}
			}, m.enqueue))
	},
}

// migrationPhase is what decides about the next step of a migration.
type migrationPhase struct {
	running, succeeded, failed bool
	resourceVersion            string
}

func migrationPhaseOf(obj *migration) migrationPhase {
	return migrationPhase{
		running: hasCondition(obj, storagemigrationv1.MigrationRunning), succeeded: hasCondition(obj, storagemigrationv1.MigrationSucceeded),
		failed: hasCondition(obj, storagemigrationv1.MigrationFailed), resourceVersion: obj.Status.ResourceVersion,
	}
}

// resourceKey is the key of the resource of a migration.
func resourceKey(obj *migration) controller.Key {
	return controller.Key{Name: schema.GroupResource(obj.Spec.Resource).String()}
}

type migrator struct {
	*metadataClient
	setup      *controller.Setup
	migrations client.Resource[*migration]
	informer   client.Informer[*migration]
}

func (m *migrator) enqueue(obj *migration) { m.setup.Enqueue(resourceKey(obj)) }

// Sync finishes the migrations of a resource that have ended, and runs the next one.
func (m *migrator) Sync(ctx context.Context, key controller.Key) error {
	all, err := m.informer.ByIndex(byResource, key.Name)
	if err != nil {
		return fmt.Errorf("migrations of %s: %w", key.Name, err)
	}
	ended, next := selectMigrations(all)
	for _, obj := range ended {
		if err := m.finish(ctx, obj.DeepCopy()); err != nil {
			return err
		}
	}
	if next == nil {
		return nil
	}
	current := next.DeepCopy()
	switch {
	case !hasCondition(current, storagemigrationv1.MigrationRunning):
		return m.start(ctx, current)
	case current.Status.ResourceVersion == "":
		return m.setResourceVersion(ctx, current)
	}
	return m.migrate(ctx, current)
}

// selectMigrations returns the migrations that have ended and are still marked as running, and the one to run: the one that is running, or the
// oldest of those that wait.
func selectMigrations(all []*migration) (ended []*migration, next *migration) {
	var waiting []*migration
	for _, obj := range all {
		running := hasCondition(obj, storagemigrationv1.MigrationRunning)
		switch over := hasCondition(obj, storagemigrationv1.MigrationSucceeded) || hasCondition(obj, storagemigrationv1.MigrationFailed); {
		case over && running:
			ended = append(ended, obj)
		case over:
		case running:
			next = obj
		default:
			waiting = append(waiting, obj)
		}
	}
	if next == nil && len(waiting) > 0 {
		next = slices.MinFunc(waiting, func(a, b *migration) int {
			if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
				return order
			}
			return strings.Compare(a.Name, b.Name)
		})
	}
	return ended, next
}

func hasCondition(obj *migration, condition storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(obj.Status.Conditions, string(condition))
}

// setCondition sets a condition to true.
func setCondition(obj *migration, condition storagemigrationv1.MigrationConditionType, reason, message string) {
	meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{Type: string(condition), Status: metav1.ConditionTrue, Reason: reason, Message: message})
}

func (m *migrator) write(ctx context.Context, obj *migration) error {
	written, err := m.migrations.UpdateStatus(ctx, obj)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update status of migration %s: %w", obj.Name, err)
	}
	m.setup.RecordWrite(resourceKey(obj), written)
	return nil
}

// start marks a migration and the definition of its resource as running.
func (m *migrator) start(ctx context.Context, obj *migration) error {
	if err := m.markDefinition(ctx, obj); err != nil {
		return err
	}
	setRunning(obj, progress{}, nil)
	return m.write(ctx, obj)
}

// finish marks a migration and the definition of its resource as no longer running.
func (m *migrator) finish(ctx context.Context, obj *migration) error {
	if err := m.unmarkDefinition(ctx, obj); err != nil {
		return err
	}
	meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
		Type: string(storagemigrationv1.MigrationRunning), Status: metav1.ConditionFalse, ObservedGeneration: obj.Generation,
		Reason: "MigrationCompleted", Message: "Migration completed",
	})
	return m.write(ctx, obj)
}

// fail ends a migration.
func (m *migrator) fail(ctx context.Context, obj *migration, message string) error {
	setCondition(obj, storagemigrationv1.MigrationFailed, "StorageVersionMigrationFailed", message)
	return m.write(ctx, obj)
}

// setResourceVersion records the revision from which on all writes use the current version. Objects of later revisions need no migration.
func (m *migrator) setResourceVersion(ctx context.Context, obj *migration) error {
	r, err := m.find(ctx, obj)
	switch {
	case err != nil:
		return err
	case r == nil:
		return m.fail(ctx, obj, "resource does not exist in discovery")
	case !r.can(migrationVerbs...):
		return m.fail(ctx, obj, fmt.Sprintf("resource %q does not support discovery operations: %v", r.GroupVersionResource.String(), migrationVerbs))
	}
	if served, err := m.servesDefinition(ctx, obj, r); !served {
		return err
	}
	list, err := m.in(r.GroupVersionResource, "").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("error getting latest resourceVersion for %s: %w", r.GroupVersionResource, err)
	}
	if _, err := resourceversion.CompareResourceVersion(list.ResourceVersion, list.ResourceVersion); err != nil {
		return m.fail(ctx, obj, fmt.Sprintf("latest resourceVersion for %s is not valid: %v", r.GroupVersionResource, err))
	}
	obj.Status.ResourceVersion = list.ResourceVersion
	return m.write(ctx, obj)
}

// find discovers the resource of a migration. It returns nil if nobody serves it; a new one may not be served yet.
func (m *migrator) find(ctx context.Context, obj *migration) (*resource, error) {
	all, err := m.resources(ctx)
	gr := schema.GroupResource(obj.Spec.Resource)
	if i := slices.IndexFunc(all, func(r resource) bool { return r.GroupResource() == gr }); i >= 0 {
		return &all[i], nil
	}
	if err != nil {
		return nil, fmt.Errorf("discover %s: %w", gr, err)
	}
	if time.Since(obj.CreationTimestamp.Time) < unknownResourceWait {
		return nil, fmt.Errorf("%s is not served yet", gr)
	}
	return nil, nil
}

// progress is how far a migration is.
type progress struct{ total, remaining int }

// setRunning describes a migration that is running.
func setRunning(obj *migration, p progress, transient error) {
	message := "The migration is running"
	switch {
	case p.total > 0 && p.remaining > 0:
		message += fmt.Sprintf(", %d/%d objects not yet migrated", p.remaining, p.total)
	case p.total > 0:
		message += fmt.Sprintf(", %d objects verified migrated", p.total)
	}
	if transient != nil {
		message += fmt.Sprintf("; transient error: %s", transient)
	}
	setCondition(obj, storagemigrationv1.MigrationRunning, "MigrationRunning", message)
}

// storedObject identifies one state of an object.
type storedObject struct{ namespace, name, resourceVersion string }

// migrate writes every object that has not been written since the migration began. The write changes nothing but the encoding. A migration
// that was interrupted goes on with the objects that are left.
func (m *migrator) migrate(ctx context.Context, obj *migration) error {
	r, err := m.find(ctx, obj)
	if err != nil {
		return err
	}
	if r == nil {
		return m.fail(ctx, obj, "migration encountered unhandled error: unable to obtain GVR from discovery")
	}
	objects, total, err := m.outdated(ctx, r.GroupVersionResource, obj.Status.ResourceVersion)
	var invalid *invalidVersionError
	if errors.As(err, &invalid) {
		return m.fail(ctx, obj, "migration encountered unhandled error: "+invalid.Error())
	}
	if err != nil {
		return err
	}
	p := progress{total: total, remaining: len(objects)}
	for _, one := range objects {
		switch err := m.rewrite(ctx, r, one); {
		case ctx.Err() != nil:
			return ctx.Err()
		case isTransient(err):
			setRunning(obj, p, err)
			return errors.Join(err, m.write(ctx, obj))
		case err != nil:
			setRunning(obj, p, nil)
			return m.fail(ctx, obj, fmt.Sprintf("%d/%d not yet migrated. migration encountered unhandled error: %s", p.remaining, p.total, err))
		}
		p.remaining--
	}
	setRunning(obj, p, nil)
	setCondition(obj, storagemigrationv1.MigrationSucceeded, "StorageVersionMigrationSucceeded", "Migration completed")
	return m.write(ctx, obj)
}

// invalidVersionError: the resource versions of a resource have no order.
type invalidVersionError struct{ err error }

func (e *invalidVersionError) Error() string { return e.err.Error() }

// outdated lists the objects that have not been written since a revision, and counts all.
func (m *migrator) outdated(ctx context.Context, gvr schema.GroupVersionResource, since string) (objects []storedObject, total int, err error) {
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := m.in(gvr, "").List(ctx, options)
		if err != nil {
			return nil, 0, fmt.Errorf("list %s: %w", gvr, err)
		}
		total += len(page.Items)
		for i := range page.Items {
			item := &page.Items[i]
			order, err := resourceversion.CompareResourceVersion(item.ResourceVersion, since)
			if err != nil {
				return nil, 0, &invalidVersionError{err}
			}
			if order <= 0 {
				objects = append(objects, storedObject{item.Namespace, item.Name, item.ResourceVersion})
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return objects, total, nil
		}
	}
}

// rewrite writes an object as it is. One that was changed, deleted or replaced meanwhile needs no migration.
func (m *migrator) rewrite(ctx context.Context, r *resource, one storedObject) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": r.GroupVersion().String(), "kind": r.kind, "metadata": map[string]string{"resourceVersion": one.resourceVersion},
	})
	if err != nil {
		return err
	}
	_, err = m.in(r.GroupVersionResource, one.namespace).Patch(ctx, one.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: migratorName})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// isTransient reports whether a write may succeed later.
func isTransient(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}
