package apiserver

import (
	"encoding/json"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// fieldNode is one element of a set of fields, with the elements below it. A set of fields is the list of nodes below
// the root, in the order FieldsV1 prescribes. Elements are kept as they stand in FieldsV1, quotes included, so that sets
// are read and written without decoding them; equal elements have equal text.
type fieldNode struct {
	element string
	// member: the field itself belongs to the set, not only what is below it.
	member   bool
	children []fieldNode
}

// fieldBuilder collects the nodes of one set while a walk is on its way. Children are collected on a stack and move
// into their parent when it is closed.
type fieldBuilder struct {
	stack []fieldNode
	// arena is where children live; used is how much of it. A reset makes all of it free again.
	arena []fieldNode
	used  int
}

// reset forgets everything that was built.
func (b *fieldBuilder) reset() { b.stack, b.used = b.stack[:0], 0 }

func (b *fieldBuilder) mark() int { return len(b.stack) }

// grown reports whether anything was collected since the mark.
func (b *fieldBuilder) grown(mark int) bool { return len(b.stack) > mark }

// close makes what was collected since the mark the children of one element. An element that is neither a member nor
// has children leaves nothing behind.
func (b *fieldBuilder) close(mark int, element string, member bool) {
	if len(b.stack) == mark && !member {
		return
	}
	children := b.take(mark)
	b.stack = append(b.stack, fieldNode{element: element, member: member, children: children})
}

// take removes what was collected since the mark from the stack and returns it.
func (b *fieldBuilder) take(mark int) []fieldNode {
	n := len(b.stack) - mark
	if n == 0 {
		return nil
	}
	if len(b.arena)-b.used < n {
		b.arena, b.used = make([]fieldNode, max(n, 64, 2*len(b.arena))), 0
	}
	nodes := b.arena[b.used : b.used+n : b.used+n]
	b.used += n
	copy(nodes, b.stack[mark:])
	b.stack = b.stack[:mark]
	return nodes
}

// sort puts what was collected since the mark into order.
func (b *fieldBuilder) sort(mark int) {
	if nodes := b.stack[mark:]; len(nodes) > 1 {
		slices.SortFunc(nodes, func(a, b fieldNode) int { return compareElements(a.element, b.element) })
	}
}

// appendFields writes a set as FieldsV1.
func appendFields(to []byte, nodes []fieldNode, self bool) []byte {
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
		to = appendFields(to, n.children, n.member)
	}
	return append(to, '}')
}

// fieldsSize is the length of what appendFields writes.
func fieldsSize(nodes []fieldNode) int {
	size := 2
	for _, n := range nodes {
		size += len(n.element) + 2 + fieldsSize(n.children)
		if n.member && len(n.children) > 0 {
			size += len(`".":{},`)
		}
	}
	return size
}

// subtractFields removes the members of b from a, which it may change and reuse.
func subtractFields(a, b []fieldNode) []fieldNode {
	if len(a) == 0 || len(b) == 0 {
		return a
	}
	kept := a[:0]
	j := 0
	for _, n := range a {
		for j < len(b) && b[j].element != n.element && compareElements(b[j].element, n.element) < 0 {
			j++
		}
		if j < len(b) && b[j].element == n.element {
			n.member = n.member && !b[j].member
			n.children = subtractFields(n.children, b[j].children)
			j++
			if !n.member && len(n.children) == 0 {
				continue
			}
		}
		kept = append(kept, n)
	}
	return kept
}

// uniteFields returns the set of all members of a and b. The result shares nodes with both.
func uniteFields(a, b []fieldNode) []fieldNode {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := make([]fieldNode, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].element == b[0].element {
			out = append(out, fieldNode{
				element:  a[0].element,
				member:   a[0].member || b[0].member,
				children: uniteFields(a[0].children, b[0].children),
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

// simpleItem takes apart the elements of a list with one string as key, and of a set of strings, where their text is
// free of escapes.
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
	if strings.HasPrefix(element, `"f:`) && plainText(element[1:len(element)-1]) {
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

// plainItem recognises items whose keys or value are plain text or small numbers.
func plainItem(element string) bool {
	if rest, ok := strings.CutPrefix(element, `"v:\"`); ok {
		value, ok := strings.CutSuffix(rest, `\""`)
		return ok && plainText(value)
	}
	rest, ok := strings.CutPrefix(element, `"k:{`)
	if !ok {
		return false
	}
	previous := ""
	for {
		name, after, ok := strings.Cut(strings.TrimPrefix(rest, `\"`), `\":`)
		if !ok || !strings.HasPrefix(rest, `\"`) || !plainText(name) || name <= previous {
			return false
		}
		previous = name
		if text, isText := strings.CutPrefix(after, `\"`); isText {
			value, end, ok := strings.Cut(text, `\"`)
			if !ok || !plainText(value) {
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

// encodeElement writes an element the library's way. It is exact for every text; callers have faster ways for plain ones.
func encodeElement(pe fieldpath.PathElement) (string, error) {
	raw, err := fieldpath.NewSet(fieldpath.Path{pe}).ToJSON()
	if err != nil {
		return "", err
	}
	return string(raw[1 : len(raw)-len(`:{}}`)]), nil
}

// plainText reports whether text stands in JSON as it is, also where it is quoted twice.
func plainText(text string) bool {
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
	if plainText(name) {
		return `"f:` + name + `"`, nil
	}
	return encodeElement(fieldpath.FieldNameElement(name))
}

// fieldParser reads FieldsV1 into nodes. It accepts only what the server itself writes: no white space, elements in order
// and in the one form they are written in, every field known to the plan and nothing below an atomic one. Whatever
// else is out there is left to the library.
type fieldParser struct {
	text string
	at   int
	fieldBuilder
}

// parse returns the nodes below the root, and false for anything out of the ordinary.
func (p *fieldParser) parse(text string, root *fieldPlan) ([]fieldNode, bool) {
	p.text, p.at, p.stack = text, 0, p.stack[:0] // what was parsed before stays in the arena
	_, ok := p.object(root)
	if !ok || p.at != len(text) {
		return nil, false
	}
	return p.take(0), true
}

// object reads one object, leaving its children on the stack. self tells that "." was among them.
func (p *fieldParser) object(plan *fieldPlan) (self, ok bool) {
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
			child, ok := plan.child(element)
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

func (p *fieldParser) follows(c byte) bool { return p.at < len(p.text) && p.text[p.at] == c }

func (p *fieldParser) skip(c byte) bool {
	if p.follows(c) {
		p.at++
		return true
	}
	return false
}

// key reads a quoted string and returns it with its quotes.
func (p *fieldParser) key() (string, bool) {
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
