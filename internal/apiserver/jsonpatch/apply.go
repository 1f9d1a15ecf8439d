package jsonpatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// document is a document to which a patch is applied.
type document struct {
	root container
	// copied is the size of what copy operations have added.
	copied int64
	// steps counts the elements and chunks of arrays that operations have gone through, so that tests can compare documents of different
	// sizes.
	steps int
}

func newDocument(text []byte) (*document, error) {
	s, err := newSource(text)
	if err != nil {
		return nil, err
	}
	d := &document{}
	n, _ := s.value(s.skipSpace(0))
	if d.root = n.expand(d); d.root == nil {
		return nil, errors.New("the document is not an object or array")
	}
	return d, nil
}

// apply applies an operation. The texts of errors are those of upstream's library.
func (d *document) apply(op jsonpatch.Operation) error {
	switch kind := op.Kind(); kind {
	case "add":
		return d.add(op)
	case "remove":
		return d.remove(op)
	case "replace":
		return d.replace(op)
	case "move":
		return d.move(op)
	case "test":
		return d.test(op)
	case "copy":
		return d.copy(op)
	default:
		return fmt.Errorf("Unexpected kind: %s", kind)
	}
}

// pointerEscapes are those of JSON pointers.
var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

// maxDepth bounds the depth at which values are added: that of a JSON text. A deeper document could not be decoded.
const maxDepth = 10_000

// find returns the container of a path's last key, nil if there is none, and the key.
func (d *document) find(path string) (in container, key string) {
	if strings.Count(path, "/") > maxDepth {
		return nil, ""
	}
	keys := strings.Split(path, "/")
	if len(keys) < 2 {
		return nil, ""
	}
	in = d.root
	for _, part := range keys[1 : len(keys)-1] {
		next, err := in.get(pointerEscapes.Replace(part))
		if err != nil {
			return nil, ""
		}
		if in = next.expand(d); in == nil {
			return nil, ""
		}
	}
	return in, pointerEscapes.Replace(keys[len(keys)-1])
}

// valueOf is the value of an operation; nil if it has none.
func valueOf(op jsonpatch.Operation) (*node, error) {
	value, ok := op["value"]
	if !ok {
		return nil, nil
	}
	return newNode(value)
}

func (d *document) add(op jsonpatch.Operation) error {
	path, err := op.Path()
	if err != nil {
		return fmt.Errorf("add operation failed to decode path: %w", jsonpatch.ErrMissing)
	}
	in, key := d.find(path)
	if in == nil {
		return fmt.Errorf("add operation does not apply: doc is missing path: \"%s\": %w", path, jsonpatch.ErrMissing)
	}
	value, err := valueOf(op)
	if err == nil {
		err = in.add(key, value)
	}
	if err != nil {
		return fmt.Errorf("error in add for path: '%s': %w", path, err)
	}
	return nil
}

func (d *document) remove(op jsonpatch.Operation) error {
	path, err := op.Path()
	if err != nil {
		return fmt.Errorf("remove operation failed to decode path: %w", jsonpatch.ErrMissing)
	}
	in, key := d.find(path)
	if in == nil {
		return fmt.Errorf("remove operation does not apply: doc is missing path: \"%s\": %w", path, jsonpatch.ErrMissing)
	}
	if err := in.remove(key); err != nil {
		return fmt.Errorf("error in remove for path: '%s': %w", path, err)
	}
	return nil
}

func (d *document) replace(op jsonpatch.Operation) error {
	path, err := op.Path()
	if err != nil {
		return fmt.Errorf("replace operation failed to decode path: %w", err)
	}
	value, err := valueOf(op)
	if err != nil {
		return fmt.Errorf("error in replace for path: '%s': %w", path, err)
	}
	if path == "" {
		root := value.expand(d)
		if root == nil {
			return errors.New("replace operation value must be object or array")
		}
		d.root = root
		return nil
	}
	in, key := d.find(path)
	if in == nil {
		return fmt.Errorf("replace operation does not apply: doc is missing path: %s: %w", path, jsonpatch.ErrMissing)
	}
	if _, err := in.get(key); err != nil {
		return fmt.Errorf("replace operation does not apply: doc is missing key: %s: %w", path, jsonpatch.ErrMissing)
	}
	if err := in.set(key, value); err != nil {
		return fmt.Errorf("error in remove for path: '%s': %w", path, err)
	}
	return nil
}

