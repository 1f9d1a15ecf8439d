package managedfields

import (
	"math/rand"
	"reflect"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"skiff/internal/customresource"
	"skiff/internal/kind"
)

const widgets = `
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              text: {type: string}
              number: {type: number}
              either: {x-kubernetes-int-or-string: true}
              nullable: {type: object, nullable: true, properties: {a: {type: string}}}
              map: {type: object, additionalProperties: {type: string}}
              maps: {type: object, additionalProperties: {type: object, properties: {a: {type: string}, b: {type: integer}}}}
              atomicMap: {type: object, x-kubernetes-map-type: atomic, properties: {a: {type: string}}}
              list: {type: array, items: {type: string}}
              set: {type: array, x-kubernetes-list-type: set, items: {type: string}}
              numbers: {type: array, x-kubernetes-list-type: set, items: {type: integer}}
              keyed: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name, port],
                items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer, default: 80}, a: {type: string}, deep: {type: object, properties: {b: {type: boolean}}}}}}
              quoted: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: ['a"b'], items: {type: object, required: ['a"b'], properties: {'a"b': {type: string}, a: {type: string}}}}
              quotedDefault: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, properties: {name: {type: string, default: 'a"\\<b'}, a: {type: string}}}}
              defaults: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name, on, weight],
                items: {type: object, properties: {name: {type: string, default: x}, on: {type: boolean, default: true}, weight: {type: number, default: 1.5}, a: {type: string}}}}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {known: {type: string}}}
              embedded: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, properties: {phase: {type: string}, conditions: {type: array, items: {type: object, properties: {type: {type: string}}}}}}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {spec: {type: object, properties: {text: {type: string}}}}}}
`

// randomWidget makes a random object. Most of them fit the schema.
type randomWidget struct{ *rand.Rand }

func (r randomWidget) text() string {
	return []string{"", "a", "b", "a-b", "A", `quo"te`, "<html>", "ünï"}[r.Intn(8)]
}

func (r randomWidget) maybe(to map[string]any, name string, value func() any) {
	if r.Intn(3) == 0 {
		to[name] = value()
	}
}

func (r randomWidget) list(item func() any) any {
	list := []any{}
	for range r.Intn(4) {
		list = append(list, item())
	}
	return list
}

func (r randomWidget) value(depth int) any {
	switch n := r.Intn(7); {
	case n == 0 && depth > 0:
		return r.list(func() any { return r.value(depth - 1) })
	case n <= 2 && depth > 0:
		object := map[string]any{}
		for range r.Intn(3) {
			object[r.text()] = r.value(depth - 1)
		}
		return object
	case n == 3:
		return nil
	case n == 4:
		return r.Intn(2) == 0
	case n == 5:
		return float64(r.Intn(3)) / 2
	}
	return r.text()
}

func (r randomWidget) spec() any {
	spec := map[string]any{}
	text := func() any { return r.text() }
	number := func() any { return int64(r.Intn(3)) }
	part := func() any {
		object := map[string]any{}
		r.maybe(object, "a", text)
		r.maybe(object, "b", number)
		return object
	}
	textMap := func(value func() any) func() any {
		return func() any {
			object := map[string]any{}
			for range r.Intn(4) {
				object[r.text()] = value()
			}
			return object
		}
	}
	r.maybe(spec, "text", text)
	r.maybe(spec, "number", func() any { return []any{int64(1), 1.0, 1.5, nil}[r.Intn(4)] })
	r.maybe(spec, "either", func() any { return []any{int64(1), "1", "50%"}[r.Intn(3)] })
	r.maybe(spec, "nullable", func() any { return []any{nil, map[string]any{}, part()}[r.Intn(3)] })
	r.maybe(spec, "map", textMap(text))
	r.maybe(spec, "maps", textMap(part))
	r.maybe(spec, "atomicMap", part)
	r.maybe(spec, "list", func() any { return r.list(text) })
	r.maybe(spec, "set", func() any { return r.list(text) })
	r.maybe(spec, "numbers", func() any { return r.list(number) })
	r.maybe(spec, "keyed", func() any {
		return r.list(func() any {
			item := map[string]any{"name": r.text()}
			r.maybe(item, "port", number)
			r.maybe(item, "a", text)
			r.maybe(item, "deep", func() any { return map[string]any{"b": r.Intn(2) == 0} })
			return item
		})
	})
	r.maybe(spec, "quoted", func() any { return []any{map[string]any{`a"b`: r.text(), "a": r.text()}} })
	for _, name := range []string{"quotedDefault", "defaults"} {
		r.maybe(spec, name, func() any {
			item := map[string]any{"a": r.text()}
			r.maybe(item, "name", text)
			return []any{item}
		})
	}
	for _, name := range []string{"free", "embedded"} {
		r.maybe(spec, name, func() any { return map[string]any{"known": r.text(), r.text(): r.value(3), "x": r.value(3)} })
	}
	if r.Intn(20) == 0 {
		spec["text"] = r.value(2)
	}
	return spec
}

