package customresource

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind"
)

// crd parses the spec of a definition of CronTabs and accepts its names.
func crd(t testing.TB, spec string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "crontabs.stable.example.com"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &d.Spec); err != nil {
		t.Fatal(err)
	}
	d.Spec.Group = "stable.example.com"
	if d.Spec.Scope == "" {
		d.Spec.Scope = apiextensionsv1.NamespaceScoped
	}
	d.Spec.Names.Plural, d.Spec.Names.Singular, d.Spec.Names.Kind, d.Spec.Names.ListKind = "crontabs", "crontab", "CronTab", "CronTabList"
	d.Status.AcceptedNames = d.Spec.Names
	return d
}

// oneVersion is a definition with one version whose spec has the given schema.
func oneVersion(t testing.TB, schema string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	return crd(t, `
versions:
- name: v1
  served: true
  storage: true
  schema:
    openAPIV3Schema:
      type: object
      properties:
        status: {type: object, x-kubernetes-preserve-unknown-fields: true}
        spec: `+schema)
}

func pack(t testing.TB, d *apiextensionsv1.CustomResourceDefinition) *Packed {
	t.Helper()
	packed, err := Pack(d)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func newKind(t testing.TB, d *apiextensionsv1.CustomResourceDefinition, converter Converter) *kind.Kind {
	t.Helper()
	k, err := New(pack(t, d), converter)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// cronTab parses an object; version and metadata may be left out.
func cronTab(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	root := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: normalize(root).(map[string]any)}
	if u.GetAPIVersion() == "" {
		u.SetAPIVersion("stable.example.com/v1")
	}
	u.SetKind("CronTab")
	if u.GetName() == "" {
		u.SetName("tab")
	}
	return u
}

// normalize makes the integers of YAML what JSON decoding makes of them.
func normalize(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			value[k] = normalize(v)
		}
	case []any:
		for i, v := range value {
			value[i] = normalize(v)
		}
	case float64:
		if value == float64(int64(value)) {
			return int64(value)
		}
	}
	return value
}

func specOf(t testing.TB, text string) any { return cronTab(t, "spec: "+text).Object["spec"] }

func TestNamesAndVersions(t *testing.T) {
	d := crd(t, `
names: {shortNames: [ct], categories: [all, jobs]}
scope: Cluster
versions:
- {name: v1beta1, served: true, storage: false, deprecated: true}
- {name: v1, served: true, storage: true, subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}}
- {name: v2alpha1, served: true, storage: false, deprecated: true, deprecationWarning: "use something else"}
- {name: v0, served: false, storage: false}`)
	k := newKind(t, d, nil)
	if k.GVK != (schema.GroupVersionKind{Group: "stable.example.com", Version: "v1", Kind: "CronTab"}) || k.Namespaced || k.Singular != "crontab" ||
		k.ListKind != "CronTabList" || !slices.Equal(k.Short, []string{"ct"}) || !slices.Equal(k.Categories, []string{"all", "jobs"}) {
		t.Errorf("%+v", k)
	}
	if key := k.Key("", "a"); key != "/registry/stable.example.com/crontabs/a" {
		t.Errorf("key %s", key)
	}
	var got []string
	for i := range k.Versions {
		v := &k.Versions[i]
		var subs []string
		for _, s := range k.SubresourcesOf(v) {
			subs = append(subs, s.Name)
		}
		got = append(got, fmt.Sprint(v.GVK.Version, " ", v.NotServed, " ", subs, " ", v.Deprecation))
	}
	want := []string{
		"v1 false [status scale] ", "v0 true [] ", "v1beta1 false [] stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab",
		"v2alpha1 false [] use something else",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestNewRefusesIncompleteDefinitions(t *testing.T) {
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"status.acceptedNames is incomplete": func(d *apiextensionsv1.CustomResourceDefinition) { d.Status.AcceptedNames.Kind = "" },
		"has no storage version":             func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Versions[0].Storage = false },
		"but no converter": func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}
		},
	} {
		d := oneVersion(t, "{type: object}")
		change(d)
		if _, err := New(pack(t, d), nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
}

func TestTerminatingDefinitionRefusesCreation(t *testing.T) {
	d := oneVersion(t, "{type: object}")
	d.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue}}
	_, err := newKind(t, d, nil).Hooks.BeforeCreate(context.Background(), nil, nil, cronTab(t, ""))
	want := `crontabs.stable.example.com "tab" is forbidden: create not allowed while custom resource definition is terminating`
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