func (d *document) move(op jsonpatch.Operation) error {
	from, err := op.From()
	if err != nil {
		return fmt.Errorf("move operation failed to decode from: %w", err)
	}
	in, key := d.find(from)
	if in == nil {
		return fmt.Errorf("move operation does not apply: doc is missing from path: %s: %w", from, jsonpatch.ErrMissing)
	}
	value, err := in.get(key)
	if err == nil {
		err = in.remove(key)
	}
	if err != nil {
		return fmt.Errorf("error in move for path: '%s': %w", key, err)
	}
	path, err := op.Path()
	if err != nil {
		return fmt.Errorf("move operation failed to decode path: %w", err)
	}
	if in, key = d.find(path); in == nil {
		return fmt.Errorf("move operation does not apply: doc is missing destination path: %s: %w", path, jsonpatch.ErrMissing)
	}
	if err := in.add(key, value); err != nil {
		return fmt.Errorf("error in move for path: '%s': %w", path, err)
	}
	return nil
}

func (d *document) test(op jsonpatch.Operation) error {
	path, err := op.Path()
	if err != nil {
		return fmt.Errorf("test operation failed to decode path: %w", err)
	}
	wanted, err := valueOf(op)
	if err != nil {
		return fmt.Errorf("error in test for path: '%s': %w", path, err)
	}
	failed := fmt.Errorf("testing value %s failed: %w", path, jsonpatch.ErrTestFailed)
	if path == "" {
		if other := wanted.expand(d); other == nil || !d.root.equal(other, d) {
			return failed
		}
		return nil
	}
	in, key := d.find(path)
	if in == nil {
		return fmt.Errorf("test operation does not apply: is missing path: %s: %w", path, jsonpatch.ErrMissing)
	}
	value, err := in.get(key)
	switch {
	case err != nil:
		return fmt.Errorf("error in test for path: '%s': %w", path, err)
	case !value.equal(wanted, d):
		return failed
	}
	return nil
}

func (d *document) copy(op jsonpatch.Operation) error {
	from, err := op.From()
	if err != nil {
		return fmt.Errorf("copy operation failed to decode from: %w", err)
	}
	in, key := d.find(from)
	if in == nil {
		return fmt.Errorf("copy operation does not apply: doc is missing from path: %s: %w", from, jsonpatch.ErrMissing)
	}
	value, err := in.get(key)
	if err != nil {
		return fmt.Errorf("error in copy for from: '%s': %w", from, err)
	}
	path, err := op.Path()
	if err != nil {
		return fmt.Errorf("copy operation failed to decode path: %w", jsonpatch.ErrMissing)
	}
	if in, key = d.find(path); in == nil {
		return fmt.Errorf("copy operation does not apply: doc is missing destination path: %s: %w", path, jsonpatch.ErrMissing)
	}
	if value, err = d.copyOf(value); err != nil {
		return err
	}
	if err := in.add(key, value); err != nil {
		return fmt.Errorf("error while adding value during copy: %w", err)
	}
	return nil
}

// copyOf copies a value, unless too much was copied already.
func (d *document) copyOf(n *node) (*node, error) {
	if n == nil {
		return nil, nil
	}
	text, err := json.Marshal(json.RawMessage(n.appendTo(nil)))
	if err != nil {
		return nil, fmt.Errorf("error while performing deep copy: %w", err)
	}
	if d.copied += int64(len(text)); d.copied > maxCopied {
		return nil, jsonpatch.NewAccumulatedCopySizeError(maxCopied, d.copied)
	}
	return newNode((*json.RawMessage)(&text))
}
