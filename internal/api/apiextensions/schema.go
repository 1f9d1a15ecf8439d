package apiextensions

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The fields that the schema of an object may have besides its type if the status is a subresource: the schema of the status is then used
// without the others.
var rootFields = []string{
	"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum", "MaxLength", "MinLength", "Pattern",
	"MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations",
}

var (
	schemaTypes = []string{"array", "boolean", "integer", "number", "object", "string"}
	metaFields  = []string{"apiVersion", "kind", "metadata"}
)

// schemaOf validates the schema of objects. status: the status is a subresource; unchanged: the same schema is stored.
func (v *validator) schemaOf(schema *apiextensions.CustomResourceValidation, status, unchanged bool, path *field.Path) field.ErrorList {
	if schema == nil {
		return nil
	}
	// Upstream makes a validator here, whose only possible error is that of a reference, which is forbidden above.
	if root := schema.OpenAPIV3Schema; root != nil {
		return v.rootSchema(root, status, unchanged, path)
	}
	return nil
}

func (v *validator) rootSchema(schema *apiextensions.JSONSchemaProps, status, unchanged bool, parent *field.Path) field.ErrorList {
	path := parent.Child("openAPIV3Schema")
	var errs field.ErrorList
	if status {
		errs = append(errs, validateRootFields(schema, parent)...)
	}
	if schema.Nullable {
		errs = append(errs, field.Forbidden(parent.Child("openAPIV3Schema.nullable"), "nullable cannot be true at the root"))
	}
	n := node{path: path, root: true, unchanged: unchanged}
	var notStructural field.ErrorList
	if !v.allow.nonStructural {
		structural, err := structuralschema.NewStructural(schema)
		switch {
		case err != nil:
			notStructural = field.ErrorList{field.Invalid(path, "", err.Error())}
		default:
			n.structural = structural
			found := v.structural(structural, path)
			errs = append(errs, found...)
			if len(found) == 0 {
				n.rules = newRuleScope(schema)
			}
		}
	}
	schemaErrs, ruleErrs := v.schema(schema, n)
	errs = append(append(errs, schemaErrs...), ruleErrs...)
	if len(errs) == 0 {
		errs = notStructural // it usually repeats the errors above
	}
	return append(errs, n.rules.validateTotal(path)...)
}

// structural validates what makes a schema structural, and its defaults.
func (v *validator) structural(schema *structuralschema.Structural, path *field.Path) field.ErrorList {
	if errs := structuralschema.ValidateStructural(path, schema); len(errs) > 0 {
		return errs
	}
	errs, err := defaulting.ValidateDefaults(context.Background(), path, schema, true, !v.allow.unprunedDefaults)
	if err != nil {
		return field.ErrorList{field.Invalid(path, "", err.Error())}
	}
	return errs
}

// validateRootFields reports the first field that is not allowed at the root of a schema with a status subresource.
func validateRootFields(schema *apiextensions.JSONSchemaProps, path *field.Path) field.ErrorList {
	fields := reflect.ValueOf(schema).Elem()
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		switch {
		case fields.Field(i).IsZero():
		case name == "Type" && schema.Type != "object":
			return field.ErrorList{field.Invalid(path.Child("openAPIV3Schema.type"), schema.Type,
				`only "object" is allowed as the type at the root of the schema if the status subresource is enabled`)}
		case !slices.Contains(rootFields, name):
			return field.ErrorList{field.Invalid(path.Child("openAPIV3Schema"), *schema,
				fmt.Sprintf("only %v fields are allowed at the root of the schema if the status subresource is enabled", rootFields))}
		}
	}
	return nil
}

// node is the place of a schema inside the schema of an object.
type node struct {
	path *field.Path
	root bool
	// unchanged: the same schema is stored.
	unchanged bool
	// noDefaults is why a default is forbidden; empty: it is allowed.
	noDefaults string
	// inMeta: the schema is one of metadata, kind or apiVersion, or inside metadata.
	inMeta bool
	// uncorrelatable is the outermost schema around this one whose values have no counterpart in the old object; nil: there is none.
	uncorrelatable *field.Path
	// rules is nil where rules are not validated.
	rules *ruleScope
	// structural is the structural form of the schema, nil where it is not known.
	structural *structuralschema.Structural
}

