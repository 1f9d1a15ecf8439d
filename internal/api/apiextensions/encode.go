package apiextensions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// The library encodes a schema inside of items or additionalProperties for itself, and copies it at each level around it. Schemas are encoded here in
// one pass; the library encodes the rest of a definition.

// placeholder is the schema that the library encodes in place of another one. The quotes of its encoding are in no string.
var (
	placeholder        = &jsonSchema{ID: "placeholder of a schema"}
	encodedPlaceholder = []byte(`{"id":"placeholder of a schema"}`)
)

// encodeJSON returns what encoding/json would.
func encodeJSON(crd *definition) ([]byte, error) {
	small := *crd
	small.Spec.Versions = slices.Clone(crd.Spec.Versions)
	var schemas []*jsonSchema
	for i := range small.Spec.Versions {
		if schema := small.Spec.Versions[i].Schema; schema != nil && schema.OpenAPIV3Schema != nil {
			schemas = append(schemas, schema.OpenAPIV3Schema)
			small.Spec.Versions[i].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: placeholder}
		}
	}
	rest, err := json.Marshal(&small)
	if err != nil || len(schemas) == 0 {
		return rest, err
	}
	places, err := placesOf(rest, len(schemas))
	if err != nil {
		return nil, fmt.Errorf("encode definition %s: %w", crd.Name, err)
	}
	w := writer{out: make([]byte, 0, len(rest)+sizeHint(schemas))}
	start := 0
	for i, schema := range schemas {
		w.out = append(w.out, rest[start:places[i]]...)
		w.schema(schema)
		start = places[i] + len(encodedPlaceholder)
	}
	if w.err != nil {
		return nil, w.err
	}
	return append(w.out, rest[start:]...), nil
}

// placesOf returns where the placeholders of n schemas are. They are the last ones: metadata, which may have any JSON in its managedFields, comes first.
func placesOf(encoded []byte, n int) ([]int, error) {
	places := make([]int, n)
	end := len(encoded)
	for i := n - 1; i >= 0; i-- {
		end = bytes.LastIndex(encoded[:end], encodedPlaceholder)
		if end < 0 {
			return nil, errors.New("schema was not encoded")
		}
		places[i] = end
	}
	return places, nil
}

// sizeHint estimates the length of schemas.
func sizeHint(schemas []*jsonSchema) int {
	size := 0
	for _, s := range schemas {
		size += lengthOf(s)
	}
	return size
}

