package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// ClusterRole lists permissions in all namespaces, on cluster-scoped resources and on non-resource URLs.
var ClusterRole = kind.Of(kind.Definition[*rbacv1.ClusterRole]{
	GVK: rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), Plural: "clusterroles",
	List:                &rbacv1.ClusterRoleList{},
	ValidateName:        validateName,
	AllowCreateOnUpdate: true,
	Validate:            validateClusterRole,
})

func validateClusterRole(_ *kind.Request, role, old *rbacv1.ClusterRole) field.ErrorList {
	errs := validateRules(role.Rules, false, field.NewPath("rules"))
	if role.AggregationRule == nil {
		return errs
	}
	path := field.NewPath("aggregationRule", "clusterRoleSelectors")
	selectors := role.AggregationRule.ClusterRoleSelectors
	if len(selectors) == 0 {
		errs = append(errs, field.Required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: hasInvalidSelector(old)}
	for i := range selectors {
		errs = append(errs, metavalidation.ValidateLabelSelector(&selectors[i], options, path.Index(i))...)
		if selector, err := metav1.LabelSelectorAsSelector(&selectors[i]); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), selector, "invalid label selector."))
		}
	}
	return errs
}

// hasInvalidSelector reports whether the stored role has a selector that would be refused today; it may be kept.
func hasInvalidSelector(old *rbacv1.ClusterRole) bool {
	if old == nil || old.AggregationRule == nil {
		return false
	}
	for i := range old.AggregationRule.ClusterRoleSelectors {
		selector := &old.AggregationRule.ClusterRoleSelectors[i]
		if len(metavalidation.ValidateLabelSelector(selector, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0 {
			return true
		}
	}
	return false
}
