package customresource

import (
	"math/rand/v2"
	"testing"

	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	kjson "sigs.k8s.io/json"
)

// validSchemas have everything that isValid understands, and some of what it does not.
var validSchemas = []string{
	"{type: object, required: [a], properties: {a: {type: string, minLength: 1, maxLength: 2}, b: {type: object, required: [a, c], properties: {a: {type: integer}, c: {type: string, nullable: true}}}, l: {type: array, maxItems: 1, items: {type: string}}}}",
	"{type: object, maxProperties: 3, minProperties: 1, additionalProperties: {type: object, nullable: true, additionalProperties: {type: number}}}",
	"{type: object, properties: {a: {type: string, enum: [x, z]}, b: {type: integer, minimum: 1, maximum: 2}, c: {type: string, pattern: ^x}, l: {type: array, minItems: 1, items: {x-kubernetes-int-or-string: true}}}}",
	"{type: object, properties: {a: {type: string, enum: [x], nullable: true}, b: {type: integer, format: int32}, c: {type: number, nullable: true}, l: {type: boolean}}}",
	"{type: object, properties: {a: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}, b: {type: integer, format: int64, minimum: 1}, c: {type: number, maximum: 0.5}, l: {x-kubernetes-preserve-unknown-fields: true}}}",
	"{type: object, properties: {a: {type: integer, minimum: 0.5}, b: {type: integer, minimum: 0, exclusiveMinimum: true}, c: {type: string, format: date-time}, l: {type: array, uniqueItems: false, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}",
	"{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: number, format: float}, b: {type: object, oneOf: [{required: [a]}, {required: [c]}], properties: {a: {type: string}, c: {type: integer, multipleOf: 2}}}}}",
	"{type: object, properties: {a: {type: integer, enum: [1, 2]}, b: {type: boolean, enum: [true]}, c: {x-kubernetes-int-or-string: true, enum: [x]}, l: {type: array, nullable: true, maxItems: 0, items: {type: string}}}}",
	"{type: object, properties: {a: {type: integer, x-kubernetes-int-or-string: true, minimum: 1}, b: {type: boolean, x-kubernetes-int-or-string: true}, c: {type: string}}}",
}

// varied replaces the strings and numbers of a value.
func varied(r *rand.Rand, value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			value[name] = varied(r, inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = varied(r, inner)
		}
	case string:
		return []any{"x", "x", "xé", "xyz", "", "z"}[r.IntN(6)]
	case int64:
		return []any{int64(1), int64(1), int64(0), int64(3), int64(1 << 40), 0.5, 2.0}[r.IntN(7)]
	}
	return value
}

// TestValidObjects: the library finds no errors in objects that isValid accepts. Most valid objects are accepted.
func TestValidObjects(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	acceptedOfAll, validOfAll := 0, 0
	for _, schema := range validSchemas {
		d, err := newDefinition(pack(t, oneVersion(t, schema)), nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.storage.validators()
		if err != nil {
			t.Fatal(err)
		}
		accepted, valid := 0, 0
		const objects = 20000
		for range objects {
			obj := map[string]any{"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": randomMetadata(r), "spec": varied(r, randomValue(r, 0))}
			errs := schemavalidation.ValidateCustomResource(nil, obj, c.schema)
			if len(errs) == 0 {
				valid++
			}
			if !c.shape.isValid(obj) {
				continue
			}
			accepted++
			if len(errs) > 0 {
				t.Fatalf("%s:\n%v\nis accepted: %v", schema, obj, errs)
			}
		}
		t.Logf("%d of %d valid objects are accepted: %s", accepted, valid, schema)
		acceptedOfAll, validOfAll = acceptedOfAll+accepted, validOfAll+valid
		if accepted < objects/1000 {
			t.Errorf("%s: only %d objects were accepted", schema, accepted)
		}
	}
	if acceptedOfAll < validOfAll/2 {
		t.Errorf("%d of %d valid objects are accepted", acceptedOfAll, validOfAll)
	}
}

// An object of usual size is found valid without the library.
func TestValidObjectAllocatesNothing(t *testing.T) {
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
	if !s.shape.isValid(root) {
		t.Error("the library has to look at it again")
	}
	if allocated := testing.AllocsPerRun(10, func() { s.shape.isValid(root) }); allocated > 0 {
		t.Errorf("allocates %v times", allocated)
	}
}
