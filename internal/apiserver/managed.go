package apiserver

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"skiff/internal/kind"
)

// fieldManager keeps metadata.managedFields of one resource, or of one of its subresources, in one served version.
//
// Applying is the library's work. All other writes come here far more often, and for them the outcome is plain: the
// fields a write adds or changes become the writer's, those it removes leave everybody. For types with a fieldPlan that
// is computed directly; the result is the library's to the byte, and what the plan does not cover goes to the library.
type fieldManager struct {
	apiVersion  string
	subresource string
	library     *managedfields.FieldManager
	// whole is the plan of the type; owned is the plan of what a write through this endpoint can own. nil: no plan.
	whole, owned *fieldPlan
	// convert shows stored objects in the version of the endpoint; nil for the stored version itself.
	convert func(kind.Object) (kind.Object, error)
}

// maxUpdaters is how many entries of plain writers are kept apart; beyond it the library merges the oldest.
const maxUpdaters = 10

// fieldManagers makes the managers of a resource when they are first needed: the schemas behind them are large.
type fieldManagers struct {
	mu    sync.Mutex // held while one is made
	bySub sync.Map   // name of the subresource → *fieldManager
}

// fieldManager returns the manager for writes to the resource, or to a part of it.
func (s *Server) fieldManager(res *resource, sub *kind.Subresource) (*fieldManager, error) {
	name := ""
	if sub != nil {
		name = sub.Name
	}
	m := &res.managers
	if known, ok := m.bySub.Load(name); ok {
		return known.(*fieldManager), nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.bySub.Load(name); ok {
		return known.(*fieldManager), nil
	}
	var made *fieldManager
	var err error
	if sub != nil && sub.View != nil {
		made, err = s.newFieldManager(viewResource(res, sub), nil, name)
	} else {
		made, err = s.newFieldManager(res, sub, name)
	}
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", res.gvr, err)
	}
	m.bySub.Store(name, made)
	return made, nil
}

// viewResource makes a resource of a view: its owners are kept as those of an object of its own kind.
func viewResource(res *resource, sub *kind.Subresource) *resource {
	gvk := bodyKind(res, sub)
	k := &kind.Kind{GVK: gvk, Plural: sub.Name, Versions: []kind.Version{{GVK: gvk}}, New: sub.NewBody}
	return &resource{kind: k, version: &k.Versions[0], gvk: gvk, gvr: gvk.GroupVersion().WithResource(sub.Name)}
}

func (s *Server) newFieldManager(res *resource, sub *kind.Subresource, name string) (*fieldManager, error) {
	converter, err := s.typeConverter(res)
	if err != nil {
		return nil, err
	}
	m := &fieldManager{apiVersion: res.gvk.GroupVersion().String(), subresource: name}
	sample := res.newObject()
	sample.GetObjectKind().SetGroupVersionKind(res.gvk)
	typed, err := converter.ObjectToTyped(sample)
	if err != nil {
		// A kind without a schema is merged by what its values show.
		converter = managedfields.NewDeducedTypeConverter()
		if typed, err = converter.ObjectToTyped(sample); err != nil {
			return nil, err
		}
	}
	_, dynamic := sample.(runtime.Unstructured)
	var reset [][]string
	var whole *fieldPlan
	if dynamic {
		reset = resetPaths(res.kind, sub, nil)
	} else if whole, err = s.plans.of(reflect.TypeOf(sample), typed); err == nil {
		reset = resetPaths(res.kind, sub, whole)
	} else {
		s.log.Warn("managed fields take the slow road", "resource", res.gvr.String(), "reason", err)
		reset = resetPaths(res.kind, sub, nil)
	}
	m.convert = res.version.FromStored
	if whole != nil {
		m.whole, m.owned = whole, whole
		for _, path := range reset {
			m.owned = m.owned.without(path)
		}
	}
	versions := versionConverter{res: res}
	make := managedfields.NewDefaultFieldManager
	if dynamic {
		make = managedfields.NewDefaultCRDFieldManager
	}
	m.library, err = make(converter, versions, versions, versions, res.gvk, res.kind.GVK.GroupVersion(), m.subresource, resetFilters(res.kind, reset))
	return m, err
}

// typeConverter knows the schema of a resource: the kind's own for custom resources, else the server's.
func (s *Server) typeConverter(res *resource) (managedfields.TypeConverter, error) {
	if res.kind.TypeConverter != nil {
		return res.kind.TypeConverter()
	}
	if s.config.TypeConverter == nil {
		return managedfields.NewDeducedTypeConverter(), nil
	}
	return s.config.TypeConverter()
}

