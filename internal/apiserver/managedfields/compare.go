package managedfields

import (
	"bytes"
	"reflect"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// comparer finds the fields in which two objects of one type differ. modified are the fields the new object adds or changes: they
// become the writer's. removed are those it no longer has: they leave every manager.
//
// A comparer is reused. Its results are valid until the next comparison.
type comparer struct {
	modified, removed setBuilder
	parser            setParser
	// unsupported: the objects contain something the descriptor does not cover. The sets must not be used.
	unsupported bool
}

// compareObjects compares two objects of the described type. live may be an empty object.
func (c *comparer) compareObjects(desc *descriptor, live, next any) {
	c.unsupported = false
	c.modified.reset()
	c.removed.reset()
	c.parser.reset()
	c.compare(desc, reflect.ValueOf(live), reflect.ValueOf(next))
}

// compare compares the old and the new value of one field; an invalid value means absent. Differences below the field go to the
// builders. The results say whether the field itself is modified or removed.
func (c *comparer) compare(desc *descriptor, before, after reflect.Value) (modified, removed bool) {
	if c.unsupported || !before.IsValid() && !after.IsValid() {
		return false, false
	}
	before, beforeNull := dereference(before)
	after, afterNull := dereference(after)
	if desc.kind == kindLeaf {
		return c.compareLeaf(before, after, beforeNull, afterNull)
	}
	modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
	l, r := before, after
	if beforeNull {
		l = reflect.Value{}
	}
	if afterNull {
		r = reflect.Value{}
	}
	switch desc.kind {
	case kindStruct:
		c.compareStructs(desc, l, r)
	case kindMap:
		c.compareMaps(desc, l, r)
	case kindKeyedList:
		c.compareKeyedLists(desc, l, r)
	case kindSet:
		c.compareSets(l, r)
	case kindOpaque:
		if before.IsValid() != after.IsValid() || beforeNull != afterNull || !identical(before, after) {
			c.unsupported = true
		}
		return false, false
	}
	if before.IsValid() && after.IsValid() {
		// null and empty differ as values, but neither has fields that would show it.
		changed := beforeNull != afterNull && !c.modified.grown(modifiedMark) && !c.removed.grown(removedMark)
		return changed, false
	}
	return !before.IsValid(), !after.IsValid()
}

// dereference follows pointers. null is true for values that are encoded as JSON's null.
func dereference(v reflect.Value) (_ reflect.Value, null bool) {
	for v.IsValid() {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() {
				return v, true
			}
			v = v.Elem()
			continue
		case reflect.Map, reflect.Slice:
			return v, v.IsNil()
		}
		return v, false
	}
	return v, false
}

func (c *comparer) compareLeaf(before, after reflect.Value, beforeNull, afterNull bool) (modified, removed bool) {
	switch {
	case !before.IsValid():
		return true, false
	case !after.IsValid():
		return false, true
	case beforeNull || afterNull:
		// A type with its own MarshalJSON may encode to null too, which only the library can tell.
		return beforeNull != afterNull && !equalValues(before, after), false
	}
	return !identical(before, after) && !equalValues(before, after), false
}

// present is a field's value, or an invalid one when JSON would leave it out.
func (f *structField) present(object reflect.Value) reflect.Value {
	if !object.IsValid() {
		return reflect.Value{}
	}
	v := object
	for _, i := range f.index {
		v = v.Field(i)
	}
	if f.omitEmpty && isEmptyValue(v) || f.omitZero != nil && f.omitZero(v) {
		return reflect.Value{}
	}
	return v
}

func isEmptyValue(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	case reflect.Pointer, reflect.Interface:
		return v.IsNil()
	case reflect.Float32, reflect.Float64:
		return v.Float() == 0
	}
	return v.IsZero()
}

func (c *comparer) compareStructs(desc *descriptor, before, after reflect.Value) {
	for i := range desc.fields {
		f := &desc.fields[i]
		l, r := f.present(before), f.present(after)
		if !l.IsValid() && !r.IsValid() {
			continue
		}
		modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
		modified, removed := c.compare(f.desc, l, r)
		c.modified.close(modifiedMark, f.element, modified)
		c.removed.close(removedMark, f.element, removed)
	}
}

