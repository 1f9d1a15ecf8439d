package apiextensions

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	"skiff/internal/kind"
)

// schemaMaker makes random schemas. Most of their fields are usual, some are not allowed where they are.
type schemaMaker struct{ *rand.Rand }

func (m schemaMaker) oneOf(values ...string) string { return values[m.IntN(len(values))] }

// rarely is true once in n times.
func (m schemaMaker) rarely(n int) bool { return m.IntN(n) == 0 }

func (m schemaMaker) root(unusual int) *jsonSchema {
	s := &jsonSchema{Type: "object", Description: m.text(), Properties: map[string]jsonSchema{"spec": *m.schema(4, unusual), "status": {Type: "object", XPreserveUnknownFields: pointerTo(true)}}}
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		if m.rarely(3) {
			property := jsonSchema{Type: "string"}
			if (name == "metadata") != m.rarely(10) {
				property.Type = "object"
			}
			s.Properties[name] = property
		}
	}
	if m.rarely(unusual) {
		m.addUnusual(s)
	}
	return s
}

func (m schemaMaker) text() string {
	return m.oneOf("", "what it is for", "two\nlines\twith \"quotes\" and \\", "a < b && c > d", "größer als 語", "\u2028\x7f\x01", "<https://example.com/?a=b&c=d>")
}

