package managedfields

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// versionConverter gives the library the versions of a kind: it makes, defaults and converts objects.
type versionConverter struct {
	ctx  context.Context // of the write
	kind *kind.Kind
}

// versionOf finds the version an object is in: by its apiVersion and kind, or by its Go type when those are empty.
func (c versionConverter) versionOf(obj runtime.Object) (*kind.Version, error) {
	k := c.kind
	gvk := obj.GetObjectKind().GroupVersionKind()
	for i := range k.Versions {
		v := &k.Versions[i]
		if gvk.Empty() {
			if reflect.TypeOf(c.kind.NewObject(v)) == reflect.TypeOf(obj) {
				return v, nil
			}
		} else if v.GVK == gvk {
			return v, nil
		}
	}
	if gvk.Empty() || gvk == k.GVK {
		return &kind.Version{GVK: k.GVK}, nil
	}
	return nil, runtime.NewNotRegisteredErrForKind(k.Plural, gvk)
}

// New implements runtime.ObjectCreater.
func (c versionConverter) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	for i := range c.kind.Versions {
		if v := &c.kind.Versions[i]; v.GVK == gvk {
			obj := c.kind.NewObject(v)
			obj.GetObjectKind().SetGroupVersionKind(gvk)
			return obj, nil
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind(c.kind.Plural, gvk)
}

// Default implements runtime.ObjectDefaulter.
func (c versionConverter) Default(obj runtime.Object) {
	v, err := c.versionOf(obj)
	if err != nil {
		return
	}
	c.kind.SetDefaults(v, obj.(kind.Object))
}

// ConvertToVersion implements runtime.ObjectConvertor. The result has its apiVersion and kind set.
func (c versionConverter) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	from, err := c.versionOf(in)
	if err != nil {
		return nil, err
	}
	obj, err := c.typed(in, from)
	if err != nil {
		return nil, err
	}
	known := []schema.GroupVersionKind{from.GVK, c.kind.GVK}
	for _, v := range c.kind.Versions {
		known = append(known, v.GVK)
	}
	wanted, ok := target.KindForGroupVersionKinds(known)
	if !ok {
		return nil, runtime.NewNotRegisteredErrForTarget(c.kind.Plural, reflect.TypeOf(obj), target)
	}
	if wanted != from.GVK {
		if obj, err = c.between(obj, from, wanted); err != nil {
			return nil, err
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(wanted)
	return obj, nil
}

// typed turns the unstructured result of a merge into an object of its version's type.
func (c versionConverter) typed(in runtime.Object, from *kind.Version) (kind.Object, error) {
	obj := c.kind.NewObject(from)
	dynamic, isDynamic := in.(*unstructured.Unstructured)
	if _, wantsDynamic := obj.(runtime.Unstructured); isDynamic && !wantsDynamic {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(dynamic.Object, obj, false); err != nil {
			return nil, err
		}
		obj.GetObjectKind().SetGroupVersionKind(from.GVK)
		return obj, nil
	}
	typed, ok := in.(kind.Object)
	if !ok {
		return nil, fmt.Errorf("%T is not an object", in)
	}
	return typed, nil
}

func (c versionConverter) between(obj kind.Object, from *kind.Version, wanted schema.GroupVersionKind) (kind.Object, error) {
	if c.kind.Custom != nil {
		return c.custom(obj, wanted)
	}
	var err error
	if from.ToStorageVersion != nil {
		if obj, err = from.ToStorageVersion(obj); err != nil {
			return nil, err
		}
	}
	if wanted == c.kind.GVK {
		return obj, nil
	}
	for i := range c.kind.Versions {
		if v := &c.kind.Versions[i]; v.GVK == wanted && v.FromStorageVersion != nil {
			return v.FromStorageVersion(obj)
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind(c.kind.Plural, wanted)
}

// custom converts a custom resource from the version it has.
func (c versionConverter) custom(obj kind.Object, wanted schema.GroupVersionKind) (kind.Object, error) {
	if c.kind.Custom.Convert == nil {
		return nil, runtime.NewNotRegisteredErrForKind(c.kind.Plural, wanted)
	}
	converted, err := c.kind.Custom.Convert(c.ctx, []kind.Object{obj}, wanted)
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

// Convert implements runtime.ObjectConvertor; the library does not use it.
func (c versionConverter) Convert(in, out, _ any) error {
	return fmt.Errorf("cannot convert %T into %T", in, out)
}

// ConvertFieldLabel implements runtime.ObjectConvertor; the library does not use it.
func (c versionConverter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
