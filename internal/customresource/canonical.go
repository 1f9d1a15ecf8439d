package customresource

import (
	"time"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// Nearly all objects, stored or sent by clients, are exactly as the schema makes them: nothing to prune, to default or to repair. The library
// would walk over them four times and encode their metadata again. shape finds such objects in one walk that allocates nothing; all others are left to the
// library. It may call an object changed although it is not, never the other way round.

// shape is a structural schema as far as pruning, defaulting and most of validation depend on it.
type shape struct {
	nullable, preserve bool
	// defaultSize is the size of the schema's own default, with the defaults inside that it does not set; 0: there is none.
	defaultSize int
	properties  map[string]*shape
	defaulted   []string // the properties that have a default
	additional  *shape   // of values with other keys
	items       *shape
	values      values // see isValid
	// opaque: the library must decide.
	opaque bool
}

func newShape(s *structuralschema.Structural) *shape {
	if s == nil {
		return &shape{opaque: true}
	}
	out := &shape{nullable: s.Nullable, preserve: s.XPreserveUnknownFields, values: valuesOf(s), opaque: s.XEmbeddedResource}
	if len(s.Properties) > 0 {
		out.properties = make(map[string]*shape, len(s.Properties))
	}
	for name := range s.Properties {
		property := s.Properties[name]
		out.properties[name] = newShape(&property)
		if property.Default.Object != nil {
			out.defaulted = append(out.defaulted, name)
		}
	}
	if s.AdditionalProperties != nil {
		out.additional = newShape(s.AdditionalProperties.Structural)
	}
	if s.Items != nil {
		out.items = newShape(s.Items)
	}
	if s.Default.Object != nil {
		out.defaultSize = min(sizeOf(s.Default.Object)+out.growth(s.Default.Object), maxSize)
	}
	return out
}

// isCanonical reports whether a stored object would not be changed by pruning and defaulting.
func (s *shape) isCanonical(root map[string]any) bool {
	metadata, _ := root["metadata"].(map[string]any)
	_, hasGeneration := metadata["generation"]
	return hasGeneration && s.keepsObject(root, true)
}

// isPruned reports whether an object that a client sent would not be changed by pruning.
func (s *shape) isPruned(root map[string]any) bool { return s.keepsObject(root, false) }

// keepsObject reports whether an object would not be changed by pruning and, if defaults is true, by defaulting.
func (s *shape) keepsObject(root map[string]any, defaults bool) bool {
	metadata, ok := root["metadata"].(map[string]any)
	if !ok || s.opaque || !isCanonicalMetadata(metadata) {
		return false
	}
	for name, value := range root {
		if name != "apiVersion" && name != "kind" && name != "metadata" && !s.keepsField(name, value, defaults) {
			return false
		}
	}
	return !defaults || s.hasDefaults(root)
}

// keeps reports whether a value would not be changed.
func (s *shape) keeps(value any, defaults bool) bool {
	if s.opaque {
		return false
	}
	switch value := value.(type) {
	case nil:
		return s.nullable
	case map[string]any:
		for name, field := range value {
			if !s.keepsField(name, field, defaults) {
				return false
			}
		}
		return !defaults || s.hasDefaults(value)
	case []any:
		if s.items == nil {
			return s.preserve || len(value) == 0
		}
		for _, item := range value {
			if !s.items.keeps(item, defaults) {
				return false
			}
		}
	}
	return true
}

func (s *shape) keepsField(name string, value any, defaults bool) bool {
	if property := s.properties[name]; property != nil {
		return property.keeps(value, defaults)
	}
	if s.additional != nil {
		return s.additional.keeps(value, defaults)
	}
	return s.preserve
}

func (s *shape) hasDefaults(fields map[string]any) bool {
	for _, name := range s.defaulted {
		if _, ok := fields[name]; !ok {
			return false
		}
	}
	return true
}

// isCanonicalMetadata reports whether metadata has only known fields, with values of their types as they are written.
func isCanonicalMetadata(metadata map[string]any) bool {
	for name, value := range metadata {
		ok := false
		switch name {
		case "name", "namespace", "generateName", "uid", "resourceVersion":
			ok = isText(value)
		case "creationTimestamp", "deletionTimestamp":
			ok = isTime(value)
		case "generation":
			number, isNumber := value.(int64)
			ok = isNumber && number > 0
		case "deletionGracePeriodSeconds":
			_, ok = value.(int64)
		case "labels", "annotations":
			ok = isTextMap(value)
		case "finalizers":
			ok = eachItem(value, isFinalizer)
		case "ownerReferences":
			ok = eachItem(value, isOwner)
		case "managedFields":
			ok = eachItem(value, isManager)
		}
		if !ok {
			return false
		}
	}
	return true
}

// isText: an empty text is not written.
func isText(value any) bool {
	text, ok := value.(string)
	return ok && text != ""
}

func isFinalizer(value any) bool {
	_, ok := value.(string)
	return ok
}

// isTime: times are written in UTC, in whole seconds, and the first second of the year 1 as null.
func isTime(value any) bool {
	text, ok := value.(string)
	if !ok || len(text) != len("2006-01-02T15:04:05Z") {
		return false
	}
	at, err := time.Parse("2006-01-02T15:04:05Z", text)
	return err == nil && !at.IsZero()
}

func isTextMap(value any) bool {
	values, ok := value.(map[string]any)
	if !ok || len(values) == 0 {
		return false
	}
	for _, v := range values {
		if _, ok := v.(string); !ok {
			return false
		}
	}
	return true
}

func eachItem(value any, is func(any) bool) bool {
	items, ok := value.([]any)
	if !ok || len(items) == 0 {
		return false
	}
	for _, item := range items {
		if !is(item) {
			return false
		}
	}
	return true
}

// isOwner reports whether the value is an owner reference. Its first four fields are always written.
func isOwner(value any) bool {
	owner, ok := value.(map[string]any)
	if !ok {
		return false
	}
	required := 0
	for name, v := range owner {
		switch name {
		case "apiVersion", "kind", "name", "uid":
			if _, ok := v.(string); !ok {
				return false
			}
			required++
		case "controller", "blockOwnerDeletion":
			if _, ok := v.(bool); !ok {
				return false
			}
		default:
			return false
		}
	}
	return required == 4
}

func isManager(value any) bool {
	manager, ok := value.(map[string]any)
	if !ok {
		return false
	}
	for name, v := range manager {
		ok := false
		switch name {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			ok = isText(v)
		case "time":
			ok = isTime(v)
		case "fieldsV1":
			_, ok = v.(map[string]any)
		}
		if !ok {
			return false
		}
	}
	return true
}