// resetPaths are the fields a write through an endpoint cannot change, and so cannot own: the status for a write of the
// whole, everything but its part for a write of a part.
func resetPaths(k *kind.Kind, sub *kind.Subresource, plan *fieldPlan) [][]string {
	if sub == nil || sub.Update == nil {
		if k.Status != nil {
			return [][]string{{"status"}}
		}
		return nil
	}
	var reset [][]string
	if !sub.Update.UpdatesMetadata {
		reset = append(reset, []string{"metadata"})
	}
	owned := sub.Update.OwnedFields
	if len(owned) == 0 {
		owned = []string{sub.Name}
	}
	return append(reset, othersThan(owned, nil, topLevel(plan), plan)...)
}

// topLevel are the fields of an object besides its metadata. Without a plan they are those that objects usually have.
func topLevel(plan *fieldPlan) []string {
	if plan == nil {
		return []string{"spec", "status"}
	}
	return slices.DeleteFunc(plan.names(), func(name string) bool { return name == "metadata" })
}

// othersThan are the siblings of the owned dotted paths at every level.
func othersThan(owned []string, at, names []string, plan *fieldPlan) [][]string {
	var others [][]string
	prefix := strings.Join(append(slices.Clone(at), ""), ".")
	for _, name := range names {
		path := append(slices.Clone(at), name)
		dotted := prefix + name
		whole := slices.Contains(owned, dotted)
		part := slices.ContainsFunc(owned, func(o string) bool { return strings.HasPrefix(o, dotted+".") })
		switch {
		case whole:
		case !part:
			others = append(others, path)
		case plan != nil:
			if below := plan.at(path); below != nil {
				others = append(others, othersThan(owned, path, below.names(), plan)...)
			}
		}
	}
	return others
}

func resetFilters(k *kind.Kind, reset [][]string) map[fieldpath.APIVersion]fieldpath.Filter {
	if len(reset) == 0 {
		return nil
	}
	set := fieldpath.NewSet()
	for _, path := range reset {
		var p fieldpath.Path
		for _, name := range path {
			p = append(p, fieldpath.FieldNameElement(name))
		}
		set.Insert(p)
	}
	filters := make(map[fieldpath.APIVersion]fieldpath.Filter)
	for _, v := range k.Versions {
		filters[fieldpath.APIVersion(v.GVK.GroupVersion().String())] = fieldpath.NewExcludeSetFilter(set)
	}
	return filters
}

// update sets next's managedFields after a write that is not an apply. live is the stored object, or an empty one on
// create; it is not changed. Both are in the stored version.
func (m *fieldManager) update(live, next kind.Object, manager string, now time.Time) {
	if m.owned != nil && m.updateByPlan(live, next, manager, now) {
		return
	}
	m.updateByLibrary(live, next, manager)
}

func (m *fieldManager) updateByLibrary(live, next kind.Object, manager string) {
	live = live.DeepCopyObject().(kind.Object)
	m.library.UpdateNoErrors(live, next, manager)
	clearType(next)
}

