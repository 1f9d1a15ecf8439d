package customresource

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// joined are the errors in one text, sorted: the library visits maps in random order.
func joined(errs field.ErrorList) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

func TestValidateCreate(t *testing.T) {
	const unchecked = `<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation`
	for _, c := range []struct{ name, schema, spec, want string }{
		{"valid", "{type: object, required: [a], properties: {a: {type: string, pattern: ^x, maxLength: 3}}}", "{a: xy}", ""},
		{"required", "{type: object, required: [a], properties: {a: {type: string}}}", "{}", "spec.a: Required value"},
		{"type", "{type: object, properties: {a: {type: string}}}", "{a: 1}", `spec.a: Invalid value: "integer": spec.a in body must be of type string: "integer"`},
		{"enum", "{type: object, properties: {a: {type: string, enum: [x, w]}}}", "{a: z}", `spec.a: Unsupported value: "z": supported values: "x", "w"`},
		{"maximum", "{type: object, properties: {a: {type: integer, maximum: 3}}}", "{a: 4}", "spec.a: Invalid value: 4: spec.a in body should be less than or equal to 3"},
		{"pattern", "{type: object, properties: {a: {type: string, pattern: ^x}}}", "{a: z}", `spec.a: Invalid value: "z": spec.a in body should match '^x'`},
		{"too long", "{type: object, properties: {a: {type: string, maxLength: 1}}}", "{a: xy}", "spec.a: Too long: may not be more than 1 byte"},
		{"too many", "{type: object, properties: {a: {type: array, maxItems: 1, items: {type: string}}}}", "{a: [x, z]}", "spec.a: Too many: 2: must have at most 1 item"},
		{"format", "{type: object, properties: {a: {type: string, format: date-time}}}", "{a: today}", `spec.a: Invalid value: "today": spec.a in body must be of type date-time: "today"`},
		{"unknown format", "{type: object, properties: {a: {type: string, format: color}}}", "{a: today}", ""},
		{"int or string", "{type: object, properties: {a: {x-kubernetes-int-or-string: true}}}", "{a: true}", `spec.a: Invalid value: "boolean": spec.a in body must be of type integer,string: "boolean"`},
		{"set", "{type: object, properties: {a: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}", "{a: [x, z, x]}", `spec.a[2]: Duplicate value: "x"`},
		{"map", "{type: object, properties: {a: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}}}}}}",
			"{a: [{k: x}, {k: x}]}", `spec.a[1]: Duplicate value: {"k":"x"}`},
		{"embedded", "{type: object, properties: {a: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}",
			`{a: {kind: Pod, metadata: {name: "not/valid"}}}`, `spec.a.apiVersion: Required value; spec.a.metadata.name: Invalid value: "not/valid": may not contain '/'`},
		{"rule", "{type: object, properties: {a: {type: integer}, b: {type: integer}}, x-kubernetes-validations: [{rule: self.a <= self.b}]}",
			"{a: 2, b: 1}", `spec: Invalid value: failed rule: self.a <= self.b`},
		{"message", "{type: object, properties: {a: {type: integer}}, x-kubernetes-validations: [{rule: self.a < 2, message: too large}]}", "{a: 2}", "spec: Invalid value: too large"},
		{"message expression", `{type: object, properties: {a: {type: integer}}, x-kubernetes-validations: [{rule: self.a < 2, messageExpression: "'a is ' + string(self.a)"}]}`, "{a: 2}", "spec: Invalid value: a is 2"},
		{"field path and reason", `{type: object, properties: {a: {type: integer}}, x-kubernetes-validations: [{rule: self.a < 2, message: too large, fieldPath: .a, reason: FieldValueForbidden}]}`, "{a: 2}", "spec.a: Forbidden: too large"},
		{"transition rule on create", "{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: self == oldSelf}]}}}", "{a: x}", ""},
		{"optional old self", `{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: "oldSelf.hasValue() || self == 'first'", optionalOldSelf: true, message: must begin with first}]}}}`,
			"{a: x}", `spec.a: Invalid value: "x": must begin with first`},
		{"blocked", "{type: object, required: [b], properties: {a: {type: string, x-kubernetes-validations: [{rule: \"self == 'y'\"}]}, b: {type: string}}}", "{a: x}", unchecked + "; spec.b: Required value"},
		{"cost", `{type: object, properties: {a: {type: array, items: {type: string}, x-kubernetes-validations: [{rule: "self.all(x, self.all(y, self.all(z, x + y != z)))"}]}}}`,
			"{a: [" + strings.Repeat("x, ", 300) + "z]}", "spec.a: *call cost exceeds limit*"},
	} {
		k := newKind(t, oneVersion(t, c.schema), nil)
		got := joined(k.Validate(request, cronTab(t, "spec: "+c.spec), nil))
		if !matchesPattern(got, c.want) {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}

// Rules are not evaluated any further when nobody waits for the response.
func TestValidateInterrupted(t *testing.T) {
	k := newKind(t, oneVersion(t, `{type: object, properties: {a: {type: array, maxItems: 1000, items: {type: string, maxLength: 1}, x-kubernetes-validations: [{rule: "self.all(x, x != 'z')"}]}}}`), nil)
	obj := cronTab(t, "spec: {a: ["+strings.Repeat("x, ", 999)+"x]}")
	waiting := *request
	ctx, cancel := context.WithCancel(t.Context())
	waiting.Context = ctx
	for _, validate := range []func() field.ErrorList{
		func() field.ErrorList { return k.Validate(&waiting, obj, nil) },
		func() field.ErrorList {
			return k.Validate(&waiting, obj, cronTab(t, "spec: {a: [y]}"))
		},
	} {
		if got := joined(validate()); got != "" {
			t.Errorf("while the client waits: %s", got)
		}
	}
	cancel()
	if got := joined(k.Validate(&waiting, obj, nil)); !strings.Contains(got, "interrupted") {
		t.Errorf("after the client has left: %q", got)
	}
}

// matchesPattern compares texts; a * stands for any text, such as a value that the library prints in full.
func matchesPattern(text, pattern string) bool {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$").MatchString(text)
}

func TestValidateUpdate(t *testing.T) {
	const immutable = "{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: is immutable}]}, b: {type: string}}}"
	const short = "{type: object, properties: {a: {type: string, maxLength: 1}, b: {type: string}, l: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}"
	const rule = "{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: self.size() < 2, message: too long}]}, b: {type: string}}}"
	for _, c := range []struct{ name, schema, old, spec, want string }{
		{"transition", immutable, "{a: x}", "{a: z}", "is immutable"},
		{"transition of another field", immutable, "{a: x}", "{a: x, b: z}", ""},
		{"transition of a new field", immutable, "{b: x}", "{a: x}", ""},
		{"ratcheting of an unchanged field", short, "{a: xy}", "{a: xy, b: new}", ""},
		{"ratcheting of a changed field", short, "{a: xy}", "{a: xyz}", "spec.a: Too long: may not be more than 1 byte"},
		{"ratcheting of duplicates", short, "{l: [x, x]}", "{l: [x, x, z]}", ""},
		{"new duplicates", short, "{l: [x]}", "{l: [x, x]}", "spec.l[1]: Duplicate value"},
		{"ratcheting of a rule", rule, "{a: xy}", "{a: xy, b: new}", ""},
		{"rule on a changed field", rule, "{a: xy}", "{a: xyz}", "too long"},
	} {
		k := newKind(t, oneVersion(t, c.schema), nil)
		got := joined(k.Validate(request, cronTab(t, "spec: "+c.spec), cronTab(t, "spec: "+c.old)))
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A definition from before structural schemas can have one that is none: nothing is known about what has not changed.
func TestValidateUpdateWithoutStructuralSchema(t *testing.T) {
	d := crd(t, `
preserveUnknownFields: true
versions:
- name: v1
  served: true
  storage: true
  subresources: {status: {}}
  schema:
    openAPIV3Schema:
      $schema: http://json-schema.org/schema
      properties:
        spec: {type: object, properties: {a: {type: string, maxLength: 1}, b: {type: string}}}
        status: {type: object, properties: {num: {type: integer}}}`)
	k := newKind(t, d, nil)
	status := k.SubresourcesOf(&k.Versions[0])[0].Update
	for _, c := range []struct{ old, obj, want string }{
		{"{spec: {b: x}}", "{spec: {b: z}}", ""},
		{"{spec: {a: xy}}", "{spec: {a: xy, b: z}}", "spec.a: Too long: may not be more than 1 byte"},
	} {
		if got := joined(k.Validate(request, cronTab(t, c.obj), cronTab(t, c.old))); got != c.want {
			t.Errorf("%s → %s: %q, want %q", c.old, c.obj, got, c.want)
		}
	}
	for _, c := range []struct{ old, obj, want string }{
		{"{status: {num: 1}}", "{status: {num: 2}}", ""},
		{"{status: {num: x}}", "{status: {num: x}}", `status.num: Invalid value: "string": num in body must be of type integer: "string"`},
	} {
		if got := joined(status.Validate(request, cronTab(t, c.obj), cronTab(t, c.old))); got != c.want {
			t.Errorf("status, %s → %s: %q, want %q", c.old, c.obj, got, c.want)
		}
	}
}

func TestValidateStatus(t *testing.T) {
	d := crd(t, `
versions:
- name: v1
  served: true
  storage: true
  subresources: {status: {}}
  schema:
    openAPIV3Schema:
      type: object
      properties:
        spec: {type: object, properties: {a: {type: string, maxLength: 1}}}
        status: {type: object, properties: {num: {type: integer, minimum: 1, x-kubernetes-validations: [{rule: self < 5, message: too large}]}, l: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}`)
	k := newKind(t, d, nil)
	status := k.SubresourcesOf(&k.Versions[0])[0].Update
	for _, c := range []struct{ old, obj, want string }{
		{"{spec: {a: too long}}", "{spec: {a: too long}, status: {num: 1}}", ""},
		{"{}", "{status: {num: 0}}", "status.num: Invalid value: 0: num in body should be greater than or equal to 1"},
		{"{}", "{status: {num: 7}}", "status.num: Invalid value: 7: too large"},
		{"{status: {num: 7}}", "{status: {num: 7}}", ""},
		{"{}", "{status: {l: [x, x]}}", `status.l[1]: Duplicate value: "x"`},
		{"{status: {num: 2}}", "{}", ""},
	} {
		if got := joined(status.Validate(request, cronTab(t, c.obj), cronTab(t, c.old))); got != c.want {
			t.Errorf("%s → %s: %s, want %s", c.old, c.obj, got, c.want)
		}
	}
}

func TestValidateType(t *testing.T) {
	k := newKind(t, crd(t, twoVersions), nil)
	obj := cronTab(t, "")
	obj.SetKind("Other")
	if got := joined(k.Validate(request, obj, nil)); got != `kind: Invalid value: "Other": must be CronTab` {
		t.Error(got)
	}
	obj = cronTab(t, "apiVersion: stable.example.com/v2")
	if got := joined(k.Validate(request, obj, nil)); got != `apiVersion: Invalid value: "stable.example.com/v2": must be stable.example.com/v1` {
		t.Error(got)
	}
}

// Each version has its own schema: that of the request decides.
func TestValidateInVersionOfRequest(t *testing.T) {
	d := crd(t, twoVersions)
	d.Spec.Versions[1].Schema.OpenAPIV3Schema.Properties["spec"].Properties["b"] = apiextensionsv1.JSONSchemaProps{Type: "string", Enum: []apiextensionsv1.JSON{{Raw: []byte(`"x"`)}}}
	k := newKind(t, d, nil)
	inV2 := &kind.Request{APIVersion: schema.GroupVersion{Group: "stable.example.com", Version: "v2"}}
	if got := joined(k.Validate(inV2, cronTab(t, "{apiVersion: stable.example.com/v2, spec: {b: z}}"), nil)); got != `spec.b: Unsupported value: "z": supported values: "x"` {
		t.Error(got)
	}
	if got := joined(k.Validate(request, cronTab(t, "{spec: {b: z}}"), nil)); got != "" {
		t.Error(got)
	}
	// The server's own writes name no version.
	if got := joined(k.Validate(&kind.Request{}, cronTab(t, "{apiVersion: stable.example.com/v2, spec: {b: z}}"), nil)); got == "" {
		t.Error("not validated")
	}
}
