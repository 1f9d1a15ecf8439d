package authorization

import (
	"context"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// What the three access reviews have in common.

// invalid is the error for an invalid review. A review has no name, and upstream's error has no kind either.
func invalid(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return kind.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName}, "", errs)
}

func validateAttributes(resource *authorizationv1.ResourceAttributes, nonResource *authorizationv1.NonResourceAttributes) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	if (resource == nil) == (nonResource == nil) {
		errs = append(errs, field.Invalid(path, nonResource, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if resource == nil {
		return errs
	}
	path = path.Child("resourceAttributes")
	if selector, path := resource.FieldSelector, path.Child("fieldSelector"); selector != nil {
		errs = append(errs, validateOneForm(selector.RawSelector, len(selector.Requirements), path)...)
		options := metavalidation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, requirement := range selector.Requirements {
			errs = append(errs, metavalidation.ValidateFieldSelectorRequirement(requirement, options, path.Child("requirements").Index(i))...)
		}
	}
	if selector, path := resource.LabelSelector, path.Child("labelSelector"); selector != nil {
		errs = append(errs, validateOneForm(selector.RawSelector, len(selector.Requirements), path)...)
		options := metavalidation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, requirement := range selector.Requirements {
			errs = append(errs, metavalidation.ValidateLabelSelectorRequirement(requirement, options, path.Child("requirements").Index(i))...)
		}
	}
	return errs
}

// validateOneForm: a selector is either a raw string or a list of requirements.
func validateOneForm(raw string, requirements int, path *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(path.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(path.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", path))}
	}
	return nil
}

func validateSubject(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAttributes(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified"))
	}
	return errs
}

func validateMetadataEmpty(meta metav1.ObjectMeta, rule string) field.ErrorList {
	meta.ManagedFields = nil
	if equality.Semantic.DeepEqual(meta, metav1.ObjectMeta{}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), meta, rule)}
}

func subjectOf(spec *authorizationv1.SubjectAccessReviewSpec) authenticationv1.UserInfo {
	user := authenticationv1.UserInfo{Username: spec.User, UID: spec.UID, Groups: spec.Groups}
	if spec.Extra != nil {
		user.Extra = make(map[string]authenticationv1.ExtraValue, len(spec.Extra))
		for key, values := range spec.Extra {
			user.Extra[key] = authenticationv1.ExtraValue(values)
		}
	}
	return user
}

// decide calls the authorizer and reports which parts of the request were ignored.
func decide(ctx context.Context, a Authorizer, user authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, nonResource *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	var problems []string
	if resource != nil {
		resource = resource.DeepCopy()
		if resource.Version == "" {
			resource.Version = "*"
		}
		problems = selectorProblems(resource)
	}
	allowed, denied, reason, err := a.Authorize(ctx, user, resource, nonResource)
	if err != nil {
		problems = append([]string{err.Error()}, problems...)
	}
	return authorizationv1.SubjectAccessReviewStatus{Allowed: allowed, Denied: denied, Reason: reason, EvaluationError: strings.Join(problems, "; ")}
}

// selectorProblems: selectors come from clients of every version, so those that cannot be parsed are ignored. The review
// then covers more than the client requested, never less.
func selectorProblems(resource *authorizationv1.ResourceAttributes) []string {
	var problems []string
	describe := func(selector string, good int, bad bool) {
		switch {
		case bad && good > 0:
			problems = append(problems, "spec.resourceAttributes."+selector+" partially ignored due to parse error")
		case bad:
			problems = append(problems, "spec.resourceAttributes."+selector+" ignored due to parse error")
		}
	}
	if selector := resource.FieldSelector; selector != nil {
		good, bad := 0, false
		if selector.RawSelector != "" {
			_, err := fields.ParseSelector(selector.RawSelector)
			bad = err != nil
		}
		for _, requirement := range selector.Requirements {
			if len(requirement.Values) == 1 && (requirement.Operator == metav1.FieldSelectorOpIn || requirement.Operator == metav1.FieldSelectorOpNotIn) {
				good++
			} else {
				bad = true
			}
		}
		describe("fieldSelector", good, bad)
	}
	if selector := resource.LabelSelector; selector != nil {
		good, bad := 0, false
		if selector.RawSelector != "" {
			_, err := labels.Parse(selector.RawSelector)
			bad = err != nil
		}
		for _, requirement := range selector.Requirements {
			if readable(requirement) {
				good++
			} else {
				bad = true
			}
		}
		describe("labelSelector", good, bad)
	}
	return problems
}

func readable(requirement metav1.LabelSelectorRequirement) bool {
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	operator, ok := operators[requirement.Operator]
	if !ok {
		return false
	}
	_, err := labels.NewRequirement(requirement.Key, operator, requirement.Values)
	return err == nil
}
