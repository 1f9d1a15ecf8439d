package apiextensions

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"skiff/internal/kind"
)

// decodeWithLibrary is what the server does without decodeJSON.
func decodeWithLibrary(data []byte) (*definition, []error, error) {
	crd := &definition{}
	strictErrs, err := kjson.UnmarshalStrict(data, crd)
	return crd, strictErrs, err
}

// checkDecoded checks that a text is decoded as the library does, or not at all, and reports whether it is.
func checkDecoded(t *testing.T, data []byte) bool {
	t.Helper()
	got := &definition{}
	if !decodeJSON(data, got) {
		if !reflect.DeepEqual(got, &definition{}) {
			t.Fatalf("not decoded, but changed to %v", got)
		}
		return false
	}
	want, strictErrs, err := decodeWithLibrary(data)
	if err != nil || len(strictErrs) > 0 {
		t.Fatalf("decoded what the library refuses: %v %v\n%s", err, strictErrs, data)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("decoded %v, want %v\n%s", got, want, data)
	}
	return true
}

// checkEncoded checks that a definition is encoded as the library does, and returns the encoding.
func checkEncoded(t *testing.T, crd *definition) []byte {
	t.Helper()
	want, err := json.Marshal(crd)
	if err != nil {
		if _, err := encodeJSON(crd); err == nil {
			t.Fatal("encoded what the library cannot")
		}
		return nil
	}
	got, err := encodeJSON(crd)
	if err != nil || string(got) != string(want) {
		t.Fatalf("encoded as %s, %v, want %s", got, err, want)
	}
	return got
}

// TestJSONOfRandomDefinitions: random definitions are encoded and decoded as the library does, and so are damaged texts.
func TestJSONOfRandomDefinitions(t *testing.T) {
	decoded, damaged, damagedDecoded := 0, 0, 0
	const rounds = 1500
	for seed := range uint64(rounds) {
		m := schemaMaker{rand.New(rand.NewPCG(seed, 1))}
		crd := m.definition(40)
		crd.Annotations = map[string]string{"a": m.text(), string(encodedPlaceholder): `{"id":"placeholder of a schema"}`}
		data := checkEncoded(t, crd)
		if data == nil {
			continue
		}
		if m.rarely(2) {
			data = []byte(strings.NewReplacer(",", " ,\n", ":", "\t: ").Replace(string(data)))
		}
		if checkDecoded(t, data) {
			decoded++
		}
		for range 5 {
			damaged++
			if checkDecoded(t, m.damage(data)) {
				damagedDecoded++
			}
		}
	}
	t.Logf("%d of %d definitions were decoded, and %d of %d damaged ones", decoded, rounds, damagedDecoded, damaged)
	if decoded < rounds/4 || damagedDecoded == 0 {
		t.Errorf("%d of %d definitions were decoded, and %d of %d damaged ones", decoded, rounds, damagedDecoded, damaged)
	}
}

// The managed fields of a definition may have any JSON, also what stands for a schema while the rest is encoded.
func TestPlaceholderInManagedFields(t *testing.T) {
	crd, _ := largeDefinition(t)
	crd.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: encodedPlaceholder}}}
	checkEncoded(t, crd)
}

