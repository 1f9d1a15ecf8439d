package apiserver

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"sync"

	"skiff/internal/kind"
)

// Types that contain themselves (the schemas of custom resource definitions) can be nested as deeply as a body is long. Their decoders and
// encoders read the text of a nested value again at each level, and recursion needs stack. The work is the sum of the lengths of all nested
// values, which is bounded before such a type is decoded. A definition of 1 MB with an average depth of 30 has a quarter of it.
const maxNestedBytes = 128 << 20

var errNesting = fmt.Errorf("exceeded the maximum depth: the lengths of all nested values must not be more than %d bytes in total", maxNestedBytes)

// checkJSONNesting checks the nesting of JSON before it is decoded into obj. Strings are told from structure; everything else is left to the
// decoder.
func checkJSONNesting(data []byte, obj kind.Object) error {
	if !recursiveTypes.contain(reflect.TypeOf(obj)) {
		return nil
	}
	total, depth, inString := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i, total = i+1, total+depth
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if total += depth; total > maxNestedBytes {
			return errNesting
		}
	}
	return nil
}

// checkNesting is checkJSONNesting for a decoded value.
func checkNesting(value map[string]any, obj kind.Object) error {
	if !recursiveTypes.contain(reflect.TypeOf(obj)) {
		return nil
	}
	total := 0
	if measureNesting(value, &total); total > maxNestedBytes {
		return errNesting
	}
	return nil
}

// measureNesting returns the approximate length of a JSON value and adds it, and those of all values inside, to the total.
func measureNesting(value any, total *int) (length int) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			length += len(name) + measureNesting(inner, total)
		}
	case []any:
		for _, inner := range value {
			length += measureNesting(inner, total)
		}
	case string:
		return len(value)
	}
	length += 2
	*total += length
	return length
}

// checkProtobufNesting checks the nesting of a protobuf message before it is decoded into obj. A string that happens to be a valid message is
// counted as one: that is never deep by chance.
func checkProtobufNesting(data []byte, obj kind.Object) error {
	if !recursiveTypes.contain(reflect.TypeOf(obj)) {
		return nil
	}
	total := 0
	around := [][]byte{data} // what is left to read of each message, from the outermost to the innermost
	for len(around) > 0 {
		last := len(around) - 1
		inner, rest, ok := nextMessage(around[last])
		if !ok {
			around = around[:last]
			continue
		}
		around[last] = rest
		if total += len(inner); total > maxNestedBytes {
			return errNesting
		}
		around = append(around, inner)
	}
	return nil
}

// nextMessage returns the first field of a message that has a length, and what follows it. It returns false when there is none.
func nextMessage(data []byte) (field, rest []byte, ok bool) {
	const varint, fixed64, lengthDelimited, fixed32 = 0, 1, 2, 5
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 {
			return nil, nil, false
		}
		data = data[n:]
		size := uint64(0)
		switch tag & 7 {
		case varint:
			if _, n = binary.Uvarint(data); n <= 0 {
				return nil, nil, false
			}
			size = uint64(n)
		case fixed64:
			size = 8
		case fixed32:
			size = 4
		case lengthDelimited:
			length, n := binary.Uvarint(data)
			if n <= 0 || length > uint64(len(data)-n) {
				return nil, nil, false
			}
			return data[n : n+int(length)], data[n+int(length):], true
		default:
			return nil, nil, false
		}
		if size > uint64(len(data)) {
			return nil, nil, false
		}
		data = data[size:]
	}
	return nil, nil, false
}

// recursiveTypes finds the types whose values can contain values of the same type.
var recursiveTypes recursion

type recursion struct{ known sync.Map } // reflect.Type → bool

// contain reports whether a value of the type can be nested without a limit.
func (r *recursion) contain(t reflect.Type) bool {
	if known, ok := r.known.Load(t); ok {
		return known.(bool)
	}
	found := r.find(t, map[reflect.Type]bool{})
	r.known.Store(t, found)
	return found
}

// find reports whether the type, or one inside, contains itself. around are the structs that contain it.
func (r *recursion) find(t reflect.Type, around map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
		return r.find(t.Elem(), around)
	case reflect.Struct:
	default:
		return false
	}
	if around[t] {
		return true
	}
	around[t] = true
	defer delete(around, t)
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && r.find(f.Type, around) {
			return true
		}
	}
	return false
}
