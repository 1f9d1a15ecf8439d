// Package managedfields keeps metadata.managedFields: which manager owns which field of an object. It is the record behind
// server-side apply.
//
// Apply itself is done by the library (k8s.io/apimachinery/pkg/util/managedfields over structured-merge-diff). All other
// writes happen far more often, and for them the result is simple: the fields a write adds or changes become the writer's, the
// fields it removes leave every manager. This package computes that result directly, in one walk over the old
// and the new object (compare.go) that follows a description of the Go type (descriptor.go), or of the schema of a custom resource
// (dynamic.go), and edits the entries without
// decoding them (fieldset.go). The result is the library's, byte for byte; a test compares both. Whatever the descriptors do not
// cover is left to the library. See docs/decisions/0010-hand-written.md for the reason and the figures.
//
// A server makes one Factory, one Resource for each kind in each served version, which returns the Manager of a write:
//
//	factory := managedfields.NewFactory(typeConverter, log)
//	resource := factory.Resource(kind, version)
//	manager, err := resource.Manager(subresource) // nil for the resource itself
//	manager.Update(live, next, "kubectl", now)
package managedfields

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"skiff/internal/kind"
)

// Factory makes the managers of all resources. They share the descriptors of the types they have in common.
type Factory struct {
	typeConverter func() (managedfields.TypeConverter, error)
	descriptors   descriptorCache
	log           *slog.Logger
}

// NewFactory makes a Factory. typeConverter returns the schemas of built-in kinds and is called when a manager is first needed; nil
// means that schemas are deduced from values.
func NewFactory(typeConverter func() (managedfields.TypeConverter, error), log *slog.Logger) *Factory {
	return &Factory{typeConverter: typeConverter, log: log}
}

// Resource keeps the managers of a kind in one served version. It is safe for concurrent use.
type Resource struct {
	factory *Factory
	kind    *kind.Kind
	version *kind.Version

	mu            sync.Mutex  // held while a manager is made
	bySubresource sync.Map    // name of the subresource → *Manager
	used          atomic.Bool // since the last call of DropUnused
}

// Resource returns the managers of a kind in one served version. Each is made when it is first needed: the schemas are large.
func (f *Factory) Resource(k *kind.Kind, v *kind.Version) *Resource {
	return &Resource{factory: f, kind: k, version: v}
}

// Manager returns the manager for writes to the resource (sub is nil) or to one of its subresources.
func (r *Resource) Manager(sub *kind.Subresource) (*Manager, error) {
	if !r.used.Load() {
		r.used.Store(true)
	}
	name := ""
	if sub != nil {
		name = sub.Name
	}
	if known, ok := r.bySubresource.Load(name); ok {
		return known.(*Manager), nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.bySubresource.Load(name); ok {
		return known.(*Manager), nil
	}
	e := endpoint{kind: r.kind, version: r.version, sub: sub, subresource: name}
	if sub != nil && sub.View != nil {
		e = viewEndpoint(r.version.GVK, sub)
	}
	m, err := r.factory.newManager(e)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s %s: %w", r.version.GVK.GroupVersion(), r.kind.Plural, err)
	}
	r.bySubresource.Store(name, m)
	return m, nil
}

// DropUnused drops the managers if none was used since the last call. They are made again when they are needed.
func (r *Resource) DropUnused() {
	if !r.used.Swap(false) {
		r.bySubresource.Clear()
	}
}

// endpoint is what a manager is made for.
type endpoint struct {
	kind        *kind.Kind
	version     *kind.Version
	sub         *kind.Subresource // nil for the resource itself and for views
	subresource string
}

// viewEndpoint treats a view (scale) as a kind of its own: the owners of its fields are recorded as those of such an object.
func viewEndpoint(parent schema.GroupVersionKind, sub *kind.Subresource) endpoint {
	gvk := sub.BodyGVK(parent)
	k := &kind.Kind{GVK: gvk, Plural: sub.Name, Versions: []kind.Version{{GVK: gvk}}, New: sub.NewBody}
	return endpoint{kind: k, version: &k.Versions[0], subresource: sub.Name}
}