func TestPrune(t *testing.T) {
	const embedded = "{type: object, x-kubernetes-embedded-resource: true"
	for _, c := range []struct {
		name, schema, spec, want string
		unknown                  []string
	}{
		{name: "known", schema: "{type: object, properties: {a: {type: string}}}", spec: "{a: x}", want: "{a: x}"},
		{name: "unknown", schema: "{type: object, properties: {a: {type: string}}}", spec: "{a: x, c: {d: 1}, b: 1}", want: "{a: x}", unknown: []string{"spec.b", "spec.c"}},
		{name: "preserved", schema: "{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: object}}}",
			spec: "{a: {b: 1}, c: 1}", want: "{a: {}, c: 1}", unknown: []string{"spec.a.b"}},
		{name: "list", schema: "{type: object, properties: {a: {type: array, items: {type: object, properties: {b: {type: string}}}}}}",
			spec: "{a: [{b: x}, {c: 1}]}", want: "{a: [{b: x}, {}]}", unknown: []string{"spec.a[1].c"}},
		{name: "additional properties", schema: "{type: object, additionalProperties: {type: object, properties: {b: {type: string}}}}",
			spec: "{x: {b: x, c: x}}", want: "{x: {b: x}}", unknown: []string{"spec.x.c"}},
		{name: "int or string", schema: "{type: object, properties: {a: {x-kubernetes-int-or-string: true}, b: {x-kubernetes-int-or-string: true}}}", spec: `{a: 1, b: "1"}`, want: `{a: 1, b: "1"}`},
		{name: "null", schema: "{type: object, properties: {a: {type: string}, b: {type: string, nullable: true}}}", spec: "{a: null, b: null}", want: "{b: null}"},
		{name: "embedded", schema: "{type: object, properties: {a: " + embedded + ", properties: {spec: {type: object}}}}}",
			spec: "{a: {apiVersion: v1, kind: Pod, metadata: {name: x, unspecified: x}, spec: {b: 1}, c: 1}}",
			want: "{a: {apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {}}}", unknown: []string{"spec.a.c", "spec.a.spec.b", "spec.a.metadata.unspecified"}},
		{name: "embedded and preserved", schema: "{type: object, properties: {a: " + embedded + ", x-kubernetes-preserve-unknown-fields: true}}}",
			spec: "{a: {apiVersion: v1, kind: Pod, metadata: {name: x, unspecified: x}, spec: {b: 1}}}",
			want: "{a: {apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {b: 1}}}", unknown: []string{"spec.a.metadata.unspecified"}},
	} {
		k := newKind(t, oneVersion(t, c.schema), nil)
		obj := cronTab(t, "spec: "+c.spec)
		unknown, err := k.Prune(obj, &k.Versions[0])
		if err != nil || !slices.Equal(unknown, c.unknown) {
			t.Errorf("%s: unknown %q, want %q; %v", c.name, unknown, c.unknown, err)
		}
		if want := specOf(t, c.want); !reflect.DeepEqual(obj.Object["spec"], want) {
			t.Errorf("%s: %v, want %v", c.name, obj.Object["spec"], want)
		}
	}
}

