package authz

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacvalidation "k8s.io/component-helpers/auth/rbac/validation"
)

func TestBootstrapPolicy(t *testing.T) {
	p := BootstrapPolicy()
	if len(p.ClusterRoles) != 73 || len(p.ClusterRoleBindings) != 54 || len(p.Roles) != 7 || len(p.RoleBindings) != 7 {
		t.Errorf("%d cluster roles, %d of their bindings, %d roles, %d of theirs",
			len(p.ClusterRoles), len(p.ClusterRoleBindings), len(p.Roles), len(p.RoleBindings))
	}
	s := NewStaticPolicy(p)
	for _, b := range p.ClusterRoleBindings {
		if s.ClusterRole(b.RoleRef.Name) == nil {
			t.Errorf("%s binds a role that does not exist", b.Name)
		}
	}
	for _, b := range p.RoleBindings {
		if s.Role(b.Namespace, b.RoleRef.Name) == nil {
			t.Errorf("%s/%s binds a role that does not exist", b.Namespace, b.Name)
		}
	}
	for _, r := range p.ClusterRoles {
		if len(r.Rules) == 0 {
			t.Errorf("%s has no rules", r.Name)
		}
	}
	for _, pair := range [][2]string{{"admin", "edit"}, {"edit", "view"}, {"cluster-admin", "admin"}} {
		if ok, missing := rbacvalidation.Covers(s.ClusterRole(pair[0]).Rules, s.ClusterRole(pair[1]).Rules); !ok {
			t.Errorf("%s lacks what %s has: %v", pair[0], pair[1], missing)
		}
	}
	if view := s.ClusterRole("view"); view.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] != "true" || view.AggregationRule == nil {
		t.Errorf("view: %+v", view.ObjectMeta)
	}
	// The caller owns the objects.
	p.ClusterRoles[0].Rules[0].Verbs[0] = "spoilt"
	if BootstrapPolicy().ClusterRoles[0].Rules[0].Verbs[0] == "spoilt" {
		t.Error("the policy is shared")
	}
}

func TestBootstrapDecisions(t *testing.T) {
	rbac := NewRBAC(NewStaticPolicy(BootstrapPolicy()))
	jane, nobody := user("jane", "system:authenticated"), user("system:anonymous", "system:unauthenticated")
	for _, test := range []struct {
		ask  *Attributes
		want Decision
	}{
		{at(jane, "get", "/apis"), Allow},
		{at(nobody, "get", "/apis"), NoOpinion},
		{at(nobody, "get", "/version"), Allow},
		{at(jane, "get", "/metrics"), NoOpinion},
		{on(jane, "create", "authorization.k8s.io:selfsubjectaccessreviews", ""), Allow},
		{on(jane, "get", "pods", "default"), NoOpinion},
		{on(account("kube-system", "node-controller"), "delete", "pods p", "default"), Allow},
		{on(account("default", "node-controller"), "delete", "pods p", "default"), NoOpinion},
		{on(user("system:kube-scheduler"), "update", "coordination.k8s.io:leases kube-scheduler", "kube-system"), Allow},
		{on(user("system:node:n", "system:nodes"), "get", "pods p", "default"), NoOpinion},
	} {
		if got, why, _ := rbac.Authorize(context.Background(), test.ask); got != test.want {
			t.Errorf("%+v: %v %s", *test.ask, got, why)
		}
	}
}

func TestReadPolicyErrors(t *testing.T) {
	for table, want := range map[string]string{
		"  get core pods":                              "line 1: a rule without a role",
		"clusterrole a\n  get":                         "line 2: a rule of 1 words",
		"clusterrole a\n  get core pods x":             `line 2: "x" should begin with names=`,
		"clusterrole a b=c":                            `line 1: "b=c" is no option of a cluster role`,
		"clusterrolebinding a dog:rex":                 `line 1: "dog:rex" is no subject`,
		"something else again":                         `line 1: "something" is none of the known words`,
		"role x":                                       `line 1: "role x" lacks a name`,
		"# fine\n\nclusterrole\n":                      `line 3: "clusterrole" lacks a name`,
		"clusterrole a\n  get core pods,":              `unterminated rule "  get core pods,"`,
		"clusterrole a\n  get core pods,\n      nodes": "",
	} {
		_, err := readPolicy(table)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", table, err, want)
		}
	}
}

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
