package managedfields

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// dynamicDescriptor is a descriptor for the objects of a custom resource: JSON values, described by their schema alone. The fields in which two
// objects differ are found in one walk over both, without converting either.
type dynamicDescriptor struct {
	kind descriptorKind
	// fields of an object by name, and by the elements of field sets.
	fields    map[string]*dynamicDescriptor
	byElement map[string]*dynamicDescriptor
	// ignored are the fields that nobody can own through the endpoint.
	ignored sets.Set[string]
	// elem describes the values of a map, the other fields of an object, or the items of a list; nil: there are none.
	elem *dynamicDescriptor
	keys []dynamicKey
	// asObject and asList describe an untyped value that is one; nil: it cannot be.
	asObject, asList *dynamicDescriptor
}

// dynamicKey is a key of a list's items, in the order of names.
type dynamicKey struct {
	name string
	// missing is the encoded value for an item without the key: the schema's default, or "".
	missing string
}

// child implements fieldTree.
func (p *dynamicDescriptor) child(element string) (fieldTree, bool) {
	switch p.kind {
	case kindStruct:
		if child := p.byElement[element]; child != nil {
			return child, true
		}
		return p.elem, p.elem != nil && isElement(element, 'f') && !p.ignores(element)
	case kindUntyped:
		inner := p.asList
		if isElement(element, 'f') {
			inner = p.asObject
		}
		if inner == nil {
			return nil, false
		}
		return inner.child(element)
	}
	return p.elem, p.kind.hasItem(element)
}

func (p *dynamicDescriptor) ignores(element string) bool {
	decoded, err := decodeElement(element)
	return err != nil || decoded.FieldName == nil || p.ignored.Has(*decoded.FieldName)
}

// ignoring returns a copy in which nobody can own the field at path.
func (p *dynamicDescriptor) ignoring(path []string) *dynamicDescriptor {
	changed := *p
	if len(path) == 1 {
		changed.ignored = p.ignored.Clone().Insert(path[0])
		changed.fields = maps.Clone(p.fields)
		delete(changed.fields, path[0])
	} else if inner := p.fields[path[0]]; inner != nil {
		changed.fields = maps.Clone(p.fields)
		changed.fields[path[0]] = inner.ignoring(path[1:])
	}
	return changed.indexed()
}

// indexed sets byElement.
func (p *dynamicDescriptor) indexed() *dynamicDescriptor {
	p.byElement = make(map[string]*dynamicDescriptor, len(p.fields))
	for name, field := range p.fields {
		if element, err := fieldElement(name); err == nil {
			p.byElement[element] = field
		}
	}
	return p
}

// newDynamicDescriptor describes the objects of a custom resource. sample is any of them, with its schema.
func newDynamicDescriptor(sample *typed.TypedValue) (*dynamicDescriptor, error) {
	c := dynamicCompiler{schema: sample.Schema(), done: map[string]*dynamicDescriptor{}}
	root, err := c.compile(sample.TypeRef())
	if err != nil {
		return nil, err
	}
	if root.kind != kindStruct {
		return nil, errors.New("the schema is not that of an object")
	}
	root = root.ignoring([]string{"apiVersion"}).ignoring([]string{"kind"})
	for _, name := range neverOwned {
		root = root.ignoring([]string{"metadata", name})
	}
	return root, nil
}

// dynamicCompiler makes the descriptors of one schema.
type dynamicCompiler struct {
	schema *schema.Schema
	done   map[string]*dynamicDescriptor // by the name of the type
}

func (c *dynamicCompiler) compile(ref schema.TypeRef) (*dynamicDescriptor, error) {
	named := ref.NamedType != nil && ref.ElementRelationship == nil
	if named {
		if known := c.done[*ref.NamedType]; known != nil {
			return known, nil
		}
	}
	atom, ok := c.schema.Resolve(ref)
	if !ok {
		return nil, errors.New("a type is not in the schema")
	}
	p := &dynamicDescriptor{}
	if named {
		c.done[*ref.NamedType] = p // before its fields: types may be recursive
	}
	return p, c.fill(p, atom)
}

func (c *dynamicCompiler) fill(p *dynamicDescriptor, atom schema.Atom) (err error) {
	switch {
	case atom.Scalar != nil && atom.Map == nil && atom.List == nil:
	case atom.Scalar == nil && atom.List == nil && atom.Map != nil:
		if atom.Map.ElementRelationship == schema.Atomic {
			return nil
		}
		return c.object(p, atom.Map)
	case atom.Scalar == nil && atom.Map == nil && atom.List != nil:
		if atom.List.ElementRelationship == schema.Atomic {
			return nil
		}
		return c.list(p, atom.List)
	default:
		p.kind = kindUntyped
		if atom.Map != nil {
			p.asObject = &dynamicDescriptor{}
			err = c.fill(p.asObject, schema.Atom{Map: atom.Map})
		}
		if atom.List != nil && err == nil {
			p.asList = &dynamicDescriptor{}
			err = c.fill(p.asList, schema.Atom{List: atom.List})
		}
	}
	return err
}