// inside is the place of a schema that a schema contains. Rules are not validated there unless the caller sets them.
func (n node) inside(path *field.Path) node {
	n.path, n.root, n.rules, n.structural = path, false, nil, nil
	return n
}

func (n node) withoutOld(path *field.Path) node {
	if n.uncorrelatable == nil {
		n.uncorrelatable = path
	}
	return n
}

// schema validates a schema and those inside. The errors of CEL rules are returned separately: rules are compiled only where the schema
// has no other errors, because those would cause misleading ones.
func (v *validator) schema(s *apiextensions.JSONSchemaProps, n node) (errs, ruleErrs field.ErrorList) {
	if s == nil {
		return nil, nil
	}
	errs = append(errs, v.supported(s, n)...)
	if s.UniqueItems {
		errs = append(errs, field.Forbidden(n.path.Child("uniqueItems"), "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"))
	}
	if a := s.AdditionalProperties; a != nil && len(s.Properties) > 0 && (!a.Allows || a.Schema != nil) {
		errs = append(errs, field.Forbidden(n.path.Child("additionalProperties"), "additionalProperties and properties are mutual exclusive"))
	}
	v.eachInside(s, n, func(inner *apiextensions.JSONSchemaProps, at node) {
		innerErrs, innerRuleErrs := v.schema(inner, at)
		errs, ruleErrs = append(errs, innerErrs...), append(ruleErrs, innerRuleErrs...)
	})
	if s.XPreserveUnknownFields != nil && !*s.XPreserveUnknownFields {
		errs = append(errs, field.Invalid(n.path.Child("x-kubernetes-preserve-unknown-fields"), *s.XPreserveUnknownFields, "must be true or undefined"))
	}
	errs = append(errs, validateMapType(s, n.path)...)
	errs = append(errs, v.listType(s, n.path)...)
	if !v.allow.invalidListKeys {
		errs = append(errs, validateListKeys(s, n.path)...)
	}
	errs = append(errs, v.validateRules(s, n)...)
	if len(s.XValidations) > 0 && len(errs) == 0 && n.rules != nil {
		ruleErrs = append(ruleErrs, v.rules(s, n)...)
	}
	return errs, ruleErrs
}

