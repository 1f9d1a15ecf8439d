package jsonpatch

import (
	"maps"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// Merge applies a JSON merge patch (RFC 7386) to an object. badPatch: the patch itself is not valid. Results and errors are those of upstream's
// library, which parses a nested value once for every level above it; here every level is parsed once. A patch that is an array replaces
// the object.
func Merge(text, patch []byte) (merged []byte, badPatch bool, err error) {
	d := &document{}
	target, err := parse(text)
	if err != nil || target == nil {
		return nil, false, jsonpatch.ErrBadJSONDoc
	}
	changes, err := parse(patch)
	if err != nil || changes.expand(d) == nil {
		return nil, true, jsonpatch.ErrBadJSONPatch
	}
	if _, ok := changes.container.(*list); ok {
		d.pruneNulls(changes)
		return changes.appendTo(nil), false, nil
	}
	return d.merge(target, changes).appendTo(make([]byte, 0, len(text)+len(patch))), false, nil
}

// parse returns the value of a text; nil for null.
func parse(text []byte) (*node, error) {
	s, err := newSource(text)
	if err != nil {
		return nil, err
	}
	n, _ := s.value(s.skipSpace(0))
	return n, nil
}

// merge returns a value with changes, neither of which is null.
func (d *document) merge(target, changes *node) *node {
	fields, ok := target.expand(d).(object)
	if !ok {
		d.pruneNulls(changes)
		return changes
	}
	changed, ok := changes.expand(d).(object)
	if !ok {
		return changes
	}
	for key, change := range changed {
		current := fields[key]
		switch {
		case change.isNull():
			delete(fields, key)
		case current.isNull():
			d.pruneNulls(change)
			fields[key] = change
		default:
			fields[key] = d.merge(current, change)
		}
	}
	return target
}

// pruneNulls removes the fields inside a value that are null. Elements of arrays remain.
func (d *document) pruneNulls(n *node) {
	switch value := n.expand(d).(type) {
	case object:
		maps.DeleteFunc(value, func(_ string, inner *node) bool { return inner.isNull() })
		for _, inner := range value {
			d.pruneNulls(inner)
		}
	case *list:
		for _, chunk := range value.chunks {
			for _, inner := range chunk {
				d.pruneNulls(inner)
			}
		}
	}
}