// Manager keeps metadata.managedFields of one resource, or of one of its subresources, in one served version.
type Manager struct {
	apiVersion  string
	subresource string
	library     *managedfields.FieldManager
	// newLibrary makes a library whose conversions end when ctx is done; nil: they call no webhook.
	newLibrary func(ctx context.Context) (*managedfields.FieldManager, error)
	// descriptor describes the type; ownedDescriptor describes what a write through this endpoint can own. Both are nil when the type has no
	// descriptor; then structured-merge-diff does all the work.
	descriptor, ownedDescriptor *descriptor
	// dynamic and ownedDynamic are the same for custom resources.
	dynamic, ownedDynamic *dynamicDescriptor
	// convert returns a stored object in the version of the endpoint; nil for the storage version itself.
	convert func(kind.Object) (kind.Object, error)
}

func (f *Factory) newManager(e endpoint) (*Manager, error) {
	gvk := e.version.GVK
	converter, err := f.typeConverterOf(e.kind)
	if err != nil {
		return nil, err
	}
	sample := e.kind.NewObject(e.version)
	sample.GetObjectKind().SetGroupVersionKind(gvk)
	described, err := converter.ObjectToTyped(sample)
	if err != nil {
		// The schemas do not include this kind: deduce one from the values.
		converter = managedfields.NewDeducedTypeConverter()
		if described, err = converter.ObjectToTyped(sample); err != nil {
			return nil, err
		}
	}
	m := &Manager{apiVersion: gvk.GroupVersion().String(), subresource: e.subresource, convert: e.version.FromStorageVersion}
	_, dynamic := sample.(runtime.Unstructured)
	if !dynamic {
		if m.descriptor, err = f.descriptors.of(reflect.TypeOf(sample), described); err != nil {
			f.log.Warn("failed to describe type, managed fields are computed by the slower library", "kind", gvk.String(), "error", err)
			m.descriptor = nil
		}
	}
	reset := resetPaths(e.kind, e.sub, m.descriptor)
	if dynamic {
		m.describe(e, described, reset, f.log)
	}
	if m.descriptor != nil {
		m.ownedDescriptor = m.descriptor
		for _, path := range reset {
			m.ownedDescriptor = m.ownedDescriptor.without(path)
		}
	}
	newLibrary := managedfields.NewDefaultFieldManager
	if dynamic {
		newLibrary = managedfields.NewDefaultCRDFieldManager
	}
	hub := e.kind.GVK.GroupVersion()
	if e.kind.Custom != nil {
		hub = gvk.GroupVersion() // writes handle objects in the version of the request
	}
	filters := resetFilters(e.kind, reset)
	libraryFor := func(ctx context.Context) (*managedfields.FieldManager, error) {
		versions := versionConverter{ctx, e.kind}
		return newLibrary(converter, versions, versions, versions, gvk, hub, m.subresource, filters)
	}
	if e.kind.Custom != nil && e.kind.Custom.Webhook {
		m.newLibrary = libraryFor
	}
	m.library, err = libraryFor(context.Background())
	return m, err
}

// With returns the manager for one write: the calls of a conversion webhook end when ctx is done.
func (m *Manager) With(ctx context.Context) *Manager {
	if m.newLibrary == nil {
		return m
	}
	library, err := m.newLibrary(ctx)
	if err != nil {
		return m // it was made before without an error
	}
	bound := *m
	bound.library = library
	return &bound
}

// describe makes the descriptors of a custom resource. Those of a version without a status have no fields that cannot be owned.
func (m *Manager) describe(e endpoint, sample *typed.TypedValue, reset [][]string, log *slog.Logger) {
	described, err := newDynamicDescriptor(sample)
	if err != nil {
		log.Warn("failed to describe custom resource, managed fields are computed by the slower library", "kind", e.version.GVK.String(), "error", err)
		return
	}
	m.dynamic, m.ownedDynamic = described, described
	if e.kind.Custom != nil && !hasStatus(e.kind, e.version) {
		return
	}
	for _, path := range reset {
		m.ownedDynamic = m.ownedDynamic.ignoring(path)
	}
}

