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

// The library has one global limit.
func init() { jsonpatch.AccumulatedCopySizeLimit = maxCopied }

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

// Apply applies a patch. Some operations on the whole document make the library panic.
func Apply(patch Patch, document []byte) (patched []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("operation cannot be applied: %v", cause)
		}
	}()
	return patch.Apply(document)
}

// Merge applies a JSON merge patch (RFC 7386). badPatch: the patch itself is not valid.
func Merge(document, patch []byte) (merged []byte, badPatch bool, err error) {
	merged, err = jsonpatch.MergePatch(document, patch)
	return merged, err == jsonpatch.ErrBadJSONPatch, err
}
