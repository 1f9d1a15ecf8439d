package rbac

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// ClusterRoleBinding grants a cluster role in the whole cluster.
var ClusterRoleBinding = kind.Of(kind.Definition[*rbacv1.ClusterRoleBinding]{
	GVK: rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), Plural: "clusterrolebindings",
	List:                &rbacv1.ClusterRoleBindingList{},
	ValidateName:        validateName,
	AllowCreateOnUpdate: true,
	Default: func(binding *rbacv1.ClusterRoleBinding) {
		defaultBinding(&binding.RoleRef, binding.Subjects)
	},
	Validate: func(_ *kind.Request, binding, old *rbacv1.ClusterRoleBinding) field.ErrorList {
		errs := validateBinding(&binding.RoleRef, binding.Subjects, false)
		if old != nil {
			errs = append(errs, validateSameRole(&binding.RoleRef, &old.RoleRef)...)
		}
		return errs
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Role", "string", rbacv1beta1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"]),
		kind.AgeColumn(),
		kind.Wide("Users", "string", "Users in the clusterRoleBinding"),
		kind.Wide("Groups", "string", "Groups in the clusterRoleBinding"),
		kind.Wide("ServiceAccounts", "string", "ServiceAccounts in the clusterRoleBinding"),
	},
	Row: func(binding *rbacv1.ClusterRoleBinding, now time.Time) []any {
		return bindingRow(&binding.ObjectMeta, &binding.RoleRef, binding.Subjects, now)
	},
})
