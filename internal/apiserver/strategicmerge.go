package apiserver

import (
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// The directives of a strategic merge patch.
const (
	directivePatch            = "$patch"
	directiveRetainKeys       = "$retainKeys"
	prefixSetElementOrder     = "$setElementOrder"
	prefixDeleteFromPrimitive = "$deleteFromPrimitiveList"

	strategyMerge      = "merge"
	strategyReplace    = "replace"
	strategyDelete     = "delete"
	strategyRetainKeys = "retainKeys"
)

// strategicMerge applies a strategic merge patch to an object; it changes both. The result is that of strategicpatch.StrategicMergeMapPatch, a
// test compares both. The library searches a list for every item of another, so that a patch of a long list takes minutes; here items
// are found by hashing their keys.
func strategicMerge(original, patch map[string]any, dataStruct any) (map[string]any, error) {
	schema, err := strategicpatch.NewPatchMetaFromStruct(dataStruct)
	if err != nil {
		return nil, err
	}
	return mergeMaps(original, patch, schema)
}

func mergeMaps(original, patch map[string]any, schema strategicpatch.LookupPatchMeta) (map[string]any, error) {
	if directive, ok := patch[directivePatch]; ok {
		switch directive {
		case strategyReplace:
			delete(patch, directivePatch)
			return patch, nil
		case strategyDelete:
			return map[string]any{}, nil
		}
		return nil, mergepatch.ErrBadPatchType(directive, patch)
	}
	if original == nil {
		original = map[string]any{}
	}
	if err := retainKeys(original, patch); err != nil {
		return nil, err
	}
	if err := mergeOrderedLists(original, patch, schema); err != nil {
		return nil, err
	}
	for key, value := range patch {
		if err := mergeField(original, key, value, schema); err != nil {
			return nil, err
		}
	}
	return original, nil
}

// retainKeys removes the keys of the original that are not in the $retainKeys directive of the patch.
func retainKeys(original, patch map[string]any) error {
	directive, ok := patch[directiveRetainKeys]
	if !ok {
		return nil
	}
	delete(patch, directiveRetainKeys)
	list, ok := directive.([]any)
	if !ok {
		return mergepatch.ErrBadPatchFormatForRetainKeys
	}
	retained, err := indexOf(list, "")
	if err != nil {
		return err
	}
	for key, value := range patch {
		if value == nil || strings.HasPrefix(key, prefixDeleteFromPrimitive) || strings.HasPrefix(key, prefixSetElementOrder) {
			continue
		}
		if !retained.has(key) {
			return mergepatch.ErrBadPatchFormatForRetainKeys
		}
	}
	for key := range original {
		if !retained.has(key) {
			delete(original, key)
		}
	}
	return nil
}

// mergeField merges one field of a patch.
func mergeField(original map[string]any, key string, value any, schema strategicpatch.LookupPatchMeta) error {
	deletes := strings.HasPrefix(key, prefixDeleteFromPrimitive)
	if deletes {
		_, field, ok := strings.Cut(key, "/")
		if !ok || key != prefixDeleteFromPrimitive+"/"+field {
			return mergepatch.ErrBadPatchFormatForPrimitiveList
		}
		if field != "" {
			key = field
		}
	}
	if value == nil {
		delete(original, key)
		return nil
	}
	current, exists := original[key]
	if !exists || reflect.TypeOf(current) != reflect.TypeOf(value) {
		if !deletes {
			dropNulls(value)
			setWithoutDirectives(original, key, value)
		}
		return nil
	}
	switch value := value.(type) {
	case map[string]any:
		below, meta, err := schema.LookupPatchMetadataForStruct(key)
		if err != nil {
			return err
		}
		strategy, err := patchStrategy(meta)
		if err != nil {
			return err
		}
		if strategy == strategyReplace {
			original[key] = value
			return nil
		}
		merged, err := mergeMaps(current.(map[string]any), value, below)
		original[key] = merged
		return err
	case []any:
		below, meta, err := schema.LookupPatchMetadataForSlice(key)
		if err != nil {
			return err
		}
		merged, _, err := mergeListField(current.([]any), value, listMeta{below, meta}, deletes)
		original[key] = merged
		return err
	}
	setWithoutDirectives(original, key, value)
	return nil
}

// patchStrategy is the strategy of a field besides retainKeys.
func patchStrategy(meta strategicpatch.PatchMeta) (string, error) {
	strategies := meta.GetPatchStrategies()
	switch {
	case len(strategies) == 0, len(strategies) == 1 && strategies[0] == strategyRetainKeys:
		return "", nil
	case len(strategies) == 1:
		return strategies[0], nil
	case len(strategies) == 2 && strategies[0] == strategyRetainKeys:
		return strategies[1], nil
	case len(strategies) == 2 && strategies[1] == strategyRetainKeys:
		return strategies[0], nil
	}
	return "", fmt.Errorf("unexpected patch strategy: %v", strategies)
}

func setWithoutDirectives(original map[string]any, key string, value any) {
	kept, ok := withoutDirectives(value)
	if ok {
		original[key] = kept
	} else {
		delete(original, key)
	}
}

// withoutDirectives removes the maps that have a $patch directive. It returns false when the value is one itself.
func withoutDirectives(value any) (any, bool) {
	switch value := value.(type) {
	case map[string]any:
		if _, ok := value[directivePatch]; ok {
			return nil, false
		}
		for key, below := range value {
			setWithoutDirectives(value, key, below)
		}
	case []any:
		kept := make([]any, 0, len(value))
		for _, item := range value {
			if item, ok := withoutDirectives(item); ok {
				kept = append(kept, item)
			}
		}
		return kept, true
	}
	return value, true
}

// dropNulls removes the keys with the value null from all maps in a value.
func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, below := range value {
			if below == nil {
				delete(value, key)
			} else {
				dropNulls(below)
			}
		}
	case []any:
		for _, item := range value {
			dropNulls(item)
		}
	}
}

