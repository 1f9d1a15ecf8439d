package apps

import (
	"strconv"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateIntOrPercent validates a number or percentage, neither of which can be negative.
func ValidateIntOrPercent(value intstr.IntOrString, path *field.Path) field.ErrorList {
	switch value.Type {
	case intstr.Int:
		return validation.ValidateNonnegativeField(int64(value.IntValue()), path)
	case intstr.String:
		var errs field.ErrorList
		for _, message := range utilvalidation.IsValidPercent(value.StrVal) {
			errs = append(errs, field.Invalid(path, value, message))
		}
		return errs
	}
	return field.ErrorList{field.Invalid(path, value, "must be an integer or percentage (e.g '5%%')")}
}

// ValidateAtMost100Percent refuses a percentage above 100.
func ValidateAtMost100Percent(value intstr.IntOrString, path *field.Path) field.ErrorList {
	if percent, isPercent := percentOf(value); isPercent && percent > 100 {
		return field.ErrorList{field.Invalid(path, value, "must not be greater than 100%")}
	}
	return nil
}

func percentOf(value intstr.IntOrString) (percent int, isPercent bool) {
	if value.Type != intstr.String || len(utilvalidation.IsValidPercent(value.StrVal)) != 0 {
		return 0, false
	}
	percent, _ = strconv.Atoi(value.StrVal[:len(value.StrVal)-1])
	return percent, true
}

// isZero reports whether a number or percentage is zero or absent.
func isZero(value *intstr.IntOrString) bool {
	if value == nil {
		return true
	}
	if percent, isPercent := percentOf(*value); isPercent {
		return percent == 0
	}
	return value.IntValue() == 0
}
