// Package customresources compares what skiff makes of custom resource definitions with upstream's own code: published schemas and
// the errors of validation, of definitions and of their objects.
package customresources

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	upstream "k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-openapi/pkg/handler"
	"sigs.k8s.io/yaml"

	"skiff/internal/customresource"
	"skiff/internal/kind"
)

var gvk = schema.GroupVersionKind{Group: "stable.example.com", Version: "v1", Kind: "CronTab"}

// schemas are those of the field spec, by what they are about.
var schemas = map[string]string{
	"plain":      "{type: object, description: text, required: [s], properties: {s: {type: string, maxLength: 2, pattern: ^x, enum: [x, xx]}, i: {type: integer, format: int32, minimum: 1, maximum: 3}, b: {type: boolean, default: true}, n: {type: number, multipleOf: 2}}}",
	"lists":      "{type: object, properties: {l: {type: array, maxItems: 2, items: {type: string}}, s: {type: array, x-kubernetes-list-type: set, items: {type: string}}, m: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}, v: {type: integer}}}}}}",
	"maps":       "{type: object, maxProperties: 2, additionalProperties: {type: object, x-kubernetes-map-type: atomic, properties: {v: {type: string, nullable: true}}}}",
	"nullable":   "{type: object, required: [a, o], properties: {a: {type: array, nullable: true, items: {type: string}}, o: {type: object, nullable: true, properties: {x: {type: string}}}, s: {type: string, nullable: true, default: q}}}",
	"preserve":   "{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {s: {type: string}, o: {type: object, properties: {p: {type: string}}}}}",
	"embedded":   "{type: object, properties: {e: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object, properties: {x: {type: string}}}}}, p: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}",
	"junctors":   "{type: object, properties: {i: {x-kubernetes-int-or-string: true}, j: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}, s: {type: string, oneOf: [{pattern: ^x}, {pattern: ^y}], not: {enum: [xx]}}}, anyOf: [{required: [i]}, {required: [s]}]}",
	"rules":      "{type: object, required: [s], x-kubernetes-validations: [{rule: \"!has(self.i) || self.i < 3\", message: too large, fieldPath: .i, reason: FieldValueForbidden}], properties: {i: {type: integer}, s: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, messageExpression: \"'was ' + oldSelf\"}, {rule: \"oldSelf.hasValue() || self != 'xx'\", optionalOldSelf: true}]}, l: {type: array, maxItems: 5, items: {type: string, maxLength: 5, x-kubernetes-validations: [{rule: \"self != 'y'\"}]}}}}",
	"formats":    "{type: object, properties: {s: {type: string, format: date-time}, x: {type: string, format: unknown}, i: {type: integer, format: int64}}}",
	"untyped":    "{}",
	"selectable": "{type: object, properties: {s: {type: string}, i: {type: integer}}}",
}

func definition(t *testing.T, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "crontabs." + gvk.Group}}
	crd.Spec.Group, crd.Spec.Scope = gvk.Group, apiextensionsv1.NamespaceScoped
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "crontabs", Singular: "crontab", Kind: gvk.Kind, ListKind: "CronTabList"}
	crd.Status.AcceptedNames = crd.Spec.Names
	text := "{type: object, description: A CronTab, properties: {spec: " + schemas[name] + ", status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}"
	switch name {
	case "preserve":
		text = strings.Replace(text, "{type: object,", "{type: object, x-kubernetes-preserve-unknown-fields: true,", 1)
	case "untyped":
		text = "{type: object, properties: {spec: {type: string, properties: {}}}, x-kubernetes-preserve-unknown-fields: true}"
	}
	version := apiextensionsv1.CustomResourceDefinitionVersion{Name: gvk.Version, Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{}}
	if err := yaml.UnmarshalStrict([]byte(text), &version.Schema.OpenAPIV3Schema); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if name == "selectable" {
		version.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.s"}, {JSONPath: ".spec.i"}}
		path := ".status.selector"
		version.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.i", StatusReplicasPath: ".status.i", LabelSelectorPath: &path}}
	}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{version}
	return crd
}

