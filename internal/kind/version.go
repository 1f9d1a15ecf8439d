package kind

import (
	"context"
	"crypto/sha256"
	"encoding/base64"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NewObject makes an empty object of one of the kind's versions.
func (k *Kind) NewObject(v *Version) Object {
	if v.New != nil {
		return v.New()
	}
	return k.New()
}

// SetDefaults fills in an object's defaults in the form of its version.
func (k *Kind) SetDefaults(v *Version, obj Object) {
	switch {
	case v.Default != nil:
		v.Default(obj)
	case v.ToStorageVersion == nil && k.Default != nil:
		k.Default(obj)
	}
}

// FromStorageVersion returns objects as the cache has them in one of the kind's versions, in order. They are not changed; those that have the
// version are returned as they are.
func (k *Kind) FromStorageVersion(ctx context.Context, v *Version, objs []Object) ([]Object, error) {
	switch {
	case k.Custom != nil && k.Custom.Convert != nil:
		return k.Custom.Convert(ctx, objs, v.GVK)
	case v.FromStorageVersion == nil:
		return objs, nil
	}
	converted := make([]Object, len(objs))
	for i, obj := range objs {
		var err error
		if converted[i], err = v.FromStorageVersion(obj); err != nil {
			return nil, err
		}
	}
	return converted, nil
}

// StorageVersionHash is what discovery publishes of the type under which objects are stored: it changes when that changes.
func StorageVersionHash(stored schema.GroupVersionKind) string {
	sum := sha256.Sum256([]byte(stored.Group + "/" + stored.Version + "/" + stored.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// BodyGVK is the kind of a subresource's body, for a parent in one version.
func (s *Subresource) BodyGVK(parent schema.GroupVersionKind) schema.GroupVersionKind {
	if s.GVK.Kind == "" {
		return parent
	}
	return s.GVK
}

// ClearType removes apiVersion and kind from a typed object: it is stored without them. An unstructured object keeps them.
func ClearType(obj Object) {
	if _, dynamic := obj.(runtime.Unstructured); !dynamic {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
}
