// Package rbacrules computes the rules of aggregated cluster roles. The API server uses it for its default roles, the
// aggregation controller whenever a role changes.
package rbacrules

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Of returns the rules of an aggregated role: those of all roles its selectors match, in the order of the selectors and
// then of the roles' names, without duplicates. list returns the roles that a selector matches.
func Of(role *rbacv1.ClusterRole, list func(labels.Selector) []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	if role.AggregationRule == nil {
		return role.Rules, nil
	}
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("parse selector %d of cluster role %q: %w", i, role.Name, err)
		}
		for _, selected := range slices.SortedFunc(slices.Values(list(selector)), byName) {
			if selected.Name == role.Name {
				continue
			}
			for _, rule := range selected.Rules {
				if !slices.ContainsFunc(rules, func(existing rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(existing, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}

// Selects reports whether an aggregated role gets the rules of another role.
func Selects(role, other *rbacv1.ClusterRole) bool {
	return role.AggregationRule != nil && slices.ContainsFunc(role.AggregationRule.ClusterRoleSelectors, func(s metav1.LabelSelector) bool {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		return err == nil && selector.Matches(labels.Set(other.Labels))
	})
}

// selectRoles returns the roles that a selector matches.
func selectRoles(selector labels.Selector, all []*rbacv1.ClusterRole) []*rbacv1.ClusterRole {
	var selected []*rbacv1.ClusterRole
	for _, role := range all {
		if selector.Matches(labels.Set(role.Labels)) {
			selected = append(selected, role)
		}
	}
	return selected
}

func byName(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) }

// Aggregate computes the rules of all aggregated roles. It repeats until nothing changes, because roles may aggregate
// aggregated roles. It returns copies of the roles that changed. A role with an invalid selector is left unchanged.
func Aggregate(all []*rbacv1.ClusterRole) []*rbacv1.ClusterRole {
	current := slices.SortedFunc(slices.Values(all), byName)
	changed := make(map[string]*rbacv1.ClusterRole)
	// A chain of aggregated roles is at most as long as there are roles. Roles that aggregate one another in a cycle need
	// not converge.
	for range len(current) {
		stable := true
		for i, role := range current {
			rules, err := Of(role, func(selector labels.Selector) []*rbacv1.ClusterRole { return selectRoles(selector, current) })
			if err != nil || equality.Semantic.DeepEqual(rules, role.Rules) {
				continue
			}
			next := role.DeepCopy()
			next.Rules = rules
			current[i], changed[role.Name], stable = next, next, false
		}
		if stable {
			break
		}
	}
	var result []*rbacv1.ClusterRole
	for _, role := range current {
		if changed[role.Name] != nil {
			result = append(result, role)
		}
	}
	return result
}
