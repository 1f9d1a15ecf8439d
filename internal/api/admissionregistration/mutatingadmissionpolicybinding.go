package admissionregistration

import (
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

type mutatingBinding = admissionregistrationv1.MutatingAdmissionPolicyBinding

// MutatingAdmissionPolicyBinding selects where a mutating policy applies and its parameters.
var MutatingAdmissionPolicyBinding = kind.Of(kind.Definition[*mutatingBinding]{
	GVK: admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingAdmissionPolicyBinding"), Plural: "mutatingadmissionpolicybindings", Categories: categories,
	List:    &admissionregistrationv1.MutatingAdmissionPolicyBindingList{},
	Default: func(binding *mutatingBinding) { defaultMatchResources(binding.Spec.MatchResources) },
	Validate: func(_ *kind.Request, binding, old *mutatingBinding) field.ErrorList {
		path, spec := field.NewPath("spec"), &binding.Spec
		errs := validatePolicyName(spec.PolicyName, path.Child("policyName"))
		errs = append(errs, validateParamRef(spec.ParamRef, path.Child("paramRef"))...)
		errs = append(errs, validateMatchResources(spec.MatchResources, path.Child("matchResources"))...)
		errs = append(errs, validateMutable(spec.MatchResources, path.Child("matchResources"))...)
		if old == nil {
			errs = append(errs, validateNameOnCreate(binding.Name)...)
		}
		return errs
	},
	Warn: func(binding, old *mutatingBinding) []string {
		return warnNameOnUpdate(binding.Name, old != nil)
	},
	SpecChanged: func(binding, old *mutatingBinding) bool {
		return !equality.Semantic.DeepEqual(binding.Spec, old.Spec)
	},
	DenyUnconditionalUpdate: true,
	Columns:                 bindingColumns(),
	Row: func(binding *mutatingBinding, now time.Time) []any {
		return []any{binding.Name, binding.Spec.PolicyName, paramRefCell(binding.Spec.ParamRef), kind.Age(binding.CreationTimestamp, now)}
	},
})
