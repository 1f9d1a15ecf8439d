package admissionregistration

import (
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"skiff/internal/kind"
)

type mutatingPolicy = admissionregistrationv1.MutatingAdmissionPolicy

// MutatingAdmissionPolicy mutates objects with CEL expressions before they are stored.
var MutatingAdmissionPolicy = kind.Of(kind.Definition[*mutatingPolicy]{
	GVK: admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingAdmissionPolicy"), Plural: "mutatingadmissionpolicies", Categories: categories,
	List: &admissionregistrationv1.MutatingAdmissionPolicyList{},
	Default: func(policy *mutatingPolicy) {
		kind.SetDefault(&policy.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatchResources(policy.Spec.MatchConstraints)
	},
	Validate: validateMutatingPolicy,
	Warn: func(policy, old *mutatingPolicy) []string {
		return warnNameOnUpdate(policy.Name, old != nil)
	},
	SpecChanged: func(policy, old *mutatingPolicy) bool {
		return !equality.Semantic.DeepEqual(policy.Spec, old.Spec)
	},
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Mutations", "integer", "Mutation indicates the number of mutations rules defined in this configuration"),
		kind.Column("ParamKind", "string", "ParamKind specifies the kind of resources used to parameterize this policy"),
		kind.AgeColumn(),
	},
	Row: func(policy *mutatingPolicy, now time.Time) []any {
		return []any{policy.Name, int64(len(policy.Spec.Mutations)), paramKindCell(policy.Spec.ParamKind), kind.Age(policy.CreationTimestamp, now)}
	},
})

func validateMutatingPolicy(_ *kind.Request, policy, old *mutatingPolicy) field.ErrorList {
	path, spec := field.NewPath("spec"), &policy.Spec
	errs := validateOneOf(spec.FailurePolicy, failurePolicies, true, path.Child("failurePolicy"))
	errs = append(errs, validateParamKind(spec.ParamKind, path.Child("paramKind"))...)
	errs = append(errs, validateConstraints(spec.MatchConstraints, path.Child("matchConstraints"))...)
	errs = append(errs, validateMutable(spec.MatchConstraints, path.Child("matchConstraints"))...)
	stored := mutatingExpressions(old)
	if old == nil || !sameConditions(spec.ParamKind, old.Spec.ParamKind, spec.MatchConditions, old.Spec.MatchConditions) {
		errs = append(errs, validateMatchConditions(spec.MatchConditions, stored, spec.ParamKind != nil, path.Child("matchConditions"))...)
	}
	errs = append(errs, validateMutations(spec, stored, path)...)
	if spec.ReinvocationPolicy == "" {
		errs = append(errs, field.Required(path.Child("reinvocationPolicy"), ""))
	} else {
		errs = append(errs, validateOneOf(&spec.ReinvocationPolicy, reinvocationPolicies, true, path.Child("reinvocationPolicy"))...)
	}
	if old == nil {
		errs = append(errs, validateNameOnCreate(policy.Name)...)
	}
	return errs
}

func mutatingExpressions(policy *mutatingPolicy) sets.Set[string] {
	texts := sets.New[string]()
	if policy == nil {
		return texts
	}
	for _, condition := range policy.Spec.MatchConditions {
		texts.Insert(condition.Expression)
	}
	for _, variable := range policy.Spec.Variables {
		texts.Insert(variable.Expression)
	}
	for _, mutation := range policy.Spec.Mutations {
		if mutation.ApplyConfiguration != nil {
			texts.Insert(mutation.ApplyConfiguration.Expression)
		}
		if mutation.JSONPatch != nil {
			texts.Insert(mutation.JSONPatch.Expression)
		}
	}
	return texts
}

func validateMutations(spec *admissionregistrationv1.MutatingAdmissionPolicySpec, stored sets.Set[string], path *field.Path) field.ErrorList {
	compiler, err := composed()
	if err != nil {
		return field.ErrorList{field.InternalError(path, err)}
	}
	c := &checker{compiler: compiler, stored: stored, params: spec.ParamKind != nil}
	errs := c.validateVariables(spec.Variables, path.Child("variables"))
	if len(spec.Mutations) == 0 {
		return append(errs, field.Required(path.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		errs = append(errs, c.validateMutation(&spec.Mutations[i], path.Child("mutations").Index(i))...)
	}
	return errs
}

func (c *checker) validateMutation(mutation *admissionregistrationv1.Mutation, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	patch, apply := path.Child("jsonPatch"), path.Child("applyConfiguration")
	switch mutation.PatchType {
	case "":
		errs = append(errs, field.Required(path.Child("patchType"), ""))
	case admissionregistrationv1.PatchTypeJSONPatch:
		if mutation.JSONPatch == nil {
			errs = append(errs, field.Required(patch, "must be specified when patchType is JSONPatch"))
		} else {
			errs = append(errs, c.validateChange(mutation.JSONPatch.Expression, cel.ListType(cel.ObjectType("JSONPatch")), patch.Child("expression"))...)
		}
		if mutation.ApplyConfiguration != nil {
			errs = append(errs, field.Invalid(apply, "{applyConfiguration}", "must not be specified when patchType is JSONPatch"))
		}
	case admissionregistrationv1.PatchTypeApplyConfiguration:
		if mutation.ApplyConfiguration == nil {
			errs = append(errs, field.Required(apply, "must be specified when patchType is ApplyConfiguration"))
		} else {
			errs = append(errs, c.validateChange(mutation.ApplyConfiguration.Expression, cel.ObjectType("Object"), apply.Child("expression"))...)
		}
		if mutation.JSONPatch != nil {
			errs = append(errs, field.Invalid(patch, "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("patchType"), mutation.PatchType,
			[]admissionregistrationv1.PatchType{admissionregistrationv1.PatchTypeApplyConfiguration, admissionregistrationv1.PatchTypeJSONPatch}))
	}
	return errs
}

func (c *checker) validateChange(text string, returns *cel.Type, path *field.Path) field.ErrorList {
	if text = strings.TrimSpace(text); text == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	e := &expression{text: text, returns: []*cel.Type{returns}}
	return c.check(e, plugincel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true, HasPatchTypes: true}, path)
}