func TestPruneMetadata(t *testing.T) {
	k := newKind(t, oneVersion(t, "{type: object}"), nil)
	obj := cronTab(t, `{metadata: {name: a, labels: {x: "y"}, unspecified: 1}, top: 1}`)
	unknown, err := k.Prune(obj, &k.Versions[0])
	if err != nil || !slices.Equal(unknown, []string{"metadata.unspecified", "top"}) {
		t.Errorf("%q %v", unknown, err)
	}
	if want := cronTab(t, `{metadata: {name: a, labels: {x: "y"}}}`); !reflect.DeepEqual(obj.Object, want.Object) {
		t.Errorf("%v", obj.Object)
	}
	if _, err := k.Prune(cronTab(t, "{metadata: {name: a, labels: {x: 1}}}"), &k.Versions[0]); err == nil || !strings.Contains(err.Error(), "cannot unmarshal number") {
		t.Errorf("wrong type: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	const schema = `{type: object, default: {a: 1}, properties: {
		a: {type: integer}, b: {type: string, default: x}, c: {type: string, nullable: true, default: y},
		l: {type: array, items: {type: object, properties: {d: {type: string, default: z}}}},
		m: {type: object, additionalProperties: {type: object, properties: {d: {type: string, default: z}}}},
		p: {type: object, default: {known: 1, unknown: 1}, properties: {known: {type: integer}}}}}`
	k := newKind(t, oneVersion(t, schema), nil)
	for name, c := range map[string]struct{ in, want string }{
		"everything":    {"", "{spec: {a: 1, b: x, c: y, p: {known: 1}}}"},
		"set":           {"{spec: {b: q}}", "{spec: {b: q, c: y, p: {known: 1}}}"},
		"null":          {"{spec: {b: null, c: null}}", "{spec: {b: x, c: null, p: {known: 1}}}"},
		"list and maps": {"{spec: {l: [{}, {d: q}], m: {k: {}}}}", "{spec: {b: x, c: y, l: [{d: z}, {d: q}], m: {k: {d: z}}, p: {known: 1}}}"},
	} {
		obj, want := cronTab(t, c.in), cronTab(t, c.want)
		if _, err := k.Prune(obj, &k.Versions[0]); err != nil {
			t.Fatal(err)
		}
		k.SetDefaults(&k.Versions[0], obj)
		if !reflect.DeepEqual(obj.Object, want.Object) {
			t.Errorf("%s: %v, want %v", name, obj.Object, want.Object)
		}
		stored := cronTab(t, c.in)
		want.SetGeneration(1) // objects of old servers have none
		if err := k.Custom.FromStore(stored); err != nil || !reflect.DeepEqual(stored.Object, want.Object) {
			t.Errorf("%s from the store: %v, want %v; %v", name, stored.Object, want.Object, err)
		}
	}
}

func TestFromStoreRepairs(t *testing.T) {
	k := newKind(t, oneVersion(t, "{type: object, properties: {a: {type: string}}}"), nil)
	obj := cronTab(t, "{metadata: {name: a, generation: 3, labels: {x: 1}}, spec: {a: x, gone: 1}}")
	if err := k.Custom.FromStore(obj); err != nil {
		t.Fatal(err)
	}
	if want := cronTab(t, "{metadata: {name: a, generation: 3}, spec: {a: x}}"); !reflect.DeepEqual(obj.Object, want.Object) {
		t.Errorf("%v", obj.Object)
	}
	err := k.Custom.FromStore(cronTab(t, "apiVersion: stable.example.com/v0"))
	if err == nil || err.Error() != "request to convert CR from an invalid group/version: stable.example.com/v0" {
		t.Errorf("%v", err)
	}
}

// A definition nobody uses must not compile anything.
func TestNewIsLazy(t *testing.T) {
	d := oneVersion(t, "{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: \"self != 'x'\"}]}}}")
	allocated := testing.AllocsPerRun(10, func() {
		if _, err := New(pack(t, d), nil); err != nil {
			t.Fatal(err)
		}
	})
	if allocated > 80 {
		t.Errorf("New allocates %v times", allocated)
	}
}

var request = &kind.Request{APIVersion: schema.GroupVersion{Group: "stable.example.com", Version: "v1"}}

// fakeConverter renames spec.a to spec.b in v2.
type fakeConverter struct {
	calls   int
	failure error
}

func (f *fakeConverter) Convert(_ context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	f.calls++
	out := make([]*unstructured.Unstructured, len(objects))
	for i, obj := range objects {
		out[i] = obj.DeepCopy()
		out[i].SetAPIVersion(to.String())
		from, into := "a", "b"
		if to.Version == "v1" {
			from, into = into, from
		}
		if spec, ok := out[i].Object["spec"].(map[string]any); ok {
			if value, ok := spec[from]; ok {
				spec[into] = value
				delete(spec, from)
			}
		}
	}
	return out, f.failure
}

const twoVersions = `
versions:
- name: v1
  served: true
  storage: true
  selectableFields: [{jsonPath: .spec.a}]
  schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}, same: {type: string}}}}}}
- name: v2
  served: true
  storage: false
  selectableFields: [{jsonPath: .spec.b}]
  additionalPrinterColumns: [{name: B, type: string, jsonPath: .spec.b}]
  schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {b: {type: string}, same: {type: string, default: new}}}}}}
