package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// A fieldPlan says how the values of one Go type are taken apart into fields that managers can own. It is made once per
// type from the struct's JSON tags and the API schema, which knows what the tags do not: which lists are keyed, which
// are sets, and what is atomic. With a plan, the fields two objects differ in are found by one walk over both, without
// turning either into anything else.
type fieldPlan struct {
	kind planKind
	// fields of a struct, by name.
	fields    []planField
	byElement map[string]*fieldPlan
	// elem is the plan of a map's values or a list's items.
	elem *fieldPlan
	// keys of a keyed list, by name.
	keys []planKey
}

type planKind uint8

const (
	// planLeaf: a scalar, or something atomic, owned as a whole.
	planLeaf planKind = iota
	planStruct
	planMap
	planKeyed
	planSet
	// planOpaque: the type does not tell its fields (RawExtension). While it is unchanged it takes no part; when it
	// changes, the library does the work.
	planOpaque
)

type planField struct {
	name      string
	element   string
	index     []int
	omitEmpty bool
	omitZero  func(reflect.Value) bool
	plan      *fieldPlan
}

type planKey struct {
	field planField
	// missing is what stands in the element when the item does not have the key: the schema's default, or "".
	missing string
}

// child is the plan of what an element names, and false where the element cannot be.
func (p *fieldPlan) child(element string) (*fieldPlan, bool) {
	if len(element) < 4 {
		return nil, false
	}
	switch p.kind {
	case planStruct:
		child := p.byElement[element]
		return child, child != nil
	case planMap:
		return p.elem, element[1] == 'f'
	case planKeyed:
		return p.elem, element[1] == 'k'
	case planSet:
		return p.elem, element[1] == 'v'
	}
	return nil, false
}

// without returns the plan with the field at path taken out; its fields are then nobody's.
func (p *fieldPlan) without(path []string) *fieldPlan {
	if p.kind != planStruct {
		return p
	}
	pruned := *p
	pruned.fields = nil
	for _, f := range p.fields {
		if f.name == path[0] {
			if len(path) == 1 {
				continue
			}
			f.plan = f.plan.without(path[1:])
		}
		pruned.fields = append(pruned.fields, f)
	}
	return &pruned
}

// names are the fields of a struct.
func (p *fieldPlan) names() []string {
	names := make([]string, len(p.fields))
	for i, f := range p.fields {
		names[i] = f.name
	}
	return names
}

// at is the plan of the struct field at path, or nil.
func (p *fieldPlan) at(path []string) *fieldPlan {
	for _, name := range path {
		i := slices.IndexFunc(p.fields, func(f planField) bool { return f.name == name })
		if i < 0 {
			return nil
		}
		p = p.fields[i].plan
	}
	return p
}

// unowned are the metadata fields that never appear in managedFields.
var unowned = []string{
	"creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "selfLink", "uid",
}

// fieldPlans keeps the plans of all types, so that kinds share what they have in common.
type fieldPlans struct {
	mu   sync.Mutex
	done map[planID]*fieldPlan
}

// of makes the plan of an object's type. sample is any value of the type in the schema's eyes.
func (p *fieldPlans) of(objType reflect.Type, sample *typed.TypedValue) (*fieldPlan, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := planCompiler{schema: sample.Schema(), known: p.done, done: make(map[planID]*fieldPlan)}
	root, err := c.compile(objType, sample.TypeRef())
	if err != nil {
		return nil, err
	}
	if root.kind != planStruct {
		return nil, fmt.Errorf("%s is not an object in the schema", objType)
	}
	if p.done == nil {
		p.done = make(map[planID]*fieldPlan)
	}
	maps.Copy(p.done, c.done)
	root = root.without([]string{"apiVersion"}).without([]string{"kind"})
	for _, name := range unowned {
		root = root.without([]string{"metadata", name})
	}
	root.index()
	for i, f := range root.fields {
		if f.name == "metadata" {
			metadata := *f.plan
			metadata.index()
			root.fields[i].plan = &metadata
			root.byElement[f.element] = &metadata
		}
	}
	return root, nil
}

func (p *fieldPlan) index() {
	p.byElement = make(map[string]*fieldPlan, len(p.fields))
	for _, f := range p.fields {
		p.byElement[f.element] = f.plan
	}
}

// planCompiler makes the plans of one object's type and of all types below it.
type planCompiler struct {
	schema      *schema.Schema
	known, done map[planID]*fieldPlan
}

// planID tells plans apart: the same Go type can appear under different schemas.
type planID struct {
	goType       reflect.Type
	name         string
	relationship schema.ElementRelationship
}

var marshalerType = reflect.TypeFor[json.Marshaler]()

func (c *planCompiler) compile(t reflect.Type, ref schema.TypeRef) (*fieldPlan, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var id planID
	if ref.NamedType != nil {
		id = planID{goType: t, name: *ref.NamedType}
		if ref.ElementRelationship != nil {
			id.relationship = *ref.ElementRelationship
		}
		if plan := c.known[id]; plan != nil {
			return plan, nil
		}
		if plan := c.done[id]; plan != nil {
			return plan, nil
		}
	}
	atom, ok := c.schema.Resolve(ref)
	if !ok {
		return nil, fmt.Errorf("%s: no such type in the schema", t)
	}
	plan := &fieldPlan{}
	if ref.NamedType != nil {
		c.done[id] = plan // before its fields, which may lead back to it
	}
	return plan, c.fill(plan, t, atom)
}