// listMeta says how a list is merged.
type listMeta struct {
	schema strategicpatch.LookupPatchMeta // of its items
	meta   strategicpatch.PatchMeta
}

func (m listMeta) mergeKey() string { return m.meta.GetPatchMergeKey() }

// mergeListField merges a list of the patch into that of the original, or deletes its items from there. order is the live list as
// $setElementOrder compares with it: new items are in the places of deleted ones.
func mergeListField(original, patch []any, m listMeta, deletes bool) (merged, order []any, err error) {
	strategy, err := patchStrategy(m.meta)
	if err != nil {
		return nil, nil, err
	}
	if strategy != strategyMerge && !deletes {
		return patch, original, nil
	}
	if len(original) == 0 && len(patch) == 0 {
		return original, original, nil
	}
	itemKind, err := kindOfItems(original, patch)
	if err != nil {
		return nil, nil, err
	}
	order = original
	switch {
	case itemKind != reflect.Map && deletes:
		merged, err = withoutItems(original, patch)
		return merged, original, err
	case itemKind != reflect.Map:
		if merged, err = distinctItems(original, patch); err != nil {
			return nil, nil, err
		}
	case m.mergeKey() == "":
		return nil, nil, fmt.Errorf("cannot merge lists without merge key for %s", m.schema.Name())
	default:
		length := len(original)
		if original, patch, err = applyItemDirectives(original, patch, m.mergeKey()); err != nil {
			return nil, nil, err
		}
		if merged, err = mergeItems(original, patch, m); err != nil {
			return nil, nil, err
		}
		if len(patch) > 0 && len(original) < length {
			order = merged[:min(len(merged), length)]
		}
	}
	sorted, err := orderItems(merged, patch, original, m.mergeKey(), itemKind)
	return sorted, order, err
}

