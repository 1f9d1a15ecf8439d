package admissionregistration

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/client-go/util/jsonpath"

	"skiff/internal/kind"
)

type validatingPolicy = admissionregistrationv1.ValidatingAdmissionPolicy

// ValidatingAdmissionPolicy validates objects with CEL expressions.
var ValidatingAdmissionPolicy = kind.Of(kind.Definition[*validatingPolicy]{
	GVK: admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"), Plural: "validatingadmissionpolicies", Categories: categories,
	List: &admissionregistrationv1.ValidatingAdmissionPolicyList{},
	Default: func(policy *validatingPolicy) {
		kind.SetDefault(&policy.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatchResources(policy.Spec.MatchConstraints)
	},
	Validate: validateValidatingPolicy,
	Warn: func(policy, old *validatingPolicy) []string {
		return warnNameOnUpdate(policy.Name, old != nil)
	},
	CopyStatus: func(to, from *validatingPolicy) { to.Status = from.Status },
	ValidateStatus: func(_ *kind.Request, policy, _ *validatingPolicy) field.ErrorList {
		return validatePolicyStatus(&policy.Status, field.NewPath("status"))
	},
	StatusOnly: true,
	SpecChanged: func(policy, old *validatingPolicy) bool {
		return !equality.Semantic.DeepEqual(policy.Spec, old.Spec)
	},
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Validations", "integer", "Validations indicates the number of validation rules defined in this configuration"),
		kind.Column("ParamKind", "string", "ParamKind specifies the kind of resources used to parameterize this policy"),
		kind.AgeColumn(),
	},
	Row: func(policy *validatingPolicy, now time.Time) []any {
		return []any{policy.Name, int64(len(policy.Spec.Validations)), paramKindCell(policy.Spec.ParamKind), kind.Age(policy.CreationTimestamp, now)}
	},
})

func validateValidatingPolicy(_ *kind.Request, policy, old *validatingPolicy) field.ErrorList {
	path, spec := field.NewPath("spec"), &policy.Spec
	errs := validateOneOf(spec.FailurePolicy, failurePolicies, true, path.Child("failurePolicy"))
	errs = append(errs, validateParamKind(spec.ParamKind, path.Child("paramKind"))...)
	errs = append(errs, validateConstraints(spec.MatchConstraints, path.Child("matchConstraints"))...)
	stored := validatingExpressions(old)
	if old == nil || !sameConditions(spec.ParamKind, old.Spec.ParamKind, spec.MatchConditions, old.Spec.MatchConditions) {
		errs = append(errs, validateMatchConditions(spec.MatchConditions, stored, spec.ParamKind != nil, path.Child("matchConditions"))...)
	}
	errs = append(errs, validateValidations(policy, stored, path)...)
	if old == nil {
		errs = append(errs, validateNameOnCreate(policy.Name)...)
	}
	return errs
}

func validatingExpressions(policy *validatingPolicy) sets.Set[string] {
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
	for _, validation := range policy.Spec.Validations {
		texts.Insert(validation.Expression, validation.MessageExpression)
	}
	for _, annotation := range policy.Spec.AuditAnnotations {
		texts.Insert(annotation.ValueExpression)
	}
	return texts
}

const maxAuditAnnotations = 20

