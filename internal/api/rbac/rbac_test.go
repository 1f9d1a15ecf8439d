package rbac

import (
	"reflect"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

func rule(verbs, groups, resources, urls []string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: groups, Resources: resources, NonResourceURLs: urls}
}

var (
	get      = []string{"get"}
	core     = []string{""}
	pods     = []string{"pods"}
	healthz  = []string{"/healthz"}
	readPods = rule(get, core, pods, nil)
)

func TestRoles(t *testing.T) {
	for _, test := range []struct {
		name                  string
		rule                  rbacv1.PolicyRule
		inRole, inClusterRole []string
	}{
		{name: "resources", rule: readPods},
		{
			name: "urls", rule: rule(get, nil, nil, healthz),
			inRole: []string{"rules[0].nonResourceURLs: Invalid value: namespaced rules cannot apply to non-resource URLs"},
		},
		{
			name: "both", rule: rule(get, core, pods, healthz),
			inRole: []string{
				"rules[0].nonResourceURLs: Invalid value: namespaced rules cannot apply to non-resource URLs",
				"rules[0].nonResourceURLs: Invalid value: rules cannot apply to both regular resources and non-resource URLs",
			},
			inClusterRole: []string{"rules[0].nonResourceURLs: Invalid value: rules cannot apply to both regular resources and non-resource URLs"},
		},
		{
			name: "nothing",
			inRole: []string{
				"rules[0].verbs: Required value",
				"rules[0].apiGroups: Required value: resource rules must supply at least one api group",
				"rules[0].resources: Required value: resource rules must supply at least one resource",
			},
			inClusterRole: []string{"rules[0].verbs: Required value", "rules[0].apiGroups: Required value", "rules[0].resources: Required value"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(Role, nil, &rbacv1.Role{Rules: []rbacv1.PolicyRule{test.rule}})
			kindtest.Errors(t, errs, test.inRole...)
			_, errs = kindtest.Create(ClusterRole, nil, &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{test.rule}})
			kindtest.Errors(t, errs, test.inClusterRole...)
		})
	}
}

func TestAggregation(t *testing.T) {
	aggregated := func(selectors ...metav1.LabelSelector) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: selectors}}
	}
	good := metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	bad := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b b"}}}}

	_, errs := kindtest.Create(ClusterRole, nil, aggregated(good))
	kindtest.Errors(t, errs)
	_, errs = kindtest.Create(ClusterRole, nil, aggregated())
	kindtest.Errors(t, errs, "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required")
	_, errs = kindtest.Create(ClusterRole, nil, aggregated(bad))
	if len(errs) == 0 {
		t.Error("a new role with an invalid selector was accepted")
	}
	_, errs = kindtest.Update(ClusterRole, nil, aggregated(good, bad), aggregated(bad))
	for _, err := range errs {
		if err.Detail != "invalid label selector." {
			t.Errorf("a stored invalid selector must be tolerated: %v", err)
		}
	}
}

