package managedfields

import (
	"encoding/json"
	"slices"
	"sort"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// node is one path element of a field set, with the elements below it. A field set is the list of nodes below the root, in the
// order of FieldsV1. Elements are kept as they are written in FieldsV1, quotes included, so that sets are read and written without
// decoding; equal elements have equal text.
type node struct {
	element string
	// member: the field itself is in the set, not only fields below it.
	member   bool
	children []node
}

// setBuilder builds one set during a walk. Children are pushed on a stack and move into their parent when it is closed.
type setBuilder struct {
	stack []node
	// arena holds the children; used is its occupied length. reset frees all of it.
	arena []node
	used  int
}

// reset discards everything that was built.
func (b *setBuilder) reset() { b.stack, b.used = b.stack[:0], 0 }

func (b *setBuilder) mark() int { return len(b.stack) }

// grown reports whether anything was pushed since the mark.
func (b *setBuilder) grown(mark int) bool { return len(b.stack) > mark }

// close makes the nodes pushed since the mark the children of one element. An element that is not a member and has no children is
// dropped.
func (b *setBuilder) close(mark int, element string, member bool) {
	if len(b.stack) == mark && !member {
		return
	}
	children := b.pop(mark)
	b.stack = append(b.stack, node{element: element, member: member, children: children})
}

// pop removes the nodes pushed since the mark and returns them.
func (b *setBuilder) pop(mark int) []node {
	n := len(b.stack) - mark
	if n == 0 {
		return nil
	}
	if len(b.arena)-b.used < n {
		b.arena, b.used = make([]node, max(n, 64, 2*len(b.arena))), 0
	}
	nodes := b.arena[b.used : b.used+n : b.used+n]
	b.used += n
	copy(nodes, b.stack[mark:])
	b.stack = b.stack[:mark]
	return nodes
}

// sort orders the nodes pushed since the mark.
func (b *setBuilder) sort(mark int) {
	if nodes := b.stack[mark:]; len(nodes) > 1 {
		slices.SortFunc(nodes, func(a, b node) int { return compareElements(a.element, b.element) })
	}
}

// appendSet writes a set as FieldsV1.
func appendSet(to []byte, nodes []node, self bool) []byte {
	to = append(to, '{')
	if self && len(nodes) > 0 {
		to = append(to, `".":{}`...)
	}
	for i, n := range nodes {
		if i > 0 || self {
			to = append(to, ',')
		}
		to = append(to, n.element...)
		to = append(to, ':')
		to = appendSet(to, n.children, n.member)
	}
	return append(to, '}')
}

// setSize is the length of what appendSet writes.
func setSize(nodes []node) int {
	size := 2
	for _, n := range nodes {
		size += len(n.element) + 2 + setSize(n.children)
		if n.member && len(n.children) > 0 {
			size += len(`".":{},`)
		}
	}
	return size
}

// difference removes the members of b from a. It may change and reuse a.
func difference(a, b []node) []node {
	if len(a) == 0 || len(b) == 0 {
		return a
	}
	kept := a[:0]
	j := 0
	for _, n := range a {
		j += position(b[j:], n.element)
		if j < len(b) && b[j].element == n.element {
			n.member = n.member && !b[j].member
			n.children = difference(n.children, b[j].children)
			j++
			if !n.member && len(n.children) == 0 {
				continue
			}
		}
		kept = append(kept, n)
	}
	return kept
}

// position is the index of the first node that is not before the element. Its cost depends on that index, not on the number of nodes:
// the fields of one write are removed from the sets of many managers, most of them small.
func position(nodes []node, element string) int {
	before := func(i int) bool {
		return nodes[i].element != element && compareElements(nodes[i].element, element) < 0
	}
	low, high := 0, 1
	for high <= len(nodes) && before(high-1) {
		low, high = high, 2*high
	}
	high = min(high-1, len(nodes))
	return low + sort.Search(high-low, func(i int) bool { return !before(low + i) })
}

// union returns all members of a and b. The result shares nodes with both.
func union(a, b []node) []node {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := make([]node, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].element == b[0].element {
			out = append(out, node{
				element:  a[0].element,
				member:   a[0].member || b[0].member,
				children: union(a[0].children, b[0].children),
			})
			a, b = a[1:], b[1:]
		} else if compareElements(a[0].element, b[0].element) < 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// compareElements orders elements as FieldsV1 does: fields by name, then list items by key, then set items by value.
func compareElements(a, b string) int {
	if len(a) > 3 && len(b) > 3 && a[1] == b[1] {
		if a[1] == 'f' && strings.IndexByte(a, '\\') < 0 && strings.IndexByte(b, '\\') < 0 {
			return strings.Compare(a[3:len(a)-1], b[3:len(b)-1])
		}
		if nameA, valueA, ok := simpleItem(a); ok {
			if nameB, valueB, ok := simpleItem(b); ok && nameA == nameB {
				return strings.Compare(valueA, valueB)
			}
		}
	}
	elementA, errA := decodeElement(a)
	elementB, errB := decodeElement(b)
	if errA != nil || errB != nil {
		return strings.Compare(a, b)
	}
	return elementA.Compare(elementB)
}

// simpleItem splits the element of a list with one string key, or of a set of strings, if its text has no escapes.
func simpleItem(element string) (name, value string, ok bool) {
	const key, keyValue, set = `"k:{\"`, `\":\"`, `"v:\"`
	if rest, found := strings.CutPrefix(element, key); found {
		name, value, ok = strings.Cut(rest, keyValue)
		value, end, _ := strings.Cut(value, `\`)
		return name, value, ok && end == `"}"` && strings.IndexByte(name, '\\') < 0
	}
	if rest, found := strings.CutPrefix(element, set); found {
		value, end, _ := strings.Cut(rest, `\`)
		return "", value, end == `""`
	}
	return "", "", false
}

// isCanonical reports whether an element is written as the server writes it, so that equal elements have equal text.
func isCanonical(element string) bool {
	if strings.HasPrefix(element, `"f:`) && needsNoEscape(element[1:len(element)-1]) {
		return true
	}
	if plainItem(element) {
		return true
	}
	decoded, err := decodeElement(element)
	if err != nil {
		return false
	}
	again, err := encodeElement(decoded)
	return err == nil && again == element
}

// plainItem reports whether the keys or the value of an item are text without escapes or small numbers.
func plainItem(element string) bool {
	if rest, ok := strings.CutPrefix(element, `"v:\"`); ok {
		value, ok := strings.CutSuffix(rest, `\""`)
		return ok && needsNoEscape(value)
	}
	rest, ok := strings.CutPrefix(element, `"k:{`)
	if !ok {
		return false
	}
	previous := ""
	for {
		name, after, ok := strings.Cut(strings.TrimPrefix(rest, `\"`), `\":`)
		if !ok || !strings.HasPrefix(rest, `\"`) || !needsNoEscape(name) || name <= previous {
			return false
		}
		previous = name
		if text, isText := strings.CutPrefix(after, `\"`); isText {
			value, end, ok := strings.Cut(text, `\"`)
			if !ok || !needsNoEscape(value) {
				return false
			}
			after = end
		} else {
			digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
			if digits == 0 || digits > 15 || after[0] == '0' && digits > 1 {
				return false
			}
			after = after[digits:]
		}
		if after == `}"` {
			return true
		}
		if rest, ok = strings.CutPrefix(after, ","); !ok {
			return false
		}
	}
}

func decodeElement(element string) (fieldpath.PathElement, error) {
	var text string
	if err := json.Unmarshal([]byte(element), &text); err != nil {
		return fieldpath.PathElement{}, err
	}
	return fieldpath.DeserializePathElement(text)
}

// encodeElement writes an element with the library. It handles every text; callers have faster ways for text without escapes.
func encodeElement(pe fieldpath.PathElement) (string, error) {
	raw, err := fieldpath.NewSet(fieldpath.Path{pe}).ToJSON()
	if err != nil {
		return "", err
	}
	return string(raw[1 : len(raw)-len(`:{}}`)]), nil
}

// needsNoEscape reports whether text is written into JSON unchanged, even where it is quoted twice.
func needsNoEscape(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case c < 0x20, c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}

// fieldElement is the element of a struct field or map key.
func fieldElement(name string) (string, error) {
	if needsNoEscape(name) {
		return `"f:` + name + `"`, nil
	}
	return encodeElement(fieldpath.FieldNameElement(name))
}

// isElement reports whether a text is an element of a kind: 'f' for a field, 'k' for the keys of an item, 'v' for a value.
func isElement(text string, kind byte) bool { return len(text) >= len(`"f:"`) && text[1] == kind }

// fieldTree says which elements a field set can have.
type fieldTree interface {
	// child returns what an element names. It returns false when the element cannot occur here.
	child(element string) (fieldTree, bool)
}

// setParser reads FieldsV1 into nodes. It accepts only the form the server writes: no white space, elements in order and in
// canonical form, every field known to the descriptor, nothing below an atomic field. Anything else is left to the library.
type setParser struct {
	text string
	at   int
	setBuilder
}

// parse returns the nodes below the root, or false for text in any other form.
func (p *setParser) parse(text string, root fieldTree) ([]node, bool) {
	p.text, p.at, p.stack = text, 0, p.stack[:0] // earlier results stay valid in the arena
	_, ok := p.object(root)
	if !ok || p.at != len(text) {
		return nil, false
	}
	return p.pop(0), true
}

// object reads one object and pushes its children. self reports that "." was among them.
func (p *setParser) object(desc fieldTree) (self, ok bool) {
	if !p.skip('{') {
		return false, false
	}
	if p.skip('}') {
		return false, true
	}
	previous := ""
	for {
		element, ok := p.key()
		if !ok || !p.skip(':') {
			return false, false
		}
		if element == `"."` {
			if self || previous != "" || !p.skip('{') || !p.skip('}') || !p.follows(',') {
				return false, false
			}
			self = true
		} else {
			child, ok := desc.child(element)
			if !ok || !isCanonical(element) || previous != "" && compareElements(previous, element) >= 0 {
				return false, false
			}
			previous = element
			mark := p.mark()
			childSelf, ok := p.object(child)
			if !ok {
				return false, false
			}
			p.close(mark, element, childSelf || !p.grown(mark))
		}
		if p.skip('}') {
			return self, true
		}
		if !p.skip(',') {
			return false, false
		}
	}
}

func (p *setParser) follows(c byte) bool { return p.at < len(p.text) && p.text[p.at] == c }

func (p *setParser) skip(c byte) bool {
	if p.follows(c) {
		p.at++
		return true
	}
	return false
}

// key reads a quoted string and returns it with its quotes.
func (p *setParser) key() (string, bool) {
	if p.at >= len(p.text) || p.text[p.at] != '"' {
		return "", false
	}
	for i := p.at + 1; i < len(p.text); i++ {
		switch p.text[i] {
		case '\\':
			i++
		case '"':
			key := p.text[p.at : i+1]
			p.at = i + 1
			return key, true
		}
	}
	return "", false
}
