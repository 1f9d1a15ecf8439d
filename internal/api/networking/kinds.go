// Package networking has the kinds of networking.k8s.io: ingresses, network policies, and the address ranges of services.
package networking

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{
		Ingress,
		IngressClass,
		IPAddress,
		NetworkPolicy,
		ServiceCIDR,
	}
}

// invalid makes an error of each message.
func invalid(path *field.Path, value any, messages []string) (errs field.ErrorList) {
	for _, message := range messages {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}

// required requires a value and validates it if it is set.
func required(path *field.Path, value string, validate func(string) []string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, value, validate(value))
}
