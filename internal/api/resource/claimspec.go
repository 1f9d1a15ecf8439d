package resource

import (
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// The spec of a ResourceClaim: requests for devices, constraints between them, and configuration for the drivers.

func defaultClaimSpec(spec *resourcev1.ResourceClaimSpec) {
	for i := range spec.Devices.Requests {
		request := &spec.Devices.Requests[i]
		if exactly := request.Exactly; exactly != nil {
			defaultAllocationMode(&exactly.AllocationMode, &exactly.Count)
			defaultTolerations(exactly.Tolerations)
		}
		for j := range request.FirstAvailable {
			subRequest := &request.FirstAvailable[j]
			defaultAllocationMode(&subRequest.AllocationMode, &subRequest.Count)
			defaultTolerations(subRequest.Tolerations)
		}
	}
}

// defaultAllocationMode sets the defaults of allocationMode and count: exactly one device.
func defaultAllocationMode(mode *resourcev1.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

// dropDisabledClaimFields clears the fields of disabled alpha features, here derivedAttributes, unless the old spec uses them.
func dropDisabledClaimFields(spec, old *resourcev1.ResourceClaimSpec) {
	visitDerivedAttributes := func(spec *resourcev1.ResourceClaimSpec, visit func(*[]resourcev1.DeviceDerivedAttribute)) {
		for i := range spec.Devices.Requests {
			request := &spec.Devices.Requests[i]
			if request.Exactly != nil {
				visit(&request.Exactly.DerivedAttributes)
			}
			for j := range request.FirstAvailable {
				visit(&request.FirstAvailable[j].DerivedAttributes)
			}
		}
	}
	inUse := false
	if old != nil {
		visitDerivedAttributes(old, func(list *[]resourcev1.DeviceDerivedAttribute) { inUse = inUse || len(*list) > 0 })
	}
	if !inUse {
		visitDerivedAttributes(spec, func(list *[]resourcev1.DeviceDerivedAttribute) { *list = nil })
	}
}

func validateClaimSpec(spec *resourcev1.ResourceClaimSpec, path *field.Path) field.ErrorList {
	devices, path := &spec.Devices, path.Child("devices")
	names := requestNames(devices)
	errs := validateSet(devices.Requests, resourcev1.DeviceRequestsMaxSize, validateRequest,
		func(request *resourcev1.DeviceRequest) string { return request.Name }, path.Child("requests"))
	errs = append(errs, validateSlice(devices.Constraints, resourcev1.DeviceConstraintsMaxSize,
		func(constraint *resourcev1.DeviceConstraint, path *field.Path) field.ErrorList {
			return validateConstraint(constraint, names, path)
		}, path.Child("constraints"))...)
	return append(errs, validateSlice(devices.Config, resourcev1.DeviceConfigMaxSize,
		func(config *resourcev1.DeviceClaimConfiguration, path *field.Path) field.ErrorList {
			errs := validateRequestRefs(config.Requests, names, path.Child("requests"))
			return append(errs, validateConfiguration(&config.DeviceConfiguration, false, path)...)
		}, path.Child("config"))...)
}

// requestNames are the names of a claim's requests, and of their subrequests as request/subrequest.
func requestNames(claim *resourcev1.DeviceClaim) sets.Set[string] {
	names := sets.New[string]()
	for _, request := range claim.Requests {
		names.Insert(request.Name)
		for _, subRequest := range request.FirstAvailable {
			names.Insert(request.Name + "/" + subRequest.Name)
		}
	}
	return names
}

// validateRequestRefs validates the requests that a constraint or configuration applies to.
func validateRequestRefs(requests []string, names sets.Set[string], path *field.Path) field.ErrorList {
	return validateSet(requests, resourcev1.DeviceRequestsMaxSize, func(name *string, path *field.Path) field.ErrorList {
		return validateRequestRef(*name, names, path)
	}, identity, path)
}

// validateRequestRef validates a reference to a request ("name") or to a subrequest ("name/subrequest") of the claim.
func validateRequestRef(name string, names sets.Set[string], path *field.Path) field.ErrorList {
	const rule = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	segments := strings.Split(name, "/")
	if len(segments) > 2 {
		return field.ErrorList{field.Invalid(path, name, rule)}
	}
	var errs field.ErrorList
	for _, segment := range segments {
		errs = append(errs, validateDNSLabel(segment, path)...)
	}
	if !names.Has(name) || !names.Has(segments[0]) {
		errs = append(errs, field.Invalid(path, name, rule))
	}
	return errs
}

func validateRequest(request *resourcev1.DeviceRequest, path *field.Path) field.ErrorList {
	errs := validateDNSLabel(request.Name, path.Child("name"))
	switch exactly := request.Exactly; {
	case exactly == nil && len(request.FirstAvailable) == 0:
		errs = append(errs, field.Required(path, "exactly one of `exactly` or `firstAvailable` is required"))
	case exactly != nil && len(request.FirstAvailable) > 0:
		errs = append(errs, field.Invalid(path, nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"))
	case exactly != nil:
		errs = append(errs, validateExactRequest(exactly, path.Child("exactly"))...)
	default:
		errs = append(errs, validateSet(request.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize,
			func(subRequest *resourcev1.DeviceSubRequest, path *field.Path) field.ErrorList {
				errs := validateDNSLabel(subRequest.Name, path.Child("name"))
				return append(errs, validateExactRequest(&resourcev1.ExactDeviceRequest{
					DeviceClassName: subRequest.DeviceClassName, Selectors: subRequest.Selectors, AllocationMode: subRequest.AllocationMode,
					Count: subRequest.Count, Tolerations: subRequest.Tolerations,
				}, path)...)
			}, func(subRequest *resourcev1.DeviceSubRequest) string { return subRequest.Name }, path.Child("firstAvailable"))...)
	}
	return errs
}

// validateExactRequest validates the fields that requests and subrequests have in common.
func validateExactRequest(request *resourcev1.ExactDeviceRequest, path *field.Path) field.ErrorList {
	errs := validateClassName(request.DeviceClassName, path.Child("deviceClassName"))
	errs = append(errs, validateSelectors(request.Selectors, false, path.Child("selectors"))...)
	switch mode, count := request.AllocationMode, request.Count; mode {
	case resourcev1.DeviceAllocationModeAll:
		if count != 0 {
			errs = append(errs, field.Invalid(path.Child("count"), count, fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if count <= 0 {
			errs = append(errs, field.Invalid(path.Child("count"), count, "must be greater than zero"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("allocationMode"), mode,
			[]resourcev1.DeviceAllocationMode{resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount}))
	}
	return append(errs, validateSlice(request.Tolerations, unbounded, validateToleration, path.Child("tolerations"))...)
}

// validateSelectors compiles the CEL expressions that select devices. With stored, the selectors are those of the stored object and are
// not compiled: an expression that was once accepted stays valid.
func validateSelectors(selectors []resourcev1.DeviceSelector, stored bool, path *field.Path) field.ErrorList {
	return validateSlice(selectors, resourcev1.DeviceSelectorsMaxSize, func(selector *resourcev1.DeviceSelector, path *field.Path) field.ErrorList {
		if selector.CEL == nil {
			return field.ErrorList{field.Required(path.Child("cel"), "")}
		}
		if stored {
			return nil
		}
		return validateExpression(selector.CEL.Expression, path.Child("cel", "expression"))
	}, path)
}

func validateExpression(text string, path *field.Path) field.ErrorList {
	if len(text) > resourcev1.CELSelectorExpressionMaxLength {
		return field.ErrorList{field.TooLong(path, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	mode := environment.NewExpressions
	// GetCompiler builds the compiler once and caches it.
	result := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).CompileCELExpression(text, dracel.Options{EnvType: &mode})
	switch {
	case result.Error == nil && result.MaxCost > resourcev1.CELSelectorExpressionMaxCost:
		return field.ErrorList{field.Forbidden(path, "too complex, exceeds cost limit")}
	case result.Error == nil:
		return nil
	case result.Error.Type == apiservercel.ErrorTypeRequired:
		return field.ErrorList{field.Required(path, result.Error.Detail)}
	case result.Error.Type == apiservercel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(path, text, result.Error.Detail)}
	}
	return field.ErrorList{field.InternalError(path, result.Error)}
}

func validateConstraint(constraint *resourcev1.DeviceConstraint, names sets.Set[string], path *field.Path) field.ErrorList {
	errs := validateRequestRefs(constraint.Requests, names, path.Child("requests"))
	if constraint.MatchAttribute == nil && constraint.DistinctAttribute == nil {
		return append(errs, field.Required(path, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
	}
	if constraint.MatchAttribute != nil {
		errs = append(errs, validateFullyQualifiedName(constraint.MatchAttribute, path.Child("matchAttribute"))...)
	}
	if constraint.DistinctAttribute != nil {
		errs = append(errs, validateFullyQualifiedName(constraint.DistinctAttribute, path.Child("distinctAttribute"))...)
	}
	return errs
}

func validateConfiguration(config *resourcev1.DeviceConfiguration, stored bool, path *field.Path) field.ErrorList {
	opaque, path := config.Opaque, path.Child("opaque")
	if opaque == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validateDriverReference(&opaque.Driver, path.Child("driver"))
	return append(errs, validateObject(&opaque.Parameters, stored, resourcev1.OpaqueParametersMaxLength, path.Child("parameters"))...)
}
