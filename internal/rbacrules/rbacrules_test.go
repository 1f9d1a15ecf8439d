package rbacrules

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func labelled(name string, labels map[string]string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Rules: rules}
}

func gathering(role *rbacv1.ClusterRole, selectors ...map[string]string) *rbacv1.ClusterRole {
	role.AggregationRule = &rbacv1.AggregationRule{}
	for _, s := range selectors {
		role.AggregationRule.ClusterRoleSelectors = append(role.AggregationRule.ClusterRoleSelectors, metav1.LabelSelector{MatchLabels: s})
	}
	return role
}

func TestAggregate(t *testing.T) {
	a := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"a"}}
	b := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"b"}}
	c := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"c"}}
	x, y := map[string]string{"x": "1"}, map[string]string{"y": "1"}
	all := []*rbacv1.ClusterRole{
		labelled("3", x, c, a), labelled("2", x, b), labelled("1", y, a),
		gathering(labelled("inner", y, c), x),
		gathering(labelled("a-outer", nil), y),
		gathering(labelled("selectors in order", nil), y, x),
		gathering(labelled("itself", map[string]string{"z": "1"}, a), map[string]string{"z": "1"}),
		gathering(labelled("right already", nil, b, c, a), x),
	}
	got := make(map[string]string)
	for _, role := range Aggregate(all) {
		for _, rule := range role.Rules {
			got[role.Name] += rule.Resources[0]
		}
		if len(role.Rules) == 0 {
			got[role.Name] = "none"
		}
	}
	want := map[string]string{"inner": "bca", "a-outer": "abc", "selectors in order": "abc", "itself": "none"}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s has %q, want %q", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("changed: %v", got)
	}
	if len(all[3].Rules) != 1 {
		t.Error("the argument was changed")
	}
}
