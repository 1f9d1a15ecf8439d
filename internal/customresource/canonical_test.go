package customresource

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
)

// The schemas have everything that pruning and defaulting depend on.
var canonicalSchemas = []string{
	"{type: object, properties: {a: {type: string, default: x}, b: {type: object, properties: {a: {type: integer}, c: {type: string, nullable: true}}}, l: {type: array, items: {type: object, properties: {a: {type: string, default: x}}}}}}",
	"{type: object, additionalProperties: {type: object, nullable: true, properties: {a: {type: string}, b: {type: string, nullable: true, default: x}}}}",
	"{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {b: {type: object, properties: {a: {type: string}}}, l: {type: array, nullable: true, items: {type: string, nullable: true}}}}",
	"{type: object, properties: {b: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}, a: {x-kubernetes-int-or-string: true}}}",
	"{type: object, additionalProperties: {x-kubernetes-preserve-unknown-fields: true}}",
	"{type: object, properties: {l: {type: array, items: {type: array, items: {type: object, properties: {c: {type: string}}}}}}}",
}

func randomValue(r *rand.Rand, depth int) any {
	switch n := r.IntN(8); {
	case n < 3 || depth > 4:
		return []any{"x", int64(1), true}[r.IntN(3)]
	case n == 3:
		return nil
	case n == 4:
		list := make([]any, r.IntN(3))
		for i := range list {
			list[i] = randomValue(r, depth+1)
		}
		return list
	}
	fields := map[string]any{}
	for _, name := range []string{"a", "b", "c", "l"} {
		if r.IntN(2) == 0 {
			fields[name] = randomValue(r, depth+1)
		}
	}
	return fields
}

// randomMetadata is mostly valid.
func randomMetadata(r *rand.Rand) map[string]any {
	pick := func(values ...any) any {
		if r.IntN(8) == 0 {
			return values[r.IntN(len(values))]
		}
		return values[0]
	}
	all := map[string]any{
		"name": pick("a", "", int64(1)), "namespace": pick("ns"), "generation": pick(int64(2), int64(0), "x"), "uid": pick("u"),
		"creationTimestamp": pick("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-01-01T01:00:00+01:00", nil, "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z"),
		"labels":            pick(map[string]any{"x": "y"}, map[string]any{}, map[string]any{"x": int64(1)}, nil),
		"finalizers":        pick([]any{"example.com/x"}, []any{}, []any{int64(1)}, nil),
		"ownerReferences": pick([]any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}},
			[]any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "p"}}, []any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "odd": "x"}}),
		"managedFields": pick([]any{map[string]any{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{}}}},
			[]any{map[string]any{"manager": "", "operation": "Update"}}, []any{map[string]any{"manager": "m", "fieldsV1": map[string]any{}}}),
		"selfLink": pick("x"), "odd": pick("x"), "deletionGracePeriodSeconds": pick(int64(0), int64(5), 1.5),
	}
	for _, name := range []string{"selfLink", "odd", "namespace", "labels", "finalizers", "ownerReferences", "managedFields", "deletionGracePeriodSeconds"} {
		if r.IntN(4) > 0 {
			delete(all, name)
		}
	}
	return all
}

// What isCanonical and isPruned accept, the library does not change.
func TestCanonicalObjectsAreUnchanged(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, schema := range canonicalSchemas {
		d, err := newDefinition(pack(t, oneVersion(t, schema)), nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.storage.structural()
		if err != nil {
			t.Fatal(err)
		}
		accepted, pruned := 0, 0
		const objects = 20000
		for range objects {
			obj := &unstructured.Unstructured{Object: map[string]any{"metadata": randomMetadata(r), "spec": randomValue(r, 0)}}
			obj.SetGroupVersionKind(d.storage.gvk)
			if s.shape.isPruned(obj.Object) {
				pruned++
				changed := obj.DeepCopy()
				if unknown, err := d.storage.coerce(changed, coerceOptions{trackUnknown: true}); err != nil || len(unknown) > 0 || !reflect.DeepEqual(changed.Object, obj.Object) {
					t.Fatalf("%s:\n%v\nis pruned to\n%v\n%v %v", schema, obj.Object, changed.Object, unknown, err)
				}
			}
			if !s.shape.isCanonical(obj.Object) {
				continue
			}
			accepted++
			changed := obj.DeepCopy()
			if _, err := d.storage.coerce(changed, coerceOptions{stored: true}); err != nil {
				t.Fatalf("%s: %v: %v", schema, obj.Object, err)
			}
			d.storage.setDefaults(changed)
			if !reflect.DeepEqual(changed.Object, obj.Object) {
				t.Fatalf("%s:\n%v\nbecomes\n%v", schema, obj.Object, changed.Object)
			}
		}
		if accepted < objects/1000 || pruned < accepted {
			t.Errorf("%s: only %d and %d objects were accepted", schema, accepted, pruned)
		}
	}
}

// An object that was written is read back without the library.
func TestWrittenObjectsAreCanonical(t *testing.T) {
	d, err := newDefinition(pack(t, oneVersion(t, benchmarkSchema)), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.storage.structural()
	if err != nil {
		t.Fatal(err)
	}
	root := map[string]any{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(stored(t), &root); err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{Object: root}
	if s.shape.isCanonical(root) {
		t.Error("defaults are missing")
	}
	d.storage.setDefaults(obj)
	written, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]any{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(written, &read); err != nil {
		t.Fatal(err)
	}
	if !s.shape.isCanonical(read) {
		t.Error("the library has to look at it again")
	}
	if allocated := testing.AllocsPerRun(10, func() { s.shape.isCanonical(read) }); allocated > 0 {
		t.Errorf("allocates %v times", allocated)
	}
}
