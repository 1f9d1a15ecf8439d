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

// convert implements kind.Custom.
func (d *definition) convert(ctx context.Context, objs []kind.Object, to schema.GroupVersionKind) ([]kind.Object, error) {
	v := d.versions[to.Version]
	if v == nil || v.gvk != to {
		return nil, fmt.Errorf("request to convert CR to an invalid group/version: %s", to.GroupVersion())
	}
	return v.convert(ctx, objs)
}

// convert returns objects in this version, with one request to the webhook. Objects in this version already are returned as they are, and the
// others share nothing with the results.
func (v *version) convert(ctx context.Context, objs []kind.Object) ([]kind.Object, error) {
	converted := make([]kind.Object, len(objs))
	var others []*unstructured.Unstructured // in other versions
	for i, obj := range objs {
		switch v.versionOf(obj) {
		case v:
			converted[i] = obj
		case nil:
			return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", apiVersionOf(obj))
		default:
			others = append(others, obj.(*unstructured.Unstructured))
		}
	}
	if len(others) == 0 {
		return converted, nil
	}
	results, err := v.convertOthers(ctx, others)
	if err != nil {
		return nil, err
	}
	for i := range converted {
		if converted[i] != nil {
			continue
		}
		if _, err := v.coerce(results[0], coerceOptions{}); err != nil {
			return nil, err
		}
		converted[i], results = results[0], results[1:]
	}
	return converted, nil
}

// convertOthers converts objects that are in other versions. The results are new objects.
func (v *version) convertOthers(ctx context.Context, objs []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	if v.converter == nil {
		converted := make([]*unstructured.Unstructured, len(objs))
		for i, u := range objs {
			converted[i] = u.DeepCopy()
			converted[i].SetGroupVersionKind(v.gvk)
		}
		return converted, nil
	}
	var converted []*unstructured.Unstructured
	var err error
	kind.Wait(ctx, func() { converted, err = v.converter.Convert(ctx, objs, v.gvk.GroupVersion()) })
	if err != nil {
		return nil, conversionError{err}
	}
	if len(converted) != len(objs) {
		return nil, fmt.Errorf("converter returned %d objects for %d", len(converted), len(objs))
	}
	return converted, nil
}