// clearType leaves typed objects without their kind, as they are stored.
func clearType(obj kind.Object) {
	if _, dynamic := obj.(runtime.Unstructured); !dynamic {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
}

var fieldWalks = sync.Pool{New: func() any { return new(fieldWalk) }}

// updateByPlan returns false, having changed nothing, when the library must decide.
func (m *fieldManager) updateByPlan(live, next kind.Object, manager string, now time.Time) bool {
	entries := live.GetManagedFields()
	if m.subresource == "" {
		switch sent := next.GetManagedFields(); {
		case isReset(sent):
			entries = nil
		case len(sent) > 0 && !sameEntries(sent, entries):
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
	walk := fieldWalks.Get().(*fieldWalk)
	defer fieldWalks.Put(walk)
	walk.compareObjects(m.owned, before, after)
	if walk.beyond {
		return false
	}
	taken, removed := walk.taken.take(0), walk.removed.take(0)
	merged, ok := m.merge(&walk.parser, entries, taken, removed, manager, now)
	if ok {
		next.SetManagedFields(merged)
	}
	return ok
}

// merge takes the removed and the taken fields from everybody and gives the taken ones to the manager.
func (m *fieldManager) merge(parser *fieldParser, entries []metav1.ManagedFieldsEntry, taken, removed []fieldNode, manager string, now time.Time) ([]metav1.ManagedFieldsEntry, bool) {
	if len(taken) == 0 && len(removed) == 0 {
		return slices.Clone(entries), true
	}
	if manager == "" {
		manager = "unknown"
	}
	own := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: m.apiVersion,
		Subresource: m.subresource, FieldsType: "FieldsV1",
	}
	out := make([]metav1.ManagedFieldsEntry, 0, len(entries)+1)
	mine := taken
	for i := range entries {
		e := entries[i]
		fields, ok := parser.parse(e.FieldsV1.GetRawString(), m.whole)
		if !ok || slices.ContainsFunc(entries[:i], func(o metav1.ManagedFieldsEntry) bool { return sameManager(&o, &e) }) {
			return nil, false
		}
		if sameManager(&e, &own) && len(taken) > 0 {
			mine = uniteFields(subtractFields(fields, removed), taken)
			continue
		}
		size := countMembers(fields)
		fields = subtractFields(subtractFields(fields, removed), taken)
		if len(fields) == 0 {
			continue
		}
		if countMembers(fields) != size {
			e.FieldsV1 = encodeFields(fields)
		}
		out = append(out, e)
	}
	if len(mine) > 0 {
		own.Time = &metav1.Time{Time: now.UTC()}
		own.FieldsV1 = encodeFields(mine)
		out = append(out, own)
	}
	if len(out) == 0 {
		return nil, true
	}
	slices.SortStableFunc(out, compareEntries)
	return out, true
}

func encodeFields(nodes []fieldNode) *metav1.FieldsV1 {
	raw := appendFields(make([]byte, 0, fieldsSize(nodes)), nodes, false)
	fields := &metav1.FieldsV1{}
	fields.SetRawBytes(raw)
	return fields
}

func countMembers(nodes []fieldNode) int {
	n := 0
	for i := range nodes {
		if nodes[i].member {
			n++
		}
		n += countMembers(nodes[i].children)
	}
	return n
}

// sameManager reports whether two entries are one manager's. An applier is one whatever version it applies in.
func sameManager(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.Subresource == b.Subresource &&
		(a.APIVersion == b.APIVersion || a.Operation == metav1.ManagedFieldsOperationApply)
}

func compareEntries(a, b metav1.ManagedFieldsEntry) int {
	return cmp.Or(
		cmp.Compare(a.Operation, b.Operation),
		cmp.Compare(entrySeconds(&a), entrySeconds(&b)),
		cmp.Compare(a.Manager, b.Manager),
		cmp.Compare(a.APIVersion, b.APIVersion),
		cmp.Compare(a.Subresource, b.Subresource),
	)
}

func entrySeconds(e *metav1.ManagedFieldsEntry) int64 {
	if e.Time == nil {
		return 0
	}
	return e.Time.Unix()
}

// isReset: a client sends an empty list, or a list of one empty entry, to have nobody own anything.
func isReset(entries []metav1.ManagedFieldsEntry) bool {
	switch len(entries) {
	case 0:
		return entries != nil
	case 1:
		return reflect.DeepEqual(entries[0], metav1.ManagedFieldsEntry{})
	}
	return false
}

// sameEntries: clients that read, change and write back send what they got.
func sameEntries(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.ManagedFieldsEntry) bool {
		return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion &&
			a.Subresource == b.Subresource && a.FieldsType == b.FieldsType && entrySeconds(&a) == entrySeconds(&b) &&
			(a.Time == nil) == (b.Time == nil) &&
			(a.FieldsV1 == nil) == (b.FieldsV1 == nil) &&
			(a.FieldsV1 == nil || a.FieldsV1.Equal(*b.FieldsV1))
	})
}

// apply merges an applied configuration into the live object and returns the merged one, in the stored version. live is
// an empty object when there is none yet.
func (m *fieldManager) apply(live kind.Object, applied *unstructured.Unstructured, manager string, force bool) (kind.Object, error) {
	merged, err := m.library.Apply(live.DeepCopyObject(), applied, manager, force)
	if err != nil {
		return nil, err
	}
	obj, ok := merged.(kind.Object)
	if !ok {
		return nil, fmt.Errorf("%T is not an object", merged)
	}
	clearType(obj)
	return obj, nil
}

// managerName is who a plain write is recorded under: the fieldManager parameter, or what the client calls itself.
func managerName(option, userAgent string) string {
	if option != "" {
		return option
	}
	agent, _, _ := strings.Cut(userAgent, "/")
	plain := true
	for i := range len(agent) {
		if agent[i] < 0x20 || agent[i] >= 0x7f {
			plain = false
			break
		}
	}
	if plain && len(agent) <= validation.FieldManagerMaxLength {
		return agent
	}
	var name strings.Builder
	for _, r := range agent {
		if !unicode.IsPrint(r) {
			continue
		}
		if name.Len()+utf8.RuneLen(r) > validation.FieldManagerMaxLength {
			break
		}
		name.WriteRune(r)
	}
	return name.String()
}