// lengthOf estimates the length of a schema: that of its texts and those of what most schemas consist of.
func lengthOf(s *jsonSchema) int {
	const rest = 64 // names of fields, and punctuation
	length := rest + len(s.Description) + len(s.Pattern)
	var property jsonSchema // one for all: it is large
	for name := range s.Properties {
		property = s.Properties[name]
		length += len(name) + lengthOf(&property)
	}
	if s.Items != nil && s.Items.Schema != nil {
		length += lengthOf(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		length += lengthOf(s.AdditionalProperties.Schema)
	}
	return length
}

// writer writes JSON.
type writer struct {
	out []byte
	err error
}

// key begins a field.
func (w *writer) key(name string) {
	if last := w.out[len(w.out)-1]; last != '{' {
		w.out = append(w.out, ',')
	}
	w.string(name)
	w.out = append(w.out, ':')
}

// string writes a string. Unusual characters are left to the library.
func (w *writer) string(text string) {
	start := len(w.out)
	w.out = append(w.out, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			w.out = append(w.out, '\\', c)
		case c == '\n':
			w.out = append(w.out, '\\', 'n')
		case c == '\t':
			w.out = append(w.out, '\\', 't')
		case c == '<' || c == '>' || c == '&':
			const digits = "0123456789abcdef"
			w.out = append(w.out, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		case c < ' ' || c > '~':
			w.out = w.out[:start]
			w.value(text)
			return
		default:
			w.out = append(w.out, c)
		}
	}
	w.out = append(w.out, '"')
}

// value writes a value with the library.
func (w *writer) value(value any) {
	encoded, err := json.Marshal(value)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.out = append(w.out, encoded...)
}

func (w *writer) text(name, text string) {
	if text != "" {
		w.key(name)
		w.string(text)
	}
}

func (w *writer) textPointer(name string, text *string) {
	if text != nil {
		w.key(name)
		w.string(*text)
	}
}

func (w *writer) texts(name string, texts []string) {
	list(w, name, texts, w.string)
}

func (w *writer) flag(name string, set bool) {
	if set {
		w.key(name)
		w.out = append(w.out, "true"...)
	}
}

func (w *writer) int(name string, value *int64) {
	if value != nil {
		w.key(name)
		w.out = strconv.AppendInt(w.out, *value, 10)
	}
}

func (w *writer) float(name string, value *float64) {
	if value != nil {
		w.key(name)
		w.value(*value)
	}
}

func list[T any](w *writer, name string, items []T, item func(T)) {
	if len(items) == 0 {
		return
	}
	w.key(name)
	w.items(len(items), func(i int) { item(items[i]) })
}

func (w *writer) items(count int, item func(i int)) {
	w.out = append(w.out, '[')
	for i := range count {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		item(i)
	}
	w.out = append(w.out, ']')
}

func (w *writer) schemas(name string, schemas []jsonSchema) {
	if len(schemas) > 0 {
		w.key(name)
		w.items(len(schemas), func(i int) { w.schema(&schemas[i]) })
	}
}

func (w *writer) namedSchemas(name string, schemas map[string]jsonSchema) {
	if len(schemas) == 0 {
		return
	}
	w.key(name)
	w.out = append(w.out, '{')
	var schema jsonSchema // one for all: it is large
	for _, inner := range slices.Sorted(maps.Keys(schemas)) {
		schema = schemas[inner]
		w.key(inner)
		w.schema(&schema)
	}
	w.out = append(w.out, '}')
}

func (w *writer) schemaOrBool(name string, s *apiextensionsv1.JSONSchemaPropsOrBool) {
	if s == nil {
		return
	}
	w.key(name)
	if s.Schema != nil {
		w.schema(s.Schema)
		return
	}
	w.out = strconv.AppendBool(w.out, s.Allows)
}

// schema writes a schema. The fields are in the order of the type.
func (w *writer) schema(s *jsonSchema) {
	w.out = append(w.out, '{')
	w.text("id", s.ID)
	w.text("$schema", string(s.Schema))
	w.textPointer("$ref", s.Ref)
	w.text("description", s.Description)
	w.text("type", s.Type)
	w.text("format", s.Format)
	w.text("title", s.Title)
	w.json("default", s.Default)
	w.limits(s)
	w.texts("required", s.Required)
	w.schemasInside(s)
	w.flag("nullable", s.Nullable)
	w.extensions(s)
	w.out = append(w.out, '}')
}

func (w *writer) json(name string, value *apiextensionsv1.JSON) {
	if value != nil {
		w.key(name)
		w.value(value)
	}
}

func (w *writer) limits(s *jsonSchema) {
	w.float("maximum", s.Maximum)
	w.flag("exclusiveMaximum", s.ExclusiveMaximum)
	w.float("minimum", s.Minimum)
	w.flag("exclusiveMinimum", s.ExclusiveMinimum)
	w.int("maxLength", s.MaxLength)
	w.int("minLength", s.MinLength)
	w.text("pattern", s.Pattern)
	w.int("maxItems", s.MaxItems)
	w.int("minItems", s.MinItems)
	w.flag("uniqueItems", s.UniqueItems)
	w.float("multipleOf", s.MultipleOf)
	list(w, "enum", s.Enum, func(value apiextensionsv1.JSON) { w.value(value) })
	w.int("maxProperties", s.MaxProperties)
	w.int("minProperties", s.MinProperties)
}

func (w *writer) schemasInside(s *jsonSchema) {
	if s.Items != nil {
		w.key("items")
		switch {
		case len(s.Items.JSONSchemas) > 0:
			w.items(len(s.Items.JSONSchemas), func(i int) { w.schema(&s.Items.JSONSchemas[i]) })
		case s.Items.Schema != nil:
			w.schema(s.Items.Schema)
		default:
			w.out = append(w.out, "null"...)
		}
	}
	w.schemas("allOf", s.AllOf)
	w.schemas("oneOf", s.OneOf)
	w.schemas("anyOf", s.AnyOf)
	if s.Not != nil {
		w.key("not")
		w.schema(s.Not)
	}
	w.namedSchemas("properties", s.Properties)
	w.schemaOrBool("additionalProperties", s.AdditionalProperties)
	w.namedSchemas("patternProperties", s.PatternProperties)
	if len(s.Dependencies) > 0 {
		w.key("dependencies")
		w.value(s.Dependencies)
	}
	w.schemaOrBool("additionalItems", s.AdditionalItems)
	w.namedSchemas("definitions", s.Definitions)
	if s.ExternalDocs != nil {
		w.key("externalDocs")
		w.value(s.ExternalDocs)
	}
	w.json("example", s.Example)
}

func (w *writer) extensions(s *jsonSchema) {
	if s.XPreserveUnknownFields != nil {
		w.key("x-kubernetes-preserve-unknown-fields")
		w.out = strconv.AppendBool(w.out, *s.XPreserveUnknownFields)
	}
	w.flag("x-kubernetes-embedded-resource", s.XEmbeddedResource)
	w.flag("x-kubernetes-int-or-string", s.XIntOrString)
	w.texts("x-kubernetes-list-map-keys", s.XListMapKeys)
	w.textPointer("x-kubernetes-list-type", s.XListType)
	w.textPointer("x-kubernetes-map-type", s.XMapType)
	list(w, "x-kubernetes-validations", s.XValidations, func(rule apiextensionsv1.ValidationRule) { w.value(rule) })
}