func (m schemaMaker) schema(depth, unusual int) *jsonSchema {
	s := &jsonSchema{Description: m.text(), Type: m.oneOf("string", "integer", "number", "boolean")}
	if depth > 0 && !m.rarely(3) {
		s.Type = m.oneOf("object", "object", "array")
	}
	switch s.Type {
	case "object":
		if m.rarely(4) {
			s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: m.schema(depth-1, unusual)}
			break
		}
		s.Properties = map[string]jsonSchema{}
		for _, name := range []string{"name", "metadata", "kind", "a", "b"}[:m.IntN(6)] {
			s.Properties[name] = *m.schema(depth-1, unusual)
			s.Required = append(s.Required, name)
		}
		if m.rarely(6) {
			s.XMapType = pointerTo(m.oneOf("atomic", "granular"))
		}
	case "array":
		s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: m.schema(depth-1, unusual)}
		m.setListType(s)
	case "string":
		s.MaxLength, s.MinLength = pointerTo(m.Int64N(100)), pointerTo(int64(0))
		s.Pattern = m.oneOf("", "", "^[a-z]+$")
		s.Format = m.oneOf("", "", "date-time", "uuid")
		if m.rarely(4) {
			s.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"a<b"`)}, {Raw: []byte(`"b"`)}}
		}
	case "integer", "number":
		s.Minimum, s.Maximum, s.MultipleOf = pointerTo(0.0), pointerTo(m.Float64()*1e7), pointerTo(1e-7)
		s.ExclusiveMaximum, s.Nullable = m.rarely(2), m.rarely(2)
		if m.rarely(3) {
			*s = jsonSchema{XIntOrString: true, AnyOf: slices.Clone(intOrString)}
		}
	}
	if m.rarely(unusual) {
		m.addUnusual(s)
	}
	return s
}

func (m schemaMaker) setListType(s *jsonSchema) {
	switch item := s.Items.Schema; m.oneOf("", "", "atomic", "set", "map") {
	case "atomic":
		s.XListType = pointerTo("atomic")
	case "set":
		if isScalar(item.Type) || m.rarely(20) {
			s.XListType = pointerTo("set")
		}
	case "map":
		if isMap := item.Type == "object" && item.Properties != nil; isMap && !m.rarely(20) {
			s.XListType, s.XListMapKeys = pointerTo("map"), []string{"key"}
			item.Properties["key"] = jsonSchema{Type: m.oneOf("string", "integer"), Nullable: m.rarely(30)}
			item.Required = append(item.Required, "key")
		} else if m.rarely(20) {
			s.XListType, s.XListMapKeys = pointerTo("map"), []string{"key"}
		}
	}
}

// unusualChanges are changes of a schema after which it is, at least in some places, not valid or not simple.
func unusualChanges() []func(m schemaMaker, s *jsonSchema) {
	return []func(m schemaMaker, s *jsonSchema){
		func(_ schemaMaker, s *jsonSchema) { s.ID = "x" },
		func(_ schemaMaker, s *jsonSchema) { s.Schema = "x" },
		func(_ schemaMaker, s *jsonSchema) { s.Ref = pointerTo("") },
		func(m schemaMaker, s *jsonSchema) { s.Type = m.oneOf("", "null", "text", "object", "array") },
		func(m schemaMaker, s *jsonSchema) {
			s.Format = m.oneOf("unknown", "int64", "k8s-short-name")
		},
		func(m schemaMaker, s *jsonSchema) {
			s.Default = &apiextensionsv1.JSON{Raw: []byte(m.oneOf(`"x"`, "1", "null", `{"a":1}`, "[]"))}
		},
		func(_ schemaMaker, s *jsonSchema) { s.Pattern = "(" },
		func(_ schemaMaker, s *jsonSchema) { s.UniqueItems = true },
		func(_ schemaMaker, s *jsonSchema) {
			s.Enum = []apiextensionsv1.JSON{{Raw: []byte("1")}, {Raw: []byte("null")}}
		},
		func(_ schemaMaker, s *jsonSchema) { s.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"not closed`)}} },
		func(_ schemaMaker, s *jsonSchema) {
			s.MaxProperties, s.MinProperties = pointerTo(int64(1)), pointerTo(int64(2))
		},
		func(_ schemaMaker, s *jsonSchema) { s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{} },
		func(_ schemaMaker, s *jsonSchema) {
			s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{JSONSchemas: []jsonSchema{{Type: "string"}}}
		},
		func(_ schemaMaker, s *jsonSchema) { s.Items = nil },
		func(m schemaMaker, s *jsonSchema) { s.AllOf = []jsonSchema{*m.schema(1, 100)} },
		func(m schemaMaker, s *jsonSchema) {
			s.OneOf = []jsonSchema{{Required: []string{"a"}}, {Required: []string{"b"}}}
		},
		func(m schemaMaker, s *jsonSchema) {
			s.AnyOf = []jsonSchema{{Type: "integer"}, {Type: "string", Format: "uuid"}}
		},
		func(m schemaMaker, s *jsonSchema) { s.Not = &jsonSchema{Required: []string{"a"}} },
		func(_ schemaMaker, s *jsonSchema) { s.Properties = map[string]jsonSchema{"a": {Type: "string"}} },
		func(m schemaMaker, s *jsonSchema) {
			s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: m.rarely(2)}
		},
		func(_ schemaMaker, s *jsonSchema) { s.PatternProperties = map[string]jsonSchema{"a": {Type: "string"}} },
		func(_ schemaMaker, s *jsonSchema) { s.Dependencies = apiextensionsv1.JSONSchemaDependencies{} },
		func(_ schemaMaker, s *jsonSchema) {
			s.AdditionalItems = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}
		},
		func(_ schemaMaker, s *jsonSchema) { s.Definitions = apiextensionsv1.JSONSchemaDefinitions{"a": {}} },
		func(_ schemaMaker, s *jsonSchema) {
			s.ExternalDocs, s.Title = &apiextensionsv1.ExternalDocumentation{Description: "a&b", URL: "u"}, "title"
		},
		func(_ schemaMaker, s *jsonSchema) {
			s.Example = &apiextensionsv1.JSON{Raw: []byte(`{"a": [1, 2.5, null]}`)}
		},
		func(_ schemaMaker, s *jsonSchema) { s.Nullable = true },
		func(m schemaMaker, s *jsonSchema) { s.XPreserveUnknownFields = pointerTo(m.rarely(2)) },
		func(_ schemaMaker, s *jsonSchema) { s.XEmbeddedResource = true },
		func(_ schemaMaker, s *jsonSchema) { s.XIntOrString = true },
		func(_ schemaMaker, s *jsonSchema) { s.XListMapKeys = []string{"a"} },
		func(m schemaMaker, s *jsonSchema) { s.XListType = pointerTo(m.oneOf("set", "map", "other")) },
		func(m schemaMaker, s *jsonSchema) { s.XMapType = pointerTo(m.oneOf("atomic", "other")) },
		func(m schemaMaker, s *jsonSchema) {
			s.XValidations = apiextensionsv1.ValidationRules{{Rule: m.oneOf("true", "self.a == 1"), Message: "a > b", FieldPath: m.oneOf("", ".a")}}
		},
	}
}

func (m schemaMaker) addUnusual(s *jsonSchema) {
	changes := unusualChanges()
	changes[m.IntN(len(changes))](m, s)
}

