package apiextensions

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Most schemas use only a part of OpenAPI: types, descriptions, limits, formats, patterns, and how lists are merged. Validation would convert
// such a schema into three other forms and walk over each. simpleSchemas finds in one walk, without conversions, that a schema is valid and causes
// no warnings. It may call a schema not simple although it is valid, never the other way round: everything else is left to validation.
type simpleSchemas struct {
	// cost and paths are those of all schemas so far, as in compileCost.
	cost, paths uint64
}

type jsonSchema = apiextensionsv1.JSONSchemaProps

// rootPath is at least as long as the path of any root schema. A definition with more versions than fit is not simple.
const (
	rootPath          = "spec.versions[999].schema.openAPIV3Schema"
	maxSimpleVersions = 1000
)

// HasSimpleSchemas reports whether all versions of a definition have a schema, and all schemas are simple: they are structural, valid and cause no
// warnings.
func HasSimpleSchemas(crd *apiextensionsv1.CustomResourceDefinition) bool {
	if len(crd.Spec.Versions) > maxSimpleVersions {
		return false
	}
	var all simpleSchemas
	for i := range crd.Spec.Versions {
		schema := crd.Spec.Versions[i].Schema
		if schema == nil || schema.OpenAPIV3Schema == nil || !all.addRoot(schema.OpenAPIV3Schema) {
			return false
		}
	}
	return true
}

// smallSchema is valid.
var smallSchema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &jsonSchema{Type: "object"}}

// withSmallSchemas returns a definition with a small schema in place of each. If all of them are simple, both definitions are valid or none is.
func withSmallSchemas(crd *definition) *definition {
	small := *crd
	small.Spec.Versions = slices.Clone(crd.Spec.Versions)
	for i := range small.Spec.Versions {
		small.Spec.Versions[i].Schema = smallSchema
	}
	return &small
}

// hasSelectableFields reports whether the validation of a definition depends on what its schemas contain.
func hasSelectableFields(crd *definition) bool {
	return slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return len(v.SelectableFields) > 0 })
}

// addRoot reports whether the schema of a version is simple.
func (a *simpleSchemas) addRoot(s *jsonSchema) bool {
	if s.Type != "object" || s.Nullable || s.AdditionalProperties != nil || s.Enum != nil || s.MaxProperties != nil || s.MinProperties != nil ||
		s.XMapType != nil || s.XListType != nil {
		return false
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if property, ok := s.Properties[name]; ok && property.Type != "string" {
			return false
		}
	}
	if metadata, ok := s.Properties["metadata"]; ok {
		if metadata.Type != "object" {
			return false
		}
		metadata.Type = ""
		if !reflect.ValueOf(metadata).IsZero() {
			return false
		}
	}
	return a.add(s, len(rootPath))
}

// add reports whether a schema and all inside are simple. path is the length of its path.
func (a *simpleSchemas) add(s *jsonSchema, path int) bool {
	a.cost, a.paths = a.cost+1, a.paths+uint64(path)
	return hasOnlySimpleFields(s) && hasSimpleType(s) && hasSimpleListType(s) && hasSimpleValues(s) && a.addPattern(s.Pattern) &&
		a.cost <= maxCompileCost && a.paths <= maxPathBytes && a.addInside(s, path)
}

func (a *simpleSchemas) addInside(s *jsonSchema, path int) bool {
	var property jsonSchema // one for all: it is large
	for name := range s.Properties {
		property = s.Properties[name]
		if !a.add(&property, path+len(".properties[]")+len(name)) {
			return false
		}
	}
	if values := s.AdditionalProperties; values != nil && values.Schema != nil && !a.add(values.Schema, path+len(".additionalProperties")) {
		return false
	}
	return s.Items == nil || a.add(s.Items.Schema, path+len(".items"))
}

func (a *simpleSchemas) addPattern(pattern string) bool {
	if pattern == "" {
		return true
	}
	a.cost = add(a.cost, patternCost(pattern))
	if a.cost > maxCompileCost {
		return false
	}
	_, err := regexp.Compile(pattern)
	return err == nil
}

