package authz

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/authn"
)

func user(name string, groups ...string) authn.User {
	return authn.User{Username: name, Groups: groups}
}

// account is the user of a service account.
func account(namespace, name string) authn.User {
	return user("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")
}

// on makes attributes of a resource written as [group/]resource[.subresource], followed by a space and a name.
func on(u authn.User, verb, what, namespace string) *Attributes {
	resource, name, _ := strings.Cut(what, " ")
	a := &Attributes{User: u, Verb: verb, ResourceRequest: true, Version: "v1", Namespace: namespace, Name: name}
	if group, rest, ok := strings.Cut(resource, ":"); ok {
		a.Group, resource = group, rest
	}
	a.Resource, a.Subresource = splitResource(resource)
	return a
}

func at(u authn.User, verb, path string) *Attributes {
	return &Attributes{User: u, Verb: verb, Path: path}
}

const testPolicy = `
clusterrole pod-reader
  get,list,watch core pods,pods/log
clusterrole scaler
  get,update * */scale
clusterrole own-secret
  get core secrets names=mine,ours
clusterrole all-of-apps
  * apps *
clusterrole metrics
  get /metrics,/healthz/*
  * /root*
clusterrole star-name
  get core pods/*
clusterrole odd-verbs
  use,bind policy podsecuritypolicies
role prod writer
  create,update core configmaps
clusterrolebinding pod-reader user:jane group:readers account:ci/robot
clusterrolebinding scaler user:scaler
clusterrolebinding own-secret user:jane
clusterrolebinding all-of-apps group:appdev
clusterrolebinding metrics user:prometheus
clusterrolebinding star-name user:starry
clusterrolebinding odd-verbs user:odd
clusterrolebinding gone user:lost
rolebinding prod writer user:bob account:prod/builder
rolebinding prod gone user:lost
`

