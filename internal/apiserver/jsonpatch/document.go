package jsonpatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// source is a JSON text. It knows where the objects and arrays in it end, so that one can be parsed without reading what they contain: parsing
// a document level by level reads every byte once, however deep it is.
type source struct {
	text []byte
	// begins and ends are the positions of the brackets, in the order of the opening ones.
	begins, ends []int32
	// read counts the characters of values that were gone through, so that tests can tell that none is parsed again and again.
	read int
}

// newSource scans a JSON text.
func newSource(text []byte) (*source, error) {
	if !json.Valid(text) {
		return nil, errors.New("invalid JSON")
	}
	s := &source{text: text}
	var open []int32 // numbers of brackets
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = s.endOfString(i) - 1
		case '{', '[':
			open = append(open, int32(len(s.begins)))
			s.begins, s.ends = append(s.begins, int32(i)), append(s.ends, 0)
		case '}', ']':
			s.ends[open[len(open)-1]] = int32(i) + 1
			open = open[:len(open)-1]
		}
	}
	return s, nil
}

// endOfString returns the position after the string that begins at a position.
func (s *source) endOfString(at int) int {
	for i := at + 1; ; i++ {
		switch s.text[i] {
		case '\\':
			i++
		case '"':
			s.read += i + 1 - at
			return i + 1
		}
	}
}

// endOfValue returns the position after the value that begins at a position.
func (s *source) endOfValue(at int) int {
	switch s.text[at] {
	case '"':
		return s.endOfString(at)
	case '{', '[':
		i := sort.Search(len(s.begins), func(i int) bool { return int(s.begins[i]) >= at })
		return int(s.ends[i])
	}
	for i := at; i < len(s.text); i++ {
		switch s.text[i] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return i
		}
	}
	return len(s.text)
}

// skipSpace returns the position of the next character that is not white space.
func (s *source) skipSpace(at int) int {
	for at < len(s.text) {
		switch s.text[at] {
		case ' ', '\t', '\n', '\r':
			at++
		default:
			return at
		}
	}
	return at
}

// value returns the value that begins at a position, and the position after it.
func (s *source) value(at int) (*node, int) {
	end := s.endOfValue(at)
	if s.text[at] == 'n' {
		return nil, end
	}
	return &node{source: s, begin: at, end: end}, end
}

// node is a value in a document. null is a nil node, or one without a source.
type node struct {
	source     *source
	begin, end int
	// container has the content of an object or array that was parsed, and may have been changed since.
	container container
}

// newNode is the value of an operation, which was decoded with its patch; nil is one that is missing.
func newNode(value *json.RawMessage) (*node, error) {
	if value == nil {
		return &node{}, nil
	}
	s, err := newSource(*value)
	if err != nil {
		return nil, err
	}
	n, _ := s.value(s.skipSpace(0))
	return n, nil
}

func (n *node) isNull() bool { return n == nil || n.source == nil }

// text is the value as it was before any change.
func (n *node) text() []byte { return n.source.text[n.begin:n.end] }

// expand parses an object or array. It returns nil for other values.
func (n *node) expand(d *document) container {
	if n.isNull() {
		return nil
	}
	if n.container != nil {
		return n.container
	}
	switch n.source.text[n.begin] {
	case '{':
		n.container = n.members()
	case '[':
		n.container = newList(n.elements(), d)
	}
	return n.container
}

func (n *node) members() object {
	members, s := object{}, n.source
	for i := s.skipSpace(n.begin + 1); s.text[i] != '}'; {
		end := s.endOfString(i)
		key := unquote(s.text[i:end])
		i = s.skipSpace(end)                          // the colon
		members[key], i = s.value(s.skipSpace(i + 1)) // the last of equal keys counts
		if i = s.skipSpace(i); s.text[i] == ',' {
			i = s.skipSpace(i + 1)
		}
	}
	return members
}

func (n *node) elements() (elements []*node) {
	s := n.source
	for i := s.skipSpace(n.begin + 1); s.text[i] != ']'; {
		var element *node
		element, i = s.value(i)
		elements = append(elements, element)
		if i = s.skipSpace(i); s.text[i] == ',' {
			i = s.skipSpace(i + 1)
		}
	}
	return elements
}

// unquote decodes a string.
func unquote(text []byte) string {
	plain := !slices.ContainsFunc(text, func(c byte) bool { return c == '\\' || c >= 0x80 })
	if plain {
		return string(text[1 : len(text)-1])
	}
	var decoded string
	_ = json.Unmarshal(text, &decoded) // it is valid JSON
	return decoded
}

// appendTo appends the value as JSON.
func (n *node) appendTo(text []byte) []byte {
	switch {
	case n.isNull():
		return append(text, "null"...)
	case n.container != nil:
		return n.container.appendTo(text)
	}
	return append(text, n.text()...)
}

// equal compares values. As in upstream, strings and numbers are equal if their texts are.
func (n *node) equal(other *node, d *document) bool {
	if n.isNull() || other.isNull() {
		return n.isNull() && other.isNull()
	}
	mine, others := n.expand(d), other.expand(d)
	if mine == nil || others == nil {
		return mine == nil && others == nil && bytes.Equal(n.text(), other.text())
	}
	return mine.equal(others, d)
}

