package customresource

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestPack(t *testing.T) {
	var properties strings.Builder
	for i := range 200 {
		fmt.Fprintf(&properties, "              p%d: {type: string, description: It is set when the other properties of the object say so., default: x, pattern: '^a+$', enum: [x, a]}\n", i)
	}
	d := oneVersion(t, `
            type: object
            x-kubernetes-validations: [{rule: self.p0 == 'x', message: no}]
            properties:
              n: {type: integer, minimum: 0, maximum: 1.5, nullable: true, default: null}
              l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}}}}
              i: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
              m: {type: object, additionalProperties: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`+properties.String())
	d.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 10_000)}
	before := d.DeepCopy()
	packed := pack(t, d)
	if !reflect.DeepEqual(d, before) {
		t.Error("Pack has changed its argument")
	}
	got, err := packed.schema("v1")
	if err != nil {
		t.Fatal(err)
	}
	var want apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(d.Spec.Versions[0].Schema, &want, nil); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want.OpenAPIV3Schema) {
		t.Errorf("the schema is\n%+v, want\n%+v", got, want.OpenAPIV3Schema)
	}
	if size, full := len(packed.schemas["v1"]), d.Size(); size*10 > full {
		t.Errorf("the schema has %d bytes, the definition %d", size, full)
	}
	if size := packed.crd.Size(); size > 1000 {
		t.Errorf("the rest has %d bytes", size)
	}
	if schema, err := packed.schema("none"); schema != nil || err != nil {
		t.Errorf("a version without a schema: %v %v", schema, err)
	}
}

func TestDropUnused(t *testing.T) {
	made := 0
	l := newLazy(func() (int, error) { made++; return made, errors.New("failed") })
	l.dropUnused()
	for range 3 {
		if value, err := l.get(); value != 1 || err == nil {
			t.Errorf("it is %d, %v", value, err)
		}
	}
	l.dropUnused() // used since the last call
	if value, _ := l.get(); value != 1 {
		t.Error("it was dropped although it was used")
	}
	l.dropUnused()
	l.dropUnused()
	if l.made.Load() != nil {
		t.Error("it was not dropped")
	}
	if value, _ := l.get(); value != 2 {
		t.Errorf("it is %d after it was dropped", value)
	}
	// A Kind works on.
	k := newKind(t, oneVersion(t, `{type: object, properties: {a: {type: string, default: x}}, x-kubernetes-validations: [{rule: "self.a != 'no'"}]}`), nil)
	for range 3 {
		obj := cronTab(t, "spec: {}")
		k.SetDefaults(&k.Versions[0], obj)
		if errs := k.Validate(request, obj, nil); len(errs) > 0 || obj.Object["spec"].(map[string]any)["a"] != "x" {
			t.Errorf("%v: %v", obj.Object, errs)
		}
		if errs := k.Validate(request, cronTab(t, "spec: {a: 'no'}"), nil); len(errs) != 1 {
			t.Errorf("an invalid object: %v", errs)
		}
		k.Custom.DropUnused()
		k.Custom.DropUnused()
	}
}
