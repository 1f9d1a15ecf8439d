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

// required requires a value and validates it if it is set.
func required(path *field.Path, value string, validate func(string) []string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return kind.Invalid(path, value, validate(value))
}
