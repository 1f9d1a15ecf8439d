package apiextensions

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// fields are the names of the fields that an object has had so far.
type fields []string

// add reports whether a name is new.
func (f *fields) add(name string) bool {
	for _, known := range *f {
		if known == name {
			return false
		}
	}
	*f = append(*f, name)
	return true
}

// eachUniqueKey is eachKey for objects that must not have a field twice.
func (r *reader) eachUniqueKey(value func(key string)) {
	var buffer [16]string
	known := fields(buffer[:0])
	r.eachKey(func(key string) {
		if !known.add(key) {
			r.fail()
			return
		}
		value(key)
	})
}

func listOf[T any](r *reader, item func() T) []T {
	list := []T{}
	r.eachItem(func() { list = append(list, item()) })
	return list
}

func pointerTo[T any](value T) *T { return &value }

// schema reads a schema.
func (r *reader) schema(depth int) *jsonSchema {
	s := &jsonSchema{}
	r.readSchema(s, depth)
	return s
}

// copiedSchema reads a schema and calls put with it, which copies it. The schema is one of those that were copied before: it is large.
func (r *reader) copiedSchema(depth int, put func(*jsonSchema)) {
	s := &jsonSchema{}
	if last := len(r.spare) - 1; last >= 0 {
		s, r.spare = r.spare[last], r.spare[:last]
	}
	r.readSchema(s, depth)
	put(s)
	*s = jsonSchema{}
	r.spare = append(r.spare, s)
}

func (r *reader) readSchema(s *jsonSchema, depth int) {
	if depth > maxSchemaDepth {
		r.fail()
		return
	}
	r.eachUniqueKey(func(key string) {
		if !r.readText(key, s) && !r.readLimit(key, s) && !r.readInside(key, s, depth+1) && !r.readExtension(key, s) {
			r.fail()
		}
	})
}

// readText reads a field that describes values. It returns false for other fields, as those below do.
func (r *reader) readText(key string, s *jsonSchema) bool {
	switch key {
	case "description":
		s.Description = r.string()
	case "type":
		s.Type = r.string()
	case "format":
		s.Format = r.string()
	case "pattern":
		s.Pattern = r.string()
	case "title":
		s.Title = r.string()
	case "required":
		s.Required = listOf(r, r.string)
	case "id":
		s.ID = r.string()
	case "$schema":
		s.Schema = apiextensionsv1.JSONSchemaURL(r.string())
	case "$ref":
		s.Ref = pointerTo(r.string())
	case "externalDocs":
		s.ExternalDocs = &apiextensionsv1.ExternalDocumentation{}
		r.eachUniqueKey(func(key string) {
			switch key {
			case "description":
				s.ExternalDocs.Description = r.string()
			case "url":
				s.ExternalDocs.URL = r.string()
			default:
				r.fail()
			}
		})
	default:
		return false
	}
	return true
}

// readLimit reads a field that restricts values.
func (r *reader) readLimit(key string, s *jsonSchema) bool {
	switch key {
	case "nullable":
		s.Nullable = r.bool()
	case "maximum":
		s.Maximum = r.float()
	case "exclusiveMaximum":
		s.ExclusiveMaximum = r.bool()
	case "minimum":
		s.Minimum = r.float()
	case "exclusiveMinimum":
		s.ExclusiveMinimum = r.bool()
	case "multipleOf":
		s.MultipleOf = r.float()
	case "maxLength":
		s.MaxLength = r.int()
	case "minLength":
		s.MinLength = r.int()
	case "maxItems":
		s.MaxItems = r.int()
	case "minItems":
		s.MinItems = r.int()
	case "uniqueItems":
		s.UniqueItems = r.bool()
	case "maxProperties":
		s.MaxProperties = r.int()
	case "minProperties":
		s.MinProperties = r.int()
	default:
		return false
	}
	return true
}

// readInside reads a field with schemas or values.
func (r *reader) readInside(key string, s *jsonSchema, depth int) bool {
	schemas := func() (list []jsonSchema) {
		list = []jsonSchema{}
		r.eachItem(func() { r.copiedSchema(depth, func(s *jsonSchema) { list = append(list, *s) }) })
		return list
	}
	switch key {
	case "properties":
		s.Properties = r.namedSchemas(depth)
	case "items":
		s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{}
		if r.peek() == '[' {
			s.Items.JSONSchemas = schemas()
		} else {
			s.Items.Schema = r.schema(depth)
		}
	case "additionalProperties":
		s.AdditionalProperties = r.schemaOrBool(depth)
	case "additionalItems":
		s.AdditionalItems = r.schemaOrBool(depth)
	case "patternProperties":
		s.PatternProperties = r.namedSchemas(depth)
	case "definitions":
		s.Definitions = r.namedSchemas(depth)
	case "allOf":
		s.AllOf = schemas()
	case "oneOf":
		s.OneOf = schemas()
	case "anyOf":
		s.AnyOf = schemas()
	case "not":
		s.Not = r.schema(depth)
	case "default":
		s.Default = pointerTo(r.raw(depth))
	case "example":
		s.Example = pointerTo(r.raw(depth))
	case "enum":
		s.Enum = listOf(r, func() apiextensionsv1.JSON { return r.raw(depth) })
	default:
		return false
	}
	return true
}

func (r *reader) namedSchemas(depth int) map[string]jsonSchema {
	schemas := map[string]jsonSchema{}
	r.eachKey(func(name string) {
		if _, ok := schemas[name]; ok {
			r.fail()
			return
		}
		r.copiedSchema(depth, func(s *jsonSchema) { schemas[name] = *s })
	})
	return schemas
}

func (r *reader) schemaOrBool(depth int) *apiextensionsv1.JSONSchemaPropsOrBool {
	if c := r.peek(); c == 't' || c == 'f' {
		return &apiextensionsv1.JSONSchemaPropsOrBool{Allows: r.bool()}
	}
	return &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: r.schema(depth)}
}

// readExtension reads a field of Kubernetes.
func (r *reader) readExtension(key string, s *jsonSchema) bool {
	switch key {
	case "x-kubernetes-preserve-unknown-fields":
		s.XPreserveUnknownFields = pointerTo(r.bool())
	case "x-kubernetes-embedded-resource":
		s.XEmbeddedResource = r.bool()
	case "x-kubernetes-int-or-string":
		s.XIntOrString = r.bool()
	case "x-kubernetes-list-map-keys":
		s.XListMapKeys = listOf(r, r.string)
	case "x-kubernetes-list-type":
		s.XListType = pointerTo(r.string())
	case "x-kubernetes-map-type":
		s.XMapType = pointerTo(r.string())
	case "x-kubernetes-validations":
		s.XValidations = listOf(r, r.rule)
	default:
		return false
	}
	return true
}

func (r *reader) rule() (rule apiextensionsv1.ValidationRule) {
	r.eachUniqueKey(func(key string) {
		switch key {
		case "rule":
			rule.Rule = r.string()
		case "message":
			rule.Message = r.string()
		case "messageExpression":
			rule.MessageExpression = r.string()
		case "reason":
			rule.Reason = pointerTo(apiextensionsv1.FieldValueErrorReason(r.string()))
		case "fieldPath":
			rule.FieldPath = r.string()
		case "optionalOldSelf":
			rule.OptionalOldSelf = pointerTo(r.bool())
		default:
			r.fail()
		}
	})
	return rule
}