// container is an object or array.
type container interface {
	// get returns the value of a key; nil for null and, in an object, for one that does not exist.
	get(key string) (*node, error)
	// set replaces a value.
	set(key string, value *node) error
	add(key string, value *node) error
	remove(key string) error
	equal(other container, d *document) bool
	appendTo(text []byte) []byte
}

type object map[string]*node

func (o object) get(key string) (*node, error) { return o[key], nil }

func (o object) set(key string, value *node) error {
	o[key] = value
	return nil
}

func (o object) add(key string, value *node) error { return o.set(key, value) }

func (o object) remove(key string) error {
	if _, ok := o[key]; !ok {
		return fmt.Errorf("Unable to remove nonexistent key: %s: %w", key, jsonpatch.ErrMissing)
	}
	delete(o, key)
	return nil
}

func (o object) equal(other container, d *document) bool {
	others, ok := other.(object)
	if !ok || len(o) != len(others) {
		return false
	}
	for key, value := range o {
		if theirs, ok := others[key]; !ok || !value.equal(theirs, d) {
			return false
		}
	}
	return true
}

func (o object) appendTo(text []byte) []byte {
	text = append(text, '{')
	for i, key := range slices.Sorted(maps.Keys(o)) {
		if i > 0 {
			text = append(text, ',')
		}
		quoted, _ := json.Marshal(key) // a string has no errors
		text = append(append(text, quoted...), ':')
		text = o[key].appendTo(text)
	}
	return append(text, '}')
}

// list is an array in chunks: an operation moves the elements of one of them, not all that follow.
type list struct {
	document *document
	chunks   [][]*node
	length   int
}

// maxChunk bounds the elements of a chunk. Arrays of a million elements then have as many chunks as those have elements.
const maxChunk = 1024

func newList(elements []*node, d *document) *list {
	l := &list{document: d, length: len(elements)}
	for chunk := range slices.Chunk(elements, maxChunk/2) {
		l.chunks = append(l.chunks, slices.Clip(chunk))
	}
	return l
}

// index parses the index of an element, of which there are length. Negative ones count from the end.
func index(key string, length int) (int, error) {
	i, err := strconv.Atoi(key)
	if err != nil {
		return 0, err
	}
	if i >= length || i < -length {
		return 0, fmt.Errorf("Unable to access invalid index: %d: %w", i, jsonpatch.ErrInvalidIndex)
	}
	if i < 0 {
		i += length
	}
	return i, nil
}

// locate returns the chunk of an element and its place there. The end of the array is the end of the last chunk.
func (l *list) locate(i int) (chunk, at int) {
	for chunk = range l.chunks {
		l.document.steps++
		if i < len(l.chunks[chunk]) || chunk == len(l.chunks)-1 {
			break
		}
		i -= len(l.chunks[chunk])
	}
	return chunk, i
}

func (l *list) get(key string) (*node, error) {
	i, err := index(key, l.length)
	if err != nil {
		return nil, err
	}
	chunk, at := l.locate(i)
	return l.chunks[chunk][at], nil
}

func (l *list) set(key string, value *node) error {
	i, err := index(key, l.length)
	if err != nil {
		return err
	}
	chunk, at := l.locate(i)
	l.chunks[chunk][at] = value
	return nil
}

func (l *list) add(key string, value *node) error {
	i := l.length
	if key != "-" {
		var err error
		if _, err = strconv.Atoi(key); err != nil {
			return fmt.Errorf("value was not a proper array index: '%s': %w", key, err)
		}
		if i, err = index(key, l.length+1); err != nil {
			return err
		}
	}
	l.length++
	if len(l.chunks) == 0 {
		l.chunks = [][]*node{{value}}
		return nil
	}
	chunk, at := l.locate(i)
	l.document.steps += len(l.chunks[chunk]) - at
	l.chunks[chunk] = slices.Insert(l.chunks[chunk], at, value)
	if c := l.chunks[chunk]; len(c) > maxChunk {
		l.document.steps += len(c) + len(l.chunks)
		l.chunks[chunk] = slices.Clip(c[:len(c)/2])
		l.chunks = slices.Insert(l.chunks, chunk+1, slices.Clone(c[len(c)/2:]))
	}
	return nil
}

func (l *list) remove(key string) error {
	i, err := index(key, l.length)
	if err != nil {
		return err
	}
	l.length--
	chunk, at := l.locate(i)
	l.document.steps += len(l.chunks[chunk]) - at
	if l.chunks[chunk] = slices.Delete(l.chunks[chunk], at, at+1); len(l.chunks[chunk]) == 0 {
		l.document.steps += len(l.chunks)
		l.chunks = slices.Delete(l.chunks, chunk, chunk+1)
	}
	return nil
}

func (l *list) equal(other container, d *document) bool {
	others, ok := other.(*list)
	if !ok || l.length != others.length {
		return false
	}
	mine, theirs := slices.Concat(l.chunks...), slices.Concat(others.chunks...)
	for i := range mine {
		if !mine[i].equal(theirs[i], d) {
			return false
		}
	}
	return true
}

func (l *list) appendTo(text []byte) []byte {
	text = append(text, '[')
	first := true
	for _, chunk := range l.chunks {
		for _, element := range chunk {
			if !first {
				text = append(text, ',')
			}
			first = false
			text = element.appendTo(text)
		}
	}
	return append(text, ']')
}