// definition makes a definition with one or two versions.
func (m schemaMaker) definition(unusual int) *definition {
	crd := &definition{}
	crd.Name, crd.Status.StoredVersions = "foos.example.com", []string{"v1"}
	crd.Spec.Group, crd.Spec.Scope = "example.com", apiextensionsv1.NamespaceScoped
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "foos", Singular: "foo", Kind: "Foo", ListKind: "FooList"}
	for i := range 1 + m.IntN(2) {
		version := apiextensionsv1.CustomResourceDefinitionVersion{Name: fmt.Sprint("v", i+1), Served: true, Storage: i == 0,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: m.root(unusual)}}
		if m.rarely(2) {
			version.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		}
		crd.Spec.Versions = append(crd.Spec.Versions, version)
	}
	return crd
}

// TestSimpleSchemasAreValid: what is called simple is valid, structural, and causes no warnings.
func TestSimpleSchemasAreValid(t *testing.T) {
	const rounds = 1500
	simple, invalid := 0, 0
	for seed := range uint64(rounds) {
		m := schemaMaker{rand.New(rand.NewPCG(seed, 0))}
		crd := m.definition(100)
		next, err := hoisted(crd)
		if !HasSimpleSchemas(crd) {
			if err != nil || len((&validator{}).definition(crd, nil, next)) > 0 {
				invalid++
			}
			continue
		}
		simple++
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if errs := (&validator{}).definition(crd, nil, next); len(errs) > 0 {
			t.Fatalf("seed %d is simple, but: %v", seed, errs)
		}
		if formats, lists := warningsOf(crd); len(formats)+len(lists) > 0 {
			t.Fatalf("seed %d is simple, but causes the warnings %q and %q", seed, formats, lists)
		}
		for i := range next.Spec.Versions {
			schema := next.Spec.Validation
			if schema == nil {
				schema = next.Spec.Versions[i].Schema
			}
			if structural, err := structuralschema.NewStructural(schema.OpenAPIV3Schema); err != nil || len(structuralschema.ValidateStructural(nil, structural)) > 0 {
				t.Fatalf("seed %d is simple, but not structural: %v", seed, err)
			}
		}
	}
	t.Logf("%d of %d definitions are simple, %d not valid", simple, rounds, invalid)
	if simple < rounds/10 || invalid < rounds/10 {
		t.Errorf("%d of %d definitions are simple, %d not valid", simple, rounds, invalid)
	}
}

// TestSimpleDefinitionErrors: the errors of a definition with simple schemas besides those of schemas are found.
func TestSimpleDefinitionErrors(t *testing.T) {
	m := schemaMaker{rand.New(rand.NewPCG(1, 1))}
	simple := func() *definition {
		for {
			if crd := m.definition(1000); HasSimpleSchemas(crd) {
				return crd
			}
		}
	}
	if errs := validateDefinition(&kind.Request{}, simple(), nil); len(errs) > 0 {
		t.Fatal(errs)
	}
	for what, change := range map[string]func(crd *definition){
		"name":            func(crd *definition) { crd.Name = "other" },
		"scope":           func(crd *definition) { crd.Spec.Scope = "other" },
		"kind":            func(crd *definition) { crd.Spec.Names.Kind = "" },
		"storage":         func(crd *definition) { crd.Spec.Versions[0].Storage = false },
		"stored versions": func(crd *definition) { crd.Status.StoredVersions = []string{"v7"} },
		"accepted names":  func(crd *definition) { crd.Status.AcceptedNames.Plural = "A" },
		"unknown fields":  func(crd *definition) { crd.Spec.PreserveUnknownFields = true },
		"columns": func(crd *definition) {
			crd.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{}}
		},
		"selectable fields": func(crd *definition) {
			crd.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.absent"}}
		},
		"conversion": func(crd *definition) {
			crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: "other"}
		},
		"no schema": func(crd *definition) { crd.Spec.Versions[0].Schema = nil },
	} {
		crd := simple()
		change(crd)
		errs := validateDefinition(&kind.Request{}, crd, nil)
		next, err := hoisted(crd)
		if err != nil {
			t.Fatal(err)
		}
		if want := (&validator{allow: allowances{invalidCABundle: true}}).definition(crd, nil, next); len(want) == 0 || errs.ToAggregate().Error() != want.ToAggregate().Error() {
			t.Errorf("%s: %v, want %v", what, errs, want)
		}
	}
	old := established(t, simple())
	crd := old.DeepCopy()
	if errs := validateDefinition(&kind.Request{}, crd, old); len(errs) > 0 {
		t.Error(errs)
	}
	crd.Spec.Scope = apiextensionsv1.ClusterScoped
	if errs := validateDefinition(&kind.Request{}, crd, old); len(errs) != 1 || errs[0].Field != "spec.scope" {
		t.Errorf("changed scope: %v", errs)
	}
}
