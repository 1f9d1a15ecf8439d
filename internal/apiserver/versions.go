package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// writtenVersions implements admission.Versions for a write of a resource or of one of its subresources.
type writtenVersions struct {
	ctx context.Context // of the write
	s   *Server
	res *resource
	sub *kind.Subresource // nil for the resource itself
}

// hasOwnBody reports whether the objects are not those of the resource: scales, evictions, the options of a connection. Such a body has one
// version.
func (v *writtenVersions) hasOwnBody() bool { return v.sub != nil && v.sub.Update == nil }

// Equivalents implements admission.Versions.
func (v *writtenVersions) Equivalents() []admission.Equivalent {
	var equivalents []admission.Equivalent
	for _, res := range v.s.catalog.equivalents(v.res) {
		at := admission.Equivalent{Resource: res.gvr, Kind: res.gvk}
		if v.sub != nil {
			sub := res.subs[v.sub.Name]
			if sub == nil {
				continue
			}
			at.Kind = sub.BodyGVK(res.gvk)
		}
		equivalents = append(equivalents, at)
	}
	return equivalents
}

// at returns the resource that serves the kind.
func (v *writtenVersions) at(gvk schema.GroupVersionKind) (*resource, error) {
	if v.res.gvk == gvk {
		return v.res, nil
	}
	for _, res := range v.s.catalog.equivalents(v.res) {
		if res.gvk == gvk {
			return res, nil
		}
	}
	return nil, fmt.Errorf("%s is not served as %s", v.res.gvk, gvk)
}

// Convert implements admission.Versions.
func (v *writtenVersions) Convert(obj runtime.Object, gvk schema.GroupVersionKind) (runtime.Object, error) {
	if v.hasOwnBody() {
		return obj, nil
	}
	res, err := v.at(gvk)
	if err != nil {
		return nil, err
	}
	stored, ok := obj.(kind.Object)
	if !ok {
		return nil, fmt.Errorf("%T is not an object of %s", obj, v.res.gvk)
	}
	return res.fromStorageVersion(v.ctx, stored)
}

// Encode implements admission.Versions.
func (v *writtenVersions) Encode(obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	versioned, err := v.Convert(obj, gvk)
	if err != nil {
		return nil, err
	}
	return appendObject(nil, versioned, gvk, formatJSON)
}

// Decode implements admission.Versions.
func (v *writtenVersions) Decode(data []byte, gvk schema.GroupVersionKind) (runtime.Object, error) {
	if limit := v.s.limits.Body; int64(len(data)) > limit {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
	}
	if v.hasOwnBody() {
		if v.sub.NewBody == nil {
			return nil, fmt.Errorf("%s cannot be changed", gvk.Kind)
		}
		body := v.sub.NewBody()
		if err := decodeVersion(body, data, gvk); err != nil {
			return nil, err
		}
		kind.ClearType(body)
		return body, nil
	}
	res, err := v.at(gvk)
	if err != nil {
		return nil, err
	}
	obj := res.newObject()
	if err := decodeVersion(obj, data, gvk); err != nil {
		return nil, err
	}
	if res.kind.Prune != nil {
		if _, err := res.kind.Prune(obj, res.version); err != nil {
			return nil, err
		}
	}
	decoded, err := res.toStorageVersion(obj)
	if err != nil || res.kind.Custom == nil {
		return decoded, err
	}
	return v.res.fromStorageVersion(v.ctx, decoded) // a write handles a custom resource in the version of the request
}

// decodeVersion decodes JSON into an object of the kind.
func decodeVersion(obj kind.Object, data []byte, gvk schema.GroupVersionKind) error {
	if _, err := unmarshalStrict(data, obj, fieldValidationIgnore); err != nil {
		return err
	}
	if actual := obj.GetObjectKind().GroupVersionKind(); actual != gvk {
		return fmt.Errorf("the object was changed from %s to %s", gvk, actual)
	}
	return nil
}

// storageOf identifies where the objects of a kind are stored. Kinds of several groups can share a place: the objects of one are those of
// the other. The objects of a kind that is not stored are its own.
func storageOf(k *kind.Kind) any {
	if k.Action != nil || k.Computed != nil {
		return k
	}
	return k.Prefix
}