func mustRead(t testing.TB, table string) PolicyObjects {
	t.Helper()
	p, err := readPolicy(table)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRBAC(t *testing.T) {
	p := mustRead(t, testPolicy)
	p.RoleBindings = append(p.RoleBindings, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "readers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "all-of-apps"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "local"}, {Kind: "Group", Name: "dev"}, {Kind: "User", Name: "both"}},
	})
	rbac := NewRBAC(NewStaticPolicy(p))
	jane, robot, lost := user("jane", "system:authenticated"), account("ci", "robot"), user("lost")
	for _, test := range []struct {
		ask  *Attributes
		want Decision
		why  string
	}{
		{on(jane, "get", "pods", "x"), Allow, `RBAC: allowed by ClusterRoleBinding "pod-reader" of ClusterRole "pod-reader" to User "jane"`},
		{on(jane, "get", "pods", ""), Allow, `RBAC: allowed by ClusterRoleBinding "pod-reader" of ClusterRole "pod-reader" to User "jane"`},
		{on(user("joe", "x", "readers"), "get", "pods/log p", "x"), Allow, `RBAC: allowed by ClusterRoleBinding "pod-reader" of ClusterRole "pod-reader" to Group "readers"`},
		{on(user("jane", "readers"), "watch", "pods", "x"), Allow, `RBAC: allowed by ClusterRoleBinding "pod-reader" of ClusterRole "pod-reader" to User "jane"`},
		{on(robot, "list", "pods", ""), Allow, `RBAC: allowed by ClusterRoleBinding "pod-reader" of ClusterRole "pod-reader" to ServiceAccount "robot/ci"`},
		{on(account("other", "robot"), "list", "pods", ""), NoOpinion, ""},
		{on(jane, "delete", "pods", "x"), NoOpinion, ""},
		{on(jane, "get", "pods/exec", "x"), NoOpinion, ""},
		{on(jane, "get", "apps:pods", "x"), NoOpinion, ""},
		{on(user("scaler"), "update", "apps:deployments/scale d", "x"), Allow, `RBAC: allowed by ClusterRoleBinding "scaler" of ClusterRole "scaler" to User "scaler"`},
		{on(user("scaler"), "update", "apps:deployments d", "x"), NoOpinion, ""},
		{on(user("scaler"), "update", "apps:deployments/scales d", "x"), NoOpinion, ""},
		{on(jane, "get", "secrets mine", "x"), Allow, `RBAC: allowed by ClusterRoleBinding "own-secret" of ClusterRole "own-secret" to User "jane"`},
		{on(jane, "get", "secrets theirs", "x"), NoOpinion, ""},
		{on(jane, "get", "secrets", "x"), NoOpinion, ""},
		{on(user("a", "appdev"), "frobnicate", "apps:whatever/at/all", ""), Allow, `RBAC: allowed by ClusterRoleBinding "all-of-apps" of ClusterRole "all-of-apps" to Group "appdev"`},
		{on(user("a", "appdev"), "get", "deployments", ""), NoOpinion, ""},
		{at(user("prometheus"), "get", "/metrics"), Allow, `RBAC: allowed by ClusterRoleBinding "metrics" of ClusterRole "metrics" to User "prometheus"`},
		{at(user("prometheus"), "get", "/metrics/slis"), NoOpinion, ""},
		{at(user("prometheus"), "get", "/healthz/etcd"), Allow, `RBAC: allowed by ClusterRoleBinding "metrics" of ClusterRole "metrics" to User "prometheus"`},
		{at(user("prometheus"), "get", "/healthz"), NoOpinion, ""},
		{at(user("prometheus"), "post", "/rooted"), Allow, `RBAC: allowed by ClusterRoleBinding "metrics" of ClusterRole "metrics" to User "prometheus"`},
		// Only a leading star is a wildcard: pods/* is a subresource named *.
		{on(user("starry"), "get", "pods/log", "x"), NoOpinion, ""},
		{on(user("starry"), "get", "pods/*", "x"), Allow, `RBAC: allowed by ClusterRoleBinding "star-name" of ClusterRole "star-name" to User "starry"`},
		{on(user("odd"), "use", "policy:podsecuritypolicies p", ""), Allow, `RBAC: allowed by ClusterRoleBinding "odd-verbs" of ClusterRole "odd-verbs" to User "odd"`},
		{on(user("odd"), "us", "policy:podsecuritypolicies p", ""), NoOpinion, ""},
		{on(user("bob"), "create", "configmaps", "prod"), Allow, `RBAC: allowed by RoleBinding "writer/prod" of Role "writer" to User "bob"`},
		{on(user("bob"), "create", "configmaps", "dev"), NoOpinion, ""},
		{on(user("bob"), "create", "configmaps", ""), NoOpinion, ""},
		{on(account("prod", "builder"), "update", "configmaps c", "prod"), Allow, `RBAC: allowed by RoleBinding "writer/prod" of Role "writer" to ServiceAccount "builder/prod"`},
		// A service account without a namespace is in that of the binding.
		{on(account("dev", "local"), "get", "apps:deployments", "dev"), Allow, `RBAC: allowed by RoleBinding "readers/dev" of ClusterRole "all-of-apps" to ServiceAccount "local/dev"`},
		{on(account("prod", "local"), "get", "apps:deployments", "dev"), NoOpinion, ""},
		// The first subject that matches the user, however the binding was found.
		{on(user("both", "dev"), "get", "apps:deployments", "dev"), Allow, `RBAC: allowed by RoleBinding "readers/dev" of ClusterRole "all-of-apps" to Group "dev"`},
		{on(lost, "get", "pods", ""), NoOpinion, `RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found`},
		{on(lost, "get", "pods", "prod"), NoOpinion, `RBAC: [clusterrole.rbac.authorization.k8s.io "gone" not found, role.rbac.authorization.k8s.io "gone" not found]`},
	} {
		got, why, err := rbac.Authorize(context.Background(), test.ask)
		if got != test.want || why != test.why || err != nil {
			t.Errorf("%+v:\n got %v %q %v\nwant %v %q", *test.ask, got, why, err, test.want, test.why)
		}
	}
}