func (c *dynamicCompiler) object(p *dynamicDescriptor, object *schema.Map) (err error) {
	p.kind, p.fields = kindStruct, make(map[string]*dynamicDescriptor, len(object.Fields))
	for _, field := range object.Fields {
		if p.fields[field.Name], err = c.compile(field.Type); err != nil {
			return fmt.Errorf("%s: %w", field.Name, err)
		}
	}
	if ref := object.ElementType; ref.NamedType != nil || ref.Inlined != (schema.Atom{}) {
		if p.elem, err = c.compile(ref); err != nil {
			return err
		}
		if len(p.fields) == 0 {
			p.kind = kindMap
		}
	}
	p.indexed()
	return nil
}

func (c *dynamicCompiler) list(p *dynamicDescriptor, list *schema.List) (err error) {
	if p.elem, err = c.compile(list.ElementType); err != nil {
		return err
	}
	if len(list.Keys) == 0 {
		p.kind = kindSet
		return nil
	}
	p.kind = kindKeyedList
	item, _ := c.schema.Resolve(list.ElementType)
	for _, name := range slices.Sorted(slices.Values(list.Keys)) {
		key, ok := newDynamicKey(name, item.Map)
		if !ok {
			p.kind, p.elem, p.keys = kindUntyped, nil, nil // left to the library
			return nil
		}
		p.keys = append(p.keys, key)
	}
	return nil
}

// newDynamicKey describes a key of items. It returns false for a key that only the library can encode.
func newDynamicKey(name string, item *schema.Map) (dynamicKey, bool) {
	key := dynamicKey{name: name}
	if !needsNoEscape(name) {
		return key, false
	}
	if item == nil {
		return key, true
	}
	declared, _ := item.FindField(name)
	switch missing := declared.Default.(type) {
	case nil:
	case string:
		key.missing = `\"` + missing + `\"`
		return key, needsNoEscape(missing)
	case bool:
		key.missing = strconv.FormatBool(missing)
	default:
		raw, err := json.Marshal(missing)
		key.missing = string(raw)
		return key, err == nil && isInteger(raw)
	}
	return key, true
}

// isInteger reports whether a number is written as the library would write it.
func isInteger(number []byte) bool {
	_, err := strconv.ParseInt(string(number), 10, 64)
	return err == nil
}

// jsonValue is a value that may be absent.
type jsonValue struct {
	value   any
	present bool
}

func fieldOf(object map[string]any, name string) jsonValue {
	v, ok := object[name]
	return jsonValue{v, ok}
}

// compareDynamic compares two objects of a custom resource. live may be an empty object.
func (c *comparer) compareDynamic(p *dynamicDescriptor, live, next map[string]any) {
	c.unsupported = false
	c.modified.reset()
	c.removed.reset()
	c.parser.reset()
	c.fields(p, live, next, true)
}

// dynamic compares the old and the new value of one field. Differences below the field go to the builders. The results say whether the field
// itself is modified or removed.
func (c *comparer) dynamic(p *dynamicDescriptor, before, after jsonValue) (modified, removed bool) {
	if c.unsupported || !before.present && !after.present {
		return false, false
	}
	modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
	switch p.kind {
	case kindLeaf:
		if before.present && after.present {
			return !equalJSON(before.value, after.value), false
		}
	case kindStruct, kindMap:
		l, okBefore := asObject(before.value)
		r, okAfter := asObject(after.value)
		if !okBefore || !okAfter {
			c.unsupported = true
			return false, false
		}
		c.fields(p, l, r, false)
	case kindKeyedList, kindSet:
		l, okBefore := asList(before.value)
		r, okAfter := asList(after.value)
		if !okBefore || !okAfter {
			c.unsupported = true
			return false, false
		}
		c.items(p, l, r)
	case kindUntyped:
		return c.untyped(p, before, after)
	}
	if before.present && after.present {
		// null and empty differ as values, but neither has fields that would show it.
		changed := (before.value == nil) != (after.value == nil) && !c.modified.grown(modifiedMark) && !c.removed.grown(removedMark)
		return changed, false
	}
	return !before.present, !after.present
}

// untyped compares values by what they are. The library decides about null and about values of which one is something else.
func (c *comparer) untyped(p *dynamicDescriptor, before, after jsonValue) (modified, removed bool) {
	concrete := func(v any) *dynamicDescriptor {
		switch v.(type) {
		case map[string]any:
			return p.asObject
		case []any:
			return p.asList
		case nil:
			return nil
		}
		return scalar
	}
	var described *dynamicDescriptor
	switch {
	case !before.present:
		described = concrete(after.value)
	case !after.present:
		described = concrete(before.value)
	case concrete(before.value) == concrete(after.value):
		described = concrete(after.value)
	}
	if described == nil {
		c.unsupported = true
		return false, false
	}
	return c.dynamic(described, before, after)
}

