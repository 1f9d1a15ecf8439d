package apiextensions

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	kjson "sigs.k8s.io/json"
)

// The library decodes the schemas of a definition several times: a schema inside of items or additionalProperties is read to find its end, to check its
// syntax and to decode it, at each level around it again. Schemas are nearly all of a definition, so they are taken out of the text and decoded here in
// one pass; the library decodes the rest. Nothing is reported here: if there is anything unusual, such as an unknown field, a null or an error, the
// library decodes everything.

// decodeJSON decodes a definition as sigs.k8s.io/json would. It returns false and leaves crd unchanged if the library has to do it.
func decodeJSON(data []byte, crd *definition) bool {
	text := string(data) // the strings of schemas are parts of it
	found, ok := readSchemas(text)
	if !ok || len(found) == 0 {
		return false
	}
	rest, at := make([]byte, 0, 4<<10), 0
	for _, f := range found {
		rest = append(append(rest, text[at:f.start]...), "{}"...)
		at = f.end
	}
	rest = append(rest, text[at:]...)
	out := definition{}
	if strictErrs, err := kjson.UnmarshalStrict(rest, &out); err != nil || len(strictErrs) > 0 {
		return false
	}
	for _, f := range found {
		if f.version >= len(out.Spec.Versions) || out.Spec.Versions[f.version].Schema == nil {
			return false
		}
		out.Spec.Versions[f.version].Schema.OpenAPIV3Schema = f.schema
	}
	*crd = out
	return true
}

// foundSchema is the schema of a version, and where it is in the text.
type foundSchema struct {
	schema              *jsonSchema
	version, start, end int
}

// readSchemas reads the schemas at spec.versions[*].schema.openAPIV3Schema.
func readSchemas(text string) (found []foundSchema, ok bool) {
	r := &reader{text: text}
	r.eachField("spec", func() {
		r.eachField("versions", func() {
			version := 0
			r.eachItem(func() {
				r.eachField("schema", func() {
					r.eachField("openAPIV3Schema", func() {
						start := r.at
						found = append(found, foundSchema{schema: r.schema(0), version: version, start: start, end: r.at})
					})
				})
				version++
			})
		})
	})
	return found, !r.failed
}

// maxSchemaDepth bounds the recursion. Deeper schemas are left to the library.
const maxSchemaDepth = 500

// reader reads JSON. After the first failure it reads nothing.
type reader struct {
	text   string
	at     int
	failed bool
	// spare are zero schemas; see copiedSchema.
	spare []*jsonSchema
}

func (r *reader) fail() { r.failed, r.at = true, len(r.text) }

// peek skips space and returns the next byte, 0 at the end.
func (r *reader) peek() byte {
	for r.at < len(r.text) {
		switch c := r.text[r.at]; c {
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return c
		}
	}
	return 0
}

// take skips space and one byte, which must be c.
func (r *reader) take(c byte) bool {
	if r.peek() != c {
		r.fail()
		return false
	}
	r.at++
	return true
}

// more reports whether a list or an object has another value, before the first value or after one.
func (r *reader) more(first bool, end byte) bool {
	if r.failed {
		return false
	}
	switch c := r.peek(); {
	case c == end:
		r.at++
		return false
	case first:
		return true
	case c == ',':
		r.at++
		return true
	}
	r.fail()
	return false
}

// eachKey calls value for each field of an object; it must read the value.
func (r *reader) eachKey(value func(key string)) {
	if !r.take('{') {
		return
	}
	for first := true; r.more(first, '}'); first = false {
		key := r.string()
		if r.take(':') {
			r.peek()
			value(key)
		}
	}
}

// eachItem calls value for each item of a list; it must read the item.
func (r *reader) eachItem(value func()) {
	if !r.take('[') {
		return
	}
	for first := true; r.more(first, ']'); first = false {
		r.peek()
		value()
	}
}

// eachField calls value for the field with a name, of which there must not be several, and skips the others.
func (r *reader) eachField(name string, value func()) {
	found := false
	r.eachKey(func(key string) {
		switch {
		case key != name:
			r.skip(0)
		case found:
			r.fail()
		default:
			found = true
			value()
		}
	})
}

