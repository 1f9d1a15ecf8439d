package networking

import (
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

var IngressClass = kind.Of(kind.Definition[*networkingv1.IngressClass]{
	GVK: networkingv1.SchemeGroupVersion.WithKind("IngressClass"), Plural: "ingressclasses",
	List: &networkingv1.IngressClassList{},

	Default: func(obj *networkingv1.IngressClass) {
		if parameters := obj.Spec.Parameters; parameters != nil && parameters.Scope == nil {
			scope := networkingv1.IngressClassParametersReferenceScopeCluster
			parameters.Scope = &scope
		}
	},
	Validate: validateIngressClass,
	SpecChanged: func(obj, old *networkingv1.IngressClass) bool {
		return !equality.Semantic.DeepEqual(obj.Spec, old.Spec)
	},

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Controller", "string", "Controller that is responsible for handling this class"),
		kind.Column("Parameters", "string", "A reference to a resource with additional parameters"),
		kind.AgeColumn(),
	},
	Row: func(obj *networkingv1.IngressClass, now time.Time) []any {
		name := obj.Name
		if obj.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
			name += " (default)"
		}
		parameters := "<none>"
		if ref := obj.Spec.Parameters; ref != nil {
			parameters = ref.Kind
			if ref.APIGroup != nil {
				parameters += "." + *ref.APIGroup
			}
			parameters += "/" + ref.Name
		}
		return []any{name, obj.Spec.Controller, parameters, kind.Age(obj.CreationTimestamp, now)}
	},
})

func validateIngressClass(_ *kind.Request, obj, old *networkingv1.IngressClass) (errs field.ErrorList) {
	path := field.NewPath("spec")
	controller := path.Child("controller")
	if old != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(obj.Spec.Controller, old.Spec.Controller, controller)...)
	}
	const longest = 250
	if len(obj.Spec.Controller) > longest {
		errs = append(errs, field.TooLong(controller, "", longest))
	}
	errs = append(errs, validation.IsDomainPrefixedPath(controller, obj.Spec.Controller)...)
	if obj.Spec.Parameters != nil {
		errs = append(errs, validateParameters(obj.Spec.Parameters, path.Child("parameters"))...)
	}
	return errs
}

func validateParameters(ref *networkingv1.IngressClassParametersReference, path *field.Path) (errs field.ErrorList) {
	if ref.APIGroup != nil {
		errs = append(errs, kind.Invalid(path.Child("apiGroup"), *ref.APIGroup, validation.IsDNS1123Subdomain(*ref.APIGroup))...)
	}
	errs = append(errs, required(path.Child("kind"), ref.Kind, content.IsPathSegmentName)...)
	errs = append(errs, required(path.Child("name"), ref.Name, content.IsPathSegmentName)...)
	if ref.Scope == nil {
		return append(errs, field.Required(path.Child("scope"), ""))
	}
	namespace := path.Child("namespace")
	switch *ref.Scope {
	case networkingv1.IngressClassParametersReferenceScopeCluster:
		if ref.Namespace != nil {
			errs = append(errs, field.Forbidden(namespace, "`parameters.scope` is set to 'Cluster'"))
		}
	case networkingv1.IngressClassParametersReferenceScopeNamespace:
		if ref.Namespace == nil {
			errs = append(errs, field.Required(namespace, "`parameters.scope` is set to 'Namespace'"))
		} else {
			errs = append(errs, kind.Invalid(namespace, *ref.Namespace, apivalidation.ValidateNamespaceName(*ref.Namespace, false))...)
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("scope"), *ref.Scope,
			[]string{networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace}))
	}
	return errs
}
