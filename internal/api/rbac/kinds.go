// Package rbac holds the rows of rbac.authorization.k8s.io: roles, which list permissions, and bindings, which grant a
// role to subjects. Whether a user may grant what a role lists is a question for authorization and is not asked here.
package rbac

import (
	"k8s.io/apimachinery/pkg/api/validate/content"

	"skiff/internal/kind"
)

// Kinds are the rows of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{ClusterRole, ClusterRoleBinding, Role, RoleBinding}
}

// validateName allows everything that fits into one segment of a URL, because roles are named "system:node" and the like.
func validateName(name string, _ bool) []string {
	return content.IsPathSegmentName(name)
}
