package customresource

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// Converter converts objects between the versions of one custom resource, for conversion strategy Webhook.
type Converter interface {
	// Convert returns new objects in the wanted version, in order, with the metadata of the original ones except for labels and
	// annotations. The arguments are not changed. A later attempt may succeed after an error.
	Convert(ctx context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error)
}

// conversionError is the failure of a conversion webhook. The next attempt may succeed.
type conversionError struct{ error }

func (conversionError) Transient() bool { return true }

func (e conversionError) Unwrap() error { return e.error }

// toStore converts an object to the storage version.
func (d *definition) toStore(obj kind.Object) (kind.Object, error) {
	return d.storage.convert(obj)
}

// convert returns an object in this version. It is the object itself if it is in this version already, and shares nothing with it
// otherwise.
func (v *version) convert(obj kind.Object) (kind.Object, error) {
	from := v.versionOf(obj)
	switch from {
	case v:
		return obj, nil
	case nil:
		return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", apiVersionOf(obj))
	}
	converted, err := v.convertFrom(obj.(*unstructured.Unstructured))
	if err != nil {
		return nil, err
	}
	if _, err := v.coerce(converted, coerceOptions{}); err != nil {
		return nil, err
	}
	return converted, nil
}

func (v *version) convertFrom(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if v.converter == nil {
		converted := u.DeepCopy()
		converted.SetGroupVersionKind(v.gvk)
		return converted, nil
	}
	objects, err := v.converter.Convert(context.Background(), []*unstructured.Unstructured{u}, v.gvk.GroupVersion())
	if err != nil {
		return nil, conversionError{err}
	}
	if len(objects) != 1 {
		return nil, fmt.Errorf("converter returned %d objects for one", len(objects))
	}
	return objects[0], nil
}
