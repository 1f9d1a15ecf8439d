package customresource

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"skiff/internal/kind"
)

// TestGrowthByDefaults: an object that defaults would multiply is refused on writes and served without them.
func TestGrowthByDefaults(t *testing.T) {
	nested := `{type: object, properties: {a: {type: string, default: x}}}`
	for range 12 {
		nested = `{type: object, properties: {a: {type: array, default: [{}, {}, {}, {}, {}, {}, {}, {}, {}, {}], items: ` + nested + `}}}`
	}
	items := `{type: object, properties: {list: {type: array, items: {type: object, properties: {a: {type: string, default: ` + strings.Repeat("x", 100_000) + `}}}}}}`
	for name, test := range map[string]struct{ schema, spec string }{
		"default in each item":    {items, `{list: [` + strings.Repeat("{}, ", 1000) + `{}]}`},
		"defaults inside default": {nested, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKind(t, oneVersion(t, test.schema), nil)
			obj := cronTab(t, "spec: "+test.spec)
			if _, err := k.Prune(obj, &k.Versions[0]); err != nil {
				t.Fatal(err)
			}
			before := sizeOf(obj.Object)
			k.Versions[0].Default(obj)
			if sizeOf(obj.Object) != before {
				t.Errorf("the object has grown from %d to %d bytes", before, sizeOf(obj.Object))
			}
			errs := k.Validate(&kind.Request{APIVersion: k.GVK.GroupVersion()}, obj, nil)
			if len(errs) != 1 || !strings.Contains(errs[0].Error(), "the defaults of the schema would make the object larger") {
				t.Errorf("validation: %v", errs)
			}
			stored := cronTab(t, "spec: "+test.spec)
			if err := k.Custom.FromStore(stored); err != nil {
				t.Errorf("read: %v", err)
			}
		})
	}
}

// TestGrowthIsThatOfDefaulting: the estimate is what the library adds.
func TestGrowthIsThatOfDefaulting(t *testing.T) {
	k := oneVersion(t, `
          type: object
          default: {b: {}}
          properties:
            a: {type: integer, default: 1}
            b: {type: object, default: {}, properties: {c: {type: string, default: hello}}}
            n: {type: string, nullable: true, default: x}
            m: {type: object, additionalProperties: {type: object, properties: {d: {type: string, default: world}}}}
            l: {type: array, items: {type: object, properties: {e: {type: array, items: {type: string}, default: [x, y]}}}}
`)
	d, err := newDefinition(pack(t, k), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.storage.structural()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{}`, `spec: {}`, `spec: null`, `spec: {a: 5, b: {c: z}}`, `spec: {n: null}`, `spec: {b: null}`, `spec: {m: {x: {}, y: {d: z}}}`, `spec: {l: [{}, {e: []}, {}]}`,
	} {
		obj := cronTab(t, text)
		defaulted := &unstructured.Unstructured{Object: obj.DeepCopy().Object}
		defaulting.Default(defaulted.Object, s.Structural)
		got, want := s.shape.growth(obj.Object), sizeOf(defaulted.Object)-sizeOf(obj.Object)
		const null = 8
		if got != want && got != want+null { // the default replaces a null
			t.Errorf("%s: %d, want %d", text, got, want)
		}
		if again := s.shape.growth(defaulted.Object); again != 0 {
			t.Errorf("%s: %d after defaulting", text, again)
		}
	}
}

// TestPathsAreBounded: a long key around many items is refused before the paths of unknown fields are made.
func TestPathsAreBounded(t *testing.T) {
	k := newKind(t, oneVersion(t, `{type: object, additionalProperties: {type: object}}`), nil)
	unknown := map[string]any{}
	for i := range 10_000 {
		unknown[fmt.Sprint("f", i)] = int64(1)
	}
	obj := cronTab(t, "spec: {}")
	obj.Object["spec"] = map[string]any{strings.Repeat("x", 1<<20): unknown}
	if _, err := k.Prune(obj, &k.Versions[0]); err == nil || !strings.Contains(err.Error(), "paths") {
		t.Errorf("prune: %v", err)
	}
}