func TestRBACRulesFor(t *testing.T) {
	rbac := NewRBAC(NewStaticPolicy(mustRead(t, testPolicy)))
	rules, err := rbac.RulesFor(context.Background(), user("bob", "readers"), "prod")
	if err != nil || rules.Incomplete {
		t.Fatal(rules, err)
	}
	if len(rules.Resources) != 2 || rules.Resources[0].Resources[0] != "pods" || rules.Resources[1].Resources[0] != "configmaps" || len(rules.Paths) != 0 {
		t.Errorf("rules of bob in prod: %+v", rules)
	}
	rules, err = rbac.RulesFor(context.Background(), user("prometheus"), "prod")
	if err != nil || len(rules.Resources) != 0 || len(rules.Paths) != 2 || rules.Paths[0].NonResourceURLs[1] != "/healthz/*" {
		t.Errorf("rules of prometheus: %+v %v", rules, err)
	}
	if _, err = rbac.RulesFor(context.Background(), user("lost"), "prod"); err == nil {
		t.Error("no error about the role that does not exist")
	}
}

// mutablePolicy is a policy that changes.
type mutablePolicy struct {
	*StaticPolicy
	revisions PolicyRevisions
}

func (c *mutablePolicy) Revisions() PolicyRevisions { return c.revisions }

func TestRBACPolicyChanges(t *testing.T) {
	policy := &mutablePolicy{StaticPolicy: NewStaticPolicy(PolicyObjects{})}
	rbac := NewRBAC(policy)
	allowed := func(a *Attributes) bool {
		d, _, _ := rbac.Authorize(context.Background(), a)
		return d == Allow
	}
	pods, maps := on(user("u"), "get", "pods", "n"), on(user("u"), "get", "configmaps", "n")
	if allowed(pods) || allowed(maps) {
		t.Fatal("allowed without a policy")
	}
	steps := []struct {
		name   string
		table  string
		change func(*PolicyRevisions)
		pods   bool
		maps   bool
	}{
		{"binding before its role", "clusterrolebinding a user:u", func(r *PolicyRevisions) { r.ClusterRoleBindings++ }, false, false},
		{"role appears", "clusterrolebinding a user:u\nclusterrole a\n  get core pods", func(r *PolicyRevisions) { r.ClusterRoles++ }, true, false},
		{"role changes", "clusterrolebinding a user:u\nclusterrole a\n  get core configmaps", func(r *PolicyRevisions) { r.ClusterRoles++ }, false, true},
		{"binding goes", "clusterrole a\n  get core configmaps", func(r *PolicyRevisions) { r.ClusterRoleBindings++ }, false, false},
		{"binding in the namespace", "rolebinding n b user:u\nrole n b\n  get core pods", func(r *PolicyRevisions) { r.RoleBindings++; r.Roles++ }, true, false},
		{"role in the namespace changes", "rolebinding n b user:u\nrole n b\n  get core configmaps", func(r *PolicyRevisions) { r.Roles++ }, false, true},
		{"role in the namespace goes", "rolebinding n b user:u", func(r *PolicyRevisions) { r.Roles++ }, false, false},
	}
	for _, step := range steps {
		policy.StaticPolicy = NewStaticPolicy(mustRead(t, step.table))
		step.change(&policy.revisions)
		if allowed(pods) != step.pods || allowed(maps) != step.maps {
			t.Errorf("%s: pods %v, config maps %v", step.name, allowed(pods), allowed(maps))
		}
	}
	if len(rbac.compiled)+len(rbac.previous) > 1 {
		t.Errorf("deleted roles are kept: %v %v", rbac.compiled, rbac.previous)
	}
}

