package kind

import "k8s.io/apimachinery/pkg/util/validation/field"

// SetDefault sets an optional field that is nil.
func SetDefault[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

// Invalid makes an error of each message that a validation function returned for a value.
func Invalid(path *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, message := range messages {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}
