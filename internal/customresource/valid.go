package customresource

import (
	"math"
	"reflect"
	"regexp"
	"slices"
	"unicode/utf8"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// The library makes eight validators for each value, and copies the schemas of all properties of an object, also of those that it does not have. Most
// objects that are written are valid by the usual part of a schema: types, required properties, limits. isValid finds them in one walk that allocates
// nothing; all others are left to the library. It may not find an object valid although it is, never the other way round.

// values are the values that a schema allows.
type values struct {
	// unknown: only the library can tell.
	unknown bool
	// schemaType is empty if values can have any type; intOrString: they are integers or strings.
	schemaType  string
	intOrString bool
	required    []string
	limits      *limits // nil: there are none
}

// limits restrict the values of a type.
type limits struct {
	enum             []string // nil: any string
	pattern          *regexp.Regexp
	minimum, maximum int64 // of integers, of the length of strings, and of the number of items or properties
}

func valuesOf(s *structuralschema.Structural) values {
	out := values{schemaType: s.Type, intOrString: s.XIntOrString}
	if s.XIntOrString {
		out.unknown = s.Type != "" // the library ignores the type, which only definitions from before structural schemas can have
	} else {
		out.unknown = s.Type == "" && !s.XPreserveUnknownFields
	}
	v := s.ValueValidation
	if v == nil {
		return out
	}
	out.required = v.Required
	rest := *v
	rest.Required = nil
	if s.XIntOrString && reflect.DeepEqual(v.AnyOf, integersAndStrings) {
		rest.AnyOf = nil
	}
	l := &limits{minimum: math.MinInt64, maximum: math.MaxInt64}
	switch s.Type {
	case "integer":
		if l.setRange(v) {
			rest.Format, rest.Minimum, rest.Maximum = "", nil, nil
		}
	case "string":
		if l.setTexts(v) {
			rest.Enum, rest.Pattern, rest.MinLength, rest.MaxLength = nil, "", nil, nil
		}
	case "array":
		l.setCount(v.MinItems, v.MaxItems)
		rest.MinItems, rest.MaxItems = nil, nil
	case "object":
		l.setCount(v.MinProperties, v.MaxProperties)
		rest.MinProperties, rest.MaxProperties = nil, nil
	}
	out.unknown = out.unknown || !reflect.ValueOf(rest).IsZero()
	if l.enum != nil || l.pattern != nil || l.minimum > math.MinInt64 || l.maximum < math.MaxInt64 {
		out.limits = l
	}
	return out
}

// integersAndStrings are the alternatives of a value that is an integer or a string, as tools write them.
var integersAndStrings = []structuralschema.NestedValueValidation{
	{ForbiddenGenerics: structuralschema.Generic{Type: "integer"}}, {ForbiddenGenerics: structuralschema.Generic{Type: "string"}},
}

// setCount sets the bounds of a number of characters, items or properties.
func (l *limits) setCount(minimum, maximum *int64) {
	if minimum != nil {
		l.minimum = *minimum
	}
	if maximum != nil {
		l.maximum = *maximum
	}
}

// setRange sets the bounds of integers. It returns false if only the library knows what they mean.
func (l *limits) setRange(v *structuralschema.ValueValidation) bool {
	bounded := v.Minimum != nil || v.Maximum != nil
	switch {
	case v.Format == "int32" && !bounded:
		l.minimum, l.maximum = math.MinInt32, math.MaxInt32
		return true
	case v.Format != "" && v.Format != "int64", v.ExclusiveMinimum || v.ExclusiveMaximum, !isWhole(v.Minimum) || !isWhole(v.Maximum):
		return false
	}
	if v.Minimum != nil {
		l.minimum = int64(*v.Minimum)
	}
	if v.Maximum != nil {
		l.maximum = int64(*v.Maximum)
	}
	return true
}

// isWhole reports whether a bound is an integer that a float64 has exactly, or is absent.
func isWhole(bound *float64) bool {
	const exact = 1 << 53
	return bound == nil || math.Trunc(*bound) == *bound && math.Abs(*bound) < exact
}

// setTexts sets the limits of strings. It returns false if only the library knows what they mean.
func (l *limits) setTexts(v *structuralschema.ValueValidation) bool {
	l.setCount(v.MinLength, v.MaxLength)
	for _, value := range v.Enum {
		if text, ok := value.Object.(string); ok {
			l.enum = append(l.enum, text)
		}
	}
	if len(v.Enum) > 0 && l.enum == nil {
		return false
	}
	if v.Pattern == "" {
		return true
	}
	var err error
	l.pattern, err = regexp.Compile(v.Pattern)
	return err == nil
}

func (l *limits) allowCount(n int) bool {
	return l == nil || int64(n) >= l.minimum && int64(n) <= l.maximum
}

func (l *limits) allowText(text string) bool {
	return l == nil || (l.enum == nil || slices.Contains(l.enum, text)) && l.allowCount(utf8.RuneCountInString(text)) && (l.pattern == nil || l.pattern.MatchString(text))
}

func (l *limits) allowInteger(n int64) bool { return l == nil || n >= l.minimum && n <= l.maximum }

// allows reports whether the values have a type, or can have any.
func (v *values) allows(schemaType string) bool {
	return v.schemaType == schemaType || v.schemaType == "" && !v.intOrString
}

// isValid reports whether validation would find no errors in a value.
func (s *shape) isValid(value any) bool {
	if s == nil || s.opaque || s.values.unknown {
		return false
	}
	switch value := value.(type) {
	case nil:
		return s.nullable && s.values.limits == nil
	case string:
		return (s.values.intOrString || s.values.allows("string")) && s.values.limits.allowText(value)
	case bool:
		return s.values.allows("boolean")
	case int64:
		return s.values.intOrString || s.values.allows("number") || s.values.allows("integer") && s.values.limits.allowInteger(value)
	case float64:
		return s.values.allows("number")
	case map[string]any:
		return s.values.allows("object") && s.values.limits.allowCount(len(value)) && s.hasValidFields(value)
	case []any:
		return s.values.allows("array") && s.values.limits.allowCount(len(value)) && s.hasValidItems(value)
	}
	return false
}

func (s *shape) hasValidFields(fields map[string]any) bool {
	for _, name := range s.values.required {
		if _, ok := fields[name]; !ok {
			return false
		}
	}
	for name, value := range fields {
		if property := s.properties[name]; property != nil {
			if !property.isValid(value) {
				return false
			}
		} else if s.additional != nil && !s.additional.isValid(value) {
			return false
		}
	}
	return true
}

func (s *shape) hasValidItems(items []any) bool {
	for _, item := range items {
		if s.items != nil && !s.items.isValid(item) {
			return false
		}
	}
	return true
}