func (c *comparer) compareMaps(desc *descriptor, before, after reflect.Value) {
	var small [16]string
	keys := mapKeys(after, mapKeys(before, small[:0]))
	slices.Sort(keys)
	keys = slices.Compact(keys)
	for _, key := range keys {
		modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
		modified, removed := c.compare(desc.elem, mapValue(before, key), mapValue(after, key))
		if !modified && !removed && !c.modified.grown(modifiedMark) && !c.removed.grown(removedMark) {
			continue
		}
		element, err := fieldElement(key)
		if err != nil {
			c.unsupported = true
			return
		}
		c.modified.close(modifiedMark, element, modified)
		c.removed.close(removedMark, element, removed)
	}
}

func mapKeys(m reflect.Value, to []string) []string {
	if !m.IsValid() {
		return to
	}
	if plain, ok := m.Interface().(map[string]string); ok {
		for key := range plain {
			to = append(to, key)
		}
		return to
	}
	for i := m.MapRange(); i.Next(); {
		to = append(to, i.Key().String())
	}
	return to
}

func mapValue(m reflect.Value, key string) reflect.Value {
	if !m.IsValid() {
		return reflect.Value{}
	}
	if plain, ok := m.Interface().(map[string]string); ok {
		if v, ok := plain[key]; ok {
			return reflect.ValueOf(v)
		}
		return reflect.Value{}
	}
	return m.MapIndex(reflect.ValueOf(key).Convert(m.Type().Key()))
}

// compareKeyedLists compares two lists whose items are identified by keys. If both have the same keys in the same order, no key is
// encoded for unchanged items.
func (c *comparer) compareKeyedLists(desc *descriptor, before, after reflect.Value) {
	modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
	if !alignedKeys(desc, before, after) {
		c.compareByKey(desc, before, after)
	} else {
		c.compareAligned(desc, before, after)
	}
	c.modified.sort(modifiedMark)
	c.removed.sort(removedMark)
}

// compareAligned pairs the items of two lists by their positions. A list with a duplicate key among changed items is unsupported.
func (c *comparer) compareAligned(desc *descriptor, before, after reflect.Value) {
	var duplicates sets.Set[string] // made for the first changed item of a long list
	for i := range after.Len() {
		item := after.Index(i)
		modifiedItem, removedItem := c.modified.mark(), c.removed.mark()
		modified, _ := c.compare(desc.elem, before.Index(i), item)
		if !modified && !c.modified.grown(modifiedItem) && !c.removed.grown(removedItem) {
			continue
		}
		element := c.itemElement(desc, item)
		switch {
		case after.Len() <= maxPairwise:
			c.unsupported = c.unsupported || hasDuplicateKey(desc, after, i)
		case duplicates == nil:
			duplicates = c.duplicateElements(desc, after)
		}
		if c.unsupported || duplicates.Has(element) {
			c.unsupported = true
			return
		}
		c.modified.close(modifiedItem, element, modified)
		c.removed.close(removedItem, element, false)
	}
}

// duplicateElements are the elements that more than one item of a list has.
func (c *comparer) duplicateElements(desc *descriptor, list reflect.Value) sets.Set[string] {
	seen, duplicates := make(sets.Set[string], list.Len()), sets.New[string]()
	for i := range list.Len() {
		element := c.itemElement(desc, list.Index(i))
		if seen.Has(element) {
			duplicates.Insert(element)
		}
		seen.Insert(element)
	}
	return duplicates
}

// maxPairwise is the length of the longest list whose items are compared with one another; the items of a longer one are hashed.
const maxPairwise = 8

// compareByKey pairs the items of two lists by their keys. A list with a duplicate key is unsupported.
func (c *comparer) compareByKey(desc *descriptor, before, after reflect.Value) {
	if !before.IsValid() && after.IsValid() && after.Len() <= maxPairwise {
		c.compareNewList(desc, after)
		return
	}
	old := make(map[string]reflect.Value)
	if before.IsValid() {
		for i := range before.Len() {
			item := before.Index(i)
			element := c.itemElement(desc, item)
			if _, duplicate := old[element]; duplicate {
				c.unsupported = true
				return
			}
			old[element] = item
		}
	}
	var seen map[string]bool
	if after.IsValid() {
		seen = make(map[string]bool, after.Len())
		for i := range after.Len() {
			item := after.Index(i)
			element := c.itemElement(desc, item)
			if seen[element] || c.unsupported {
				c.unsupported = true
				return
			}
			seen[element] = true
			c.compareItems(desc.elem, element, old[element], item)
		}
	}
	for element, item := range old {
		if !seen[element] {
			c.compareItems(desc.elem, element, item, reflect.Value{})
		}
	}
}

