package rbac

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// RoleBinding grants a role, or a cluster role, in one namespace.
var RoleBinding = kind.Of(kind.Definition[*rbacv1.RoleBinding]{
	GVK: rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), Plural: "rolebindings", Namespaced: true,
	List:                &rbacv1.RoleBindingList{},
	ValidateName:        validateName,
	AllowCreateOnUpdate: true,
	Default: func(binding *rbacv1.RoleBinding) {
		defaultBinding(&binding.RoleRef, binding.Subjects)
	},
	Validate: func(_ *kind.Request, binding, old *rbacv1.RoleBinding) field.ErrorList {
		errs := validateBinding(&binding.RoleRef, binding.Subjects, true)
		if old != nil {
			errs = append(errs, validateSameRole(&binding.RoleRef, &old.RoleRef)...)
		}
		return errs
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Role", "string", rbacv1beta1.RoleBinding{}.SwaggerDoc()["roleRef"]),
		kind.AgeColumn(),
		kind.Wide("Users", "string", "Users in the roleBinding"),
		kind.Wide("Groups", "string", "Groups in the roleBinding"),
		kind.Wide("ServiceAccounts", "string", "ServiceAccounts in the roleBinding"),
	},
	Row: func(binding *rbacv1.RoleBinding, now time.Time) []any {
		return bindingRow(&binding.ObjectMeta, &binding.RoleRef, binding.Subjects, now)
	},
})
