package customresource

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	builderutil "k8s.io/kube-openapi/pkg/builder3/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"skiff/internal/openapi"
)

const (
	objectMetaName = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	listMetaName   = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
	refPrefixV2    = "#/definitions/"
	refPrefixV3    = "#/components/schemas/"

	conventions = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
)

// OpenAPI returns the schemas that the documents of the API have of a version.
func (d *Packed) OpenAPI(version string) (openapi.Schemas, error) {
	i := slices.IndexFunc(d.crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
	if i < 0 {
		return openapi.Schemas{}, fmt.Errorf("custom resource definition %s has no version %s", d.crd.Name, version)
	}
	spec := &d.crd.Spec.Versions[i]
	return openapi.Schemas{V2: d.published(spec, true), V3: d.published(spec, false)}, nil
}

// publisher makes the schemas of a version for OpenAPI v2 or v3.
type publisher struct {
	crd *apiextensionsv1.CustomResourceDefinition
	gv  schema.GroupVersion
	v2  bool
}

func (d *Packed) published(version *apiextensionsv1.CustomResourceDefinitionVersion, v2 bool) map[string]*spec.Schema {
	crd := d.crd
	p := &publisher{crd: crd, gv: schema.GroupVersion{Group: crd.Spec.Group, Version: version.Name}, v2: v2}
	names := &crd.Spec.Names
	object, list := p.object(d.publishedSchema(version.Name)), p.list()
	for _, s := range []*spec.Schema{object, list} {
		if fields := selectableFieldPaths(version); fields != nil {
			s.AddExtension("x-kubernetes-selectable-fields", fields)
		}
	}
	object.AddExtension("x-kubernetes-group-version-kind", p.kindExtension(names.Kind))
	list.AddExtension("x-kubernetes-group-version-kind", p.kindExtension(names.ListKind))
	all := map[string]*spec.Schema{
		openapi.Name(p.gv.WithKind(names.Kind)): object, openapi.Name(p.gv.WithKind(names.ListKind)): list,
	}
	if !v2 {
		for name, s := range all {
			all[name] = builderutil.WrapRefs(s) // in v3, a $ref has no siblings
		}
	}
	return all
}

// publishedSchema is the schema of a version; nil when it is not structural, because then nothing is published of it.
func (d *Packed) publishedSchema(version string) *structuralschema.Structural {
	props, err := d.schema(version)
	if err != nil || props == nil {
		return nil
	}
	s, err := structuralschema.NewStructural(props)
	if err != nil || len(structuralschema.ValidateStructural(nil, s)) > 0 {
		return nil
	}
	return s.Unfold()
}

func (p *publisher) kindExtension(kindName string) []any {
	return []any{map[string]any{"group": p.gv.Group, "version": p.gv.Version, "kind": kindName}}
}

func selectableFieldPaths(version *apiextensionsv1.CustomResourceDefinitionVersion) []any {
	var paths []any
	for _, f := range version.SelectableFields {
		paths = append(paths, map[string]any{"fieldPath": strings.TrimPrefix(f.JSONPath, ".")})
	}
	return paths
}

func (p *publisher) ref(name string) *spec.Schema {
	if p.v2 {
		return spec.RefSchema(refPrefixV2 + name)
	}
	return spec.RefSchema(refPrefixV3 + name)
}

// object is the schema of the kind: that of the definition with apiVersion, kind and metadata. Where v2 clients would take a schema for
// complete although unknown fields are allowed, it has no properties at all.
func (p *publisher) object(s *structuralschema.Structural) *spec.Schema {
	if s == nil || p.v2 && (s.XPreserveUnknownFields || p.crd.Spec.PreserveUnknownFields) {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	}
	if p.v2 {
		s = olderStructural(s)
	}
	object := s.ToKubeOpenAPI()
	p.addMetadata(object)
	addType(object)
	p.completeEmbedded(object)
	return object
}

func stringProperty(description string) spec.Schema {
	return *spec.StringProperty().WithDescription(description)
}

func addType(s *spec.Schema) {
	for _, name := range []string{"apiVersion", "kind"} {
		s.SetProperty(name, stringProperty(metav1.TypeMeta{}.SwaggerDoc()[name]))
	}
}

func (p *publisher) addMetadata(s *spec.Schema) {
	s.SetProperty("metadata", *p.ref(objectMetaName).WithDescription(metav1beta1.PartialObjectMetadata{}.SwaggerDoc()["metadata"]))
}

// completeEmbedded adds apiVersion, kind and metadata to embedded resources.
func (p *publisher) completeEmbedded(s *spec.Schema) {
	for name, property := range s.Properties {
		p.completeEmbedded(&property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		p.completeEmbedded(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		p.completeEmbedded(s.AdditionalProperties.Schema)
	}
	if preserves, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); preserves && p.v2 {
		return // with properties, v2 clients would refuse unknown fields
	}
	if embedded, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !embedded {
		return
	}
	s.SetProperty("apiVersion", stringProperty("apiVersion defines the versioned schema of this representation of an object. More info: "+conventions+"#resources"))
	s.SetProperty("kind", stringProperty("kind is a string value representing the type of this object. In CamelCase. More info: "+conventions+"#types-kinds"))
	p.addMetadata(s)
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}

// list is the schema of the kind's list.
func (p *publisher) list() *spec.Schema {
	names := &p.crd.Spec.Names
	items := spec.ArrayProperty(p.ref(openapi.Name(p.gv.WithKind(names.Kind)))).
		WithDescription(fmt.Sprintf("List of %s. More info: %s", names.Plural, conventions))
	list := new(spec.Schema).Typed("object", "").WithDescription(names.ListKind + " is a list of " + names.Kind).WithRequired("items")
	list.SetProperty("items", *items)
	list.SetProperty("metadata", *p.ref(listMetaName).WithDescription(metav1beta1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"]))
	addType(list)
	return list
}

// olderStructural removes what OpenAPI v2 does not have, and the defaults, which the built-in definitions of v2 do not have either. Where
// clients of v2 do not understand a schema, it becomes less specific.
func olderStructural(s *structuralschema.Structural) *structuralschema.Structural {
	s = s.DeepCopy()
	visitor := structuralschema.Visitor{Structural: func(s *structuralschema.Structural) bool {
		s.Default.Object = nil
		if v := s.ValueValidation; v != nil {
			v.AllOf, v.OneOf, v.AnyOf, v.Not = nil, nil, nil, nil
		}
		if s.Nullable {
			s.Type, s.Nullable = "", false
			s.Items, s.Properties = nil, nil
		}
		if s.XPreserveUnknownFields {
			s.Items, s.Properties = nil, nil
			if s.Type == "object" {
				s.Type = ""
			}
		}
		if s.Items == nil && s.Type == "array" {
			s.Type = ""
		}
		dropNullableRequired(s)
		return true
	}}
	visitor.Visit(s)
	return s
}

// dropNullableRequired drops the required properties that may be null, which v2 cannot say of them.
func dropNullableRequired(s *structuralschema.Structural) {
	v := s.ValueValidation
	if v == nil {
		return
	}
	v.Required = slices.DeleteFunc(v.Required, func(name string) bool { return s.Properties[name].Nullable })
	if values := s.AdditionalProperties; values != nil && values.Structural != nil && values.Structural.Nullable {
		v.Required = nil
	}
}

// newTypeConverter makes the schemas of server-side apply: those of all versions, with the metadata they refer to.
func (d *Packed) newTypeConverter() (managedfields.TypeConverter, error) {
	models, err := openapi.Definitions(objectMetaName)
	if err != nil {
		return nil, err
	}
	listMeta, err := openapi.Definitions(listMetaName)
	if err != nil {
		return nil, err
	}
	for name, s := range listMeta {
		models[name] = s
	}
	for i := range d.crd.Spec.Versions {
		for name, s := range d.published(&d.crd.Spec.Versions[i], false) {
			models[name] = s
		}
	}
	return managedfields.NewTypeConverter(models, d.crd.Spec.PreserveUnknownFields)
}