// skip skips a value.
func (r *reader) skip(depth int) {
	if depth > maxSchemaDepth {
		r.fail()
		return
	}
	switch c := r.peek(); {
	case c == '{':
		r.eachKey(func(string) { r.skip(depth + 1) })
	case c == '[':
		r.eachItem(func() { r.skip(depth + 1) })
	case c == '"':
		r.string()
	case c == 't' || c == 'f':
		r.bool()
	case c == 'n':
		r.literal("null")
	default:
		r.number()
	}
}

func (r *reader) literal(text string) bool {
	if !strings.HasPrefix(r.text[r.at:], text) {
		r.fail()
		return false
	}
	r.at += len(text)
	return true
}

func (r *reader) bool() bool {
	if r.peek() == 't' {
		return r.literal("true")
	}
	r.literal("false")
	return false
}

// number returns the text of a number.
func (r *reader) number() string {
	r.peek()
	start := r.at
	digits := func() int {
		begin := r.at
		for r.at < len(r.text) && r.text[r.at] >= '0' && r.text[r.at] <= '9' {
			r.at++
		}
		return r.at - begin
	}
	optional := func(chars string) bool {
		if r.at < len(r.text) && strings.IndexByte(chars, r.text[r.at]) >= 0 {
			r.at++
			return true
		}
		return false
	}
	optional("-")
	zero := r.at < len(r.text) && r.text[r.at] == '0'
	whole := digits()
	valid := whole == 1 || whole > 1 && !zero
	if optional(".") {
		valid = digits() > 0 && valid
	}
	if optional("eE") {
		optional("+-")
		valid = digits() > 0 && valid
	}
	if !valid {
		r.fail()
		return ""
	}
	return r.text[start:r.at]
}

func (r *reader) float() *float64 {
	value, err := strconv.ParseFloat(r.number(), 64)
	if err != nil {
		r.fail()
	}
	return &value
}

func (r *reader) int() *int64 {
	value, err := strconv.ParseInt(r.number(), 10, 64)
	if err != nil {
		r.fail()
	}
	return &value
}

// string returns a string, a part of the text if it has no escapes.
func (r *reader) string() string {
	if !r.take('"') {
		return ""
	}
	start, ascii, escaped := r.at, true, false
	for ; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			value := r.text[start:r.at]
			r.at++
			if !ascii && !utf8.ValidString(value) {
				r.fail()
				return ""
			}
			if escaped {
				return r.unescape(value)
			}
			return value
		case c == '\\':
			escaped = true
			r.at++ // the next byte is no end of the string
		case c < ' ':
			r.fail()
			return ""
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	r.fail()
	return ""
}

// escapes are the characters that are written with a backslash and one character.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescape replaces the escapes of a string. Characters that need two numbers are left to the library.
func (r *reader) unescape(text string) string {
	const numberLength = len("\\u0000")
	out := make([]byte, 0, len(text))
	for {
		at := strings.IndexByte(text, '\\')
		if at < 0 {
			return string(append(out, text...))
		}
		out = append(out, text[:at]...)
		text = text[at:]
		if replaced := escapes[text[1]]; replaced != 0 {
			out, text = append(out, replaced), text[2:]
			continue
		}
		if text[1] != 'u' || len(text) < numberLength {
			r.fail()
			return ""
		}
		code, err := strconv.ParseUint(text[2:numberLength], 16, 16)
		if err != nil || utf16.IsSurrogate(rune(code)) {
			r.fail()
			return ""
		}
		out, text = utf8.AppendRune(out, rune(code)), text[numberLength:]
	}
}

// raw returns the text of a value, which must not be null.
func (r *reader) raw(depth int) apiextensionsv1.JSON {
	if r.peek() == 'n' {
		r.fail()
		return apiextensionsv1.JSON{}
	}
	start := r.at
	r.skip(depth)
	if r.failed {
		return apiextensionsv1.JSON{}
	}
	return apiextensionsv1.JSON{Raw: []byte(r.text[start:r.at])}
}