// scalar describes a value that is owned as a whole.
var scalar = &dynamicDescriptor{kind: kindLeaf}

// asObject returns false for what is neither an object nor null nor absent.
func asObject(v any) (map[string]any, bool) {
	if v == nil {
		return nil, true
	}
	object, ok := v.(map[string]any)
	return object, ok
}

func asList(v any) ([]any, bool) {
	if v == nil {
		return nil, true
	}
	list, ok := v.([]any)
	return list, ok
}

// equalJSON compares values as the library does: numbers are equal whatever their types are.
func equalJSON(a, b any) bool {
	switch a := a.(type) {
	case string:
		other, ok := b.(string)
		return ok && a == other
	case bool:
		other, ok := b.(bool)
		return ok && a == other
	case int64:
		if other, ok := b.(int64); ok {
			return a == other
		}
	}
	return value.Equals(value.NewValueInterface(a), value.NewValueInterface(b))
}

// fields compares the fields of two objects. The metadata of the root is an object that nobody owns as a whole.
func (c *comparer) fields(p *dynamicDescriptor, before, after map[string]any, root bool) {
	var small [16]string
	names := small[:0]
	for name := range after {
		names = append(names, name)
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if p.ignored.Has(name) {
			continue
		}
		field := p.fields[name]
		if field == nil {
			field = p.elem
		}
		if field == nil {
			c.unsupported = true // it is not in the schema
			return
		}
		modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
		modified, removed := c.dynamic(field, fieldOf(before, name), fieldOf(after, name))
		if root && name == "metadata" {
			modified, removed = false, false
		}
		if !modified && !removed && !c.modified.grown(modifiedMark) && !c.removed.grown(removedMark) {
			continue
		}
		element, err := fieldElement(name)
		if err != nil {
			c.unsupported = true
			return
		}
		c.modified.close(modifiedMark, element, modified)
		c.removed.close(removedMark, element, removed)
	}
}

// items compares the items of two keyed lists or sets by what names them. A list with a duplicate is unsupported.
func (c *comparer) items(p *dynamicDescriptor, before, after []any) {
	modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
	old := c.byElement(p, before)
	current := c.byElement(p, after)
	if c.unsupported {
		return
	}
	for element, item := range current {
		was, existed := old[element]
		c.item(p, element, jsonValue{was, existed}, jsonValue{item, true})
	}
	for element, item := range old {
		if _, ok := current[element]; !ok {
			c.item(p, element, jsonValue{item, true}, jsonValue{})
		}
	}
	c.modified.sort(modifiedMark)
	c.removed.sort(removedMark)
}

func (c *comparer) item(p *dynamicDescriptor, element string, before, after jsonValue) {
	modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
	modified, removed := c.dynamic(p.elem, before, after)
	c.modified.close(modifiedMark, element, modified)
	c.removed.close(removedMark, element, removed)
}

// byElement returns the items of a list by their elements.
func (c *comparer) byElement(p *dynamicDescriptor, list []any) map[string]any {
	if len(list) == 0 {
		return nil
	}
	items := make(map[string]any, len(list))
	for _, item := range list {
		element, ok := dynamicElement(p, item)
		if _, duplicate := items[element]; !ok || duplicate {
			c.unsupported = true
			return nil
		}
		items[element] = item
	}
	return items
}

// dynamicElement encodes what names an item: its keys, or itself in a set. It returns false where only the library can.
func dynamicElement(p *dynamicDescriptor, item any) (string, bool) {
	if p.kind == kindSet {
		text, ok := item.(string)
		if ok && needsNoEscape(text) {
			return `"v:\"` + text + `\""`, true
		}
		if !ok {
			return "", false
		}
		v := value.NewValueInterface(text)
		element, err := encodeElement(fieldpath.PathElement{Value: &v})
		return element, err == nil
	}
	object, ok := item.(map[string]any)
	if !ok {
		return "", false
	}
	var buf [96]byte
	text := append(buf[:0], `"k:{`...)
	for _, key := range p.keys {
		v, present := object[key.name]
		if !present && key.missing == "" {
			continue
		}
		if len(text) > len(`"k:{`) {
			text = append(text, ',')
		}
		text = append(append(append(text, `\"`...), key.name...), `\":`...)
		switch v := v.(type) {
		case string:
			if !needsNoEscape(v) {
				return "", false
			}
			text = append(append(append(text, `\"`...), v...), `\"`...)
		case bool:
			text = strconv.AppendBool(text, v)
		case int64:
			text = strconv.AppendInt(text, v, 10)
		default:
			if present {
				return "", false
			}
			text = append(text, key.missing...)
		}
	}
	if len(text) == len(`"k:{`) {
		return "", false // an item without any key cannot be named
	}
	return string(append(text, `}"`...)), true
}