// naive authorizes by the policy without an index.
func naive(p PolicyObjects, a *Attributes) bool {
	isOne := func(subjects []rbacv1.Subject, namespace string) bool {
		for _, s := range subjects {
			switch s.Kind {
			case "User":
				if s.Name == a.User.Username {
					return true
				}
			case "Group":
				for _, g := range a.User.Groups {
					if g == s.Name {
						return true
					}
				}
			case "ServiceAccount":
				ns := s.Namespace
				if ns == "" {
					ns = namespace
				}
				if ns != "" && a.User.Username == fmt.Sprintf("system:serviceaccount:%s:%s", ns, s.Name) {
					return true
				}
			}
		}
		return false
	}
	rulesOf := func(ref rbacv1.RoleRef, namespace string) []rbacv1.PolicyRule {
		if ref.Kind == "ClusterRole" {
			for _, r := range p.ClusterRoles {
				if r.Name == ref.Name {
					return r.Rules
				}
			}
		}
		for _, r := range p.Roles {
			if ref.Kind == "Role" && r.Namespace == namespace && r.Name == ref.Name {
				return r.Rules
			}
		}
		return nil
	}
	var rules []rbacv1.PolicyRule
	for _, b := range p.ClusterRoleBindings {
		if isOne(b.Subjects, "") {
			rules = append(rules, rulesOf(b.RoleRef, "")...)
		}
	}
	for _, b := range p.RoleBindings {
		if a.Namespace != "" && b.Namespace == a.Namespace && isOne(b.Subjects, b.Namespace) {
			rules = append(rules, rulesOf(b.RoleRef, b.Namespace)...)
		}
	}
	for _, r := range rules {
		if naiveRule(r, a) {
			return true
		}
	}
	return false
}

func naiveRule(r rbacv1.PolicyRule, a *Attributes) bool {
	if !slices.Contains(r.Verbs, "*") && !slices.Contains(r.Verbs, a.Verb) {
		return false
	}
	if !a.ResourceRequest {
		for _, u := range r.NonResourceURLs {
			if u == a.Path || (strings.HasSuffix(u, "*") && strings.HasPrefix(a.Path, strings.TrimRight(u, "*"))) {
				return true
			}
		}
		return false
	}
	whole := a.Resource
	if a.Subresource != "" {
		whole += "/" + a.Subresource
	}
	return (slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, a.Group)) &&
		(slices.Contains(r.Resources, "*") || slices.Contains(r.Resources, whole) ||
			(a.Subresource != "" && slices.Contains(r.Resources, "*/"+a.Subresource))) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.Name))
}

// Names of random policies and requests: few, so that they match often.
var (
	someVerbs      = []string{"get", "list", "watch", "create", "update", "delete", "deletecollection", "use", "bind", "*"}
	someGroups     = []string{"", "apps", "batch", "*"}
	someResources  = []string{"pods", "deployments", "jobs", "pods/log", "deployments/scale", "*/scale", "pods/*", "*", "*/log", "a/b/c", "*/b/c"}
	someNames      = []string{"", "x", "y"}
	someNamespaces = []string{"", "n", "m"}
	somePaths      = []string{"/", "/a", "/a/b", "/a/*", "/ab*", "*", "/abc"}
	someUsers      = []string{"u", "v", "system:serviceaccount:n:s", "system:serviceaccount:m:s"}
	someUserGroups = []string{"g", "h", "i"}
)

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }

func pickSome(r *rand.Rand, from []string, most int) []string {
	var some []string
	for range 1 + r.IntN(most) {
		some = append(some, pick(r, from))
	}
	return some
}

