// Package apiextensions has the kind of apiextensions.k8s.io: CustomResourceDefinition, which defines further kinds. It validates
// definitions; package customresource makes a kind of a valid one.
//
// The validation works on the form of a definition that has what all versions have in common at the top level
// (apiextensions.CustomResourceDefinitionSpec), because the paths of upstream's errors are those of that form: a definition with one
// version has its schema at spec.validation.openAPIV3Schema.
package apiextensions

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

type definition = apiextensionsv1.CustomResourceDefinition

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind { return []*kind.Kind{CustomResourceDefinition} }

// CustomResourceDefinition defines a kind that the API server serves like the built-in ones.
var CustomResourceDefinition = kind.Of(kind.Definition[*definition]{
	GVK: apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), Plural: "customresourcedefinitions",
	Short: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
	Prefix:                  "apiextensions.k8s.io/customresourcedefinitions",
	StoredOnly:              []kind.Version{storedByUpstream},
	List:                    &apiextensionsv1.CustomResourceDefinitionList{},
	EncodeJSON:              encodeJSON,
	DecodeJSON:              decodeJSON,
	Default:                 apiextensionsv1.SetObjectDefaults_CustomResourceDefinition,
	Prepare:                 func(_ *kind.Request, crd, _ *definition) { addStorageVersion(crd) },
	Validate:                validateDefinition,
	Warn:                    warnings,
	CopyStatus:              func(to, from *definition) { to.Status = from.Status },
	ShareSpec:               func(to, from *definition) { to.Spec = from.Spec },
	ValidateStatus:          validateDefinitionStatus,
	SpecChanged:             func(crd, old *definition) bool { return !equality.Semantic.DeepEqual(crd.Spec, old.Spec) },
	DenyUnconditionalUpdate: true,
	// The first request to delete a definition only marks it: its objects are deleted first.
	HasSpecFinalizers: func(*definition) bool { return false },
	MarkTerminating:   markTerminating,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Scope", "string", "Cluster/Namespaced"),
		kind.Column("Versions", "string", "Served versions"),
		kind.Column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]),
		kind.Wide("Group", "string", "API group"),
		kind.Wide("Kind", "string", "CustomResource kind"),
		kind.Wide("ShortNames", "string", "Short names"),
		kind.Wide("Established", "boolean", "Established status"),
	},
	Row: func(crd *definition, _ time.Time) []any {
		return []any{
			crd.Name, string(crd.Spec.Scope), servedVersions(crd), crd.CreationTimestamp.UTC().Format(time.RFC3339),
			crd.Spec.Group, crd.Spec.Names.Kind, strings.Join(crd.Spec.Names.ShortNames, ","),
			apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established),
		}
	},
})

// storedByUpstream is the version in which upstream stores definitions. It has what all versions of a definition have in common at the top
// level.
var storedByUpstream = kind.Version{
	GVK: apiextensionsv1beta1.SchemeGroupVersion.WithKind("CustomResourceDefinition"),
	New: func() kind.Object { return &apiextensionsv1beta1.CustomResourceDefinition{} },
	ToStorageVersion: func(obj kind.Object) (kind.Object, error) {
		stored := obj.(*apiextensionsv1beta1.CustomResourceDefinition).DeepCopy()
		apiextensionsv1beta1.SetObjectDefaults_CustomResourceDefinition(stored)
		common := &apiextensions.CustomResourceDefinition{}
		if err := apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(stored, common, nil); err != nil {
			return nil, err
		}
		crd := &definition{}
		return crd, apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(common, crd, nil)
	},
}

// servedVersions lists the served versions and marks the storage version.
func servedVersions(crd *definition) string {
	var names []string
	for _, version := range crd.Spec.Versions {
		switch {
		case version.Served && version.Storage:
			names = append(names, version.Name+"(storage)")
		case version.Served:
			names = append(names, version.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// addStorageVersion records that objects may be stored in the storage version. The status is otherwise that of the stored definition.
func addStorageVersion(crd *definition) {
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if i >= 0 && !slices.Contains(crd.Status.StoredVersions, crd.Spec.Versions[i].Name) {
		crd.Status.StoredVersions = append(slices.Clone(crd.Status.StoredVersions), crd.Spec.Versions[i].Name)
	}
}

// markTerminating adds the finalizer that the controller removes when no objects are left. A later request to delete the definition finds
// the condition and changes nothing.
func markTerminating(crd *definition) {
	if apihelpers.FindCRDCondition(crd, apiextensionsv1.Terminating) != nil {
		return
	}
	if !apihelpers.CRDHasFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(slices.Clone(crd.Finalizers), apiextensionsv1.CustomResourceCleanupFinalizer)
	}
	crd.Status.Conditions = append(slices.Clone(crd.Status.Conditions), apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: *crd.DeletionTimestamp,
		Reason: "InstanceDeletionPending", Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
}
