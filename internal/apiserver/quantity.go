package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"skiff/internal/kind"
)

// The library parses and adds quantities with numbers that have as many digits as the exponent says, or as were written: "1e-2147483647" takes
// minutes and gigabytes. Quantities beyond these bounds are refused before they are parsed.
const (
	maxExponentDigits     = 3
	maxQuantityCharacters = 256
)

var quantityType = reflect.TypeFor[apiresource.Quantity]()

// checkQuantity checks that the text of a quantity can be parsed at a small cost.
func checkQuantity(text string) error {
	if len(text) > maxQuantityCharacters {
		return fmt.Errorf("quantity %.20q... must not have more than %d characters", text, maxQuantityCharacters)
	}
	_, exponent, ok := strings.Cut(strings.ToLower(text), "e")
	if ok && len(strings.TrimLeft(exponent, "+-0")) > maxExponentDigits {
		return fmt.Errorf("quantity %q must not have an exponent of more than %d digits", text, maxExponentDigits)
	}
	return nil
}

// checkJSONQuantities checks the quantities in JSON before it is decoded into obj.
func checkJSONQuantities(data []byte, obj kind.Object) error {
	t := reflect.TypeOf(obj)
	if !quantityFields.in(t) || !mayExceedBounds(data) {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // a float would lose the exponent
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil // reported when it is decoded into obj
	}
	return checkQuantities(t, value)
}

// checkQuantities checks the quantities in a JSON value of the type.
func checkQuantities(t reflect.Type, value any) error {
	t = elemType(t)
	if t == quantityType {
		return checkQuantity(fmt.Sprint(value))
	}
	if !quantityFields.in(t) {
		return nil
	}
	switch value := value.(type) {
	case map[string]any:
		for name, below := range value {
			belowType := t
			if t.Kind() == reflect.Map {
				belowType = t.Elem()
			} else if belowType = quantityFields.of(t)[name]; belowType == nil {
				continue
			}
			if err := checkQuantities(belowType, below); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		for i, item := range value {
			if err := checkQuantities(t.Elem(), item); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
	}
	return nil
}

// checkProtobufQuantities checks the quantities in a protobuf message: they are strings in field 1.
func checkProtobufQuantities(data []byte, obj kind.Object) error {
	if !quantityFields.in(reflect.TypeOf(obj)) {
		return nil
	}
	for start, end := range numberTokens(data) {
		// The token may begin with bytes of the length that look like digits.
		for at := start; at <= min(start+3, end); at++ {
			if text := data[at:end]; isFieldOne(data[:at], len(text)) {
				if err := checkQuantity(string(text)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// isFieldOne reports whether head ends with the tag of field 1 and the length of a string.
func isFieldOne(head []byte, length int) bool {
	const tag = 1<<3 | 2
	encoded := binary.AppendUvarint([]byte{tag}, uint64(length))
	return bytes.HasSuffix(head, encoded)
}

// mayExceedBounds reports whether JSON contains something that may be a quantity beyond the bounds. It is fast; nearly no request does.
func mayExceedBounds(data []byte) bool {
	for range numberTokens(data) {
		return true
	}
	// A client may write the characters of a number as \u0030.
	for escape := []byte(`\u00`); ; {
		_, after, found := bytes.Cut(data, escape)
		if !found {
			return false
		}
		if code, err := strconv.ParseUint(string(after[:min(len(after), 2)]), 16, 8); err == nil && isNumberCharacter(byte(code)) {
			return true
		}
		data = after
	}
}

// numberTokens are the parts of data that are made of the characters of a number and have a long exponent or are long themselves.
func numberTokens(data []byte) func(yield func(start, end int) bool) {
	return func(yield func(start, end int) bool) {
		for i := 0; i < len(data); i++ {
			if !isDigit(data[i]) {
				continue
			}
			start := i
			for start > 0 && (data[start-1] == '.' || data[start-1] == '-' || data[start-1] == '+') {
				start--
			}
			exponent := -1 // the number of its digits; -1 before it
			for ; i < len(data) && isNumberCharacter(data[i]); i++ {
				switch {
				case data[i]|0x20 == 'e':
					exponent = 0
				case isDigit(data[i]) && exponent >= 0:
					exponent++
				}
			}
			if (exponent > maxExponentDigits || i-start > maxQuantityCharacters) && !yield(start, i) {
				return
			}
		}
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isNumberCharacter(c byte) bool {
	return isDigit(c) || c == '.' || c == '-' || c == '+' || c|0x20 == 'e'
}

// quantityFields finds the fields of a type that are quantities or contain some.
var quantityFields typeCache

type typeCache struct{ known sync.Map } // reflect.Type → map[string]reflect.Type

// in reports whether values of the type contain quantities.
func (c *typeCache) in(t reflect.Type) bool {
	t = elemType(t)
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		return c.in(t.Elem())
	}
	return t == quantityType || len(c.of(t)) > 0
}

// of returns the fields of a struct that contain quantities, by their JSON names.
func (c *typeCache) of(t reflect.Type) map[string]reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	if known, ok := c.known.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	found := map[string]reflect.Type{}
	c.find(t, map[reflect.Type]bool{}, found)
	c.known.Store(t, found)
	return found
}

// find adds the fields of a struct that contain quantities. visited are the structs around it: a type that contains itself ends there.
func (c *typeCache) find(t reflect.Type, visited map[reflect.Type]bool, found map[string]reflect.Type) (contains bool) {
	if visited[t] {
		return false
	}
	visited[t] = true
	defer delete(visited, t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			contains = c.find(elemType(f.Type), visited, found) || contains
			continue
		}
		inner := elemType(f.Type)
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
			inner = elemType(inner.Elem())
		}
		if inner == quantityType || inner.Kind() == reflect.Struct && c.find(inner, visited, map[string]reflect.Type{}) {
			found[name], contains = f.Type, true
		}
	}
	return contains
}

func elemType(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}