// versionConverter is how the library sees the versions of a resource.
type versionConverter struct {
	res *resource
}

// versionOf finds the version an object is in: by what it says it is, or by its Go type when it says nothing.
func (c versionConverter) versionOf(obj runtime.Object) (*kind.Version, error) {
	k := c.res.kind
	gvk := obj.GetObjectKind().GroupVersionKind()
	for i := range k.Versions {
		v := &k.Versions[i]
		if gvk.Empty() {
			if reflect.TypeOf(c.empty(v)) == reflect.TypeOf(obj) {
				return v, nil
			}
		} else if v.GVK == gvk {
			return v, nil
		}
	}
	if gvk.Empty() || gvk == k.GVK {
		return &kind.Version{GVK: k.GVK}, nil
	}
	return nil, runtime.NewNotRegisteredErrForKind(k.Plural, gvk)
}

func (c versionConverter) empty(v *kind.Version) kind.Object {
	if v.New != nil {
		return v.New()
	}
	return c.res.kind.New()
}

// New implements runtime.ObjectCreater.
func (c versionConverter) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	for i := range c.res.kind.Versions {
		if v := &c.res.kind.Versions[i]; v.GVK == gvk {
			obj := c.empty(v)
			obj.GetObjectKind().SetGroupVersionKind(gvk)
			return obj, nil
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind(c.res.kind.Plural, gvk)
}

// Default implements runtime.ObjectDefaulter.
func (c versionConverter) Default(obj runtime.Object) {
	v, err := c.versionOf(obj)
	if err != nil {
		return
	}
	defaultVersion(c.res.kind, v, obj.(kind.Object))
}

// ConvertToVersion implements runtime.ObjectConvertor. The object that comes out says what it is.
func (c versionConverter) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	from, err := c.versionOf(in)
	if err != nil {
		return nil, err
	}
	obj, err := c.typed(in, from)
	if err != nil {
		return nil, err
	}
	known := []schema.GroupVersionKind{from.GVK, c.res.kind.GVK}
	for _, v := range c.res.kind.Versions {
		known = append(known, v.GVK)
	}
	wanted, ok := target.KindForGroupVersionKinds(known)
	if !ok {
		return nil, runtime.NewNotRegisteredErrForTarget(c.res.kind.Plural, reflect.TypeOf(obj), target)
	}
	if wanted != from.GVK {
		if obj, err = c.between(obj, from, wanted); err != nil {
			return nil, err
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(wanted)
	return obj, nil
}

// typed turns what the library merged, which is without type, into an object of its version's type.
func (c versionConverter) typed(in runtime.Object, from *kind.Version) (kind.Object, error) {
	obj := c.empty(from)
	dynamic, isDynamic := in.(*unstructured.Unstructured)
	if _, wantsDynamic := obj.(runtime.Unstructured); isDynamic && !wantsDynamic {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(dynamic.Object, obj, false); err != nil {
			return nil, err
		}
		obj.GetObjectKind().SetGroupVersionKind(from.GVK)
		return obj, nil
	}
	typed, ok := in.(kind.Object)
	if !ok {
		return nil, fmt.Errorf("%T is not an object", in)
	}
	return typed, nil
}

func (c versionConverter) between(obj kind.Object, from *kind.Version, wanted schema.GroupVersionKind) (kind.Object, error) {
	var err error
	if from.ToStored != nil {
		if obj, err = from.ToStored(obj); err != nil {
			return nil, err
		}
	}
	if wanted == c.res.kind.GVK {
		return obj, nil
	}
	for i := range c.res.kind.Versions {
		if v := &c.res.kind.Versions[i]; v.GVK == wanted && v.FromStored != nil {
			return v.FromStored(obj)
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind(c.res.kind.Plural, wanted)
}

// Convert implements runtime.ObjectConvertor; the library does not use it.
func (c versionConverter) Convert(in, out, _ any) error {
	return fmt.Errorf("cannot convert %T into %T", in, out)
}

// ConvertFieldLabel implements runtime.ObjectConvertor; the library does not use it.
func (c versionConverter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// defaultVersion fills in an object's defaults in its version's form.
func defaultVersion(k *kind.Kind, v *kind.Version, obj kind.Object) {
	switch {
	case v.Default != nil:
		v.Default(obj)
	case v.ToStored == nil && k.Default != nil:
		k.Default(obj)
	}
}