func (r randomWidget) object(apiVersion string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": "Widget"}}
	u.SetName("x")
	u.SetNamespace("y")
	for range r.Intn(3) {
		u.SetLabels(map[string]string{"a": r.text(), r.text(): "b"})
	}
	if r.Intn(3) == 0 {
		u.SetFinalizers([]string{"a", "example.com/b"}[:r.Intn(3)])
	}
	r.maybe(u.Object, "spec", r.spec)
	r.maybe(u.Object, "status", func() any { return map[string]any{"phase": r.text()} })
	return u
}

// TestDynamicEqualsLibrary writes random histories of custom resources with the fast path and with the library, as TestFastEqualsLibrary does.
func TestDynamicEqualsLibrary(t *testing.T) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal([]byte(widgets), crd); err != nil {
		t.Fatal(err)
	}
	crd.Status.AcceptedNames = crd.Spec.Names
	packed, err := customresource.Pack(crd)
	if err != nil {
		t.Fatal(err)
	}
	k, err := customresource.New(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	for i := range k.Versions {
		version := &k.Versions[i]
		t.Run(version.GVK.Version, func(t *testing.T) {
			res := resourceOf(k, version)
			managers := []*Manager{}
			main, err := res.Manager(nil)
			if err != nil {
				t.Fatal(err)
			}
			managers = append(managers, main)
			for j := range k.SubresourcesOf(version) {
				sub := &k.SubresourcesOf(version)[j]
				status, err := res.Manager(sub)
				if err != nil {
					t.Fatal(err)
				}
				managers = append(managers, status)
			}
			if main.ownedDynamic == nil {
				t.Fatal("the version has no descriptor")
			}
			fast, left, refused := 0, 0, 0
			for round := range rounds {
				r := randomWidget{rand.New(rand.NewSource(int64(round)))}
				live := kind.Object(&unstructured.Unstructured{Object: map[string]any{"apiVersion": version.GVK.GroupVersion().String(), "kind": "Widget"}})
				for step := range 5 {
					next := kind.Object(r.object(version.GVK.GroupVersion().String()))
					if step > 0 && r.Intn(2) == 0 {
						next = live.DeepCopyObject().(kind.Object)
						r.maybe(next.(*unstructured.Unstructured).Object, "spec", r.spec)
					}
					next.SetUID(live.GetUID())
					next.SetManagedFields(live.GetManagedFields())
					manager := managers[0]
					if step > 0 {
						manager = managers[r.Intn(len(managers))]
					}
					writer := []string{"kubectl", "controller", ""}[r.Intn(3)]
					if _, err := manager.library.Update(live.DeepCopyObject(), next.DeepCopyObject(), writer); err != nil {
						refused++ // it does not fit the schema
						continue
					}
					want, got := next.DeepCopyObject().(kind.Object), next.DeepCopyObject().(kind.Object)
					now := time.Now()
					for manager.updateWithLibrary(live, want, writer); time.Now().Unix() != now.Unix(); now = time.Now() {
						want = next.DeepCopyObject().(kind.Object)
						manager.updateWithLibrary(live, want, writer)
					}
					if !manager.updateFast(live, got, writer, now) {
						left++
						got = want
					} else {
						fast++
					}
					if w, g := rawEntries(want), rawEntries(got); !reflect.DeepEqual(w, g) {
						t.Fatalf("round %d step %d as %q of %q:\nlive    %v\nnext    %v\nlibrary %s\nfast    %s", round, step, writer, manager.subresource, live, next, show(w), show(g))
					}
					live = got
					live.SetUID("uid")
				}
			}
			t.Logf("%d on the fast path, %d left to the library, %d refused by it", fast, left, refused)
			if fast < left {
				t.Error("the fast path was hardly taken")
			}
		})
	}
}