// kindOfItems is the kind that all items of the lists have.
func kindOfItems(lists ...[]any) (reflect.Kind, error) {
	var first reflect.Type
	for _, list := range lists {
		for _, item := range list {
			t := reflect.TypeOf(item)
			switch {
			case t == nil:
				return 0, errors.New("list elements must not be null")
			case first == nil && t.Kind() == reflect.Slice:
				return 0, mergepatch.ErrNoListOfLists
			case first == nil:
				first = t
			case first != t:
				return 0, fmt.Errorf("list element types are not identical: %v", fmt.Sprint(lists))
			}
		}
	}
	if first == nil {
		return 0, errors.New("no elements in any of the given slices")
	}
	return first.Kind(), nil
}

// applyItemDirectives deletes from the original what the patch deletes. It returns the new original and the patch without directives.
func applyItemDirectives(original, patch []any, mergeKey string) ([]any, []any, error) {
	plain, replaces := []any{}, false
	deleted := itemIndex{}
	for i, item := range patch {
		item := item.(map[string]any)
		directive, ok := item[directivePatch]
		if !ok {
			plain = append(plain, item)
			continue
		}
		switch directive {
		case strategyReplace:
			replaces = true
		case strategyDelete:
			value, ok := item[mergeKey]
			if !ok {
				return nil, nil, mergepatch.ErrNoMergeKey(item, mergeKey)
			}
			if err := deleted.add(value, i); err != nil {
				return nil, nil, err
			}
		case strategyMerge:
			return nil, nil, errors.New("merging lists cannot yet be specified in the patch")
		default:
			return nil, nil, mergepatch.ErrBadPatchType(directive, item)
		}
	}
	if replaces {
		return plain, nil, nil
	}
	if len(deleted) == 0 {
		return original, plain, nil
	}
	kept := make([]any, 0, len(original))
	for _, item := range original {
		if value, ok := item.(map[string]any)[mergeKey]; !ok || !deleted.has(value) {
			kept = append(kept, item)
		}
	}
	return kept, plain, nil
}