// compareNewList handles a short list of which all items are new.
func (c *comparer) compareNewList(desc *descriptor, after reflect.Value) {
	for i := range after.Len() {
		item := after.Index(i)
		if hasDuplicateKey(desc, after, i) {
			c.unsupported = true
		}
		element := c.itemElement(desc, item)
		if c.unsupported {
			return
		}
		c.compareItems(desc.elem, element, reflect.Value{}, item)
	}
}

func (c *comparer) compareItems(desc *descriptor, element string, before, after reflect.Value) {
	modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
	modified, removed := c.compare(desc, before, after)
	c.modified.close(modifiedMark, element, modified)
	c.removed.close(removedMark, element, removed)
}

// alignedKeys reports whether two lists have the same keys in the same order.
func alignedKeys(desc *descriptor, before, after reflect.Value) bool {
	if !before.IsValid() || !after.IsValid() || before.Len() != after.Len() {
		return false
	}
	for i := range after.Len() {
		if !equalKeys(desc, before.Index(i), after.Index(i)) {
			return false
		}
	}
	return true
}

// equalKeys reports whether two items have the same keys. An item without any key equals none, not even itself.
func equalKeys(desc *descriptor, a, b reflect.Value) bool {
	a, aNull := dereference(a)
	b, bNull := dereference(b)
	if aNull || bNull {
		return false
	}
	keyless := true
	for i := range desc.keys {
		l, r := desc.keys[i].field.present(a), desc.keys[i].field.present(b)
		if l.IsValid() != r.IsValid() || l.IsValid() && !identical(l, r) {
			return false
		}
		keyless = keyless && !l.IsValid() && desc.keys[i].missing == ""
	}
	return !keyless
}

func hasDuplicateKey(desc *descriptor, list reflect.Value, at int) bool {
	for i := range list.Len() {
		if i != at && equalKeys(desc, list.Index(i), list.Index(at)) {
			return true
		}
	}
	return false
}

// itemElement encodes the element of an item: its keys by name, with defaults for those that are missing.
func (c *comparer) itemElement(desc *descriptor, item reflect.Value) string {
	item, null := dereference(item)
	if null {
		c.unsupported = true
		return ""
	}
	var buf [96]byte
	text := append(buf[:0], `"k:{`...)
	for i := range desc.keys {
		key := &desc.keys[i]
		v, null := dereference(key.field.present(item))
		if null {
			c.unsupported = true
			return ""
		}
		if !v.IsValid() && key.missing == "" {
			continue
		}
		if len(text) > len(`"k:{`) {
			text = append(text, ',')
		}
		text = append(append(append(text, `\"`...), key.field.name...), `\":`...)
		switch {
		case !v.IsValid():
			text = append(text, key.missing...)
		case v.Kind() == reflect.String:
			if !needsNoEscape(v.String()) {
				return c.escapedElement(desc, item)
			}
			text = append(append(append(text, `\"`...), v.String()...), `\"`...)
		case v.Kind() == reflect.Bool:
			text = strconv.AppendBool(text, v.Bool())
		default:
			text = strconv.AppendInt(text, v.Int(), 10)
		}
	}
	if len(text) == len(`"k:{`) {
		c.unsupported = true // an item without any key cannot be named
		return ""
	}
	return string(append(text, `}"`...))
}

// escapedElement encodes the element of an item whose keys contain text that must be escaped.
func (c *comparer) escapedElement(desc *descriptor, item reflect.Value) string {
	var keys value.FieldList
	for i := range desc.keys {
		key := &desc.keys[i]
		v, _ := dereference(key.field.present(item))
		var content any
		switch {
		case !v.IsValid() && key.missing == "":
			continue
		case !v.IsValid():
			c.unsupported = true
			return ""
		case v.Kind() == reflect.String:
			content = v.String()
		case v.Kind() == reflect.Bool:
			content = v.Bool()
		default:
			content = v.Int()
		}
		keys = append(keys, value.Field{Name: key.field.name, Value: value.NewValueInterface(content)})
	}
	element, err := encodeElement(fieldpath.PathElement{Key: &keys})
	if err != nil {
		c.unsupported = true
	}
	return element
}

// compareSets compares two lists of strings that are sets.
func (c *comparer) compareSets(before, after reflect.Value) {
	modifiedMark, removedMark := c.modified.mark(), c.removed.mark()
	old, current := newStringSet(before), newStringSet(after)
	if old.hasDuplicate() || current.hasDuplicate() {
		c.unsupported = true
		return
	}
	c.addMissingItems(&c.modified, current, old)
	c.addMissingItems(&c.removed, old, current)
	c.modified.sort(modifiedMark)
	c.removed.sort(removedMark)
}

