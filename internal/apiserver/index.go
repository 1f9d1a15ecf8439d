package apiserver

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// storedIndex returns a function that reads the kind's indexed field from a stored object, nil when the kind has none. It
// panics when the kind declares a field that is not a string of its protobuf message.
func storedIndex(k *kind.Kind) func(stored []byte) (string, bool) {
	if k.IndexedField == "" {
		return nil
	}
	path, err := protobufPath(reflect.TypeOf(k.New()), strings.Split(k.IndexedField, "."))
	if err != nil {
		panic(fmt.Sprintf("indexed field %s of %s: %v", k.IndexedField, k.Plural, err))
	}
	return func(stored []byte) (string, bool) { return cache.StoredField(stored, path) }
}

// protobufPath returns the numbers of the protobuf fields that lead to a string, given its JSON names.
func protobufPath(object reflect.Type, names []string) (path []uint64, err error) {
	for _, name := range names {
		if object.Kind() == reflect.Pointer {
			object = object.Elem()
		}
		if object.Kind() != reflect.Struct {
			return nil, fmt.Errorf("%s is not a struct", object)
		}
		found, ok := fieldByJSONName(object, name)
		if !ok {
			return nil, fmt.Errorf("%s has no field %s", object, name)
		}
		// The tag is "bytes,2,opt,name=spec".
		tag := strings.Split(found.Tag.Get("protobuf"), ",")
		if len(tag) < 2 || tag[0] != "bytes" {
			return nil, fmt.Errorf("%s.%s has no protobuf encoding as bytes", object, found.Name)
		}
		number, err := strconv.ParseUint(tag[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("protobuf tag of %s.%s: %w", object, found.Name, err)
		}
		path, object = append(path, number), found.Type
	}
	if object.Kind() != reflect.String {
		return nil, fmt.Errorf("%s is not a string", object)
	}
	return path, nil
}

func fieldByJSONName(object reflect.Type, name string) (reflect.StructField, bool) {
	for i := range object.NumField() {
		field := object.Field(i)
		if tagged, _, _ := strings.Cut(field.Tag.Get("json"), ","); tagged == name {
			return field, true
		}
	}
	return reflect.StructField{}, false
}