// damage changes, inserts, removes or repeats a part of a text.
func (m schemaMaker) damage(data []byte) []byte {
	at := m.IntN(len(data))
	end := min(at+1+m.IntN(8), len(data))
	before, after := string(data[:at]), string(data[end:])
	switch m.IntN(4) {
	case 0:
		return []byte(before + after)
	case 1:
		return []byte(before + string(data[at:end]) + string(data[at:end]) + after)
	}
	return []byte(before + m.oneOf("null", "{", "}", "[", "]", ",", `"`, `\`, `\u00e4`, `\ud800`, "0", "-", "1e9", "true", " ", "\x00", "\xff", `"type":"x",`, `"spec":{},`) + after)
}

// TestJSONOfAllFields: no field of a schema is forgotten.
func TestJSONOfAllFields(t *testing.T) {
	crd := schemaMaker{rand.New(rand.NewPCG(0, 0))}.definition(1 << 30)
	full := &jsonSchema{}
	fill(reflect.ValueOf(full).Elem(), 0)
	full.Properties["other"] = jsonSchema{Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &jsonSchema{Type: "string"}}, AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{}}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema = full
	value := reflect.ValueOf(full).Elem()
	for i := range value.NumField() {
		if name := value.Type().Field(i).Name; value.Field(i).IsZero() && name != "Dependencies" {
			t.Errorf("field %s is not tested", name)
		}
	}
	if !checkDecoded(t, checkEncoded(t, crd)) {
		t.Error("a field is not decoded")
	}
	full.Dependencies = apiextensionsv1.JSONSchemaDependencies{"a": {Property: []string{"b"}}, "c": {Schema: &jsonSchema{Type: "string"}}}
	checkEncoded(t, crd)
	crd.Spec.Versions[0].Schema = nil
	checkEncoded(t, crd)
}

// fill sets all fields of a schema. Schemas inside have a type only.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("a < \"b\"")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(0.25)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		if v.Type() == reflect.TypeFor[apiextensionsv1.JSONSchemaDependencies]() {
			return // left to the library
		}
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key <"), value)
	case reflect.Struct:
		switch {
		case v.Type() == reflect.TypeFor[apiextensionsv1.JSON]():
			v.Set(reflect.ValueOf(apiextensionsv1.JSON{Raw: []byte(`{"a": "<"}`)}))
		case v.Type() == reflect.TypeFor[jsonSchema]() && depth > 0:
			v.Set(reflect.ValueOf(jsonSchema{Type: "string"}))
		default:
			for i := range v.NumField() {
				fill(v.Field(i), depth+1)
			}
		}
	}
}

// FuzzDecodeDefinition: whatever is decoded, the library decodes to the same.
func FuzzDecodeDefinition(f *testing.F) {
	for seed := range uint64(10) {
		crd := schemaMaker{rand.New(rand.NewPCG(seed, 2))}.definition(20)
		if data, err := encodeJSON(crd); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !checkDecoded(t, data) {
			return
		}
		crd, _, _ := decodeWithLibrary(data)
		checkEncoded(t, crd)
	})
}

// largeDefinition is a definition as large as those of cert-manager: 60 KB.
func largeDefinition(t testing.TB) (*definition, []byte) {
	t.Helper()
	crd := schemaMaker{rand.New(rand.NewPCG(0, 0))}.definition(1 << 30)
	crd.Spec.Versions = crd.Spec.Versions[:1]
	parts := map[string]jsonSchema{}
	for part := range 36 {
		fields := map[string]jsonSchema{}
		for i := range 8 {
			fields[fmt.Sprint("field", i)] = jsonSchema{Type: "string", Description: fmt.Sprintf("Field %d of the part.\nIt has a description about as long as those that are generated from comments: "+
				"what it is for, when it is set, and what <its> default is.", i)}
		}
		parts[fmt.Sprint("part", part)] = jsonSchema{Type: "array", Description: "A part.", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &jsonSchema{Type: "object", Properties: fields}}}
	}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema = &jsonSchema{Type: "object", Properties: map[string]jsonSchema{"spec": {Type: "object", Properties: parts}}}
	data, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	return crd, data
}

// The steps of a write of a definition, and how many bytes each may allocate for a byte of the definition.
func costs(t testing.TB) map[string]struct {
	step  func()
	limit float64
} {
	crd, data := largeDefinition(t)
	return map[string]struct {
		step  func()
		limit float64
	}{
		"decode": {func() {
			if !decodeJSON(data, &definition{}) {
				t.Fatal("left to the library")
			}
		}, 20},
		"validate": {func() {
			if errs := validateDefinition(&kind.Request{}, crd, nil); len(errs) > 0 {
				t.Fatal(errs)
			}
			warnings(crd, nil)
		}, 1},
		"validate the status": {func() {
			if errs := validateDefinitionStatus(&kind.Request{}, crd, crd); len(errs) > 0 {
				t.Fatal(errs)
			}
		}, 0.1},
		"encode": {func() {
			if _, err := encodeJSON(crd); err != nil {
				t.Fatal(err)
			}
		}, 2},
	}
}

// TestCostOfDefinitions: a definition is decoded and encoded once, and simple schemas are validated without being converted.
func TestCostOfDefinitions(t *testing.T) {
	_, data := largeDefinition(t)
	for name, c := range costs(t) {
		const rounds = 20
		var before, after runtime.MemStats
		c.step()
		runtime.ReadMemStats(&before)
		for range rounds {
			c.step()
		}
		runtime.ReadMemStats(&after)
		each := float64(after.TotalAlloc-before.TotalAlloc) / rounds / float64(len(data))
		t.Logf("%s: %.2f bytes for each of %d", name, each, len(data))
		if each > c.limit {
			t.Errorf("%s: %.2f bytes are allocated for each of %d, want at most %.2f", name, each, len(data), c.limit)
		}
	}
}

func BenchmarkDefinition(b *testing.B) {
	crd, data := largeDefinition(b)
	run := func(name string, step func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
	for name, c := range costs(b) {
		run(name, c.step)
	}
	run("decode with the library", func() {
		if _, _, err := decodeWithLibrary(data); err != nil {
			b.Fatal(err)
		}
	})
	run("encode with the library", func() {
		if _, err := json.Marshal(crd); err != nil {
			b.Fatal(err)
		}
	})
	run("validate without shortcut", func() {
		next, err := hoisted(crd)
		if err != nil || len((&validator{}).definition(crd, nil, next)) > 0 {
			b.Fatal(err)
		}
	})
	run("compare", func() {
		if !equality.Semantic.DeepEqual(crd.Spec, crd.Spec) {
			b.Fatal("not equal to itself")
		}
	})
}
