// Package rbacrules computes the rules of aggregated roles. The API server needs them when it makes its own roles, the aggregation
// controller whenever a role changes.
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

// Of returns the rules an aggregated role should have: those of all roles its selectors choose, selector by
// selector and in the order of the roles' names, each rule once.
func Of(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	if role.AggregationRule == nil {
		return role.Rules, nil
	}
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("read selector %d of cluster role %q: %w", i, role.Name, err)
		}
		for _, chosen := range choose(selector, all) {
			if chosen.Name == role.Name {
				continue
			}
			for _, rule := range chosen.Rules {
				if !slices.ContainsFunc(rules, func(had rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(had, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}

func choose(selector labels.Selector, all []*rbacv1.ClusterRole) []*rbacv1.ClusterRole {
	var chosen []*rbacv1.ClusterRole
	for _, role := range all {
		if selector.Matches(labels.Set(role.Labels)) {
			chosen = append(chosen, role)
		}
	}
	slices.SortFunc(chosen, byName)
	return chosen
}

func byName(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) }

// Aggregate gives every aggregated role its rules, and does so again until nothing changes, because roles may aggregate
// aggregated roles. It returns copies of the roles that changed. A role with a selector that cannot be read stays as it is.
func Aggregate(all []*rbacv1.ClusterRole) []*rbacv1.ClusterRole {
	current := slices.SortedFunc(slices.Values(all), byName)
	changed := make(map[string]*rbacv1.ClusterRole)
	// A chain of aggregated roles is as long as there are roles; roles that aggregate one another in a circle need not settle.
	for range len(current) {
		settled := true
		for i, role := range current {
			rules, err := Of(role, current)
			if err != nil || equality.Semantic.DeepEqual(rules, role.Rules) {
				continue
			}
			next := role.DeepCopy()
			next.Rules = rules
			current[i], changed[role.Name], settled = next, next, false
		}
		if settled {
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