// fieldTree describes what entries can contain.
func (m *Manager) fieldTree() fieldTree {
	if m.dynamic != nil {
		return m.dynamic
	}
	return m.descriptor
}

// compare finds the fields in which two objects differ. It returns false where only the library can.
func (m *Manager) compare(c *comparer, before, after kind.Object) bool {
	if m.ownedDynamic == nil {
		c.compareObjects(m.ownedDescriptor, before, after)
		return !c.unsupported
	}
	live, isDynamic := before.(*unstructured.Unstructured)
	next, alsoDynamic := after.(*unstructured.Unstructured)
	if !isDynamic || !alsoDynamic {
		return false
	}
	c.compareDynamic(m.ownedDynamic, live.Object, next.Object)
	return !c.unsupported
}

// typeConverterOf returns the schemas of a kind: its own for custom resources, otherwise those of the built-in kinds.
func (f *Factory) typeConverterOf(k *kind.Kind) (managedfields.TypeConverter, error) {
	switch {
	case k.TypeConverter != nil:
		return k.TypeConverter()
	case f.typeConverter == nil:
		return managedfields.NewDeducedTypeConverter(), nil
	}
	return f.typeConverter()
}

// maxUpdaters is how many entries of plain writers are kept apart. From there on the library merges the oldest.
const maxUpdaters = 10

// Update sets next's managedFields for a write that is not an apply. live is the stored object, or an empty one on create; it is
// not changed. Both are in the storage version, or for a custom resource in the version of the request.
func (m *Manager) Update(live, next kind.Object, manager string, now time.Time) {
	if (m.ownedDescriptor != nil || m.ownedDynamic != nil) && m.updateFast(live, next, manager, now) {
		return
	}
	m.updateWithLibrary(live, next, manager)
}

func (m *Manager) updateWithLibrary(live, next kind.Object, manager string) {
	live = live.DeepCopyObject().(kind.Object)
	m.library.UpdateNoErrors(live, next, manager)
	kind.ClearType(next)
}

var comparers = sync.Pool{New: func() any { return new(comparer) }}

// updateFast computes managedFields from the descriptors. It returns false and changes nothing when the library must decide.
func (m *Manager) updateFast(live, next kind.Object, manager string, now time.Time) bool {
	entries := live.GetManagedFields()
	if m.subresource == "" {
		switch sent := next.GetManagedFields(); {
		case isReset(sent):
			entries = nil
		case len(sent) > 0 && !EqualEntries(sent, entries):
			return false
		}
	}
	if len(entries) == 0 && live.GetUID() != "" {
		next.SetManagedFields(nil)
		return true
	}
	updaters := 0
	for i := range entries {
		e := &entries[i]
		if e.APIVersion != m.apiVersion || e.FieldsType != "FieldsV1" || e.FieldsV1 == nil {
			return false
		}
		if e.Operation != metav1.ManagedFieldsOperationApply {
			updaters++
		}
	}
	if updaters >= maxUpdaters {
		return false
	}
	before, after := live, next
	if m.convert != nil {
		var err error
		if before, err = m.convert(live); err != nil {
			return false
		}
		if after, err = m.convert(next); err != nil {
			return false
		}
	}
	c := comparers.Get().(*comparer)
	defer comparers.Put(c)
	if !m.compare(c, before, after) {
		return false
	}
	merged, ok := m.merge(c, entries, manager, now)
	if ok {
		next.SetManagedFields(merged)
	}
	return ok
}

// Apply merges an applied configuration into the live object and returns the merged one, in the storage version. live is
// an empty object when there is none yet.
func (m *Manager) Apply(live kind.Object, applied *unstructured.Unstructured, manager string, force bool) (kind.Object, error) {
	merged, err := m.library.Apply(live.DeepCopyObject(), applied, manager, force)
	if err != nil {
		return nil, err
	}
	obj, ok := merged.(kind.Object)
	if !ok {
		return nil, fmt.Errorf("%T is not an object", merged)
	}
	kind.ClearType(obj)
	return obj, nil
}
