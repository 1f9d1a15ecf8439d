package resource

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// ResourceClaimTemplate is the template of claims that are created for each pod.
var ResourceClaimTemplate = kind.Of(kind.Definition[*resourcev1.ResourceClaimTemplate]{
	GVK: resourcev1.SchemeGroupVersion.WithKind("ResourceClaimTemplate"), Plural: "resourceclaimtemplates", Namespaced: true,
	List:    &resourcev1.ResourceClaimTemplateList{},
	Default: func(template *resourcev1.ResourceClaimTemplate) { defaultClaimSpec(&template.Spec.Spec) },
	Prepare: func(_ *kind.Request, template, old *resourcev1.ResourceClaimTemplate) {
		if old == nil {
			dropDisabledClaimFields(&template.Spec.Spec, nil)
		} else {
			dropDisabledClaimFields(&template.Spec.Spec, &old.Spec.Spec)
		}
	},
	Validate: func(_ *kind.Request, template, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
		path := field.NewPath("spec")
		errs := validateTemplateMetadata(&template.Spec.ObjectMeta, path.Child("metadata"))
		errs = append(errs, validateClaimSpec(&template.Spec.Spec, path.Child("spec"))...)
		if old != nil {
			errs = append(errs, validation.ValidateImmutableField(template.Spec, old.Spec, path)...)
		}
		return errs
	},
	BeforeCreate: func(ctx context.Context, client kind.Client, _ *kind.Request, template *resourcev1.ResourceClaimTemplate) (func(), error) {
		gk := schema.GroupKind{Group: resourcev1.GroupName, Kind: "ResourceClaimTemplate"}
		return nil, adminAllowed(ctx, client, gk, &template.ObjectMeta, adminRequested(template.Spec.Spec.Devices.Requests))
	},
	Columns: []metav1.TableColumnDefinition{kind.NameColumn(), kind.AgeColumn()},
	Row: func(template *resourcev1.ResourceClaimTemplate, now time.Time) []any {
		return []any{template.Name, kind.Age(template.CreationTimestamp, now)}
	},
})

// validateTemplateMetadata: a template has labels and annotations, and no other metadata.
func validateTemplateMetadata(meta *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	errs := validation.ValidateAnnotations(meta.Annotations, path.Child("annotations"))
	errs = append(errs, metavalidation.ValidateLabels(meta.Labels, path.Child("labels"))...)
	for _, other := range []struct {
		name string
		set  bool
	}{
		{"name", meta.Name != ""},
		{"generateName", meta.GenerateName != ""},
		{"namespace", meta.Namespace != ""},
		{"selfLink", meta.SelfLink != ""},
		{"uID", meta.UID != ""},
		{"resourceVersion", meta.ResourceVersion != ""},
		{"generation", meta.Generation != 0},
		{"creationTimestamp", !equality.Semantic.DeepEqual(meta.CreationTimestamp, metav1.Time{})},
		{"deletionTimestamp", meta.DeletionTimestamp != nil},
		{"deletionGracePeriodSeconds", meta.DeletionGracePeriodSeconds != nil},
		{"ownerReferences", meta.OwnerReferences != nil},
		{"finalizers", meta.Finalizers != nil},
		{"managedFields", meta.ManagedFields != nil},
	} {
		if other.set {
			errs = append(errs, field.Forbidden(path.Child(other.name), "cannot be set"))
		}
	}
	return errs
}
