package customresource

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// maker makes random schemas, and values that mostly fit to them.
type maker struct{ *rand.Rand }

func (m maker) oneIn(n int) bool { return m.IntN(n) == 0 }

func oneOf[T any](m maker, values ...T) T { return values[m.IntN(len(values))] }

// maybe returns a pointer to one of the values, nil one time in two.
func maybe[T any](m maker, values ...T) *T {
	if m.oneIn(2) {
		return nil
	}
	value := oneOf(m, values...)
	return &value
}

func rawJSON(texts ...string) (all []apiextensionsv1.JSON) {
	for _, text := range texts {
		all = append(all, apiextensionsv1.JSON{Raw: []byte(text)})
	}
	return all
}

// fieldNames are the names of the properties of all schemas.
var fieldNames = []string{"a", "b", "c"}

const maxDepth = 3

// schema makes a schema with everything that validation depends on, except for CEL rules.
func (m maker) schema(depth int) (s apiextensionsv1.JSONSchemaProps) {
	types := []string{"string", "string", "integer", "integer", "number", "boolean", "", "", "any"}
	if depth < maxDepth {
		types = append(types, "object", "object", "object", "array", "array")
	}
	switch s.Type = oneOf(m, types...); s.Type {
	case "any":
		s.Type, s.XPreserveUnknownFields = "", new(bool)
		*s.XPreserveUnknownFields = true
	case "":
		m.makeIntOrString(&s)
	case "string":
		m.limitString(&s)
	case "integer", "number":
		m.limitNumber(&s)
	case "boolean":
		if m.oneIn(4) {
			s.Enum = rawJSON("true")
		}
	case "array":
		m.makeArray(&s, depth)
	case "object":
		m.makeObject(&s, depth)
	}
	s.Nullable = m.oneIn(4)
	if m.oneIn(12) {
		m.addCondition(&s)
	}
	if m.oneIn(20) { // limits of other types
		m.limitString(&s)
		m.limitNumber(&s)
		s.MaxItems, s.MinProperties, s.Required = maybe(m, int64(1)), maybe(m, int64(2)), []string{"a"}
	}
	return s
}

func (m maker) makeIntOrString(s *apiextensionsv1.JSONSchemaProps) {
	if s.XIntOrString = !m.oneIn(8); !s.XIntOrString {
		return // any value, which only old definitions can say
	}
	alternatives := []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}
	switch m.IntN(6) {
	case 0, 1:
		s.AnyOf = alternatives
	case 2:
		s.AllOf = []apiextensionsv1.JSONSchemaProps{{AnyOf: alternatives}, {Pattern: "^x"}}
	case 3:
		s.AnyOf = []apiextensionsv1.JSONSchemaProps{{Type: "integer", Maximum: maybe(m, 1.0)}, {Type: "string"}}
	case 4: // only old definitions can have a type too
		s.Type = oneOf(m, "integer", "string", "boolean", "object")
	}
	if m.oneIn(3) {
		m.limitNumber(s)
	}
}

func (m maker) limitString(s *apiextensionsv1.JSONSchemaProps) {
	switch m.IntN(6) {
	case 0:
		s.Enum = rawJSON(`"x"`, `"xé"`, oneOf(m, `"z"`, `1`, `null`, `{"a":"x"}`))
	case 1:
		s.Pattern = oneOf(m, "^x", "^[a-zé]*$", "^.{1,2}$", `^\p{L}+$`, "z|10", "(?i)^X", "(")
	case 2:
		s.Format = oneOf(m, "date-time", "date", "ipv4", "byte", "uuid", "email", "color", "int32", "duration")
	case 3, 4:
		s.MinLength, s.MaxLength = maybe[int64](m, 0, 1, 2), maybe[int64](m, 0, 1, 2, 3)
	}
}

