package resource

import (
	"fmt"
	"regexp"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

var (
	qualifiedNames = keyValidation{maxLength: longestQualifiedName, validate: validateQualifiedName}
	labels         = keyValidation{maxLength: utilvalidation.DNS1123LabelMaxLength, validate: validateDNSLabel}
)

// validateDevice validates one device of a slice. old is the device of that name in the stored slice: newer validations are
// skipped for unchanged fields.
func validateDevice(device, old *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	errs := validateDNSLabel(device.Name, path.Child("name"))
	if count := len(device.Attributes) + len(device.Capacity); count > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(path, count, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	if count := attributeValues(device); count > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		errs = append(errs, field.Invalid(path, count, fmt.Sprintf("the total number of attribute values must not exceed %d", resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	}
	errs = append(errs, validateMap(device.Attributes, unbounded, qualifiedNames, validateAttribute, path.Child("attributes"))...)
	if old == nil || !equality.Semantic.DeepEqual(old.Capacity, device.Capacity) {
		shared := ptr.Deref(device.AllowMultipleAllocations, false)
		errs = append(errs, validateMap(device.Capacity, unbounded, qualifiedNames, func(capacity *resourcev1.DeviceCapacity, path *field.Path) field.ErrorList {
			return validateCapacity(capacity, shared, path)
		}, path.Child("capacity"))...)
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Taints, device.Taints) {
		errs = append(errs, validateSlice(device.Taints, resourcev1.DeviceTaintsMaxLength, func(taint *resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
			return validateTaint(taint, nil, path)
		}, path.Child("taints"))...)
	}
	errs = append(errs, validateSet(device.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice,
		func(consumption *resourcev1.DeviceCounterConsumption, path *field.Path) field.ErrorList {
			return validateCounters(consumption.CounterSet, consumption.Counters, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, path.Child("counterSet"), path.Child("counters"))
		}, func(consumption *resourcev1.DeviceCounterConsumption) string { return consumption.CounterSet }, path.Child("consumesCounters"))...)
	errs = append(errs, validateDeviceNodes(device, perDevice, path)...)
	return append(errs, validateBindingConditions(device.BindingConditions, device.BindingFailureConditions, path)...)
}

// validateDeviceNodes: a device selects its nodes if and only if its slice has perDeviceNodeSelection.
func validateDeviceNodes(device *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	if !perDevice {
		if device.NodeName != nil || device.NodeSelector != nil || device.AllNodes != nil {
			return field.ErrorList{field.Invalid(path, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
		}
		return nil
	}
	errs, set := validateNodes(device.NodeName, device.NodeSelector, device.AllNodes, "must not be empty", path)
	const rule = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	switch len(set) {
	case 0:
		errs = append(errs, field.Required(path, rule))
	case 1:
	default:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", rule))
	}
	return errs
}

func validateCounters(set string, counters map[string]resourcev1.Counter, max int, setPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if set == "" {
		errs = append(errs, field.Required(setPath, ""))
	} else {
		errs = append(errs, validateDNSLabel(set, setPath)...)
	}
	if len(counters) == 0 {
		return append(errs, field.Required(path, ""))
	}
	return append(errs, validateMap(counters, max, labels, nil, path)...)
}

// validateBindingConditions validates the conditions that must be true before a pod is bound, and those that make binding fail. They are
// two disjoint lists; neither may be set without the other.
func validateBindingConditions(conditions, failureConditions []string, path *field.Path) field.ErrorList {
	conditionsPath, failurePath := path.Child("bindingConditions"), path.Child("bindingFailureConditions")
	errs := validateSlice(conditions, resourcev1.BindingConditionsMaxSize, validateConditionName, conditionsPath)
	errs = append(errs, validateSlice(failureConditions, resourcev1.BindingFailureConditionsMaxSize, validateConditionName, failurePath)...)
	errs = append(errs, validateUnique(conditions, identity, conditionsPath)...)
	errs = append(errs, validateUnique(failureConditions, identity, failurePath)...)
	known := sets.New(conditions...)
	for i, condition := range failureConditions {
		if known.Has(condition) {
			errs = append(errs, field.Invalid(failurePath.Index(i), condition, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	if len(conditions) == 0 && len(failureConditions) > 0 {
		errs = append(errs, field.Invalid(conditionsPath, conditions, "bindingConditions are required to use bindingFailureConditions"))
	}
	if len(failureConditions) == 0 && len(conditions) > 0 {
		errs = append(errs, field.Invalid(failurePath, failureConditions, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}

func attributeValues(device *resourcev1.Device) int {
	count := 0
	for _, attribute := range device.Attributes {
		count += max(1, len(attribute.BoolValues)+len(attribute.IntValues)+len(attribute.StringValues)+len(attribute.VersionValues))
	}
	return count
}

// semver is semver.org 2.0.0, which requires three numbers without leading zeros.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

// validateAttribute: an attribute has exactly one value, or one list of values, of one type.
func validateAttribute(attribute *resourcev1.DeviceAttribute, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	members := []struct {
		name  string
		set   bool
		empty bool
	}{
		{"int", attribute.IntValue != nil, false},
		{"bool", attribute.BoolValue != nil, false},
		{"string", attribute.StringValue != nil, false},
		{"version", attribute.VersionValue != nil, false},
		{"ints", attribute.IntValues != nil, len(attribute.IntValues) == 0},
		{"bools", attribute.BoolValues != nil, len(attribute.BoolValues) == 0},
		{"strings", attribute.StringValues != nil, len(attribute.StringValues) == 0},
		{"versions", attribute.VersionValues != nil, len(attribute.VersionValues) == 0},
	}
	var all, set []string
	for _, member := range members {
		all = append(all, "`"+member.name+"`")
		if !member.set {
			continue
		}
		set = append(set, member.name)
		if member.empty {
			errs = append(errs, field.Invalid(path.Child(member.name), []string{}, "must not be empty if specified"))
		}
	}
	if attribute.StringValue != nil {
		errs = append(errs, validateAttributeString(*attribute.StringValue, path.Child("string"))...)
	}
	for i, value := range attribute.StringValues {
		errs = append(errs, validateAttributeString(value, path.Child("strings").Index(i))...)
	}
	if attribute.VersionValue != nil {
		errs = append(errs, validateAttributeVersion(*attribute.VersionValue, path.Child("version"))...)
	}
	for i, value := range attribute.VersionValues {
		errs = append(errs, validateAttributeVersion(value, path.Child("versions").Index(i))...)
	}
	switch len(set) {
	case 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: "+strings.Join(all, ", ")))
	case 1:
	default:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", "must specify exactly one of: "+strings.Join(all, ", ")))
	}
	return errs
}

func validateAttributeString(value string, path *field.Path) field.ErrorList {
	if len(value) > resourcev1.DeviceAttributeMaxValueLength {
		return field.ErrorList{field.TooLong(path, "", resourcev1.DeviceAttributeMaxValueLength)}
	}
	return nil
}

func validateAttributeVersion(value string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !semver.MatchString(value) {
		errs = append(errs, field.Invalid(path, value, "must be a string compatible with semver.org spec 2.0.0"))
	}
	return append(errs, validateAttributeString(value, path)...)
}
