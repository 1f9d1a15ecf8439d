// Package admissionregistration has the kinds of admissionregistration.k8s.io: webhooks and policies that validate or
// mutate objects. The kinds check that rules are valid and that expressions compile. Nothing calls webhooks yet, so that
// their configurations cannot be created.
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

// unenforced makes a kind whose objects nothing evaluates yet. Creating an object, or changing the field that defines what
// it does, is refused: whoever stored it would rely on a protection that does not exist. Objects that are already stored,
// written by another API server, are kept. Their metadata can change, so that finalizers can be removed.
func unenforced[T kind.Object](definition string, d kind.Definition[T]) *kind.Kind {
	validate, changed := d.Validate, d.SpecChanged
	d.Validate = func(req *kind.Request, obj, old T) field.ErrorList {
		errs := validate(req, obj, old)
		var none T
		if any(old) != any(none) && !changed(obj, old) {
			return errs
		}
		return append(errs, field.Forbidden(field.NewPath(definition), fmt.Sprintf("skiff does not enforce %s yet; the object was not stored", d.Plural)))
	}
	return kind.Of(d)
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
