package kind

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Invalid makes an error of each message that a validation function returned for a value.
func Invalid(path *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, message := range messages {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}

// maxInvalidText bounds the text of an Invalid error. An error contains the invalid value and its path, which has the keys of maps: both can be as
// long as the request, and each item of a list can cause one.
const maxInvalidText = 4 << 20

// NewInvalid is the Status of an object that is invalid, equal to that of apierrors.NewInvalid but made in linear time. Errors whose text
// would exceed maxInvalidText are counted but not listed.
func NewInvalid(kind schema.GroupKind, name string, errs field.ErrorList) *apierrors.StatusError {
	causes := make([]metav1.StatusCause, 0, len(errs))
	seen := sets.New[string]()
	var messages []string
	size := 0
	for i, err := range errs {
		body := err.ErrorBody()
		if size += len(body) + len(err.Field); size > maxInvalidText && i > 0 {
			messages = append(messages, fmt.Sprintf("and %d more errors", len(errs)-i))
			break
		}
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(err.Type), Message: body, Field: err.Field})
		if message := err.Field + ": " + body; !seen.Has(message) {
			seen.Insert(message)
			messages = append(messages, message)
		}
	}
	text := fmt.Sprintf("%s %q is invalid", kind.String(), name)
	switch len(messages) {
	case 0:
	case 1:
		text += ": " + messages[0]
	default:
		text += ": [" + strings.Join(messages, ", ") + "]"
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: text,
		Details: &metav1.StatusDetails{Group: kind.Group, Kind: kind.Kind, Name: name, Causes: causes},
	}}
}