func encode(t *testing.T, value any) string {
	t.Helper()
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func pack(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *customresource.Packed {
	t.Helper()
	packed, err := customresource.Pack(crd)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func TestPublishedSchemas(t *testing.T) {
	for name := range schemas {
		crd := definition(t, name)
		got, err := pack(t, crd).OpenAPI(gvk.Version)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		v2, err := builder.BuildOpenAPIV2(crd, gvk.Version, builder.Options{V2: true, IncludeSelectableFields: true})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		v3, err := builder.BuildOpenAPIV3(crd, gvk.Version, builder.Options{IncludeSelectableFields: true})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		pruned := handler.PruneDefaults(v2.Definitions)
		if len(got.V2) != 2 || len(got.V3) != 2 {
			t.Errorf("%s: %d and %d schemas", name, len(got.V2), len(got.V3))
		}
		for definition, s := range got.V2 {
			if got, want := encode(t, s), encode(t, pruned[definition]); got != want {
				t.Errorf("%s: v2 %s is\n%s\nwant\n%s", name, definition, got, want)
			}
		}
		for definition, s := range got.V3 {
			if got, want := encode(t, s), encode(t, v3.Components.Schemas[definition]); got != want {
				t.Errorf("%s: v3 %s is\n%s\nwant\n%s", name, definition, got, want)
			}
		}
	}
}

// strategy is what validates in upstream.
type strategy interface {
	Validate(ctx context.Context, obj runtime.Object) field.ErrorList
	ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList
}

// validators returns upstream's validation of a definition: of an object, and of its status.
func validators(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) (own, status strategy) {
	t.Helper()
	version := &crd.Spec.Versions[0]
	internal := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema, internal, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := schemavalidation.NewSchemaValidator(internal.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	statusSchema := internal.OpenAPIV3Schema.Properties["status"]
	statusValidator, _, err := schemavalidation.NewSchemaValidator(&statusSchema)
	if err != nil {
		t.Fatal(err)
	}
	var statusSpec *apiextensions.CustomResourceSubresourceStatus
	var scaleSpec *apiextensions.CustomResourceSubresourceScale
	if sub := version.Subresources; sub != nil {
		statusSpec = &apiextensions.CustomResourceSubresourceStatus{}
		scaleSpec = &apiextensions.CustomResourceSubresourceScale{
			SpecReplicasPath: sub.Scale.SpecReplicasPath, StatusReplicasPath: sub.Scale.StatusReplicasPath, LabelSelectorPath: sub.Scale.LabelSelectorPath,
		}
	}
	s := upstream.NewStrategy(nil, true, gvk, validator, statusValidator, structural, statusSpec, scaleSpec, version.SelectableFields)
	return s, upstream.NewStatusStrategy(s)
}

// value makes a random value that often, but not always, fits the schemas.
func value(r *rand.Rand, depth int) any {
	switch n := r.IntN(12); {
	case n < 5:
		return []any{"x", "xx", "y", "xyz", "2026-01-01T00:00:00Z"}[n]
	case n < 7:
		return int64(r.IntN(6) - 1)
	case n == 7:
		return r.IntN(2) == 0
	case n == 8:
		return nil
	case depth > 3:
		return "x"
	case n == 9:
		list := make([]any, r.IntN(4))
		for i := range list {
			list[i] = value(r, depth+1)
		}
		return list
	}
	return fields(r, depth+1)
}

func fields(r *rand.Rand, depth int) map[string]any {
	out := map[string]any{}
	for _, name := range []string{"s", "i", "b", "n", "l", "m", "a", "o", "e", "p", "k", "v", "x", "j", "kind", "apiVersion", "metadata", "spec"} {
		if r.IntN(3) == 0 {
			out[name] = value(r, depth)
		}
	}
	return out
}

func texts(errs field.ErrorList) []string {
	out := make([]string, len(errs))
	for i, err := range errs {
		out[i] = fmt.Sprint(err.Type, " ", err)
	}
	slices.Sort(out)
	return out
}

func TestValidation(t *testing.T) {
	const objects = 300
	request := &kind.Request{APIVersion: gvk.GroupVersion()}
	for name := range schemas {
		crd := definition(t, name)
		own, status := validators(t, crd)
		k, err := customresource.New(pack(t, crd), nil)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		random := func() *unstructured.Unstructured {
			u := &unstructured.Unstructured{Object: map[string]any{"spec": fields(r, 0), "status": fields(r, 0)}}
			u.SetGroupVersionKind(gvk)
			u.SetName("tab")
			u.SetNamespace("ns")
			u.SetUID("uid")
			u.SetResourceVersion("1")
			if _, err := k.Prune(u, &k.Versions[0]); err != nil {
				return nil
			}
			k.SetDefaults(&k.Versions[0], u)
			return u
		}
		failed := 0
		check := func(what string, obj, old *unstructured.Unstructured, got, want field.ErrorList) {
			if len(want) > 0 {
				failed++
			}
			if got, want := texts(got), texts(want); !slices.Equal(got, want) {
				t.Errorf("%s %s: %v → %v\ngot  %q\nwant %q", name, what, old, obj, got, want)
			}
		}
		for range objects {
			obj, old := random(), random()
			if obj == nil || old == nil {
				continue // malformed metadata
			}
			if r.IntN(2) == 0 {
				old = obj.DeepCopy()
				_ = unstructured.SetNestedField(obj.Object, value(r, 0), "spec", "i")
			}
			check("create", obj, nil, k.Validate(request, obj, nil), own.Validate(context.Background(), obj))
			check("update", obj, old, k.Validate(request, obj, old), own.ValidateUpdate(context.Background(), obj, old))
			for _, sub := range k.SubresourcesOf(&k.Versions[0]) {
				if sub.Name == "status" {
					check("status", obj, old, sub.Update.Validate(request, obj, old), status.ValidateUpdate(context.Background(), obj, old))
				}
			}
		}
		if failed == 0 && name != "untyped" && name != "preserve" {
			t.Errorf("%s: no object was invalid", name)
		}
	}
}
