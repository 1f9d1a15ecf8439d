// Package admissionregistration has the kinds of admissionregistration.k8s.io: webhooks and policies that validate or
// mutate objects. The kinds check that rules are valid and that expressions compile.
package admissionregistration

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{
		MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
		ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
	}
}

var categories = []string{"api-extensions"}

// Names with this suffix belong to configuration that servers read from files. New objects may not use them; stored
// objects are kept, with a warning.
const staticSuffix = ".static.k8s.io"

var staticRule = fmt.Sprintf("names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API", staticSuffix)

func validateNameOnCreate(name string) field.ErrorList {
	if strings.HasSuffix(name, staticSuffix) {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name, staticRule)}
	}
	return nil
}

func warnNameOnUpdate(name string, update bool) []string {
	if update && strings.HasSuffix(name, staticSuffix) {
		return []string{"metadata.name: " + staticRule}
	}
	return nil
}