// eachInside calls visit for the schemas inside a schema, with their places.
func (v *validator) eachInside(s *apiextensions.JSONSchemaProps, n node, visit func(*apiextensions.JSONSchemaProps, node)) {
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		at := n.inside(n.path.Child("additionalProperties"))
		if n.inMeta {
			at.noDefaults = "inside additionalProperties applying to object metadata"
		}
		at.rules = n.rules.additionalProperties(a.Schema)
		if n.structural != nil && n.structural.AdditionalProperties != nil {
			at.structural = n.structural.AdditionalProperties.Structural
		}
		visit(a.Schema, at)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		at := n.inside(n.path.Child("properties").Key(name))
		if !cel.MapIsCorrelatable(s.XMapType) {
			at = at.withoutOld(n.path)
		}
		if (n.root || s.XEmbeddedResource) && slices.Contains(metaFields, name) {
			at.inMeta = true
			if n.root {
				at.noDefaults = "in top-level " + name
			}
		}
		at.rules = n.rules.property(&property, name)
		if n.structural != nil {
			inner := n.structural.Properties[name]
			at.structural = &inner
		}
		visit(&property, at)
	}
	visit(s.Not, n.inside(n.path.Child("not")))
	for _, list := range []struct {
		name    string
		schemas []apiextensions.JSONSchemaProps
	}{{"allOf", s.AllOf}, {"oneOf", s.OneOf}, {"anyOf", s.AnyOf}} {
		for i := range list.schemas {
			visit(&list.schemas[i], n.inside(n.path.Child(list.name).Index(i)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Definitions)) {
		inner := s.Definitions[name]
		visit(&inner, n.inside(n.path.Child("definitions").Key(name)))
	}
	if s.Items != nil {
		at := n.inside(n.path.Child("items"))
		// Only the items of a map have counterparts: rules cannot identify those of a set.
		if s.XListType == nil || *s.XListType != "map" {
			at = at.withoutOld(n.path)
		}
		at.rules = n.rules.items(s.Items.Schema)
		if n.structural != nil {
			at.structural = n.structural.Items
		}
		visit(s.Items.Schema, at)
		at.structural = nil
		for i := range s.Items.JSONSchemas {
			at.path, at.rules = n.path.Child("items").Index(i), n.rules.items(&s.Items.JSONSchemas[i])
			visit(&s.Items.JSONSchemas[i], at)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Dependencies)) {
		visit(s.Dependencies[name].Schema, n.inside(n.path.Child("dependencies").Key(name)))
	}
}

// supported validates that a schema uses only what is supported of OpenAPI v3.
func (v *validator) supported(s *apiextensions.JSONSchemaProps, n node) field.ErrorList {
	var errs field.ErrorList
	if hasUnknownType(s) && !v.allow.unknownTypes {
		errs = append(errs, field.NotSupported(n.path.Child("type"), s.Type, schemaTypes))
	}
	if s.Default != nil && n.noDefaults != "" {
		errs = append(errs, field.Forbidden(n.path.Child("default"), "must not be set "+n.noDefaults))
	}
	for _, unsupported := range []struct {
		set  bool
		name string
	}{
		{s.ID != "", "id"}, {s.AdditionalItems != nil, "additionalItems"}, {len(s.PatternProperties) > 0, "patternProperties"},
		{len(s.Definitions) > 0, "definitions"}, {s.Dependencies != nil, "dependencies"}, {s.Ref != nil, "$ref"},
	} {
		if unsupported.set {
			errs = append(errs, field.Forbidden(n.path.Child(unsupported.name), unsupported.name+" is not supported"))
		}
	}
	if s.Type == "null" {
		errs = append(errs, field.Forbidden(n.path.Child("type"), "type cannot be set to null, use nullable as an alternative"))
	}
	if s.Items != nil && len(s.Items.JSONSchemas) > 0 {
		errs = append(errs, field.Forbidden(n.path.Child("items"), "items must be a schema object and not an array"))
	}
	if n.inMeta && s.XEmbeddedResource {
		errs = append(errs, field.Forbidden(n.path.Child("x-kubernetes-embedded-resource"), "must not be used inside of resource meta"))
	}
	return errs
}

func hasUnknownType(s *apiextensions.JSONSchemaProps) bool {
	return s.Type != "" && !slices.Contains(schemaTypes, s.Type)
}

// validateType validates the type that an extension needs.
func validateType(s *apiextensions.JSONSchemaProps, typ, extension string, path *field.Path) field.ErrorList {
	message := fmt.Sprintf("must be %s if %s is specified", typ, extension)
	switch s.Type {
	case typ:
		return nil
	case "":
		return field.ErrorList{field.Required(path.Child("type"), message)}
	}
	return field.ErrorList{field.Invalid(path.Child("type"), s.Type, message)}
}

func validateMapType(s *apiextensions.JSONSchemaProps, path *field.Path) field.ErrorList {
	const extension = "x-kubernetes-map-type"
	if s.XMapType == nil {
		return nil
	}
	errs := validateType(s, "object", extension, path)
	if *s.XMapType != "atomic" && *s.XMapType != "granular" {
		errs = append(errs, field.NotSupported(path.Child(extension), *s.XMapType, []string{"atomic", "granular"}))
	}
	return errs
}

// listType validates how a list is merged.
func (v *validator) listType(s *apiextensions.JSONSchemaProps, path *field.Path) field.ErrorList {
	const extension = "x-kubernetes-list-type"
	var errs field.ErrorList
	if s.XListType != nil {
		if errs = validateType(s, "array", extension, path); len(errs) == 0 && !v.allow.nonAtomicSets && hasNonAtomicSet(s) {
			name := "x-kubernetes-list-type"
			if s.Items.Schema.Type == "object" {
				name = "x-kubernetes-map-type"
			}
			errs = append(errs, field.Invalid(path.Child("items", name), s.Items.Schema.XListType, "must be atomic as item of a list with x-kubernetes-list-type=set"))
		}
		if !slices.Contains([]string{"atomic", "set", "map"}, *s.XListType) {
			errs = append(errs, field.NotSupported(path.Child(extension), *s.XListType, []string{"atomic", "set", "map"}))
		}
	}
	isMap := s.XListType != nil && *s.XListType == "map"
	if len(s.XListMapKeys) > 0 && !isMap {
		const message = "must be map if x-kubernetes-list-map-keys is non-empty"
		if s.XListType == nil {
			errs = append(errs, field.Required(path.Child(extension), message))
		} else {
			errs = append(errs, field.Invalid(path.Child(extension), *s.XListType, message))
		}
	}
	if isMap {
		errs = append(errs, validateMapList(s, path)...)
	}
	return errs
}

// hasNonAtomicSet reports whether the items of a set could be merged: lists are atomic unless declared otherwise, maps are not.
func hasNonAtomicSet(s *apiextensions.JSONSchemaProps) bool {
	if s.XListType == nil || *s.XListType != "set" || s.Items == nil || s.Items.Schema == nil {
		return false
	}
	switch item := s.Items.Schema; item.Type {
	case "array":
		return item.XListType != nil && *item.XListType != "atomic"
	case "object":
		return item.XMapType == nil || *item.XMapType != "atomic"
	}
	return false
}

// validateMapList validates a list whose items are merged by keys.
func validateMapList(s *apiextensions.JSONSchemaProps, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	keys := path.Child("x-kubernetes-list-map-keys")
	if len(s.XListMapKeys) == 0 {
		errs = append(errs, field.Required(keys, "must not be empty if x-kubernetes-list-type is map"))
	}
	switch {
	case s.Items == nil:
		return append(errs, field.Required(path.Child("items"), "must have a schema if x-kubernetes-list-type is map"))
	case s.Items.Schema == nil:
		return append(errs, field.Invalid(path.Child("items"), s.Items, "must only have a single schema if x-kubernetes-list-type is map"))
	case s.Items.Schema.Type != "object":
		return append(errs, field.Invalid(path.Child("items", "type"), s.Items.Schema.Type, "must be object if parent array's x-kubernetes-list-type is map"))
	}
	for i, key := range s.XListMapKeys {
		property, ok := s.Items.Schema.Properties[key]
		if !ok {
			errs = append(errs, field.Invalid(keys, s.XListMapKeys, "entries must all be names of item properties"))
		} else if property.Type == "array" || property.Type == "object" {
			errs = append(errs, field.Invalid(path.Child("items", "properties").Key(key).Child("type"), s.Items.Schema.Type, "must be a scalar type if parent array's x-kubernetes-list-type is map"))
		}
		if slices.Contains(s.XListMapKeys[:i], key) {
			errs = append(errs, field.Invalid(keys, s.XListMapKeys, "must not contain duplicate entries"))
		}
	}
	return errs
}

// validateListKeys validates that the items of sets and maps are not null, and that their keys are present.
func validateListKeys(s *apiextensions.JSONSchemaProps, path *field.Path) field.ErrorList {
	if s.Items == nil || s.Items.Schema == nil || s.XListType == nil || *s.XListType != "set" && *s.XListType != "map" {
		return nil
	}
	var errs field.ErrorList
	item, items := s.Items.Schema, path.Child("items")
	if item.Nullable {
		errs = append(errs, field.Forbidden(items.Child("nullable"), "cannot be nullable when x-kubernetes-list-type is "+*s.XListType))
	}
	if *s.XListType != "map" {
		return errs
	}
	for _, key := range s.XListMapKeys {
		property, ok := item.Properties[key]
		if !ok {
			continue // validateMapList reports it
		}
		at := items.Child("properties").Key(key)
		if !slices.Contains(item.Required, key) && property.Default == nil {
			errs = append(errs, field.Required(at.Child("default"), "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"))
		}
		if property.Nullable {
			errs = append(errs, field.Forbidden(at.Child("nullable"), "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"))
		}
	}
	return errs
}