func validateValidations(policy *validatingPolicy, stored sets.Set[string], path *field.Path) field.ErrorList {
	spec := &policy.Spec
	var errs field.ErrorList
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		const rule = "validations or auditAnnotations must contain at least one item"
		errs = append(errs, field.Required(path.Child("validations"), rule), field.Required(path.Child("auditAnnotations"), rule))
	}
	c := &checker{stored: stored, params: spec.ParamKind != nil}
	if len(spec.Variables) > 0 {
		compiler, err := composed()
		if err != nil {
			return append(errs, field.InternalError(path, err))
		}
		c.compiler = compiler
		errs = append(errs, c.validateVariables(spec.Variables, path.Child("variables"))...)
	} else {
		c.compiler = stateless()
	}
	for i := range spec.Validations {
		errs = append(errs, c.validateValidation(&spec.Validations[i], path.Child("validations").Index(i))...)
	}
	annotations := path.Child("auditAnnotations")
	if len(spec.AuditAnnotations) > maxAuditAnnotations {
		errs = append(errs, field.Invalid(annotations, spec.AuditAnnotations, fmt.Sprintf("must not have more than %d auditAnnotations", maxAuditAnnotations)))
	}
	keys := sets.New[string]()
	for i := range spec.AuditAnnotations {
		annotation := &spec.AuditAnnotations[i]
		errs = append(errs, c.validateAuditAnnotation(policy.Name, annotation, annotations.Index(i))...)
		if keys.Has(annotation.Key) {
			errs = append(errs, field.Duplicate(annotations.Index(i).Child("key"), annotation.Key))
		}
		keys.Insert(annotation.Key)
	}
	return errs
}

var reasons = []metav1.StatusReason{metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge}

func (c *checker) validateValidation(validation *admissionregistrationv1.Validation, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(validation.Expression) == "" {
		errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs, c.check(boolean(validation.Expression), plugincel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true}, path.Child("expression"))...)
	}
	if text := validation.MessageExpression; text != "" {
		fldPath := path.Child("messageExpression")
		if strings.TrimSpace(text) == "" {
			errs = append(errs, field.Invalid(fldPath, text, "must be non-empty if specified"))
		} else {
			e := &expression{text: text, returns: []*cel.Type{cel.StringType}}
			errs = append(errs, c.check(e, plugincel.OptionalVariableDeclarations{HasParams: c.params}, fldPath)...)
		}
	}
	if message := validation.Message; message != "" {
		trimmed := strings.TrimSpace(message)
		if trimmed == "" {
			errs = append(errs, field.Invalid(path.Child("message"), message, "must be non-empty if specified"))
		} else if strings.ContainsAny(trimmed, "\n\r") {
			errs = append(errs, field.Invalid(path.Child("message"), message, "must not contain line breaks"))
		}
	}
	return append(errs, validateOneOf(validation.Reason, reasons, false, path.Child("reason"))...)
}

const maxValueExpression = 5 * 1024

// validateAuditAnnotation: the annotation's key will be policy/key, so both together must be a qualified name.
func (c *checker) validateAuditAnnotation(policy string, annotation *admissionregistrationv1.AuditAnnotation, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Invalid(path.Child("key"), annotation.Key, "requires metadata.name be non-empty"))
	} else {
		key := policy + "/" + annotation.Key
		for _, message := range utilvalidation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(path.Child("key"), key, message))
		}
	}
	text, fldPath := strings.TrimSpace(annotation.ValueExpression), path.Child("valueExpression")
	switch {
	case text == "":
		errs = append(errs, field.Required(fldPath, "valueExpression is not specified"))
	case len(text) > maxValueExpression:
		errs = append(errs, field.Required(fldPath, fmt.Sprintf("must not exceed %d bytes in length", maxValueExpression)))
	default:
		e := &expression{text: text, returns: []*cel.Type{cel.StringType, cel.NullType}}
		errs = append(errs, c.check(e, plugincel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true}, fldPath)...)
	}
	return errs
}

func validatePolicyStatus(status *admissionregistrationv1.ValidatingAdmissionPolicyStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if status.TypeChecking != nil {
		for i, warning := range status.TypeChecking.ExpressionWarnings {
			idxPath := path.Child("typeChecking", "expressionWarnings").Index(i)
			if warning.Warning == "" {
				errs = append(errs, field.Required(idxPath.Child("warning"), ""))
			}
			if ref := strings.TrimSpace(warning.FieldRef); ref == "" {
				errs = append(errs, field.Required(idxPath.Child("fieldRef"), ""))
			} else if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
				errs = append(errs, field.Invalid(idxPath.Child("fieldRef"), ref, fmt.Sprintf("invalid JSONPath: %v", err)))
			}
		}
	}
	return append(errs, metavalidation.ValidateConditions(status.Conditions, path.Child("conditions"))...)
}
