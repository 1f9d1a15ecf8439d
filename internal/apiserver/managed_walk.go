package apiserver

import (
	"bytes"
	"reflect"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// fieldWalk finds the fields in which two objects of one type differ. taken are those the new object adds or changes:
// they become the writer's. removed are those it no longer has: they leave every manager.
//
// Walks are reused. What one has built is valid until the next begins.
type fieldWalk struct {
	taken, removed fieldBuilder
	parser         fieldParser
	// beyond: the objects hold something the plan does not cover; the sets are worth nothing.
	beyond bool
}

// compareObjects walks two objects of the plan's type. live may be an empty object.
func (w *fieldWalk) compareObjects(plan *fieldPlan, live, next any) {
	w.beyond = false
	w.taken.reset()
	w.removed.reset()
	w.parser.reset()
	w.compare(plan, reflect.ValueOf(live), reflect.ValueOf(next))
}

// compare walks the old and the new value of one field; an invalid value is an absent one. What differs below the field
// is left with the builders. The results say whether the field itself is taken or removed.
func (w *fieldWalk) compare(plan *fieldPlan, before, after reflect.Value) (taken, removed bool) {
	if w.beyond || !before.IsValid() && !after.IsValid() {
		return false, false
	}
	before, beforeNull := dereference(before)
	after, afterNull := dereference(after)
	if plan.kind == planLeaf {
		return w.leaf(before, after, beforeNull, afterNull)
	}
	takenMark, removedMark := w.taken.mark(), w.removed.mark()
	l, r := before, after
	if beforeNull {
		l = reflect.Value{}
	}
	if afterNull {
		r = reflect.Value{}
	}
	switch plan.kind {
	case planStruct:
		w.structure(plan, l, r)
	case planMap:
		w.mapping(plan, l, r)
	case planKeyed:
		w.keyed(plan, l, r)
	case planSet:
		w.set(l, r)
	case planOpaque:
		if before.IsValid() != after.IsValid() || beforeNull != afterNull || !same(before, after) {
			w.beyond = true
		}
		return false, false
	}
	if before.IsValid() && after.IsValid() {
		// null and empty are different values, and neither has fields that would show the difference.
		changed := beforeNull != afterNull && !w.taken.grown(takenMark) && !w.removed.grown(removedMark)
		return changed, false
	}
	return !before.IsValid(), !after.IsValid()
}

// dereference follows pointers. null is true for values that are there but stand for JSON's null.
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

func (w *fieldWalk) leaf(before, after reflect.Value, beforeNull, afterNull bool) (taken, removed bool) {
	switch {
	case !before.IsValid():
		return true, false
	case !after.IsValid():
		return false, true
	case beforeNull || afterNull:
		// A type of its own may marshal to null as well; only the library knows.
		return beforeNull != afterNull && !equalValues(before, after), false
	}
	return !same(before, after) && !equalValues(before, after), false
}

// present is a field's value, or an invalid one when JSON would leave it out.
func (f *planField) present(object reflect.Value) reflect.Value {
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

func (w *fieldWalk) structure(plan *fieldPlan, before, after reflect.Value) {
	for i := range plan.fields {
		f := &plan.fields[i]
		l, r := f.present(before), f.present(after)
		if !l.IsValid() && !r.IsValid() {
			continue
		}
		takenMark, removedMark := w.taken.mark(), w.removed.mark()
		taken, removed := w.compare(f.plan, l, r)
		w.taken.close(takenMark, f.element, taken)
		w.removed.close(removedMark, f.element, removed)
	}
}

func (w *fieldWalk) mapping(plan *fieldPlan, before, after reflect.Value) {
	var small [16]string
	keys := mapKeys(after, mapKeys(before, small[:0]))
	slices.Sort(keys)
	keys = slices.Compact(keys)
	for _, key := range keys {
		takenMark, removedMark := w.taken.mark(), w.removed.mark()
		taken, removed := w.compare(plan.elem, mapValue(before, key), mapValue(after, key))
		if !taken && !removed && !w.taken.grown(takenMark) && !w.removed.grown(removedMark) {
			continue
		}
		element, err := fieldElement(key)
		if err != nil {
			w.beyond = true
			return
		}
		w.taken.close(takenMark, element, taken)
		w.removed.close(removedMark, element, removed)
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

// keyed walks two lists whose items are told apart by their keys. While both have the same keys in the same places no
// key is written out for items that did not change.
func (w *fieldWalk) keyed(plan *fieldPlan, before, after reflect.Value) {
	takenMark, removedMark := w.taken.mark(), w.removed.mark()
	if !alignedKeys(plan, before, after) {
		w.keyedApart(plan, before, after)
	} else {
		for i := range after.Len() {
			item := after.Index(i)
			takenItem, removedItem := w.taken.mark(), w.removed.mark()
			taken, _ := w.compare(plan.elem, before.Index(i), item)
			if !taken && !w.taken.grown(takenItem) && !w.removed.grown(removedItem) {
				continue
			}
			if repeatsKey(plan, after, i) {
				w.beyond = true
				return
			}
			element := w.itemElement(plan, item)
			w.taken.close(takenItem, element, taken)
			w.removed.close(removedItem, element, false)
		}
	}
	w.taken.sort(takenMark)
	w.removed.sort(removedMark)
}

// keyedApart pairs the items of two lists by their keys. A key that appears twice in a list is beyond the plan.
func (w *fieldWalk) keyedApart(plan *fieldPlan, before, after reflect.Value) {
	if !before.IsValid() && after.IsValid() && after.Len() <= 8 {
		w.keyedNew(plan, after)
		return
	}
	old := make(map[string]reflect.Value)
	if before.IsValid() {
		for i := range before.Len() {
			item := before.Index(i)
			element := w.itemElement(plan, item)
			if _, twice := old[element]; twice {
				w.beyond = true
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
			element := w.itemElement(plan, item)
			if seen[element] || w.beyond {
				w.beyond = true
				return
			}
			seen[element] = true
			w.item(plan.elem, element, old[element], item)
		}
	}
	for element, item := range old {
		if !seen[element] {
			w.item(plan.elem, element, item, reflect.Value{})
		}
	}
}

// keyedNew walks a short list that is new as a whole.
func (w *fieldWalk) keyedNew(plan *fieldPlan, after reflect.Value) {
	for i := range after.Len() {
		item := after.Index(i)
		if repeatsKey(plan, after, i) {
			w.beyond = true
		}
		element := w.itemElement(plan, item)
		if w.beyond {
			return
		}
		w.item(plan.elem, element, reflect.Value{}, item)
	}
}

func (w *fieldWalk) item(plan *fieldPlan, element string, before, after reflect.Value) {
	takenMark, removedMark := w.taken.mark(), w.removed.mark()
	taken, removed := w.compare(plan, before, after)
	w.taken.close(takenMark, element, taken)
	w.removed.close(removedMark, element, removed)
}

// alignedKeys reports whether two lists have the same keys in the same places.
func alignedKeys(plan *fieldPlan, before, after reflect.Value) bool {
	if !before.IsValid() || !after.IsValid() || before.Len() != after.Len() {
		return false
	}
	for i := range after.Len() {
		if !sameKey(plan, before.Index(i), after.Index(i)) {
			return false
		}
	}
	return true
}

// sameKey reports whether two items have the same keys. An item without any key is not even the same as itself.
func sameKey(plan *fieldPlan, a, b reflect.Value) bool {
	a, aNull := dereference(a)
	b, bNull := dereference(b)
	if aNull || bNull {
		return false
	}
	keyless := true
	for i := range plan.keys {
		l, r := plan.keys[i].field.present(a), plan.keys[i].field.present(b)
		if l.IsValid() != r.IsValid() || l.IsValid() && !same(l, r) {
			return false
		}
		keyless = keyless && !l.IsValid() && plan.keys[i].missing == ""
	}
	return !keyless
}

func repeatsKey(plan *fieldPlan, list reflect.Value, at int) bool {
	for i := range list.Len() {
		if i != at && sameKey(plan, list.Index(i), list.Index(at)) {
			return true
		}
	}
	return false
}

// itemElement writes the element of an item: its keys by name, with the defaults of those that are missing.
func (w *fieldWalk) itemElement(plan *fieldPlan, item reflect.Value) string {
	item, null := dereference(item)
	if null {
		w.beyond = true
		return ""
	}
	var buf [96]byte
	text := append(buf[:0], `"k:{`...)
	for i := range plan.keys {
		key := &plan.keys[i]
		v, null := dereference(key.field.present(item))
		if null {
			w.beyond = true
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
			if !plainText(v.String()) {
				return w.oddElement(plan, item)
			}
			text = append(append(append(text, `\"`...), v.String()...), `\"`...)
		case v.Kind() == reflect.Bool:
			text = strconv.AppendBool(text, v.Bool())
		default:
			text = strconv.AppendInt(text, v.Int(), 10)
		}
	}
	if len(text) == len(`"k:{`) {
		w.beyond = true // an item without any key has no place in the set
		return ""
	}
	return string(append(text, `}"`...))
}

// oddElement writes the element of an item whose keys hold text that must be escaped.
func (w *fieldWalk) oddElement(plan *fieldPlan, item reflect.Value) string {
	var keys value.FieldList
	for i := range plan.keys {
		key := &plan.keys[i]
		v, _ := dereference(key.field.present(item))
		var content any
		switch {
		case !v.IsValid() && key.missing == "":
			continue
		case !v.IsValid():
			w.beyond = true
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
		w.beyond = true
	}
	return element
}

// set walks two lists of text that are sets.
func (w *fieldWalk) set(before, after reflect.Value) {
	takenMark, removedMark := w.taken.mark(), w.removed.mark()
	w.setItems(&w.taken, after, before)
	w.setItems(&w.removed, before, after)
	w.taken.sort(takenMark)
	w.removed.sort(removedMark)
}

// setItems adds the items of list that other does not have.
func (w *fieldWalk) setItems(to *fieldBuilder, list, other reflect.Value) {
	if !list.IsValid() {
		return
	}
	for i := range list.Len() {
		text := list.Index(i).String()
		if countText(list, text) > 1 {
			w.beyond = true
			return
		}
		if other.IsValid() && countText(other, text) > 0 {
			continue
		}
		element := `"v:\"` + text + `\""`
		if !plainText(text) {
			v := value.NewValueInterface(text)
			var err error
			if element, err = encodeElement(fieldpath.PathElement{Value: &v}); err != nil {
				w.beyond = true
				return
			}
		}
		to.close(to.mark(), element, true)
	}
}

func countText(list reflect.Value, text string) int {
	n := 0
	for i := range list.Len() {
		if list.Index(i).String() == text {
			n++
		}
	}
	return n
}

var (
	timeType      = reflect.TypeFor[metav1.Time]()
	microTimeType = reflect.TypeFor[metav1.MicroTime]()
)

// same reports whether two values are the same to the last bit. It is quick; values that are not the same may still be
// equal as JSON, which equalValues tells.
func same(a, b reflect.Value) bool {
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
		return same(a.Elem(), b.Elem())
	case reflect.Interface:
		return a.IsNil() && b.IsNil()
	case reflect.Slice:
		return sameSlice(a, b)
	case reflect.Map:
		return sameMap(a, b)
	case reflect.Struct:
		return sameStruct(a, b)
	}
	return false
}

func sameSlice(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	if a.Type().Elem().Kind() == reflect.Uint8 {
		return bytes.Equal(a.Bytes(), b.Bytes())
	}
	for i := range a.Len() {
		if !same(a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

func sameMap(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	for i := a.MapRange(); i.Next(); {
		other := b.MapIndex(i.Key())
		if !other.IsValid() || !same(i.Value(), other) {
			return false
		}
	}
	return true
}

func sameStruct(a, b reflect.Value) bool {
	if t := a.Type(); (t == timeType || t == microTimeType) && a.CanInterface() && b.CanInterface() {
		if t == timeType {
			l, r := a.Interface().(metav1.Time), b.Interface().(metav1.Time)
			return l.IsZero() == r.IsZero() && l.Unix() == r.Unix()
		}
		l, r := a.Interface().(metav1.MicroTime), b.Interface().(metav1.MicroTime)
		return l.IsZero() == r.IsZero() && l.UnixMicro() == r.UnixMicro()
	}
	for i := range a.NumField() {
		if !same(a.Field(i), b.Field(i)) {
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