`

// atVersion returns a version of a kind.
func atVersion(t testing.TB, k *kind.Kind, name string) *kind.Version {
	t.Helper()
	for i := range k.Versions {
		if k.Versions[i].GVK.Version == name {
			return &k.Versions[i]
		}
	}
	t.Fatalf("no version %s", name)
	return nil
}

// convertTo converts one object.
func convertTo(t testing.TB, k *kind.Kind, version string, obj kind.Object) (kind.Object, error) {
	t.Helper()
	converted, err := k.Custom.Convert(t.Context(), []kind.Object{obj}, atVersion(t, k, version).GVK)
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

func TestConvertWithoutWebhook(t *testing.T) {
	k := newKind(t, crd(t, twoVersions), nil)
	stored := cronTab(t, "spec: {a: x, same: y}")
	before := stored.DeepCopy()
	converted, err := convertTo(t, k, "v2", stored)
	if err != nil || !reflect.DeepEqual(stored, before) {
		t.Fatalf("%v %v", stored, err)
	}
	// What the version does not have is pruned; its defaults are not set when an object is read.
	if want := cronTab(t, "{apiVersion: stable.example.com/v2, spec: {same: y}}"); !reflect.DeepEqual(converted, kind.Object(want)) {
		t.Errorf("%v", converted)
	}
	if same, err := convertTo(t, k, "v1", stored); err != nil || same != kind.Object(stored) {
		t.Errorf("%v %v", same, err)
	}
	back, err := convertTo(t, k, "v1", converted)
	if err != nil || apiVersionOf(back) != "stable.example.com/v1" {
		t.Errorf("%v %v", back, err)
	}
	if _, err := convertTo(t, k, "v2", cronTab(t, "apiVersion: stable.example.com/v3")); err == nil {
		t.Error("converted from a version that does not exist")
	}
}

func webhookDefinition(t testing.TB) *apiextensionsv1.CustomResourceDefinition {
	d := crd(t, twoVersions)
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}
	return d
}

func TestConvertByWebhook(t *testing.T) {
	webhook := &fakeConverter{}
	k := newKind(t, webhookDefinition(t), webhook)
	stored := cronTab(t, `{metadata: {name: a, namespace: ns, uid: u, labels: {x: "y"}}, spec: {a: x}}`)
	converted, err := convertTo(t, k, "v2", stored)
	if err != nil {
		t.Fatal(err)
	}
	if want := cronTab(t, `{apiVersion: stable.example.com/v2, metadata: {name: a, namespace: ns, uid: u, labels: {x: "y"}}, spec: {b: x}}`); !reflect.DeepEqual(converted, kind.Object(want)) {
		t.Errorf("%v", converted)
	}
	// An object that needs no conversion does not reach the webhook.
	calls := webhook.calls
	if _, err := convertTo(t, k, "v1", stored); err != nil {
		t.Fatal(err)
	}
	if webhook.calls != calls {
		t.Errorf("%d calls, want %d", webhook.calls, calls)
	}
}

func TestFailedConversionIsTransient(t *testing.T) {
	k := newKind(t, webhookDefinition(t), &fakeConverter{failure: errors.New("connection refused")})
	_, err := convertTo(t, k, "v2", cronTab(t, "spec: {a: x}"))
	var transient interface{ Transient() bool }
	if err == nil || err.Error() != "connection refused" || !errors.As(err, &transient) || !transient.Transient() {
		t.Errorf("%v would be cached", err)
	}
}

// fieldsOf are the selectable fields of one object.
func fieldsOf(t testing.TB, k *kind.Kind, obj kind.Object) (map[string]string, error) {
	t.Helper()
	values, err := k.Custom.Fields(t.Context(), []kind.Object{obj})
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

func TestSelectableFields(t *testing.T) {
	webhook := &fakeConverter{}
	k := newKind(t, webhookDefinition(t), webhook)
	values, err := fieldsOf(t, k, cronTab(t, "spec: {a: x}"))
	if err != nil {
		t.Fatal(err)
	}
	empty, err := fieldsOf(t, k, cronTab(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	for version, label := range map[string]string{"v1": "spec.a", "v2": "spec.b"} {
		own, ok := atVersion(t, k, version).Fields[label]
		if !ok || len(atVersion(t, k, version).Fields) != 1 {
			t.Fatalf("%s: %v", version, atVersion(t, k, version).Fields)
		}
		if values[own] != "x" || empty[own] != "" {
			t.Errorf("%s: %q, without the field %q", version, values[own], empty[own])
		}
	}
	webhook.failure = errors.New("connection refused")
	if _, err := fieldsOf(t, k, cronTab(t, "spec: {a: x}")); err == nil {
		t.Error("a value that is not known must not be taken for empty")
	}
	numbers := oneVersion(t, "{type: object, properties: {num: {type: integer}, b: {type: boolean}}}")
	numbers.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.num"}, {JSONPath: ".spec.b"}}
	k = newKind(t, numbers, nil)
	if values, err = fieldsOf(t, k, cronTab(t, "spec: {num: 5, b: true}")); err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"spec.num": "5", "spec.b": "true"} {
		if got := values[k.Versions[0].Fields[label]]; got != want {
			t.Errorf("%s is %q", label, got)
		}
	}
	if newKind(t, oneVersion(t, "{type: object}"), nil).Custom.Fields != nil {
		t.Error("there are no selectable fields")
	}
}

func TestColumns(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	d := oneVersion(t, "{type: object, x-kubernetes-preserve-unknown-fields: true}")
	d.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "S", Type: "string", JSONPath: ".spec.s"}, {Name: "I", Type: "integer", JSONPath: ".spec.i", Priority: 1, Description: "count"},
		{Name: "N", Type: "number", JSONPath: ".spec.num"}, {Name: "B", Type: "boolean", JSONPath: ".spec.b"},
		{Name: "D", Type: "date", JSONPath: ".spec.d"}, {Name: "L", Type: "string", JSONPath: ".spec.l[0].x"},
	}
	k := newKind(t, d, nil)
	v := &k.Versions[0]
	if len(v.Columns) != 7 || v.Columns[2].Priority != 1 || v.Columns[2].Description != "count" ||
		v.Columns[1].Description != "Custom resource definition column (in JSONPath format): .spec.s" || v.Columns[0].Format != "name" {
		t.Errorf("%+v", v.Columns)
	}
	for spec, want := range map[string][]any{
		`{s: x, i: 3, num: 1.5, b: true, d: "2026-07-01T11:58:00Z", l: [{x: 7}]}`: {"tab", "x", int64(3), 1.5, true, "2m", "7"},
		`{s: {a: 1}, i: "3", num: 2, b: "true", d: "yesterday", l: []}`:           {"tab", `{"a":1}`, nil, float64(2), nil, "<invalid>", nil},
		`{}`: {"tab", nil, nil, nil, nil, nil, nil},
	} {
		if got := v.Row(cronTab(t, "spec: "+spec), now); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, want %#v", spec, got, want)
		}
	}
	plain := newKind(t, oneVersion(t, "{type: object}"), nil)
	if c := plain.Versions[0].Columns; len(c) != 2 || c[1].Name != "Age" || c[1].Type != "date" {
		t.Errorf("%+v", c)
	}
	obj := cronTab(t, "")
	obj.SetCreationTimestamp(metav1.NewTime(now.Add(-5 * time.Hour)))
	if got := plain.Versions[0].Row(obj, now); !reflect.DeepEqual(got, []any{"tab", "5h"}) {
		t.Errorf("%#v", got)
	}
}

// The path of a column is shared by all requests. One with a range would change while it is evaluated: its cells are empty.
func TestColumnWithRange(t *testing.T) {
	d := oneVersion(t, "{type: object, x-kubernetes-preserve-unknown-fields: true}")
	for _, path := range []string{".metadata.name}{range .spec.items[*]}{.x}{end}{.metadata.name", ".spec.items[?(@.x==1)]}{end}{.metadata.name"} {
		d.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "S", Type: "string", JSONPath: path}}
		v := &newKind(t, d, nil).Versions[0]
		obj := cronTab(t, "spec: {items: [{x: 1}, {x: 2}]}")
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() {
				for range 100 {
					if got := v.Row(obj, time.Time{}); !reflect.DeepEqual(got, []any{"tab", nil}) {
						t.Errorf("%s: %#v", path, got)
						return
					}
				}
			})
		}
		running.Wait()
	}
}

func TestScale(t *testing.T) {
	d := oneVersion(t, "{type: object, x-kubernetes-preserve-unknown-fields: true}")
	selector := ".status.labelSelector"
	d.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{Scale: &apiextensionsv1.CustomResourceSubresourceScale{
		SpecReplicasPath: ".spec.size", StatusReplicasPath: ".status.size", LabelSelectorPath: &selector,
	}}
	k := newKind(t, d, nil)
	view := k.SubresourcesOf(&k.Versions[0])[0].View
	obj := cronTab(t, `{metadata: {name: a, namespace: ns, uid: u, resourceVersion: "5"}, spec: {size: 3}, status: {size: 2, labelSelector: "app=x"}}`)
	got, err := view.From(obj)
	want := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", UID: "u", ResourceVersion: "5"},
		Spec: autoscalingv1.ScaleSpec{Replicas: 3}, Status: autoscalingv1.ScaleStatus{Replicas: 2, Selector: "app=x"}}
	if err != nil || !reflect.DeepEqual(got, kind.Object(want)) || view.CheckRead(got) != nil {
		t.Errorf("%v %v", got, err)
	}
	want.Spec.Replicas = 9
	if err := view.Apply(want, obj); err != nil || !reflect.DeepEqual(obj.Object["spec"], specOf(t, "{size: 9}")) {
		t.Errorf("%v %v", obj.Object["spec"], err)
	}
	empty, err := view.From(cronTab(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := view.CheckRead(empty); err == nil || !strings.Contains(err.Error(), `the spec replicas field ".spec.size" does not exist`) {
		t.Errorf("%v", err)
	}
	if err := view.Apply(empty, cronTab(t, "")); err == nil || err.Error() != `the spec replicas field ".spec.size" cannot be empty` {
		t.Errorf("%v", err)
	}
	for spec, want := range map[string]string{
		"{spec: {size: -1}}":            ".spec.size: Invalid value: -1: should be a non-negative integer",
		"{spec: {size: 3000000000}}":    ".spec.size: Invalid value: 3000000000: should be less than or equal to 2147483647",
		"{status: {size: -1}}":          ".status.size: Invalid value: -1: should be a non-negative integer",
		"{status: {labelSelector: 1}}":  `.status.labelSelector: Invalid value: "": .status.labelSelector accessor error: 1 is of the type int64, expected string`,
		"{spec: {size: x}, status: {}}": ".spec.size: Invalid value: 0: .spec.size accessor error: x is of the type string, expected int64",
		"{spec: {size: 1}, status: {}}": "",
	} {
		if errs := k.Validate(request, cronTab(t, spec), nil); joined(errs) != want {
			t.Errorf("%s: %s, want %s", spec, joined(errs), want)
		}
	}
}

func TestStatus(t *testing.T) {
	d := oneVersion(t, "{type: object, x-kubernetes-preserve-unknown-fields: true}")
	d.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	k := newKind(t, d, nil)
	obj := cronTab(t, "{spec: {a: 2}, status: {x: 2}}")
	k.CopyStatus(obj, cronTab(t, "{status: {x: 1}}"))
	if !reflect.DeepEqual(obj, cronTab(t, "{spec: {a: 2}, status: {x: 1}}")) {
		t.Errorf("%v", obj)
	}
	k.CopyStatus(obj, k.New())
	if _, ok := obj.Object["status"]; ok {
		t.Error("status is kept")
	}
	status := k.SubresourcesOf(&k.Versions[0])[0].Update
	submitted, old := cronTab(t, "{spec: {a: 2}, other: 1, status: {x: 2}}"), cronTab(t, "{spec: {a: 1}, status: {x: 1}}")
	status.Prepare(request, submitted, old)
	if !reflect.DeepEqual(submitted, cronTab(t, "{spec: {a: 1}, status: {x: 2}}")) || !reflect.DeepEqual(old, cronTab(t, "{spec: {a: 1}, status: {x: 1}}")) {
		t.Errorf("%v %v", submitted, old)
	}
	if status.UpdatesMetadata {
		t.Error("the status of a custom resource does not write metadata")
	}
}

func TestSpecChanged(t *testing.T) {
	k := newKind(t, oneVersion(t, "{type: object}"), nil)
	old := cronTab(t, "{metadata: {name: a}, spec: {a: 1}}")
	for text, want := range map[string]bool{
		"{metadata: {name: a}, spec: {a: 1}}": false, "{metadata: {name: a, labels: {x: y}}, spec: {a: 1}}": false,
		"{metadata: {name: a}, spec: {a: 2}}": true, "{metadata: {name: a}, spec: {a: 1}, other: 1}": true, "{metadata: {name: a}}": true,
	} {
		if got := k.SpecChanged(cronTab(t, text), old); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestFinalizerWarnings(t *testing.T) {
	k := newKind(t, oneVersion(t, "{type: object}"), nil)
	got := k.Warn(cronTab(t, "{metadata: {finalizers: [plain, a.example.com, example.com/good, orphan, known, not valid]}}"), cronTab(t, "{metadata: {finalizers: [known]}}"))
	if len(got) != 4 || got[0] != `metadata.finalizers: "a.example.com": prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers` ||
		!strings.HasPrefix(got[1], `metadata.finalizers: "not valid": name part must consist of`) ||
		got[3] != `metadata.finalizers: "plain": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers` {
		t.Errorf("%q", got)
	}
}