// addMissingItems adds the items of list that other does not have.
func (c *comparer) addMissingItems(to *setBuilder, list, other stringSet) {
	for i := range list.len() {
		text := list.at(i)
		if other.has(text) {
			continue
		}
		element := `"v:\"` + text + `\""`
		if !needsNoEscape(text) {
			v := value.NewValueInterface(text)
			var err error
			if element, err = encodeElement(fieldpath.PathElement{Value: &v}); err != nil {
				c.unsupported = true
				return
			}
		}
		to.close(to.mark(), element, true)
	}
}

// stringSet is a list of strings in which strings are found.
type stringSet struct {
	list  reflect.Value    // invalid: empty
	index sets.Set[string] // nil for a short list
}

func newStringSet(list reflect.Value) stringSet {
	s := stringSet{list: list}
	if s.len() > maxPairwise {
		s.index = make(sets.Set[string], s.len())
		for i := range s.len() {
			s.index.Insert(s.at(i))
		}
	}
	return s
}

func (s stringSet) len() int {
	if !s.list.IsValid() {
		return 0
	}
	return s.list.Len()
}

func (s stringSet) at(i int) string { return s.list.Index(i).String() }

func (s stringSet) has(text string) bool {
	if s.index != nil {
		return s.index.Has(text)
	}
	return s.count(text) > 0
}

func (s stringSet) count(text string) int {
	n := 0
	for i := range s.len() {
		if s.at(i) == text {
			n++
		}
	}
	return n
}

func (s stringSet) hasDuplicate() bool {
	if s.index != nil {
		return s.index.Len() < s.len()
	}
	for i := range s.len() {
		if s.count(s.at(i)) > 1 {
			return true
		}
	}
	return false
}

var (
	timeType      = reflect.TypeFor[metav1.Time]()
	microTimeType = reflect.TypeFor[metav1.MicroTime]()
)

// identical reports whether two values are equal bit for bit. It is fast. Values that are not identical may still be equal as JSON;
// see equalValues.
func identical(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.String:
		return a.String() == b.String()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return a.Int() == b.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return a.Uint() == b.Uint()
	case reflect.Float32, reflect.Float64:
		return a.Float() == b.Float()
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() || a.Pointer() == b.Pointer() {
			return a.IsNil() == b.IsNil()
		}
		return identical(a.Elem(), b.Elem())
	case reflect.Interface:
		return a.IsNil() && b.IsNil()
	case reflect.Slice:
		return identicalSlices(a, b)
	case reflect.Map:
		return identicalMaps(a, b)
	case reflect.Struct:
		return identicalStructs(a, b)
	}
	return false
}

func identicalSlices(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	if a.Type().Elem().Kind() == reflect.Uint8 {
		return bytes.Equal(a.Bytes(), b.Bytes())
	}
	for i := range a.Len() {
		if !identical(a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

func identicalMaps(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	for i := a.MapRange(); i.Next(); {
		other := b.MapIndex(i.Key())
		if !other.IsValid() || !identical(i.Value(), other) {
			return false
		}
	}
	return true
}

func identicalStructs(a, b reflect.Value) bool {
	if t := a.Type(); (t == timeType || t == microTimeType) && a.CanInterface() && b.CanInterface() {
		if t == timeType {
			l, r := a.Interface().(metav1.Time), b.Interface().(metav1.Time)
			return l.IsZero() == r.IsZero() && l.Unix() == r.Unix()
		}
		l, r := a.Interface().(metav1.MicroTime), b.Interface().(metav1.MicroTime)
		return l.IsZero() == r.IsZero() && l.UnixMicro() == r.UnixMicro()
	}
	for i := range a.NumField() {
		if !identical(a.Field(i), b.Field(i)) {
			return false
		}
	}
	return true
}

// equalValues reports whether two values are equal as JSON.
func equalValues(a, b reflect.Value) bool {
	l, err := value.NewValueReflect(addressOf(a))
	if err != nil {
		return false
	}
	r, err := value.NewValueReflect(addressOf(b))
	if err != nil {
		return false
	}
	return value.Equals(l, r)
}

func addressOf(v reflect.Value) any {
	if v.CanAddr() {
		return v.Addr().Interface()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Interface()
}
