// Package configfile reads configuration files: decoding is strict, and a setting that has no effect is an error or a warning. Nothing in a
// file is ignored silently.
package configfile

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Decode decodes YAML or JSON. Unknown and duplicate fields are errors that name the field.
func Decode(data []byte, into any) error {
	strict, err := DecodeLenient(data, into)
	if err == nil {
		err = errors.Join(strict...)
	}
	return err
}

// DecodeLenient decodes YAML or JSON, and returns errors about unknown and duplicate fields separately. The last of several duplicates is
// used.
func DecodeLenient(data []byte, into any) (strict []error, err error) {
	content, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		strict = append(strict, err)
		if content, err = yaml.YAMLToJSON(data); err != nil {
			return nil, err
		}
	}
	unknown, err := kjson.UnmarshalStrict(content, into)
	return append(strict, unknown...), err
}

// Unused is a field of a configuration that skiff does not use.
type Unused struct {
	// Path is the names of the field and of those it is in, joined with dots.
	Path string
	// Accepted are the values that describe what skiff does anyway. The zero value is always accepted, unless the field is a pointer.
	Accepted []string
	// Harmless fields are reported and then ignored. All others are errors.
	Harmless bool
	// Reason says what skiff does instead.
	Reason string
}

// Check reports the unused fields that a configuration sets: an error for those that would change what skiff does, warnings for the
// harmless ones.
func Check(configuration any, fields []Unused) (warnings []string, err error) {
	var errs []error
	for _, f := range fields {
		for _, value := range valuesAt(reflect.ValueOf(configuration), strings.Split(f.Path, ".")) {
			if !isSet(value) || slices.Contains(f.Accepted, text(value)) {
				continue
			}
			if f.Harmless {
				warnings = append(warnings, fmt.Sprintf("%s has no effect: %s", f.Path, f.Reason))
			} else {
				errs = append(errs, fmt.Errorf("%s: %s is not supported: %s", f.Path, text(value), f.Reason))
			}
			break
		}
	}
	return warnings, errors.Join(errs...)
}

// valuesAt returns the values at a path: several if a list or a map is on it.
func valuesAt(v reflect.Value, path []string) (values []reflect.Value) {
	if len(path) == 0 {
		return []reflect.Value{v}
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			values = valuesAt(v.Elem(), path)
		}
	case reflect.Slice:
		for i := range v.Len() {
			values = append(values, valuesAt(v.Index(i), path)...)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			values = append(values, valuesAt(v.MapIndex(key), path)...)
		}
	case reflect.Struct:
		field, ok := fieldNamed(v, path[0])
		if !ok {
			panic(fmt.Sprintf("%s has no field %q", v.Type(), path[0]))
		}
		values = valuesAt(field, path[1:])
	default:
		panic(fmt.Sprintf("%s has no field %q", v.Type(), path[0]))
	}
	return values
}

// fieldNamed returns the field with a name in JSON, or in an embedded struct.
func fieldNamed(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if FieldName(f.Name, f.Tag) == name {
			return v.Field(i), true
		}
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			if field, ok := fieldNamed(v.Field(i), name); ok {
				return field, true
			}
		}
	}
	return reflect.Value{}, false
}

// FieldName is the name of a Go field in a file. Types without tags are decoded from versioned ones, whose names
// begin in lower case.
func FieldName(name string, tag reflect.StructTag) string {
	if json, _, _ := strings.Cut(tag.Get("json"), ","); json != "" {
		return json
	}
	capitals := strings.IndexFunc(name, func(r rune) bool { return r < 'A' || r > 'Z' })
	switch {
	case capitals < 0: // JWT
		return strings.ToLower(name)
	case capitals > 1: // JWTIssuer
		capitals--
	}
	return strings.ToLower(name[:capitals]) + name[capitals:]
}

// isSet reports whether a file has set the field. Empty lists and maps are not set.
func isSet(v reflect.Value) bool {
	if k := v.Kind(); k == reflect.Slice || k == reflect.Map {
		return v.Len() > 0
	}
	return !v.IsZero()
}

// text is a value as a file has it.
func text(v reflect.Value) string {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if d, ok := v.Interface().(metav1.Duration); ok {
		return d.Duration.String()
	}
	return fmt.Sprint(v.Interface())
}