func (c *planCompiler) fill(plan *fieldPlan, t reflect.Type, atom schema.Atom) error {
	if t.Implements(marshalerType) || reflect.PointerTo(t).Implements(marshalerType) {
		plan.kind = planLeaf
		if atom.Map != nil && atom.Map.ElementRelationship != schema.Atomic || atom.List != nil {
			plan.kind = planOpaque
		}
		return nil
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Float32, reflect.Float64:
		if atom.Scalar == nil {
			return fmt.Errorf("%s is not a scalar in the schema", t)
		}
		return nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && atom.Scalar != nil {
			return nil
		}
		if atom.List == nil {
			return fmt.Errorf("%s is not a list in the schema", t)
		}
		return c.list(plan, t, atom.List)
	case reflect.Map:
		if atom.Map == nil || t.Key().Kind() != reflect.String {
			return fmt.Errorf("%s is not a map in the schema", t)
		}
		if atom.Map.ElementRelationship == schema.Atomic {
			return nil
		}
		plan.kind = planMap
		var err error
		plan.elem, err = c.compile(t.Elem(), atom.Map.ElementType)
		return err
	case reflect.Struct:
		if atom.Map == nil {
			return fmt.Errorf("%s is not an object in the schema", t)
		}
		if atom.Map.ElementRelationship == schema.Atomic {
			return nil
		}
		plan.kind = planStruct
		return c.structure(plan, t, atom.Map)
	}
	return fmt.Errorf("%s: a field set cannot hold its kind", t)
}

func (c *planCompiler) list(plan *fieldPlan, t reflect.Type, list *schema.List) error {
	if list.ElementRelationship == schema.Atomic {
		return nil
	}
	var err error
	if plan.elem, err = c.compile(t.Elem(), list.ElementType); err != nil {
		return err
	}
	if len(list.Keys) == 0 {
		plan.kind = planSet
		if t.Elem().Kind() != reflect.String || plan.elem.kind != planLeaf {
			plan.kind = planOpaque
		}
		return nil
	}
	plan.kind = planKeyed
	itemType := t.Elem()
	for itemType.Kind() == reflect.Pointer {
		itemType = itemType.Elem()
	}
	item, ok := c.schema.Resolve(list.ElementType)
	if itemType.Kind() != reflect.Struct || !ok || item.Map == nil {
		return fmt.Errorf("%s is keyed but its items are not objects", t)
	}
	fields, err := jsonFields(itemType, nil, nil)
	if err != nil {
		return err
	}
	for _, name := range list.Keys {
		i := slices.IndexFunc(fields, func(f planField) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf("%s has no key %s", t, name)
		}
		key := planKey{field: fields[i]}
		if !isKeyType(itemType.FieldByIndex(key.field.index).Type) {
			return fmt.Errorf("%s: key %s is neither text nor a number", t, name)
		}
		if declared, _ := item.Map.FindField(name); declared.Default != nil {
			raw, err := json.Marshal(declared.Default)
			if err != nil {
				return fmt.Errorf("%s: default of key %s: %w", t, name, err)
			}
			key.missing = strings.ReplaceAll(string(raw), `"`, `\"`)
		}
		plan.keys = append(plan.keys, key)
	}
	slices.SortFunc(plan.keys, func(a, b planKey) int { return strings.Compare(a.field.name, b.field.name) })
	return nil
}

func isKeyType(t reflect.Type) bool {
	if t.Implements(marshalerType) {
		return false
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Bool:
		return true
	}
	return false
}

func (c *planCompiler) structure(plan *fieldPlan, t reflect.Type, object *schema.Map) error {
	fields, err := jsonFields(t, nil, nil)
	if err != nil {
		return err
	}
	for _, f := range fields {
		ref := object.ElementType
		if declared, ok := object.FindField(f.name); ok {
			ref = declared.Type
		} else if ref.NamedType == nil && ref.Inlined == (schema.Atom{}) {
			return fmt.Errorf("%s: the schema does not know field %s", t, f.name)
		}
		if f.element, err = fieldElement(f.name); err != nil {
			return err
		}
		if f.plan, err = c.compile(t.FieldByIndex(f.index).Type, ref); err != nil {
			return fmt.Errorf("%s.%s: %w", t.Name(), f.name, err)
		}
		plan.fields = append(plan.fields, f)
	}
	slices.SortFunc(plan.fields, func(a, b planField) int { return strings.Compare(a.name, b.name) })
	plan.index()
	return nil
}

// jsonFields lists the fields of a struct as JSON sees them, those of embedded structs included.
func jsonFields(t reflect.Type, index []int, to []planField) ([]planField, error) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if f.PkgPath != "" && !f.Anonymous || tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		path := append(slices.Clone(index), i)
		if f.Anonymous && name == "" {
			if f.Type.Kind() != reflect.Struct {
				return nil, fmt.Errorf("%s embeds %s, which may be absent", t, f.Type)
			}
			var err error
			if to, err = jsonFields(f.Type, path, to); err != nil {
				return nil, err
			}
			continue
		}
		if name == "" {
			name = f.Name
		}
		field := planField{name: name, index: path}
		for _, option := range strings.Split(options, ",") {
			switch option {
			case "omitempty":
				field.omitEmpty = true
			case "omitzero":
				field.omitZero = value.OmitZeroFunc(f.Type)
			}
		}
		to = append(to, field)
	}
	return to, nil
}
