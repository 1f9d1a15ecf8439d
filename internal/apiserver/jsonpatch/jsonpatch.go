// Package jsonpatch applies JSON patches (RFC 6902) of clients, webhooks and policies, within bounds.
package jsonpatch

import (
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// MaxOperations is the largest number of operations in a patch.
const MaxOperations = 10000

// maxCopied bounds the bytes that the copy operations of a patch add, which could otherwise grow a document without bound: the largest body
// of a request.
const maxCopied = 3 << 20

// TooManyError is the error for a patch with more than MaxOperations operations.
type TooManyError struct{ Operations int }

func (e *TooManyError) Error() string {
	return fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", MaxOperations, e.Operations)
}

// Patch is a decoded patch.
type Patch = jsonpatch.Patch

// Decode decodes a patch. The error for too many operations is a *TooManyError.
func Decode(data []byte) (Patch, error) {
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	if len(patch) > MaxOperations {
		return nil, &TooManyError{len(patch)}
	}
	return patch, nil
}

// Apply applies a patch to a document. Upstream's library copies an array for every element that is added or removed, and parses and encodes a
// nested value once for every level above it: a patch of a document of a few megabytes can take minutes. Here an operation on an array
// moves the elements of a chunk of it, and every level is parsed once.
func Apply(patch Patch, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return text, nil
	}
	d, err := newDocument(text)
	if err != nil {
		return nil, err
	}
	for _, op := range patch {
		if err := d.apply(op); err != nil {
			return nil, err
		}
	}
	return d.root.appendTo(make([]byte, 0, len(text))), nil
}