// hasOnlySimpleFields reports whether a schema has none of the fields that are forbidden, or expensive to validate.
func hasOnlySimpleFields(s *jsonSchema) bool {
	return s.ID == "" && s.Schema == "" && s.Ref == nil && s.Default == nil && s.Example == nil && !s.UniqueItems && s.AllOf == nil && s.OneOf == nil &&
		s.Not == nil && s.PatternProperties == nil && s.Dependencies == nil && s.AdditionalItems == nil && s.Definitions == nil && !s.XEmbeddedResource && s.XValidations == nil
}

// hasSimpleType reports whether the type fits to the rest of the schema.
func hasSimpleType(s *jsonSchema) bool {
	preserves := s.XPreserveUnknownFields != nil
	if preserves && !*s.XPreserveUnknownFields {
		return false
	}
	if s.XIntOrString {
		return s.Type == "" && !preserves && s.Properties == nil && s.AdditionalProperties == nil && s.Items == nil && (s.AnyOf == nil || isIntOrString(s.AnyOf))
	}
	if s.AnyOf != nil || s.Properties != nil && s.AdditionalProperties != nil {
		return false
	}
	switch s.Type {
	case "":
		return preserves && s.Properties == nil && s.AdditionalProperties == nil && s.Items == nil
	case "object":
		return s.Items == nil
	case "array":
		return s.Properties == nil && s.AdditionalProperties == nil && s.Items != nil && s.Items.Schema != nil && len(s.Items.JSONSchemas) == 0
	case "boolean", "integer", "number", "string":
		return s.Properties == nil && s.AdditionalProperties == nil && s.Items == nil
	}
	return false
}

// intOrString are the types of a value that is an integer or a string, as tools write them.
var intOrString = []jsonSchema{{Type: "integer"}, {Type: "string"}}

func isIntOrString(types []jsonSchema) bool { return reflect.DeepEqual(types, intOrString) }

// hasSimpleListType reports whether it is valid how a list or a map is merged.
func hasSimpleListType(s *jsonSchema) bool {
	if s.XMapType != nil && (s.Type != "object" || *s.XMapType != "atomic" && *s.XMapType != "granular") {
		return false
	}
	if s.XListType == nil {
		return s.XListMapKeys == nil
	}
	if s.Type != "array" {
		return false
	}
	switch item := s.Items.Schema; *s.XListType {
	case "atomic":
		return s.XListMapKeys == nil
	case "set":
		return s.XListMapKeys == nil && isScalar(item.Type) && !item.Nullable
	case "map":
		return hasSimpleKeys(s.XListMapKeys, item)
	}
	return false
}

func isScalar(schemaType string) bool {
	return slices.Contains([]string{"boolean", "integer", "number", "string"}, schemaType)
}

// hasSimpleKeys reports whether the items of a list always have the keys by which they are merged.
func hasSimpleKeys(keys []string, item *jsonSchema) bool {
	if len(keys) == 0 || item.Type != "object" || item.Nullable {
		return false
	}
	for i, key := range keys {
		property, ok := item.Properties[key]
		if !ok || !isScalar(property.Type) || property.Nullable || !slices.Contains(item.Required, key) || slices.Contains(keys[:i], key) {
			return false
		}
	}
	return true
}

// hasSimpleValues reports whether the format is known, and the values of an enumeration are strings or booleans.
func hasSimpleValues(s *jsonSchema) bool {
	if s.Format != "" && len(unrecognizedFormats(s.Type, s.Format)) > 0 {
		return false
	}
	return !slices.ContainsFunc(s.Enum, func(value apiextensionsv1.JSON) bool {
		text := string(value.Raw)
		return text != "true" && text != "false" && (text == "" || text[0] != '"' || !json.Valid(value.Raw))
	})
}

// unrecognizedFormats returns the format of a type if it is not validated.
func unrecognizedFormats(schemaType, format string) []string {
	return schemavalidation.GetUnrecognizedFormats(&spec.Schema{SchemaProps: spec.SchemaProps{Format: format, Type: []string{schemaType}}}, environment.DefaultCompatibilityVersion())
}
