package apiserver

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// TestStrategicMergeEqualsLibrary applies random patches to random pods with the library and with the server's own code.
func TestStrategicMergeEqualsLibrary(t *testing.T) {
	merged, failed := 0, 0
	for seed := range uint64(20000) {
		g := patchGenerator{rand.New(rand.NewPCG(seed, 1))}
		original, patch := g.pod(), g.patch()
		want, wantErr := libraryMerge(runtime.DeepCopyJSON(original), runtime.DeepCopyJSON(patch))
		got, err := strategicMerge(runtime.DeepCopyJSON(original), runtime.DeepCopyJSON(patch), &corev1.Pod{})
		if (err != nil) != (wantErr != nil) || err == nil && !reflect.DeepEqual(got, map[string]any(want)) {
			t.Fatalf("seed %d: patch %s of %s:\n%s %v\nwant\n%s %v", seed, text(patch), text(original), text(got), err, text(want), wantErr)
		}
		if err != nil {
			failed++
		} else {
			merged++
		}
	}
	if merged < 5000 || failed < 500 {
		t.Errorf("%d patches were applied and %d failed: the patches do not cover both", merged, failed)
	}
}

// TestStrategicMergeKeys: items whose merge key is not a scalar cannot be compared. The library panics unless it need not compare them.
func TestStrategicMergeKeys(t *testing.T) {
	for _, key := range []any{map[string]any{}, []any{"a"}} {
		list := func() map[string]any {
			return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": key}}}}
		}
		if _, err := strategicMerge(list(), list(), &corev1.Pod{}); err == nil {
			t.Errorf("merge key %v was accepted", key)
		}
	}
}

// libraryMerge returns an error where the library panics.
func libraryMerge(original, patch map[string]any) (merged map[string]any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return strategicpatch.StrategicMergeMapPatch(original, patch, &corev1.Pod{})
}

func text(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

type patchGenerator struct{ *rand.Rand }

func (g patchGenerator) name() string { return string(rune('a' + g.IntN(5))) }

// some is true in one of n cases.
func (g patchGenerator) some(n int) bool { return g.IntN(n) == 0 }

// names are different names in random order.
func (g patchGenerator) names() []string {
	var names []string
	for _, i := range g.Perm(5)[:g.IntN(6)] {
		names = append(names, string(rune('a'+i)))
	}
	return names
}

func (g patchGenerator) pod() map[string]any {
	meta := map[string]any{"name": "p", "labels": map[string]any{"a": "1", "b": "2"}}
	if !g.some(4) {
		meta["finalizers"] = anyList(g.names())
	}
	containers, volumes, tolerations := []any{}, []any{}, []any{}
	for _, name := range g.names() {
		containers = append(containers, map[string]any{"name": name, "image": "i", "env": g.namedItems("value"), "command": anyList(g.names())})
	}
	for _, name := range g.names() {
		volumes = append(volumes, map[string]any{"name": name, "emptyDir": map[string]any{"medium": "Memory"}})
	}
	for _, name := range g.names() {
		tolerations = append(tolerations, map[string]any{"key": name})
	}
	spec := map[string]any{"containers": containers, "tolerations": tolerations, "nodeName": "n"}
	if !g.some(4) {
		spec["volumes"] = volumes
	}
	return map[string]any{"metadata": meta, "spec": spec}
}

func anyList(names []string) []any {
	list := make([]any, 0, len(names))
	for _, name := range names {
		list = append(list, name)
	}
	return list
}

func (g patchGenerator) namedItems(field string) []any {
	list := []any{}
	for _, name := range g.names() {
		list = append(list, map[string]any{"name": name, field: g.name()})
	}
	return list
}

// patch is a patch with every directive, often in a wrong place.
func (g patchGenerator) patch() map[string]any {
	meta, spec := map[string]any{}, map[string]any{}
	if g.some(3) {
		meta["labels"] = map[string]any{"a": nil, "c": "3"}
	}
	if g.some(2) {
		// The library changes the order of finalizers that are there twice when the patch has none.
		meta["finalizers"] = append(anyList(g.names()), g.name())
	}
	if g.some(3) {
		meta["$setElementOrder/finalizers"] = anyList(g.names())
	}
	// Without an order the result of the library depends on the order in which it visits the keys.
	_, ordered := meta["$setElementOrder/finalizers"]
	if _, sent := meta["finalizers"]; g.some(3) && (ordered || !sent) {
		meta["$deleteFromPrimitiveList/finalizers"] = anyList(g.names())
	}
	if g.some(20) {
		meta["finalizers"] = []any{nil}
		delete(meta, "$deleteFromPrimitiveList/finalizers")
	}
	g.keyedList(spec, "containers", func(item map[string]any) {
		item["image"] = g.name()
		if g.some(2) {
			g.keyedList(item, "env", func(env map[string]any) { env["value"] = g.name() })
		}
		if g.some(3) {
			item["command"] = anyList(g.names())
		}
		if g.some(3) {
			item["$setElementOrder/env"] = g.order()
		}
		if g.some(10) {
			item["livenessProbe"] = map[string]any{"$patch": "delete"}
		}
	})
	if g.some(2) {
		g.keyedList(spec, "volumes", func(item map[string]any) {
			item["hostPath"] = map[string]any{"path": "/", "type": nil}
			if g.some(2) {
				item["$retainKeys"] = []any{"name", "hostPath"}
			}
			if g.some(10) {
				item["$retainKeys"] = []any{"name"}
			}
		})
	}
	if g.some(3) {
		spec["tolerations"] = []any{map[string]any{"key": "x"}}
	}
	if g.some(10) {
		spec["nodeName"] = nil
	}
	if g.some(20) {
		spec["$patch"] = []string{"replace", "delete", "merge", "x"}[g.IntN(4)]
	}
	return map[string]any{"metadata": meta, "spec": spec}
}

func (g patchGenerator) order() []any {
	order := []any{}
	for _, name := range g.names() {
		order = append(order, map[string]any{"name": name})
	}
	return order
}

func (g patchGenerator) keyedList(object map[string]any, field string, fill func(item map[string]any)) {
	list := []any{}
	deletes := g.some(2)
	for _, name := range g.names() {
		item := map[string]any{"name": name}
		switch {
		case deletes && g.some(3):
			item["$patch"] = "delete"
		case !deletes && g.some(40):
			item["$patch"] = []string{"replace", "merge", "x"}[g.IntN(3)]
		case g.some(60):
			delete(item, "name")
		default:
			fill(item)
		}
		list = append(list, item)
	}
	if g.some(40) {
		list = append(list, "text")
	}
	if g.some(40) {
		list = append(list, nil)
	}
	object[field] = list
	switch {
	case g.some(3):
		object["$setElementOrder/"+field] = g.order()
	case g.some(3):
		order := []any{}
		for _, item := range list {
			if item, ok := item.(map[string]any); ok {
				order = append(order, map[string]any{"name": item["name"]})
			}
		}
		object["$setElementOrder/"+field] = append(order, g.order()...)
	}
}
