// Package customresource makes the Kind of a custom resource from its CustomResourceDefinition, so that the API server serves it
// as it serves built-in kinds. It also makes the schemas that OpenAPI publishes of it.
//
// Objects are unstructured maps. What a definition says about them (structural schemas, validators, CEL programs, columns, the
// schemas of server-side apply) is compiled when it is first needed and dropped when it is not used for a while, and the schemas are kept
// compressed, so a definition that nobody uses costs little. Schemas are applied with upstream's own library: structural schemas, pruning, defaulting, validation and CEL.
//
// A definition has several versions. A write handles an object in the version of its request; the object is converted when it is
// stored, and when it is read in another version than the one in which it was stored (see kind.Custom).
package customresource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/util/jsonpath"

	"skiff/internal/kind"
)

// definition is a CustomResourceDefinition and what is made of it.
type definition struct {
	*Packed
	converter Converter // nil for conversion strategy None
	names     *apiextensionsv1.CustomResourceDefinitionNames
	storage   *version
	versions  map[string]*version // by name
}

// version is one version of a definition.
type version struct {
	*definition
	spec *apiextensionsv1.CustomResourceDefinitionVersion
	gvk  schema.GroupVersionKind
	// structural returns the schema, compiled on first use.
	structural func() (*structuralSchema, error)
	// validators returns what validates writes, compiled on first use.
	validators func() (*validators, error)
	// dropUnused drops the schema and the validators if they were not used since the last call.
	dropUnused func()
	columns    func() *columns
	// selectors returns the paths of the selectable fields, parsed on first use.
	selectors func() map[string]*jsonpath.JSONPath
}

// New makes the Kind of a definition, whose names must have been accepted. converter is nil for conversion strategy None. It is cheap:
// everything is compiled on first use.
func New(packed *Packed, converter Converter) (*kind.Kind, error) {
	d, err := newDefinition(packed, converter)
	if err != nil {
		return nil, err
	}
	crd, typeConverter := packed.crd, newLazy(packed.newTypeConverter)
	k := &kind.Kind{
		GVK:        d.storage.gvk,
		Plural:     d.names.Plural,
		Singular:   d.names.Singular,
		ListKind:   d.names.ListKind,
		Short:      d.names.ShortNames,
		Categories: d.names.Categories,
		Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		Verbs:      kind.AllVerbs,
		Prefix:     crd.Spec.Group + "/" + d.names.Plural,
		New:        d.storage.newObject,
		NewList:    d.storage.newList,

		ValidateName: validation.NameIsDNSSubdomain,
		Custom: &kind.Custom{FromStore: d.fromStore, Fields: d.selectableFields(), Webhook: converter != nil, DropUnused: func() {
			typeConverter.dropUnused()
			for _, v := range d.versions {
				v.dropUnused()
			}
		}},
		Prune:         d.prune,
		PruneApplied:  d.pruneApplied,
		Validate:      d.validate,
		Warn:          warnOfFinalizers,
		SpecChanged:   specChanged,
		TypeConverter: typeConverter.get,
	}
	if len(d.versions) > 1 {
		k.Custom.Convert = d.convert
	}
	for _, v := range d.sortedVersions() {
		served := v.kindVersion()
		if slices.ContainsFunc(served.Subresources, func(s kind.Subresource) bool { return s.Name == "status" }) {
			k.CopyStatus = d.copyStatus
		}
		k.Versions = append(k.Versions, served)
	}
	if IsTerminating(crd) {
		k.Hooks.BeforeCreate = func(_ context.Context, _ kind.Client, _ *kind.Request, obj kind.Object) (func(), error) {
			return nil, apierrors.NewForbidden(k.GroupResource(), obj.GetName(),
				errors.New("create not allowed while custom resource definition is terminating"))
		}
	}
	return k, nil
}

