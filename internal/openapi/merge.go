package openapi

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/schemaconv"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// merging keeps the merge schemas in use. Kinds share common definitions: that of a pod template is kept once.
var merging struct {
	mu    sync.RWMutex
	kinds map[schema.GroupVersionKind]*typed.ParseableType
	atoms map[string]smdschema.Atom // by definition name
}

// Schema returns the merge schema of a built-in kind: how its lists and maps are merged and owned. The type's Schema has
// the definitions that the kind needs, by definition name; TypeRef is the kind's own. Resolve it with Schema.Resolve: an
// Atom's List has ElementRelationship "associative" with the Keys of a list of maps (without keys it is a set), or
// "atomic"; a Map is "separable" (the default) or "atomic", with Fields for a struct and ElementType for other keys. It is
// shared and read-only. ok is false for kinds that are not built in.
func Schema(gvk schema.GroupVersionKind) (t *typed.ParseableType, ok bool, err error) {
	merging.mu.RLock()
	t, ok = merging.kinds[gvk]
	merging.mu.RUnlock()
	if ok {
		return t, true, nil
	}
	name := Name(gvk)
	if _, ok := definition(name); !ok {
		return nil, false, nil
	}
	merging.mu.Lock()
	defer merging.mu.Unlock()
	if t, ok := merging.kinds[gvk]; ok {
		return t, true, nil
	}
	if t, err = makeSchema(name); err != nil {
		return nil, false, fmt.Errorf("merge schema of %s: %w", gvk, err)
	}
	if merging.kinds == nil {
		merging.kinds = map[schema.GroupVersionKind]*typed.ParseableType{}
	}
	merging.kinds[gvk] = t
	return t, true, nil
}

// makeSchema assembles the schema of a definition, reusing those of other kinds. merging.mu must be held.
func makeSchema(name string) (*typed.ParseableType, error) {
	texts := map[string]string{}
	if err := collect(texts, nil, name); err != nil {
		return nil, err
	}
	unknown := maps.Clone(texts)
	maps.DeleteFunc(unknown, func(name, _ string) bool { _, ok := merging.atoms[name]; return ok })
	definitions, err := parse(unknown)
	if err != nil {
		return nil, err
	}
	converted, err := schemaconv.ToSchemaFromOpenAPI(definitions, false)
	if err != nil {
		return nil, err
	}
	if merging.atoms == nil {
		merging.atoms = map[string]smdschema.Atom{}
	}
	s := &smdschema.Schema{Types: make([]smdschema.TypeDef, 0, len(texts)+2)}
	for _, def := range converted.Types {
		if _, ok := texts[def.Name]; ok {
			merging.atoms[def.Name] = def.Atom
		} else {
			s.Types = append(s.Types, def) // the untyped definitions that every schema has
		}
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		s.Types = append(s.Types, smdschema.TypeDef{Name: name, Atom: merging.atoms[name]})
	}
	return &typed.ParseableType{TypeRef: smdschema.TypeRef{NamedType: &name}, Schema: s}, nil
}

// TypeConverter is for server-side apply with the schemas of all built-in kinds, each made on first use.
func TypeConverter() (managedfields.TypeConverter, error) {
	unknown, err := managedfields.NewTypeConverter(nil, false)
	if err != nil {
		return nil, fmt.Errorf("converter of unknown kinds: %w", err)
	}
	return converter{unknown}, nil
}

// converter looks up schemas. unknown handles kinds without one, with the error of package managedfields.
type converter struct{ unknown managedfields.TypeConverter }

func (c converter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	t, ok, err := Schema(obj.GetObjectKind().GroupVersionKind())
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return c.unknown.ObjectToTyped(obj, opts...)
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return t.FromUnstructured(u.UnstructuredContent(), opts...)
	}
	return t.FromStructured(obj, opts...)
}

func (c converter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	return c.unknown.TypedToObject(value)
}
