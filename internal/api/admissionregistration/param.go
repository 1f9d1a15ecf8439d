package admissionregistration

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A policy may take parameters from objects of one kind; a binding selects the objects.

func paramKindCell(param *admissionregistrationv1.ParamKind) string {
	if param == nil {
		return "<unset>"
	}
	return param.APIVersion + "/" + param.Kind
}

func validateParamKind(param *admissionregistrationv1.ParamKind, path *field.Path) field.ErrorList {
	if param == nil {
		return nil
	}
	var errs field.ErrorList
	fldPath := path.Child("apiVersion")
	if param.APIVersion == "" {
		errs = append(errs, field.Required(fldPath, ""))
	} else if strings.Count(param.APIVersion, "/") > 1 {
		errs = append(errs, field.Invalid(fldPath, param.APIVersion, fmt.Sprintf("unexpected GroupVersion string: %v", param.APIVersion)))
	} else {
		group, version, divided := strings.Cut(param.APIVersion, "/")
		if !divided {
			group, version = "", param.APIVersion
		}
		if messages := utilvalidation.IsDNS1123Subdomain(group); group != "" && len(messages) > 0 {
			errs = append(errs, field.Invalid(fldPath, group, strings.Join(messages, ",")))
		}
		if version == "" {
			errs = append(errs, field.Invalid(fldPath, param.APIVersion, "version must be specified"))
		} else if messages := utilvalidation.IsDNS1035Label(version); len(messages) > 0 {
			errs = append(errs, field.Invalid(fldPath, version, strings.Join(messages, ",")))
		}
	}
	if param.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), ""))
	} else if messages := utilvalidation.IsDNS1035Label(strings.ToLower(param.Kind)); len(messages) > 0 {
		errs = append(errs, field.Invalid(path.Child("kind"), param.Kind, "may have mixed case, but should otherwise match: "+strings.Join(messages, ",")))
	}
	return errs
}

func paramRefCell(ref *admissionregistrationv1.ParamRef) string {
	switch {
	case ref == nil, ref.Name == "" && ref.Selector == nil:
		return "<unset>"
	case ref.Name == "":
		return ref.Selector.String()
	case ref.Namespace == "":
		return "*/" + ref.Name
	}
	return ref.Namespace + "/" + ref.Name
}

func validateParamRef(ref *admissionregistrationv1.ParamRef, path *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	var errs field.ErrorList
	if ref.Name != "" {
		for _, message := range content.IsPathSegmentName(ref.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), ref.Name, message))
		}
	}
	if ref.Selector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(ref.Selector, metavalidation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	}
	switch {
	case ref.Name != "" && ref.Selector != nil:
		errs = append(errs, field.Forbidden(path.Child("name"), "name and selector are mutually exclusive"),
			field.Forbidden(path.Child("selector"), "name and selector are mutually exclusive"))
	case ref.Name == "" && ref.Selector == nil:
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	}
	action, fldPath := ref.ParameterNotFoundAction, path.Child("parameterNotFoundAction")
	if action != nil && *action == "" {
		action = nil
	}
	return append(errs, validateOneOf(action, []admissionregistrationv1.ParameterNotFoundActionType{admissionregistrationv1.DenyAction, admissionregistrationv1.AllowAction}, true, fldPath)...)
}

func validatePolicyName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, message := range validation.NameIsDNSSubdomain(name, false) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}
