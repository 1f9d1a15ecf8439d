package kind

import (
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