func randomRules(r *rand.Rand) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for range 1 + r.IntN(8) {
		rule := rbacv1.PolicyRule{Verbs: pickSome(r, someVerbs, 5)}
		if r.IntN(4) == 0 {
			rule.NonResourceURLs = pickSome(r, somePaths, 3)
		} else {
			rule.APIGroups, rule.Resources = pickSome(r, someGroups, 2), pickSome(r, someResources, 3)
			if r.IntN(3) == 0 {
				rule.ResourceNames = pickSome(r, someNames[1:], 2)
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

func randomSubjects(r *rand.Rand) []rbacv1.Subject {
	var subjects []rbacv1.Subject
	for range 1 + r.IntN(5) {
		switch r.IntN(3) {
		case 0:
			subjects = append(subjects, rbacv1.Subject{Kind: "User", Name: pick(r, someUsers)})
		case 1:
			subjects = append(subjects, rbacv1.Subject{Kind: "Group", Name: pick(r, someUserGroups)})
		default:
			subjects = append(subjects, rbacv1.Subject{Kind: "ServiceAccount", Name: "s", Namespace: pick(r, someNamespaces)})
		}
	}
	return subjects
}

func randomPolicy(r *rand.Rand) PolicyObjects {
	var p PolicyObjects
	names := []string{"a", "b", "c", "d"}
	for _, name := range names[:3] {
		p.ClusterRoles = append(p.ClusterRoles, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: randomRules(r)})
	}
	for _, namespace := range someNamespaces[1:] {
		p.Roles = append(p.Roles, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}, Rules: randomRules(r)})
		for i := range r.IntN(3) {
			ref := rbacv1.RoleRef{Kind: pick(r, []string{"Role", "ClusterRole"}), Name: pick(r, names)}
			p.RoleBindings = append(p.RoleBindings, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(i)}, RoleRef: ref, Subjects: randomSubjects(r),
			})
		}
	}
	for i := range r.IntN(6) {
		p.ClusterRoleBindings = append(p.ClusterRoleBindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: pick(r, names)}, Subjects: randomSubjects(r),
		})
	}
	return p
}

func randomRequest(r *rand.Rand) *Attributes {
	a := &Attributes{User: user(pick(r, someUsers), pickSome(r, someUserGroups, 2)...), Verb: pick(r, someVerbs)}
	if r.IntN(5) == 0 {
		a.Path = pick(r, somePaths)
		return a
	}
	a.ResourceRequest, a.Group, a.Namespace, a.Name = true, pick(r, someGroups), pick(r, someNamespaces), pick(r, someNames)
	a.Resource = pick(r, someResources)
	if r.IntN(8) > 0 {
		a.Resource, a.Subresource = splitResource(a.Resource)
	}
	return a
}

func TestRBACAgainstNaive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	allowed := 0
	for range 500 {
		p := randomPolicy(r)
		rbac := NewRBAC(NewStaticPolicy(p))
		for range 40 {
			a := randomRequest(r)
			got, why, _ := rbac.Authorize(context.Background(), a)
			if want := naive(p, a); (got == Allow) != want {
				t.Fatalf("%+v: %v %q, want %v\n%+v", *a, got, why, want, p)
			}
			if got == Allow {
				allowed++
			}
		}
	}
	if allowed < 1000 || allowed > 19000 {
		t.Errorf("%d of 20000 are allowed: the test is too weak", allowed)
	}
}

