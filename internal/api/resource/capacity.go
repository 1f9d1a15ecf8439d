package resource

import (
	"fmt"
	"math"
	"math/big"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The capacity of a device that several claims share has a request policy: certain sizes, or any size in a range,
// optionally in steps.

func validateCapacity(capacity *resourcev1.DeviceCapacity, shared bool, path *field.Path) field.ErrorList {
	policy, path := capacity.RequestPolicy, path.Child("requestPolicy")
	switch {
	case policy == nil:
		return nil
	case !shared:
		return field.ErrorList{field.Forbidden(path, "allowMultipleAllocations must be true")}
	case len(policy.ValidValues) > 0 && policy.ValidRange != nil:
		return field.ErrorList{field.Forbidden(path, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(policy.ValidValues) > 0:
		if policy.Default == nil {
			return field.ErrorList{field.Required(path.Child("default"), "required when validValues is defined")}
		}
		return validateSizes(policy.ValidValues, *policy.Default, capacity.Value, path.Child("validValues"))
	case policy.ValidRange != nil:
		if policy.Default == nil {
			return field.ErrorList{field.Required(path.Child("default"), "required when validRange is defined")}
		}
		return validateRange(policy.ValidRange, *policy.Default, capacity.Value, path.Child("validRange"))
	}
	return nil
}

// maxSizes limits the sizes of a policy.
const maxSizes = 10

func validateSizes(sizes []resource.Quantity, normal, whole resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := 1; i < len(sizes); i++ {
		if sizes[i-1].Cmp(sizes[i]) > 0 {
			errs = append(errs, field.Invalid(path.Index(i), sizes[i].String(), "values must be sorted in ascending order"))
		}
	}
	found := false
	errs = append(errs, validateSet(sizes, maxSizes, func(size *resource.Quantity, path *field.Path) field.ErrorList {
		found = found || size.Cmp(normal) == 0
		if size.Cmp(whole) > 0 {
			return field.ErrorList{field.Invalid(path, size.String(), "option is larger than capacity value: "+whole.String())}
		}
		return nil
	}, func(size *resource.Quantity) string {
		// AsDec changes the internal form of the quantity; the stored object must not change.
		number := size.DeepCopy()
		return number.AsDec().String()
	}, path)...)
	if !found {
		errs = append(errs, field.Invalid(path, normal.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

func validateRange(valid *resourcev1.CapacityRequestPolicyRange, normal, whole resource.Quantity, path *field.Path) field.ErrorList {
	if valid.Min == nil {
		return field.ErrorList{field.Required(path.Child("min"), "required when validRange is defined")}
	}
	errs := validateBounds(valid, normal, whole, path)
	numbers := []struct {
		name  string
		value *resource.Quantity
	}{{"default", &normal}, {"min", valid.Min}, {"max", valid.Max}, {"step", valid.Step}}
	fractional := false
	for _, number := range numbers {
		fractional = fractional || number.value != nil && isFraction(*number.value)
	}
	// Steps are counted as integers: in thousandths if there are fractions, which must then be exact.
	exact := true
	for _, number := range numbers {
		if fractional && number.value != nil && number.value.Cmp(*resource.NewMilliQuantity(number.value.MilliValue(), number.value.Format)) != 0 {
			errs = append(errs, field.Invalid(path.Child(number.name), number.value.String(), "value cannot be represented as a milli value"))
			exact = false
		}
	}
	if !exact || valid.Step == nil {
		return errs
	}
	fldPath := path.Child("step")
	if valid.Step.Sign() <= 0 {
		return append(errs, field.Invalid(fldPath, valid.Step.String(), "must be greater than zero"))
	}
	first := valid.Min.DeepCopy()
	first.Add(*valid.Step)
	if first.Cmp(whole) > 0 {
		errs = append(errs, field.Invalid(fldPath, valid.Step.String(), fmt.Sprintf("one step %s is larger than capacity value: %s", first.String(), whole.String())))
	}
	for _, number := range numbers {
		if fractional || number.value == nil {
			continue
		}
		if problem := integerProblem(*number.value); problem != "" {
			errs = append(errs, field.Invalid(path.Child(number.name), number.value.String(), problem))
			exact = false
		}
	}
	if !exact {
		return errs
	}
	errs = append(errs, validateOnStep(normal, *valid.Min, *valid.Step, fractional, fldPath)...)
	if valid.Max != nil {
		errs = append(errs, validateOnStep(*valid.Max, *valid.Min, *valid.Step, fractional, fldPath)...)
	}
	return errs
}

func validateBounds(valid *resourcev1.CapacityRequestPolicyRange, normal, whole resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if valid.Min.Cmp(whole) > 0 {
		errs = append(errs, field.Invalid(path.Child("min"), valid.Min.String(), "min is larger than capacity value: "+whole.String()))
	}
	if normal.Cmp(*valid.Min) < 0 {
		errs = append(errs, field.Invalid(path.Child("default"), normal.String(), "default is less than min: "+valid.Min.String()))
	}
	if valid.Max == nil {
		return errs
	}
	if valid.Min.Cmp(*valid.Max) > 0 {
		errs = append(errs, field.Invalid(path.Child("max"), valid.Min.String(), "min is larger than max: "+valid.Max.String()))
	}
	if valid.Max.Cmp(whole) > 0 {
		errs = append(errs, field.Invalid(path.Child("max"), valid.Max.String(), "max is larger than capacity value: "+whole.String()))
	}
	if normal.Cmp(*valid.Max) > 0 {
		errs = append(errs, field.Invalid(path.Child("default"), normal.String(), "default is more than max: "+valid.Max.String()))
	}
	return errs
}

func validateOnStep(value, min, step resource.Quantity, fractional bool, path *field.Path) field.ErrorList {
	count := (*resource.Quantity).Value
	if fractional {
		count = (*resource.Quantity).MilliValue
	}
	if (count(&value)-count(&min))%count(&step) != 0 {
		return field.ErrorList{field.Invalid(path, value.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", step.String(), min.String()))}
	}
	return nil
}

func isFraction(q resource.Quantity) bool {
	number := new(resource.Quantity)
	q.DeepCopyInto(number)
	decimal := number.AsDec()
	if decimal.Scale() <= 0 {
		return false
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(decimal.Scale())), nil)
	return new(big.Int).Rem(decimal.UnscaledBig(), unit).Sign() != 0
}

func integerProblem(q resource.Quantity) string {
	switch {
	case q.Sign() < 0:
		return validation.IsNegativeErrorMsg
	case q.CmpInt64(math.MaxInt64) > 0:
		return "must not be larger than 9223372036854775807"
	}
	return ""
}
