package apiregistration

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// The bounds of priorities.
const (
	maxGroupPriority   = 20000
	maxVersionPriority = 1000
)

var conditionStatuses = []string{string(apiregistrationv1.ConditionTrue), string(apiregistrationv1.ConditionFalse), string(apiregistrationv1.ConditionUnknown)}

func validateAPIService(_ *kind.Request, obj, _ *apiService) (errs field.ErrorList) {
	spec, fldPath := &obj.Spec, field.NewPath("spec")
	if required := spec.Version + "." + spec.Group; obj.Name != required {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), obj.Name, fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", required)))
	}
	if spec.Group == "" && spec.Version != "v1" {
		errs = append(errs, field.Required(fldPath.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
	}
	if spec.Group != "" {
		for _, msg := range validation.IsDNS1123Subdomain(spec.Group) {
			errs = append(errs, field.Invalid(fldPath.Child("group"), spec.Group, msg))
		}
	}
	for _, msg := range validation.IsDNS1035Label(spec.Version) {
		errs = append(errs, field.Invalid(fldPath.Child("version"), spec.Version, msg))
	}
	if p := spec.GroupPriorityMinimum; p <= 0 || p > maxGroupPriority {
		errs = append(errs, field.Invalid(fldPath.Child("groupPriorityMinimum"), p, "must be positive and less than 20000"))
	}
	if p := spec.VersionPriority; p <= 0 || p > maxVersionPriority {
		errs = append(errs, field.Invalid(fldPath.Child("versionPriority"), p, "must be positive and less than 1000"))
	}
	return append(errs, validateServer(spec, fldPath)...)
}

// validateServer validates how the server of a group version is reached.
func validateServer(spec *apiregistrationv1.APIServiceSpec, fldPath *field.Path) (errs field.ErrorList) {
	if spec.Service == nil {
		if len(spec.CABundle) > 0 {
			errs = append(errs, field.Invalid(fldPath.Child("caBundle"), fmt.Sprintf("%d bytes", len(spec.CABundle)), "local APIServices may not have a caBundle"))
		}
		if spec.InsecureSkipTLSVerify {
			errs = append(errs, field.Invalid(fldPath.Child("insecureSkipTLSVerify"), true, "local APIServices may not have insecureSkipTLSVerify"))
		}
		return errs
	}
	service := fldPath.Child("service")
	if spec.Service.Namespace == "" {
		errs = append(errs, field.Required(service.Child("namespace"), ""))
	}
	if spec.Service.Name == "" {
		errs = append(errs, field.Required(service.Child("name"), ""))
	}
	port := ptr.Deref(spec.Service.Port, 0)
	if msgs := validation.IsValidPortNum(int(port)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(service.Child("port"), port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	if spec.InsecureSkipTLSVerify && len(spec.CABundle) > 0 {
		errs = append(errs, field.Invalid(fldPath.Child("insecureSkipTLSVerify"), true, "may not be true if caBundle is present"))
	}
	return errs
}

func validateStatus(_ *kind.Request, obj, _ *apiService) (errs field.ErrorList) {
	conditions := field.NewPath("status", "conditions")
	for i, c := range obj.Status.Conditions {
		switch c.Status {
		case apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown:
		default:
			errs = append(errs, field.NotSupported(conditions.Index(i).Child("status"), c.Status, conditionStatuses))
		}
	}
	return errs
}
