package identity

import (
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

func ruleFor(resource string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}
}

func roleOf(name, label string, resources ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if label != "" {
		r.Labels = map[string]string{"into": label}
	}
	for _, resource := range resources {
		r.Rules = append(r.Rules, ruleFor(resource))
	}
	return r
}

// aggregating makes a role of the roles with the labels.
func aggregating(r *rbacv1.ClusterRole, labels ...string) *rbacv1.ClusterRole {
	r.AggregationRule = &rbacv1.AggregationRule{}
	for _, label := range labels {
		r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors, metav1.LabelSelector{MatchLabels: map[string]string{"into": label}})
	}
	return r
}

// TestRolesAreAggregated plays roles that come, change and go.
func TestRolesAreAggregated(t *testing.T) {
	for _, test := range []struct {
		what string
		play func(w *world.World)
		want string // the resources of the role called all
	}{
		{"no roles", func(w *world.World) { world.Create(w, aggregating(roleOf("all", ""), "x")) }, ""},
		{"by name", func(w *world.World) {
			world.Create(w, aggregating(roleOf("all", ""), "x"))
			world.Create(w, roleOf("b", "x", "pods"))
			world.Create(w, roleOf("a", "x", "nodes", "secrets"))
		}, "nodes secrets pods"},
		{"roles that were there before", func(w *world.World) {
			world.Create(w, roleOf("a", "x", "nodes"))
			world.Create(w, aggregating(roleOf("all", ""), "x"))
		}, "nodes"},
		{"selector by selector", func(w *world.World) {
			world.Create(w, roleOf("a", "y", "nodes"))
			world.Create(w, roleOf("b", "x", "pods"))
			world.Create(w, aggregating(roleOf("all", ""), "x", "y"))
		}, "pods nodes"},
		{"each rule once", func(w *world.World) {
			world.Create(w, roleOf("a", "x", "pods", "nodes"))
			world.Create(w, roleOf("b", "x", "pods"))
			world.Create(w, aggregating(roleOf("all", ""), "x", "x"))
		}, "pods nodes"},
		{"its own rules do not count, though it selects itself", func(w *world.World) {
			world.Create(w, roleOf("a", "x", "pods"))
			world.Create(w, aggregating(roleOf("all", "x", "secrets"), "x"))
		}, "pods"},
		{"others are not chosen", func(w *world.World) {
			world.Create(w, roleOf("a", "y", "pods"))
			world.Create(w, roleOf("b", "", "nodes"))
			world.Create(w, aggregating(roleOf("all", ""), "x"))
		}, ""},
		{"an empty selector chooses all", func(w *world.World) {
			world.Create(w, roleOf("a", "y", "pods"))
			world.Create(w, roleOf("b", "", "nodes"))
			r := aggregating(roleOf("all", ""))
			r.AggregationRule.ClusterRoleSelectors = []metav1.LabelSelector{{}}
			world.Create(w, r)
		}, "pods nodes"},
		{"of an aggregated role", func(w *world.World) {
			world.Create(w, aggregating(roleOf("all", ""), "middle"))
			world.Create(w, aggregating(roleOf("middle", "middle"), "x"))
			world.Create(w, roleOf("a", "x", "pods"))
		}, "pods"},
		{"a role changes", func(w *world.World) {
			world.Create(w, aggregating(roleOf("all", ""), "x"))
			world.Create(w, roleOf("a", "x", "pods"))
			w.Pass(time.Second)
			world.Edit(w, "", "a", func(r *rbacv1.ClusterRole) { r.Rules = []rbacv1.PolicyRule{ruleFor("jobs")} })
		}, "jobs"},
		{"a role loses its label", func(w *world.World) {
			world.Create(w, aggregating(roleOf("all", ""), "x"))
			world.Create(w, roleOf("a", "x", "pods"))
			world.Create(w, roleOf("b", "x", "nodes"))
			w.Pass(time.Second)
			world.Edit(w, "", "a", func(r *rbacv1.ClusterRole) { r.Labels = nil })
		}, "nodes"},
		{"a role goes", func(w *world.World) {
			world.Create(w, aggregating(roleOf("all", ""), "x"))
			world.Create(w, roleOf("a", "x", "pods"))
			world.Create(w, roleOf("b", "x", "nodes"))
			w.Pass(time.Second)
			w.Remove(roleOf("b", ""))
		}, "pods"},
		{"somebody changes the rules", func(w *world.World) {
			world.Create(w, aggregating(roleOf("all", ""), "x"))
			world.Create(w, roleOf("a", "x", "pods"))
			w.Pass(time.Second)
			world.Edit(w, "", "all", func(r *rbacv1.ClusterRole) { r.Rules = []rbacv1.PolicyRule{ruleFor("secrets")} })
		}, "pods"},
		{"a role that does not aggregate keeps its rules", func(w *world.World) {
			world.Create(w, roleOf("all", "x", "secrets"))
			world.Create(w, roleOf("a", "x", "pods"))
		}, "secrets"},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				stop := w.Run(ClusterRoleAggregation)
				test.play(w)
				w.Pass(time.Second)
				var got []string
				for _, rule := range world.Get[*rbacv1.ClusterRole](w, "", "all").Rules {
					got = append(got, rule.Resources[0])
				}
				if text := strings.Join(got, " "); text != test.want {
					t.Errorf("%q, want %q", text, test.want)
				}
				stop()
				w.AssertSettled(ClusterRoleAggregation)
			})
		})
	}
}

func TestRulesAreApplied(t *testing.T) {
	full := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"apps"}, Resources: []string{"deployments"}, ResourceNames: []string{"web"}}
	urls := rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"}}
	const want = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"all"},"rules":[{"verbs":["get"],"apiGroups":["apps"],"resources":["deployments"],"resourceNames":["web"]},{"verbs":["get"],"nonResourceURLs":["/healthz"]}]}`
	if got := string(applyRules("all", []rbacv1.PolicyRule{full, urls})); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	world.In(t, func(w *world.World) {
		defer w.Run(ClusterRoleAggregation)()
		world.Create(w, aggregating(roleOf("all", ""), "x"))
		world.Create(w, roleOf("a", "x", "pods"))
		w.Pass(time.Second)
		managers := map[string]metav1.ManagedFieldsOperationType{}
		for _, entry := range world.Get[*rbacv1.ClusterRole](w, "", "all").ManagedFields {
			managers[entry.Manager] = entry.Operation
		}
		if managers["clusterrole-aggregation-controller"] != metav1.ManagedFieldsOperationApply {
			t.Errorf("managed by %v", managers)
		}
	})
}
