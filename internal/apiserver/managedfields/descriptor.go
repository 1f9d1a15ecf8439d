package managedfields

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

// descriptor says how the values of one Go type are divided into fields that managers can own. It is made once per type from the
// struct's JSON tags and the API schema, which adds what the tags do not say: which lists are keyed, which are sets, and what is
// atomic. With it, the fields in which two objects differ are found in one walk over both, without converting either.
type descriptor struct {
	kind descriptorKind
	// fields of a struct, by name.
	fields    []structField
	byElement map[string]*descriptor
	// elem describes a map's values or a list's items.
	elem *descriptor
	// keys of a keyed list, by name.
	keys []listKey
}

type descriptorKind uint8

const (
	// kindLeaf: a scalar, or something atomic, owned as a whole.
	kindLeaf descriptorKind = iota
	kindStruct
	kindMap
	kindKeyedList
	kindSet
	// kindOpaque: the fields are not known from the type (RawExtension). An unchanged value is skipped; a changed one is left to the
	// library.
	kindOpaque
	// kindUntyped: a value of a custom resource that may be a scalar, an object or a list.
	kindUntyped
)

// hasItem reports whether an element names a value of a map, or an item of a list.
func (k descriptorKind) hasItem(element string) bool {
	switch k {
	case kindMap:
		return isElement(element, 'f')
	case kindKeyedList:
		return isElement(element, 'k')
	case kindSet:
		return isElement(element, 'v')
	}
	return false
}

type structField struct {
	name      string
	element   string
	index     []int
	omitEmpty bool
	omitZero  func(reflect.Value) bool
	desc      *descriptor
}

type listKey struct {
	field structField
	// missing is the encoded value of the key for an item without it: the schema's default, or "".
	missing string
}

// child implements fieldTree.
func (p *descriptor) child(element string) (fieldTree, bool) {
	if p.kind == kindStruct {
		child := p.byElement[element]
		return child, child != nil
	}
	return p.elem, p.kind.hasItem(element)
}

// without returns a copy that lacks the field at path, so that nobody can own it.
func (p *descriptor) without(path []string) *descriptor {
	if p.kind != kindStruct {
		return p
	}
	pruned := *p
	pruned.fields = nil
	for _, f := range p.fields {
		if f.name == path[0] {
			if len(path) == 1 {
				continue
			}
			f.desc = f.desc.without(path[1:])
		}
		pruned.fields = append(pruned.fields, f)
	}
	return &pruned
}

// names are the fields of a struct.
func (p *descriptor) names() []string {
	names := make([]string, len(p.fields))
	for i, f := range p.fields {
		names[i] = f.name
	}
	return names
}

// at describes the struct field at path; nil when there is none.
func (p *descriptor) at(path []string) *descriptor {
	for _, name := range path {
		i := slices.IndexFunc(p.fields, func(f structField) bool { return f.name == name })
		if i < 0 {
			return nil
		}
		p = p.fields[i].desc
	}
	return p
}

// neverOwned are the metadata fields that never appear in managedFields.
var neverOwned = []string{
	"creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "selfLink", "uid",
}

// descriptorCache keeps the descriptors of all types, so that kinds share those they have in common.
type descriptorCache struct {
	mu   sync.Mutex
	done map[descriptorID]*descriptor
}

// of returns the descriptor of an object's type. sample is any value of the type, with its schema.
func (p *descriptorCache) of(objType reflect.Type, sample *typed.TypedValue) (*descriptor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := compiler{schema: sample.Schema(), known: p.done, done: make(map[descriptorID]*descriptor)}
	root, err := c.compile(objType, sample.TypeRef())
	if err != nil {
		return nil, err
	}
	if root.kind != kindStruct {
		return nil, fmt.Errorf("%s is not an object in the schema", objType)
	}
	if p.done == nil {
		p.done = make(map[descriptorID]*descriptor)
	}
	maps.Copy(p.done, c.done)
	root = root.without([]string{"apiVersion"}).without([]string{"kind"})
	for _, name := range neverOwned {
		root = root.without([]string{"metadata", name})
	}
	root.index()
	for i, f := range root.fields {
		if f.name == "metadata" {
			metadata := *f.desc
			metadata.index()
			root.fields[i].desc = &metadata
			root.byElement[f.element] = &metadata
		}
	}
	return root, nil
}

func (p *descriptor) index() {
	p.byElement = make(map[string]*descriptor, len(p.fields))
	for _, f := range p.fields {
		p.byElement[f.element] = f.desc
	}
}

// compiler makes the descriptors of one object's type and of all types below it.
type compiler struct {
	schema      *schema.Schema
	known, done map[descriptorID]*descriptor
}

// descriptorID identifies a descriptor: one Go type can appear under different schemas.
type descriptorID struct {
	goType       reflect.Type
	name         string
	relationship schema.ElementRelationship
}