func (m maker) limitNumber(s *apiextensionsv1.JSONSchemaProps) {
	bounds := []float64{0, 1, 2, -1, 0.5, 1e3, math.MaxInt32, 1 << 31, 1 << 53, 1<<53 - 1, 1 << 62, 1 << 63, -(1 << 63), 1e19, -1e300}
	switch m.IntN(6) {
	case 0:
		s.Enum = rawJSON("1", "0", oneOf(m, "2.0", `"x"`, "0.5", "null"))
	case 1:
		s.Format = oneOf(m, "int32", "int64", "uint32", "float", "double", "date")
	case 2, 3:
		s.Minimum, s.Maximum = maybe(m, bounds...), maybe(m, bounds...)
		s.ExclusiveMinimum, s.ExclusiveMaximum = m.oneIn(5), m.oneIn(5)
		if m.oneIn(3) {
			s.Format = oneOf(m, "int32", "int64", "double")
		}
	case 4:
		s.MultipleOf = maybe(m, 1, 2, 3, 0.5, 0, -1)
	}
}

func (m maker) makeArray(s *apiextensionsv1.JSONSchemaProps, depth int) {
	if m.oneIn(10) {
		return
	}
	item := m.schema(depth + 1)
	s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &item}
	if m.oneIn(3) {
		s.MinItems, s.MaxItems = maybe[int64](m, 0, 1, 2), maybe[int64](m, 0, 1, 2)
	}
	s.UniqueItems = m.oneIn(10)
	if !m.oneIn(3) {
		return
	}
	s.XListType = maybe(m, "set", "map", "atomic")
	if s.XListType != nil && *s.XListType == "map" {
		*s.Items.Schema = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": m.schema(maxDepth), "b": m.schema(depth + 1)}}
		s.XListMapKeys = []string{"a"}
	}
}

func (m maker) makeObject(s *apiextensionsv1.JSONSchemaProps, depth int) {
	for _, name := range fieldNames {
		if m.oneIn(3) {
			continue
		}
		if s.Properties == nil {
			s.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
		}
		s.Properties[name] = m.schema(depth + 1)
	}
	if m.oneIn(4) {
		s.Required = []string{oneOf(m, fieldNames...)}
	}
	if m.oneIn(5) {
		s.MinProperties, s.MaxProperties = maybe[int64](m, 0, 1, 2), maybe[int64](m, 1, 2, 3)
	}
	if m.oneIn(4) {
		s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: m.oneIn(2)}
		if m.oneIn(2) {
			values := m.schema(depth + 1)
			s.AdditionalProperties.Allows, s.AdditionalProperties.Schema = true, &values
		}
		if m.oneIn(2) {
			s.Properties = nil
		}
	}
	s.XEmbeddedResource = m.oneIn(12)
	if s.XEmbeddedResource || m.oneIn(6) {
		preserve := true
		s.XPreserveUnknownFields = &preserve
	}
	s.XMapType = maybe(m, "atomic", "granular")
}

