// Package rbac has the kinds of rbac.authorization.k8s.io: roles, which list permissions, and bindings, which grant a role
// to subjects. Admission checks whether a user may grant a role.
package rbac

import (
	"k8s.io/apimachinery/pkg/api/validate/content"

	"skiff/internal/kind"
)

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{ClusterRole, ClusterRoleBinding, Role, RoleBinding}
}

// validateName allows everything that is valid as a path segment of a URL, because roles have names like "system:node".
func validateName(name string, _ bool) []string {
	return content.IsPathSegmentName(name)
}