func TestBindings(t *testing.T) {
	role := rbacv1.RoleRef{Kind: "ClusterRole", Name: "admin"}
	account := rbacv1.Subject{Kind: "ServiceAccount", Name: "default", Namespace: "ns"}
	for _, test := range []struct {
		name                        string
		role                        rbacv1.RoleRef
		subject                     rbacv1.Subject
		inBinding, inClusterBinding []string
	}{
		{name: "valid", role: role, subject: account},
		{
			name: "role", role: rbacv1.RoleRef{Kind: "Role", Name: "admin"}, subject: account,
			inClusterBinding: []string{"roleRef.kind: Unsupported value"},
		},
		{
			name: "no role", role: rbacv1.RoleRef{APIGroup: "x"}, subject: account,
			inBinding:        []string{"roleRef.apiGroup: Unsupported value", "roleRef.kind: Unsupported value", "roleRef.name: Required value"},
			inClusterBinding: []string{"roleRef.apiGroup: Unsupported value", "roleRef.kind: Unsupported value", "roleRef.name: Required value"},
		},
		{
			name: "role name", role: rbacv1.RoleRef{Kind: "ClusterRole", Name: "a/b"}, subject: account,
			inBinding:        []string{"roleRef.name: Invalid value: may not contain '/'"},
			inClusterBinding: []string{"roleRef.name: Invalid value: may not contain '/'"},
		},
		{
			name: "account without namespace", role: role, subject: rbacv1.Subject{Kind: "ServiceAccount", Name: "default"},
			inClusterBinding: []string{"subjects[0].namespace: Required value"},
		},
		{
			name: "account", role: role, subject: rbacv1.Subject{Kind: "ServiceAccount", Name: "De fault", Namespace: "ns", APIGroup: "x"},
			inBinding:        []string{"subjects[0].name: Invalid value", "subjects[0].apiGroup: Unsupported value"},
			inClusterBinding: []string{"subjects[0].name: Invalid value", "subjects[0].apiGroup: Unsupported value"},
		},
		{
			name: "user", role: role, subject: rbacv1.Subject{Kind: "User", APIGroup: "x"},
			inBinding:        []string{"subjects[0].name: Required value", "subjects[0].apiGroup: Unsupported value"},
			inClusterBinding: []string{"subjects[0].name: Required value", "subjects[0].apiGroup: Unsupported value"},
		},
		{
			name: "robot", role: role, subject: rbacv1.Subject{Kind: "Robot", Name: "r"},
			inBinding:        []string{"subjects[0].kind: Unsupported value"},
			inClusterBinding: []string{"subjects[0].kind: Unsupported value"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(RoleBinding, nil, &rbacv1.RoleBinding{RoleRef: test.role, Subjects: []rbacv1.Subject{test.subject}})
			kindtest.Errors(t, errs, test.inBinding...)
			_, errs = kindtest.Create(ClusterRoleBinding, nil, &rbacv1.ClusterRoleBinding{RoleRef: test.role, Subjects: []rbacv1.Subject{test.subject}})
			kindtest.Errors(t, errs, test.inClusterBinding...)
		})
	}
}

func TestRoleOfABindingStays(t *testing.T) {
	admin := &rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "admin"}}
	view := &rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"}}
	_, errs := kindtest.Update(ClusterRoleBinding, nil, view, admin)
	kindtest.Errors(t, errs, "roleRef: Invalid value: field is immutable")
	_, errs = kindtest.Update(ClusterRoleBinding, nil, admin, admin)
	kindtest.Errors(t, errs)
}

func TestDefaults(t *testing.T) {
	binding := &rbacv1.RoleBinding{Subjects: []rbacv1.Subject{{Kind: "User"}, {Kind: "Group"}, {Kind: "ServiceAccount"}}}
	RoleBinding.Default(binding)
	got := []string{binding.RoleRef.APIGroup}
	for _, subject := range binding.Subjects {
		got = append(got, subject.APIGroup)
	}
	if want := []string{rbacv1.GroupName, rbacv1.GroupName, rbacv1.GroupName, ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("api groups = %q, want %q", got, want)
	}
}

func TestNames(t *testing.T) {
	for _, k := range Kinds() {
		if problems := k.ValidateName("system:node", false); len(problems) > 0 {
			t.Errorf("%s: %v", k.Plural, problems)
		}
		for _, name := range []string{"..", "a/b", "a%b"} {
			if len(k.ValidateName(name, false)) == 0 {
				t.Errorf("%s: accepts the name %q", k.Plural, name)
			}
		}
	}
}

func TestRow(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		RoleRef:    rbacv1.RoleRef{Kind: "Role", Name: "r"},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "u"}, {Kind: "User", Name: "v"}, {Kind: "Group", Name: "g"}, {Kind: "ServiceAccount", Namespace: "n", Name: "s"}},
	}
	got := RoleBinding.Row(binding, now)
	if want := []any{"b", "Role/r", "60m", "u, v", "g", "n/s"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %q, want %q", got, want)
	}
	for _, k := range []*kind.Kind{RoleBinding, ClusterRoleBinding} {
		if len(k.Columns) != len(got) {
			t.Errorf("%s: %d columns for %d cells", k.Plural, len(k.Columns), len(got))
		}
	}
}