// mergeItems merges each item of the patch into the item of the original with the same key, or appends it.
func mergeItems(original, patch []any, m listMeta) ([]any, error) {
	merged := append(make([]any, 0, len(original)+len(patch)), original...)
	index, err := indexOf(original, m.mergeKey())
	if err != nil {
		return nil, err
	}
	for _, item := range patch {
		item := item.(map[string]any)
		value, ok := item[m.mergeKey()]
		if !ok {
			return nil, mergepatch.ErrNoMergeKey(item, m.mergeKey())
		}
		at, found := index.find(value)
		if !found {
			if err := index.add(value, len(merged)); err != nil {
				return nil, err
			}
			merged = append(merged, item)
			continue
		}
		if merged[at], err = mergeMaps(merged[at].(map[string]any), item, m.schema); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

func withoutItems(list, removed []any) ([]any, error) {
	index, err := indexOf(removed, "")
	if err != nil {
		return nil, err
	}
	kept := make([]any, 0, len(list))
	for _, item := range list {
		if !index.has(item) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// distinctItems are the items of two lists, each once.
func distinctItems(lists ...[]any) ([]any, error) {
	index := itemIndex{}
	var distinct []any
	for _, list := range lists {
		for _, item := range list {
			if index.has(item) {
				continue
			}
			if err := index.add(item, len(distinct)); err != nil {
				return nil, err
			}
			distinct = append(distinct, item)
		}
	}
	return distinct, nil
}

// mergeOrderedLists merges the lists that have a $setElementOrder directive and removes both from the patch.
func mergeOrderedLists(original, patch map[string]any, schema strategicpatch.LookupPatchMeta) error {
	for key, directive := range patch {
		if !strings.HasPrefix(key, prefixSetElementOrder) {
			continue
		}
		delete(patch, key)
		order, ok := directive.([]any)
		if !ok {
			return mergepatch.ErrBadArgType(order, directive)
		}
		field, ok := strings.CutPrefix(key, prefixSetElementOrder+"/")
		if !ok {
			return mergepatch.ErrBadPatchFormatForSetElementOrderList
		}
		if err := mergeOrderedList(original, patch, field, order, schema); err != nil {
			return err
		}
	}
	return nil
}

func mergeOrderedList(original, patch map[string]any, field string, order []any, schema strategicpatch.LookupPatchMeta) error {
	live, inOriginal, err := listAt(original, field)
	if err != nil {
		return err
	}
	sent, inPatch, err := listAt(patch, field)
	if err != nil {
		return err
	}
	below, meta, err := schema.LookupPatchMetadataForSlice(field)
	if err != nil {
		return err
	}
	m := listMeta{below, meta}
	if _, err := patchStrategy(meta); err != nil {
		return err
	}
	if err := checkElementOrder(sent, order, m.mergeKey()); err != nil {
		return err
	}
	var merged []any
	compared := live
	switch {
	case inOriginal && inPatch:
		if merged, compared, err = mergeListField(live, sent, m, false); err != nil {
			return err
		}
	case inOriginal:
		merged = live
	case inPatch:
		kept, _ := withoutDirectives(sent)
		merged = kept.([]any)
	default:
		return nil
	}
	itemKind, err := kindOfItems(live, sent)
	if err != nil {
		return err
	}
	if original[field], err = orderItems(merged, order, compared, m.mergeKey(), itemKind); err != nil {
		return err
	}
	delete(patch, field)
	return nil
}

func listAt(object map[string]any, field string) (list []any, found bool, err error) {
	value, found := object[field]
	if !found {
		return nil, false, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, true, mergepatch.ErrBadArgType(list, value)
	}
	return list, true, nil
}

// checkElementOrder checks that the items of the patch occur in the $setElementOrder list, in the same order.
func checkElementOrder(patch, order []any, mergeKey string) error {
	if len(order) == 0 || len(patch) == 0 {
		return nil
	}
	items := patch
	if mergeKey != "" {
		items = nil
		for _, item := range patch {
			object, ok := item.(map[string]any)
			if !ok {
				return mergepatch.ErrBadArgType(object, item)
			}
			if object[directivePatch] != strategyDelete {
				items = append(items, item)
			}
		}
	}
	next, at := 0, 0
	for next < len(items) && at < len(order) {
		if object, ok := items[next].(map[string]any); ok && object[directivePatch] != nil {
			next++
			continue
		}
		value, err := keyOf(items[next], mergeKey)
		if err != nil {
			return err
		}
		wanted, err := keyOf(order[at], mergeKey)
		if err != nil {
			return err
		}
		if value == wanted {
			next++
		}
		at++
	}
	if next < len(items) {
		return fmt.Errorf("The order in patch list:\n%v\n doesn't match %s list:\n%v\n", patch, prefixSetElementOrder, order) //nolint:staticcheck // upstream's text
	}
	return nil
}

// keyOf is the value that identifies an item: the value of its merge key, or the item itself when there is none.
func keyOf(item any, mergeKey string) (any, error) {
	value := item
	if mergeKey != "" {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, mergepatch.ErrBadArgType(object, item)
		}
		if value, ok = object[mergeKey]; !ok {
			return nil, mergepatch.ErrNoMergeKey(object, mergeKey)
		}
	}
	if !isHashable(value) {
		return nil, fmt.Errorf("a list or an object cannot be compared: %v", value)
	}
	return value, nil
}

// orderItems orders the items of a merged list: those in order as they are there, the others as they are in the live list. The others are
// placed before the first item that the live list has after them.
func orderItems(merged, order, live []any, mergeKey string, itemKind reflect.Kind) ([]any, error) {
	wanted, err := indexOf(order, mergeKey)
	if err != nil {
		return nil, err
	}
	var ordered, others []any
	for _, item := range merged {
		value, err := keyOf(item, mergeKey)
		if err != nil {
			return nil, err
		}
		if wanted.has(value) {
			ordered = append(ordered, item)
		} else {
			others = append(others, item)
		}
	}
	sorted, err := sortItems(ordered, order, mergeKey, itemKind)
	if err != nil {
		return nil, err
	}
	sortedOthers, err := sortItems(others, live, mergeKey, itemKind)
	if err != nil {
		return nil, err
	}
	return interleave(sortedOthers, sorted, live, mergeKey)
}

// positioned is an item with its position in an order, or -1.
type positioned struct {
	item     any
	position int
}

// sortItems sorts items by their position in order. Items that are to be deleted go to the end.
func sortItems(items, order []any, mergeKey string, itemKind reflect.Kind) ([]any, error) {
	if itemKind == reflect.Map {
		for _, item := range order {
			if _, err := keyOf(item, mergeKey); err != nil {
				return nil, err
			}
		}
	}
	index, err := indexOf(order, mergeKey)
	if err != nil {
		return nil, err
	}
	sorting := make([]positioned, 0, len(items))
	var last []any
	for _, item := range items {
		if object, ok := item.(map[string]any); ok && object[directivePatch] == strategyDelete {
			last = append(last, item)
			continue
		}
		position, err := index.position(item, mergeKey)
		if err != nil {
			return nil, err
		}
		sorting = append(sorting, positioned{item, position})
	}
	sort.SliceStable(sorting, func(i, j int) bool {
		return sorting[i].position < 0 || sorting[j].position < 0 || sorting[i].position < sorting[j].position
	})
	out := make([]any, 0, len(items))
	for _, p := range sorting {
		out = append(out, p.item)
	}
	return append(out, last...), nil
}

// interleave merges two sorted lists. An item of left is placed before the first item of right that follows it in the live list.
func interleave(left, right, live []any, mergeKey string) ([]any, error) {
	index, err := indexOf(live, mergeKey)
	if err != nil {
		return nil, err
	}
	out := make([]any, 0, len(left)+len(right))
	for len(left) > 0 && len(right) > 0 {
		l, err := index.position(left[0], mergeKey)
		if err != nil {
			return nil, err
		}
		r, err := index.position(right[0], mergeKey)
		if err != nil {
			return nil, err
		}
		if l >= 0 && r >= 0 && l < r {
			out, left = append(out, left[0]), left[1:]
		} else {
			out, right = append(out, right[0]), right[1:]
		}
	}
	return append(append(out, left...), right...), nil
}

// itemIndex maps the value that identifies an item to the item's first position in a list.
type itemIndex map[any]int

// indexOf indexes a list. Items without the merge key are left out.
func indexOf(list []any, mergeKey string) (itemIndex, error) {
	index := make(itemIndex, len(list))
	for i, item := range list {
		value := item
		if mergeKey != "" {
			object, ok := item.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("value for key %v is not a map", i)
			}
			if value, ok = object[mergeKey]; !ok {
				continue
			}
		}
		if err := index.add(value, i); err != nil {
			return nil, err
		}
	}
	return index, nil
}

func (x itemIndex) add(value any, at int) error {
	if !isHashable(value) {
		return fmt.Errorf("a list or an object cannot be compared: %v", value)
	}
	if _, known := x[value]; !known {
		x[value] = at
	}
	return nil
}

func (x itemIndex) find(value any) (at int, found bool) {
	if !isHashable(value) {
		return 0, false
	}
	at, found = x[value]
	return at, found
}

func (x itemIndex) has(value any) bool {
	_, found := x.find(value)
	return found
}

// position is the position of an item, or -1 when the list does not have it.
func (x itemIndex) position(item any, mergeKey string) (int, error) {
	value, err := keyOf(item, mergeKey)
	if err != nil {
		return 0, err
	}
	if at, found := x.find(value); found {
		return at, nil
	}
	return -1, nil
}

// isHashable reports whether a JSON value can be a map's key.
func isHashable(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}
