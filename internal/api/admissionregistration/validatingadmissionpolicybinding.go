package admissionregistration

import (
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

type validatingBinding = admissionregistrationv1.ValidatingAdmissionPolicyBinding

// ValidatingAdmissionPolicyBinding selects where a policy applies, its parameters and its validation actions.
var ValidatingAdmissionPolicyBinding = kind.Of(kind.Definition[*validatingBinding]{
	GVK: admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"), Plural: "validatingadmissionpolicybindings", Categories: categories,
	List:    &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
	Default: func(binding *validatingBinding) { defaultMatchResources(binding.Spec.MatchResources) },
	Validate: func(_ *kind.Request, binding, old *validatingBinding) field.ErrorList {
		path, spec := field.NewPath("spec"), &binding.Spec
		errs := validatePolicyName(spec.PolicyName, path.Child("policyName"))
		errs = append(errs, validateParamRef(spec.ParamRef, path.Child("paramRef"))...)
		errs = append(errs, validateMatchResources(spec.MatchResources, path.Child("matchResources"))...)
		errs = append(errs, validateActions(spec.ValidationActions, path.Child("validationActions"))...)
		if old == nil {
			errs = append(errs, validateNameOnCreate(binding.Name)...)
		}
		return errs
	},
	Warn: func(binding, old *validatingBinding) []string {
		return warnNameOnUpdate(binding.Name, old != nil)
	},
	SpecChanged: func(binding, old *validatingBinding) bool {
		return !equality.Semantic.DeepEqual(binding.Spec, old.Spec)
	},
	DenyUnconditionalUpdate: true,
	Columns:                 bindingColumns(),
	Row: func(binding *validatingBinding, now time.Time) []any {
		return []any{binding.Name, binding.Spec.PolicyName, paramRefCell(binding.Spec.ParamRef), kind.Age(binding.CreationTimestamp, now)}
	},
})

func bindingColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("PolicyName", "string", "PolicyName indicates the policy definition which the policy binding binded to"),
		kind.Column("ParamRef", "string", "ParamRef indicates the param resource which sets the configuration param"),
		kind.AgeColumn(),
	}
}

func validateActions(actions []admissionregistrationv1.ValidationAction, path *field.Path) field.ErrorList {
	if len(actions) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	allowed := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit, admissionregistrationv1.Deny, admissionregistrationv1.Warn}
	seen := sets.New[admissionregistrationv1.ValidationAction]()
	for i := range actions {
		errs = append(errs, validateOneOf(&actions[i], allowed, true, path.Index(i))...)
		if seen.Has(actions[i]) {
			errs = append(errs, field.Duplicate(path.Index(i), actions[i]))
		}
		seen.Insert(actions[i])
	}
	if slices.Contains(actions, admissionregistrationv1.Deny) && slices.Contains(actions, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(path, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	return errs
}