func TestCompactedRulesAreDescribed(t *testing.T) {
	got := describeRule(rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"x"}, Verbs: []string{"get", "list"}})
	if want := `{APIGroups:[""], Resources:["pods"], ResourceNames:["x"], Verbs:["get" "list"]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	rules := compact([]rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{NonResourceURLs: []string{"/a"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}, ResourceNames: []string{"x"}},
	})
	if len(rules) != 3 || !reflect.DeepEqual(rules[0].Verbs, []string{"get", "list"}) {
		t.Errorf("compacted to %+v", rules)
	}
}

func benchmarkRequests() map[string]*Attributes {
	return map[string]*Attributes{
		"controller-pod":  on(account("kube-system", "replicaset-controller"), "create", "pods", "default"),
		"scheduler-bind":  on(user("system:kube-scheduler", "system:authenticated"), "create", "pods/binding p", "default"),
		"manager-list":    on(user("system:kube-controller-manager", "system:authenticated"), "list", "apps:deployments", ""),
		"collector-patch": on(account("kube-system", "generic-garbage-collector"), "patch", "example.com:widgets w", "default"),
		"editor":          on(user("jane", "devs", "system:authenticated"), "create", "apps:deployments d", "prod"),
		"discovery":       at(user("jane", "system:authenticated"), "get", "/openapi/v2"),
	}
}

func benchmarkPolicy() PolicyObjects {
	p := BootstrapPolicy()
	for i := range 1000 {
		p.RoleBindings = append(p.RoleBindings, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: fmt.Sprint("b", i)}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "edit"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: fmt.Sprint("user-", i)}, {Kind: "User", Name: "jane"}},
		})
	}
	return p
}

func TestRBACDoesNotAllocate(t *testing.T) {
	rbac := NewRBAC(NewStaticPolicy(benchmarkPolicy()))
	for name, a := range benchmarkRequests() {
		if d, why, _ := rbac.Authorize(context.Background(), a); d != Allow {
			t.Errorf("%s is denied: %v %s", name, d, why)
		}
		if n := testing.AllocsPerRun(100, func() { _, _, _ = rbac.Authorize(context.Background(), a) }); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkRBAC(b *testing.B) {
	rbac := NewRBAC(NewStaticPolicy(benchmarkPolicy()))
	requests := benchmarkRequests()
	requests["refused"] = on(account("default", "default"), "delete", "nodes n", "")
	for name, a := range requests {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = rbac.Authorize(context.Background(), a)
			}
		})
	}
}

func BenchmarkRBACRebuild(b *testing.B) {
	policy := &mutablePolicy{StaticPolicy: NewStaticPolicy(benchmarkPolicy())}
	rbac := NewRBAC(policy)
	a := on(account("kube-system", "replicaset-controller"), "create", "pods", "default")
	for b.Loop() {
		policy.revisions.ClusterRoleBindings++
		_, _, _ = rbac.Authorize(context.Background(), a)
	}
}

// alternating is a policy that alternates between two.
type alternating struct {
	policies [2]*StaticPolicy
	count    atomic.Int64
}

func (a *alternating) now() *StaticPolicy                          { return a.policies[a.count.Load()%2] }
func (a *alternating) ClusterRole(name string) *rbacv1.ClusterRole { return a.now().ClusterRole(name) }
func (a *alternating) Role(namespace, name string) *rbacv1.Role    { return a.now().Role(namespace, name) }
func (a *alternating) ClusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	return a.now().ClusterRoleBindings()
}
func (a *alternating) RoleBindings(namespace string) []*rbacv1.RoleBinding {
	return a.now().RoleBindings(namespace)
}
func (a *alternating) Revisions() PolicyRevisions {
	n := a.count.Load()
	return PolicyRevisions{n, n, n, n}
}

func TestRBACWhileThePolicyChanges(t *testing.T) {
	const always = "clusterrole always\n  get core pods\nclusterrolebinding always user:u\n"
	policy := &alternating{policies: [2]*StaticPolicy{
		NewStaticPolicy(mustRead(t, always)),
		NewStaticPolicy(mustRead(t, always+"role n b\n  get core configmaps\nrolebinding n b user:u")),
	}}
	rbac := NewRBAC(policy)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				if d, _, _ := rbac.Authorize(context.Background(), on(user("u"), "get", "pods", "n")); d != Allow {
					t.Error("denied a request that is always allowed")
					return
				}
				_, _, _ = rbac.Authorize(context.Background(), on(user("u"), "get", "configmaps", "n"))
			}
		})
	}
	for range 500 {
		policy.count.Add(1)
	}
	wg.Wait()
	for _, want := range []Decision{NoOpinion, Allow} {
		policy.count.Store(1000 + int64(want))
		if d, _, _ := rbac.Authorize(context.Background(), on(user("u"), "get", "configmaps", "n")); d != want {
			t.Errorf("%v, want %v", d, want)
		}
	}
}