var marshalerType = reflect.TypeFor[json.Marshaler]()

func (c *compiler) compile(t reflect.Type, ref schema.TypeRef) (*descriptor, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var id descriptorID
	if ref.NamedType != nil {
		id = descriptorID{goType: t, name: *ref.NamedType}
		if ref.ElementRelationship != nil {
			id.relationship = *ref.ElementRelationship
		}
		if desc := c.known[id]; desc != nil {
			return desc, nil
		}
		if desc := c.done[id]; desc != nil {
			return desc, nil
		}
	}
	atom, ok := c.schema.Resolve(ref)
	if !ok {
		return nil, fmt.Errorf("%s: no such type in the schema", t)
	}
	desc := &descriptor{}
	if ref.NamedType != nil {
		c.done[id] = desc // before its fields: types may be recursive
	}
	return desc, c.fill(desc, t, atom)
}

func (c *compiler) fill(desc *descriptor, t reflect.Type, atom schema.Atom) error {
	if t.Implements(marshalerType) || reflect.PointerTo(t).Implements(marshalerType) {
		desc.kind = kindLeaf
		if atom.Map != nil && atom.Map.ElementRelationship != schema.Atomic || atom.List != nil {
			desc.kind = kindOpaque
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
		return c.list(desc, t, atom.List)
	case reflect.Map:
		if atom.Map == nil || t.Key().Kind() != reflect.String {
			return fmt.Errorf("%s is not a map in the schema", t)
		}
		if atom.Map.ElementRelationship == schema.Atomic {
			return nil
		}
		desc.kind = kindMap
		var err error
		desc.elem, err = c.compile(t.Elem(), atom.Map.ElementType)
		return err
	case reflect.Struct:
		if atom.Map == nil {
			return fmt.Errorf("%s is not an object in the schema", t)
		}
		if atom.Map.ElementRelationship == schema.Atomic {
			return nil
		}
		desc.kind = kindStruct
		return c.structure(desc, t, atom.Map)
	}
	return fmt.Errorf("%s: unsupported kind %s", t, t.Kind())
}

func (c *compiler) list(desc *descriptor, t reflect.Type, list *schema.List) error {
	if list.ElementRelationship == schema.Atomic {
		return nil
	}
	var err error
	if desc.elem, err = c.compile(t.Elem(), list.ElementType); err != nil {
		return err
	}
	if len(list.Keys) == 0 {
		desc.kind = kindSet
		if t.Elem().Kind() != reflect.String || desc.elem.kind != kindLeaf {
			desc.kind = kindOpaque
		}
		return nil
	}
	desc.kind = kindKeyedList
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
		i := slices.IndexFunc(fields, func(f structField) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf("%s has no key %s", t, name)
		}
		key := listKey{field: fields[i]}
		if !isKeyType(itemType.FieldByIndex(key.field.index).Type) {
			return fmt.Errorf("%s: key %s is neither a string nor a number", t, name)
		}
		if declared, _ := item.Map.FindField(name); declared.Default != nil {
			raw, err := json.Marshal(declared.Default)
			if err != nil {
				return fmt.Errorf("%s: default of key %s: %w", t, name, err)
			}
			key.missing = strings.ReplaceAll(string(raw), `"`, `\"`)
		}
		desc.keys = append(desc.keys, key)
	}
	slices.SortFunc(desc.keys, func(a, b listKey) int { return strings.Compare(a.field.name, b.field.name) })
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

func (c *compiler) structure(desc *descriptor, t reflect.Type, object *schema.Map) error {
	fields, err := jsonFields(t, nil, nil)
	if err != nil {
		return err
	}
	for _, f := range fields {
		ref := object.ElementType
		if declared, ok := object.FindField(f.name); ok {
			ref = declared.Type
		} else if ref.NamedType == nil && ref.Inlined == (schema.Atom{}) {
			return fmt.Errorf("%s: field %s is not in the schema", t, f.name)
		}
		if f.element, err = fieldElement(f.name); err != nil {
			return err
		}
		if f.desc, err = c.compile(t.FieldByIndex(f.index).Type, ref); err != nil {
			return fmt.Errorf("%s.%s: %w", t.Name(), f.name, err)
		}
		desc.fields = append(desc.fields, f)
	}
	slices.SortFunc(desc.fields, func(a, b structField) int { return strings.Compare(a.name, b.name) })
	desc.index()
	return nil
}

// jsonFields lists the fields of a struct as JSON sees them, those of embedded structs included.
func jsonFields(t reflect.Type, index []int, to []structField) ([]structField, error) {
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
				return nil, fmt.Errorf("%s embeds pointer %s", t, f.Type)
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
		field := structField{name: name, index: path}
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
