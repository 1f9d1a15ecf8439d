package customresource

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"skiff/internal/kind"
)

// structuralSchema is the schema of a version: which fields objects have, and their defaults.
type structuralSchema struct {
	// Structural is nil when the definition preserves unknown fields and its schema is not structural.
	*structuralschema.Structural
	shape *shape
	// uniqueLists: there are lists that must not have an item twice. embeds: objects contain others, whose metadata is validated.
	uniqueLists, embeds bool
}

func (v *version) compileStructural() (*structuralSchema, error) {
	props, err := v.schema(v.spec.Name)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", v.gvk, err)
	}
	if props == nil {
		return newStructuralSchema(nil), nil
	}
	s, err := structuralschema.NewStructural(props)
	if v.crd.Spec.PreserveUnknownFields {
		return newStructuralSchema(s), nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", v.gvk, err)
	}
	s = s.DeepCopy() // it shares its defaults with the definition
	if err := defaulting.PruneDefaults(s); err != nil {
		return nil, fmt.Errorf("prune defaults in schema of %s: %w", v.gvk, err)
	}
	return newStructuralSchema(s), nil
}

func newStructuralSchema(s *structuralschema.Structural) *structuralSchema {
	out := &structuralSchema{Structural: s, shape: newShape(s)}
	if s == nil {
		return out
	}
	visitor := structuralschema.Visitor{Structural: func(s *structuralschema.Structural) bool {
		out.uniqueLists = out.uniqueLists || s.XListType != nil && *s.XListType != "atomic"
		out.embeds = out.embeds || s.XEmbeddedResource
		return false
	}}
	visitor.Visit(s)
	return out
}

// prune removes unknown fields from an object that a client sent, and coerces its metadata.
func (d *definition) prune(obj kind.Object, served *kind.Version) (unknown []string, err error) {
	v := d.versions[served.GVK.Version]
	if d.versionOf(obj) != v {
		return nil, nil // validation refuses it
	}
	root := content(obj)
	if s, err := v.structural(); err == nil && root["kind"] == v.gvk.Kind && s.shape.isPruned(root) {
		return nil, kind.CheckPaths(root)
	}
	if err := kind.CheckPaths(root); err != nil {
		return nil, err
	}
	return v.coerce(obj, coerceOptions{trackUnknown: true})
}

// pruneApplied prunes the result of server-side apply, which is an object of a version that is served.
func (d *definition) pruneApplied(obj kind.Object, served *kind.Version) error {
	_, err := d.versions[served.GVK.Version].coerce(obj, coerceOptions{keepNulls: true})
	return err
}

// setDefaults sets the defaults of a version, unless they would make the object too large: validation refuses it then, and a stored object is
// served without them. A schema that cannot be compiled has been reported by prune.
func (v *version) setDefaults(obj kind.Object) {
	s, err := v.structural()
	if err != nil || v.versionOf(obj) != v || content(obj)["kind"] != v.gvk.Kind || s.shape.growth(content(obj)) > maxGrowth {
		return
	}
	defaulting.Default(content(obj), s.Structural)
}

// fromStore prunes and defaults a stored object in the version in which it was stored.
func (d *definition) fromStore(obj kind.Object) error {
	v := d.versionOf(obj)
	if v == nil {
		return fmt.Errorf("request to convert CR from an invalid group/version: %s", apiVersionOf(obj))
	}
	s, err := v.structural()
	if err != nil {
		return err
	}
	if root := content(obj); root["kind"] == v.gvk.Kind && s.shape.isCanonical(root) {
		return nil
	}
	if _, err := v.coerce(obj, coerceOptions{stored: true}); err != nil {
		return err
	}
	v.setDefaults(obj)
	return nil
}

type coerceOptions struct {
	// trackUnknown: the paths of unknown fields are returned.
	trackUnknown bool
	// stored: the object comes from the store, where older servers may have written invalid metadata. Such fields are dropped, and a
	// generation is set.
	stored bool
	// keepNulls: nulls that the schema does not allow are not dropped.
	keepNulls bool
}

// coerce makes of an unstructured object what decoding makes of a typed one: it drops unknown fields, nulls that the schema does not allow,
// and everything in metadata that is not metadata; it fails if metadata has the wrong type.
func (v *version) coerce(obj kind.Object, o coerceOptions) (unknown []string, err error) {
	s, err := v.structural()
	if err != nil {
		return nil, err
	}
	root := content(obj)
	kindName, hasKind, err := unstructured.NestedString(root, "kind")
	if err != nil {
		return nil, err
	}
	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(root, objectmeta.ObjectMetaOptions{
		DropMalformedFields: o.stored, ReturnUnknownFieldPaths: o.trackUnknown,
	})
	if err != nil {
		return nil, err
	}
	if kindName == v.gvk.Kind {
		more, err := v.coerceFields(root, s, o)
		if err != nil {
			return nil, err
		}
		unknown = append(unknown, more...)
		if o.stored && hasMeta && meta.Generation == 0 {
			meta.Generation = 1
		}
	}
	if hasKind {
		root["kind"] = kindName
	}
	root["apiVersion"] = v.gvk.GroupVersion().String()
	if hasMeta {
		return unknown, objectmeta.SetObjectMeta(root, meta)
	}
	return unknown, nil
}

func (v *version) coerceFields(root map[string]any, s *structuralSchema, o coerceOptions) (unknown []string, err error) {
	if !v.crd.Spec.PreserveUnknownFields {
		unknown = pruning.PruneWithOptions(root, s.Structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: o.trackUnknown})
		if !o.keepNulls {
			defaulting.PruneNonNullableNullsWithoutDefaults(root, s.Structural)
		}
	}
	invalid, more := objectmeta.CoerceWithOptions(nil, root, s.Structural, false, objectmeta.CoerceOptions{
		DropInvalidFields: o.stored, ReturnUnknownFieldPaths: o.trackUnknown,
	})
	if invalid != nil {
		return nil, invalid
	}
	return append(unknown, more...), nil
}