func newDefinition(packed *Packed, converter Converter) (*definition, error) {
	crd := packed.crd
	d := &definition{Packed: packed, converter: converter, names: &crd.Status.AcceptedNames, versions: make(map[string]*version, len(crd.Spec.Versions))}
	if d.names.Plural == "" || d.names.Singular == "" || d.names.Kind == "" || d.names.ListKind == "" {
		return nil, fmt.Errorf("names of custom resource definition %s are not accepted: status.acceptedNames is incomplete", crd.Name)
	}
	for i := range crd.Spec.Versions {
		spec := &crd.Spec.Versions[i]
		v := &version{definition: d, spec: spec, gvk: schema.GroupVersionKind{Group: crd.Spec.Group, Version: spec.Name, Kind: d.names.Kind}}
		structural, validators := newLazy(v.compileStructural), newLazy(v.compileValidators)
		v.structural, v.validators = structural.get, validators.get
		v.dropUnused = func() {
			structural.dropUnused()
			validators.dropUnused()
		}
		v.columns = sync.OnceValue(func() *columns { return compileColumns(spec.AdditionalPrinterColumns) })
		v.selectors = sync.OnceValue(v.compileSelectors)
		d.versions[spec.Name] = v
		if spec.Storage {
			d.storage = v
		}
	}
	if d.storage == nil {
		return nil, fmt.Errorf("custom resource definition %s has no storage version", crd.Name)
	}
	if converter == nil && crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter {
		return nil, fmt.Errorf("custom resource definition %s has conversion strategy %s, but no converter", crd.Name, crd.Spec.Conversion.Strategy)
	}
	return d, nil
}

// sortedVersions are the versions in the order of preference.
func (d *definition) sortedVersions() []*version {
	sorted := make([]*version, 0, len(d.versions))
	for i := range d.crd.Spec.Versions {
		sorted = append(sorted, d.versions[d.crd.Spec.Versions[i].Name])
	}
	slices.SortStableFunc(sorted, func(a, b *version) int { return apiversion.CompareKubeAwareVersionStrings(b.spec.Name, a.spec.Name) })
	return sorted
}

// IsTerminating reports whether a definition is being deleted: no objects can be created.
func IsTerminating(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.DeletionTimestamp != nil || apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)
}

// kindVersion is what the server needs to serve the version.
func (v *version) kindVersion() kind.Version {
	served := kind.Version{
		GVK: v.gvk, NotServed: !v.spec.Served, New: v.newObject, NewList: v.newList,
		Default: v.setDefaults, Fields: v.fieldLabels(), Columns: columnHeaders(v.spec.AdditionalPrinterColumns), Row: v.row,
		Subresources: []kind.Subresource{},
	}
	if v.spec.Deprecated {
		served.Deprecation = v.deprecation()
	}
	if sub := v.spec.Subresources; sub != nil {
		if sub.Status != nil {
			served.Subresources = append(served.Subresources, v.statusSubresource())
		}
		if sub.Scale != nil {
			served.Subresources = append(served.Subresources, scaleSubresource(sub.Scale))
		}
	}
	return served
}

func (v *version) newObject() kind.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v.gvk)
	return u
}

func (v *version) newList() runtime.Object {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v.gvk.GroupVersion().WithKind(v.names.ListKind))
	return list
}

// deprecation is the warning in the responses of a deprecated version. The default text names the newest other version, if there is a
// newer one.
func (v *version) deprecation() string {
	if v.spec.DeprecationWarning != nil {
		return *v.spec.DeprecationWarning
	}
	text := fmt.Sprintf("%s %s is deprecated", v.gvk.GroupVersion(), v.crd.Spec.Names.Kind)
	for _, other := range v.sortedVersions() {
		if other.spec.Served && !other.spec.Deprecated && apiversion.CompareKubeAwareVersionStrings(v.spec.Name, other.spec.Name) < 0 {
			return text + fmt.Sprintf("; use %s %s", other.gvk.GroupVersion(), v.crd.Spec.Names.Kind)
		}
	}
	return text
}

// versionOf returns the version that an object is in; nil for an unknown one.
func (d *definition) versionOf(obj kind.Object) *version {
	group, name, ok := strings.Cut(apiVersionOf(obj), "/")
	if !ok || group != d.crd.Spec.Group {
		return nil
	}
	return d.versions[name]
}

func apiVersionOf(obj kind.Object) string {
	apiVersion, _ := content(obj)["apiVersion"].(string)
	return apiVersion
}

// content is the map of an object. The server gives the functions of a Kind only objects made by its New.
func content(obj kind.Object) map[string]any {
	return obj.(*unstructured.Unstructured).Object
}