// addCondition adds one of the junctors.
func (m maker) addCondition(s *apiextensionsv1.JSONSchemaProps) {
	short := int64(1)
	clauses := []apiextensionsv1.JSONSchemaProps{
		{Required: []string{"a"}}, {Required: []string{"b"}}, {Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": {MaxLength: &short}}},
		{Pattern: "^x"}, {Enum: rawJSON(`"x"`, "1")}, {MaxItems: &short}, {Format: "int32"}, {Not: &apiextensionsv1.JSONSchemaProps{Required: []string{"c"}}},
	}
	list := []apiextensionsv1.JSONSchemaProps{oneOf(m, clauses...), oneOf(m, clauses...)}
	switch m.IntN(4) {
	case 0:
		s.AllOf = list
	case 1:
		s.AnyOf = list
	case 2:
		s.OneOf = list
	case 3:
		s.Not = &list[0]
	}
}

// value makes a value, three times in four one that may fit to the schema.
func (m maker) value(s *apiextensionsv1.JSONSchemaProps) any {
	switch schemaType := s.Type; {
	case m.oneIn(30):
		return randomValue(m.Rand, 3)
	case s.Nullable && m.oneIn(8) || m.oneIn(40):
		return nil
	case s.XIntOrString && !m.oneIn(6):
		if m.oneIn(2) {
			return m.text()
		}
		return m.integer()
	case schemaType == "string":
		return m.text()
	case schemaType == "integer":
		return m.integer()
	case schemaType == "number":
		return oneOf[any](m, m.integer(), 0.5, -2.25, 3.5e40, float64(7))
	case schemaType == "boolean":
		return !m.oneIn(4)
	case schemaType == "array":
		list := make([]any, m.IntN(4))
		for i := range list {
			if i > 0 && m.oneIn(4) {
				list[i] = runtime.DeepCopyJSONValue(list[i-1])
			} else if s.Items != nil {
				list[i] = m.value(s.Items.Schema)
			} else {
				list[i] = m.text()
			}
		}
		return list
	case schemaType == "object":
		return m.object(s)
	}
	return randomValue(m.Rand, 2)
}

func (m maker) text() string {
	return oneOf(m, "x", "x", "xé", "xyz", "", "z", "日本", "x y", "10.0.0.1", "2026-01-01T00:00:00Z", "2026-01-01", "eA==", "\xff", "1h")
}

func (m maker) integer() any {
	if m.oneIn(2) {
		return int64(m.IntN(3))
	}
	return oneOf[any](m, int64(1), int64(0), int64(2), int64(3), int64(-1), int64(1<<31), int64(-(1<<31)-1), int64(1<<53), int64(1<<53+1),
		int64(math.MaxInt64), int64(math.MinInt64), 2.0, 0.5)
}

func (m maker) object(s *apiextensionsv1.JSONSchemaProps) map[string]any {
	fields := map[string]any{}
	for name := range s.Properties {
		if property := s.Properties[name]; !m.oneIn(4) {
			fields[name] = m.value(&property)
		}
	}
	for _, name := range s.Required {
		if _, ok := s.Properties[name]; !ok && !m.oneIn(4) {
			fields[name] = m.text()
		}
	}
	if values := s.AdditionalProperties; values != nil || m.oneIn(6) {
		for _, name := range []string{"d", "e"} {
			if m.oneIn(2) {
				continue
			}
			fields[name] = m.text()
			if values != nil && values.Schema != nil {
				fields[name] = m.value(values.Schema)
			}
		}
	}
	if s.XEmbeddedResource {
		fields["apiVersion"], fields["kind"] = oneOf(m, "v1", "a/v1", "a/b/c"), oneOf(m, "Pod", "Pod", "not a kind")
		fields["metadata"] = randomMetadata(m.Rand)
	}
	return fields
}

// definition makes a definition with random schemas of spec and status, and with one of the whole object that restricts it a little.
func (m maker) definition(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	d := oneVersion(t, "{type: object}")
	d.Spec.PreserveUnknownFields = m.oneIn(4)
	version := &d.Spec.Versions[0]
	version.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	root := version.Schema.OpenAPIV3Schema
	root.Properties["spec"], root.Properties["status"] = m.schema(0), m.schema(0)
	if m.oneIn(4) {
		root.Required = []string{"spec"}
	}
	if m.oneIn(4) {
		long := int64(1)
		root.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"name": {Type: "string", MaxLength: &long}}}
		root.Properties["kind"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	return d
}

func (m maker) crontab(root *apiextensionsv1.JSONSchemaProps) map[string]any {
	obj := map[string]any{"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": map[string]any{"name": oneOf(m, "a", "a", "a", "ab")}}
	for _, name := range []string{"spec", "status"} {
		if property := root.Properties[name]; !m.oneIn(4) {
			obj[name] = m.value(&property)
		}
	}
	return obj
}

// changed returns a copy of a value in which some values inside are those of another one.
func (m maker) changed(value, other any) any {
	switch typed := value.(type) {
	case map[string]any:
		fields := map[string]any{}
		others, _ := other.(map[string]any)
		for name, inner := range typed {
			fields[name] = m.changed(inner, others[name])
		}
		return fields
	case []any:
		others, _ := other.([]any)
		list := make([]any, len(typed))
		for i, inner := range typed {
			if list[i] = runtime.DeepCopyJSONValue(inner); i < len(others) {
				list[i] = m.changed(inner, others[i])
			}
		}
		return list
	}
	if m.oneIn(3) && other != nil {
		return runtime.DeepCopyJSONValue(other)
	}
	return value
}

// errorsOfLibrary are the errors that the library alone finds in a new or changed object.
func (c *validators) errorsOfLibrary(obj, old map[string]any) field.ErrorList {
	var errs field.ErrorList
	if old == nil {
		errs = schemavalidation.ValidateCustomResource(nil, obj, c.schema)
	} else {
		errs = schemavalidation.ValidateCustomResourceUpdate(nil, obj, old, c.schema, c.ratchet(c.correlate(obj, old))...)
	}
	errs = append(errs, objectmeta.Validate(context.Background(), nil, obj, c.Structural, false)...)
	return append(errs, c.duplicatesOfLibrary(obj, old)...)
}

// statusErrorsOfLibrary are those in a changed status.
func (c *validators) statusErrorsOfLibrary(obj, old map[string]any) field.ErrorList {
	var errs field.ErrorList
	if status, ok := obj["status"]; ok {
		errs = schemavalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old["status"], c.status, c.ratchet(c.correlate(obj, old).Key("status"))...)
	}
	return append(errs, c.duplicatesOfLibrary(obj, old)...)
}

