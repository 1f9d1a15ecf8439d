package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/test/cluster"
)

// TestEscalationLikeUpstream lets users write roles and bindings on upstream and compares the results, error messages included, with
// skiff's escalation check; and it compares the rules that both list for these users.
func TestEscalationLikeUpstream(t *testing.T) {
	t.Parallel()
	upstream, err := cluster.UpstreamAPI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	config, err := upstream.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	createRoles(ctx, t, k)
	writers := grantWriting(ctx, t, k)
	policy := authz.NewStaticPolicy(policyOf(ctx, t, k))
	ours, err := authz.New(authz.Config{Modes: []string{authz.ModeNode, authz.ModeRBAC}}, policy, authz.NewNodeGraph(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	check := authz.Escalation{RBAC: ours.RBAC(), Authorizer: ours}
	for _, user := range writers {
		as := rest.CopyConfig(config)
		as.Impersonate = rest.ImpersonationConfig{UserName: user.Username, Groups: user.Groups}
		theirs := clientset.NewForConfigOrDie(as)
		for i, obj := range writes() {
			resource, namespace, err := writeUpstream(ctx, theirs, obj)
			a := &authz.Attributes{User: user, Verb: "create", ResourceRequest: true, Group: rbacv1.GroupName, Version: "v1", Resource: resource, Namespace: namespace}
			got := check.Check(ctx, a, obj, nil)
			if (got == nil) != (err == nil) || err != nil && got.Error() != err.Error() {
				t.Errorf("%s writes %d %s:\n ours   %v\n theirs %v", user.Username, i, resource, got, err)
			}
		}
		compareRules(ctx, t, ours, theirs, user)
	}
}

// grantWriting allows some users of createRoles, and a few others, to write all roles and bindings.
func grantWriting(ctx context.Context, t *testing.T, k clientset.Interface) []authenticationv1.UserInfo {
	t.Helper()
	all := []string{"*"}
	var users []authenticationv1.UserInfo
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "to-writers"}}
	for _, name := range []string{"viewer", "lost", "binder-user", "all-apps-user", "all-pods-user", "writer", "chief"} {
		users = append(users, authenticationv1.UserInfo{Username: name, Groups: []string{"team", "system:authenticated"}})
		binding.Subjects = append(binding.Subjects, subject("User", name))
	}
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"writers": {{Verbs: []string{"create", "update"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"}}},
		"chiefs":  {{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}},
	} {
		must[*rbacv1.ClusterRole](t)(k.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}))
	}
	binding.RoleRef, _ = bindTo("ClusterRole", "writers")
	must[*rbacv1.ClusterRoleBinding](t)(k.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}))
	chief := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "to-chiefs"}}
	chief.RoleRef, chief.Subjects = bindTo("ClusterRole", "chiefs", subject("User", "chief"))
	must[*rbacv1.ClusterRoleBinding](t)(k.RbacV1().ClusterRoleBindings().Create(ctx, chief, metav1.CreateOptions{}))
	eventually(ctx, t, "upstream allows the chief to escalate", func(ctx context.Context) (bool, error) {
		spec := reviewOf("chief", nil, "any", "x", "y", "", "", "")
		created, err := k.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		return err == nil && created.Status.Allowed, err
	})
	return users
}

// writes are roles and bindings that grant something.
func writes() []kind.Object {
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{""}, Resources: []string{resource}}
	}
	named := metav1.ObjectMeta{Name: "tried"}
	inProd := metav1.ObjectMeta{Name: "tried", Namespace: "prod"}
	refer := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	names := rule("secrets", "get", "list")
	names.ResourceNames = []string{"a", "b"}
	return []kind.Object{
		&rbacv1.ClusterRole{ObjectMeta: named},
		&rbacv1.ClusterRole{ObjectMeta: named, Rules: []rbacv1.PolicyRule{rule("pods", "get", "list", "delete")}},
		&rbacv1.ClusterRole{ObjectMeta: named, Rules: []rbacv1.PolicyRule{rule("pods", "get"), rule("secrets", "watch"), names, {Verbs: []string{"get"}, NonResourceURLs: []string{"/a", "/version"}}}},
		&rbacv1.ClusterRole{ObjectMeta: named, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"apps", "batch"}, Resources: []string{"deployments", "*"}}}},
		&rbacv1.ClusterRole{ObjectMeta: named, AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}}}},
		&rbacv1.Role{ObjectMeta: inProd, Rules: []rbacv1.PolicyRule{rule("configmaps", "get", "list"), rule("pods", "get")}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: refer("ClusterRole", "view")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: refer("ClusterRole", "names")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: refer("ClusterRole", "all-pods")},
		&rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: refer("ClusterRole", "nothing")},
		&rbacv1.RoleBinding{ObjectMeta: inProd, RoleRef: refer("ClusterRole", "view")},
		&rbacv1.RoleBinding{ObjectMeta: inProd, RoleRef: refer("ClusterRole", "system:kube-dns")},
		&rbacv1.RoleBinding{ObjectMeta: inProd, RoleRef: refer("Role", "local")},
		&rbacv1.RoleBinding{ObjectMeta: inProd, RoleRef: refer("Role", "nothing")},
	}
}

// writeUpstream does a dry-run write.
func writeUpstream(ctx context.Context, k clientset.Interface, obj kind.Object) (resource, namespace string, err error) {
	try := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	switch obj := obj.(type) {
	case *rbacv1.ClusterRole:
		_, err = k.RbacV1().ClusterRoles().Create(ctx, obj, try)
		return "clusterroles", "", err
	case *rbacv1.Role:
		_, err = k.RbacV1().Roles(obj.Namespace).Create(ctx, obj, try)
		return "roles", obj.Namespace, err
	case *rbacv1.ClusterRoleBinding:
		_, err = k.RbacV1().ClusterRoleBindings().Create(ctx, obj, try)
		return "clusterrolebindings", "", err
	case *rbacv1.RoleBinding:
		_, err = k.RbacV1().RoleBindings(obj.Namespace).Create(ctx, obj, try)
		return "rolebindings", obj.Namespace, err
	}
	panic("not a role and not a binding")
}

// compareRules compares rules in any order.
func compareRules(ctx context.Context, t *testing.T, ours authz.RuleResolver, theirs clientset.Interface, user authenticationv1.UserInfo) {
	t.Helper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "prod"}}
	created := must[*authorizationv1.SelfSubjectRulesReview](t)(theirs.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{}))
	rules, err := ours.RulesFor(ctx, user, "prod")
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if got, want := sortedRules(t, rules.Resources, rules.Paths), sortedRules(t, created.Status.ResourceRules, created.Status.NonResourceRules); !slices.Equal(got, want) {
		t.Errorf("rules of %s:\n ours   %v\n theirs %v", user.Username, got, want)
	}
	if rules.Incomplete != created.Status.Incomplete || len(problem) != len(created.Status.EvaluationError) {
		t.Errorf("rules of %s: incomplete %v, %q; theirs %v, %q", user.Username, rules.Incomplete, problem, created.Status.Incomplete, created.Status.EvaluationError)
	}
}

func sortedRules(t *testing.T, resources []authorizationv1.ResourceRule, paths []authorizationv1.NonResourceRule) []string {
	t.Helper()
	var lines []string
	for _, rule := range resources {
		lines = append(lines, string(must[[]byte](t)(json.Marshal(rule))))
	}
	for _, rule := range paths {
		lines = append(lines, string(must[[]byte](t)(json.Marshal(rule))))
	}
	slices.Sort(lines)
	return lines
}