func (c *validators) duplicatesOfLibrary(obj, old map[string]any) field.ErrorList {
	if old != nil && len(listtype.ValidateListSetsAndMaps(nil, c.Structural, old)) > 0 {
		return nil
	}
	return listtype.ValidateListSetsAndMaps(nil, c.Structural, obj)
}

// TestRandomSchemas: objects of random schemas are valid, as new objects, changed ones and changed statuses, if and only if the library alone finds no
// errors. Many are valid without the library.
func TestRandomSchemas(t *testing.T) {
	const schemas, objects = 500, 30
	accepted, valid := 0, 0
	outcomes := map[string]int{}
	for seed := range uint64(schemas) {
		m := maker{rand.New(rand.NewPCG(seed, 7))}
		crd := m.definition(t)
		root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		d, err := newDefinition(pack(t, crd), nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.storage.validators()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		check := func(what string, got, want field.ErrorList, objs ...map[string]any) {
			t.Helper()
			outcomes[fmt.Sprint(what, " ", len(want) == 0)]++
			if (len(got) == 0) != (len(want) == 0) {
				t.Fatalf("seed %d, %s: errors %q, those of the library %q\n%v\n%s", seed, what, joined(got), joined(want), objs, yamlOf(t, root))
			}
		}
		var old map[string]any
		for range objects {
			obj := m.crontab(root)
			before := runtime.DeepCopyJSON(obj)
			errs := schemavalidation.ValidateCustomResource(nil, obj, c.schema)
			if len(errs) == 0 {
				valid++
			}
			if c.shape.isValid(obj) {
				if accepted++; len(errs) > 0 {
					t.Fatalf("seed %d: accepted: %q\n%v\n%s", seed, joined(errs), obj, yamlOf(t, root))
				}
			}
			u := &unstructured.Unstructured{Object: obj}
			check("create", d.validate(request, u, nil), c.errorsOfLibrary(obj, nil), obj)
			if old != nil {
				next := m.changed(old, obj).(map[string]any)
				u, uOld := &unstructured.Unstructured{Object: next}, &unstructured.Unstructured{Object: old}
				check("update", d.validate(request, u, uOld), c.errorsOfLibrary(next, old), next, old)
				check("status", d.storage.validateStatus(request, u, uOld), c.statusErrorsOfLibrary(next, old), next, old)
			}
			if !reflect.DeepEqual(before, obj) {
				t.Fatalf("validation has changed the object %v to %v", before, obj)
			}
			old = obj
		}
	}
	t.Logf("%d of %d valid objects are accepted; %v", accepted, valid, outcomes)
	for _, outcome := range []string{"create true", "create false", "update true", "update false", "status true", "status false"} {
		if outcomes[outcome] < schemas*objects/20 {
			t.Errorf("%s: %d times", outcome, outcomes[outcome])
		}
	}
	if accepted < valid/4 {
		t.Errorf("%d of %d valid objects are accepted", accepted, valid)
	}
}

func yamlOf(t *testing.T, value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
