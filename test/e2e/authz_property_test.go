package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

const (
	randomPolicies     = 50
	decisionsPerPolicy = 200
)

// TestRandomPoliciesLikeUpstream gives both servers the same random roles and bindings and asks both the same 10,000 questions. The
// vocabulary is small, so that rules and questions meet often; each policy has its own namespaces, users and groups, so that all stand
// at once and upstream's informers are waited for once.
func TestRandomPoliciesLikeUpstream(t *testing.T) {
	dir := t.TempDir()
	ours, err := cluster.Skiff(filepath.Join(dir, "skiff"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ours.Stop)
	theirs, err := cluster.UpstreamAPI(filepath.Join(dir, "upstream"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(theirs.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var policies []*randomPolicy
	var questions []authorizationv1.SubjectAccessReviewSpec
	for i := range randomPolicies {
		p := newRandomPolicy(i)
		policies = append(policies, p)
		for range decisionsPerPolicy {
			questions = append(questions, p.question())
		}
	}
	var answers [2][]authorizationv1.SubjectAccessReviewStatus
	for i, c := range []*cluster.Cluster{ours, theirs} {
		config, err := c.Config()
		if err != nil {
			t.Fatal(err)
		}
		k := clientset.NewForConfigOrDie(config)
		writePolicies(ctx, t, k, policies)
		waitForPolicies(ctx, t, k)
		answers[i] = askAll(ctx, t, k, questions)
	}
	var allowed, dangling int
	for i := range questions {
		got, want := answers[0][i], answers[1][i]
		if want.Allowed {
			allowed++
			// Where several bindings allow the same, each server names the one it finds first.
			if strings.HasPrefix(got.Reason, "RBAC: allowed by ") && strings.HasPrefix(want.Reason, "RBAC: allowed by ") {
				got.Reason, want.Reason = "", ""
			}
		} else if want.Reason != "" {
			dangling++
		}
		got.Reason, want.Reason = sortedReasons(got.Reason), sortedReasons(want.Reason)
		if got != want {
			t.Errorf("%s:\n ours   %+v\n theirs %+v", describeReview(&questions[i]), got, want)
		}
	}
	t.Logf("%d decisions, %d allowed, %d refused with bindings to roles that do not exist", len(questions), allowed, dangling)
	if allowed < len(questions)/5 || allowed > len(questions)*4/5 || dangling < len(questions)/50 {
		t.Error("the questions are too easy")
	}
}

// randomPolicy is a set of roles and bindings in two namespaces, with a cast that no other policy knows.
type randomPolicy struct {
	*rand.Rand
	number     int
	namespaces [2]string
	objects    []any
}

func newRandomPolicy(number int) *randomPolicy {
	p := &randomPolicy{Rand: rand.New(rand.NewPCG(3, uint64(number))), number: number}
	p.namespaces = [2]string{p.own("left"), p.own("right")}
	for i := range 5 {
		p.objects = append(p.objects, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: p.own(fmt.Sprint("role-", i))}, Rules: p.rules(true)})
	}
	for _, namespace := range p.namespaces {
		for i := range 3 {
			p.objects = append(p.objects, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.own(fmt.Sprint("role-", i))}, Rules: p.rules(false)})
		}
		for i := range 6 {
			p.objects = append(p.objects, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.own(fmt.Sprint("binding-", i))},
				RoleRef:    p.roleRef(p.one("Role", "ClusterRole"), 4), Subjects: p.subjects(true),
			})
		}
	}
	for i := range 4 {
		p.objects = append(p.objects, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: p.own(fmt.Sprint("binding-", i))}, RoleRef: p.roleRef("ClusterRole", 6), Subjects: p.subjects(false)})
	}
	return p
}

// own makes a name that belongs to this policy alone.
func (p *randomPolicy) own(name string) string { return fmt.Sprintf("p%d-%s", p.number, name) }

func (p *randomPolicy) one(of ...string) string { return of[p.IntN(len(of))] }

// some draws one to three different words.
func (p *randomPolicy) some(of ...string) []string {
	drawn := make([]string, 0, 3)
	for range 1 + p.IntN(3) {
		if word := p.one(of...); !slices.Contains(drawn, word) {
			drawn = append(drawn, word)
		}
	}
	return drawn
}

func (p *randomPolicy) rules(urls bool) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for range 1 + p.IntN(4) {
		if urls && p.IntN(4) == 0 {
			rules = append(rules, rbacv1.PolicyRule{Verbs: p.some("get", "post", "*"), NonResourceURLs: p.some("/metrics", "/debug/*", "/logs*", "/logs", "/", "/debug/pprof", "*")})
			continue
		}
		rule := rbacv1.PolicyRule{
			Verbs: p.some("get", "list", "watch", "create", "bind", "*"), APIGroups: p.some("", "", "apps", "example.com", "*"),
			Resources: p.some("pods", "pods/log", "deployments", "deployments/scale", "widgets", "pods/*", "*/scale", "*/log", "*"),
		}
		if p.IntN(4) == 0 {
			rule.ResourceNames = p.some("one", "two", "")
		}
		rules = append(rules, rule)
	}
	return rules
}

// roleRef names a role that may not exist: there are fewer than among is large.
func (p *randomPolicy) roleRef(kind string, among int) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: p.own(fmt.Sprint("role-", p.IntN(among)))}
}

// The cast: accounts appear as such, as users by their full name, and in the groups all accounts are in.
func (p *randomPolicy) subjects(namespaced bool) []rbacv1.Subject {
	var subjects []rbacv1.Subject
	for range 1 + p.IntN(3) {
		switch p.IntN(6) {
		case 0, 1:
			subjects = append(subjects, subject(rbacv1.UserKind, p.own(p.one("ann", "bob"))))
		case 2:
			subjects = append(subjects, subject(rbacv1.GroupKind, p.own(p.one("red", "blue"))))
		case 3:
			subjects = append(subjects, subject(rbacv1.GroupKind, "system:serviceaccounts:"+p.one(p.namespaces[:]...)))
		case 4:
			subjects = append(subjects, subject(rbacv1.UserKind, "system:serviceaccount:"+p.one(p.namespaces[:]...)+":"+p.one("robot", "crane")))
		case 5:
			s := subject(rbacv1.ServiceAccountKind, p.one(p.namespaces[:]...)+"/"+p.one("robot", "crane"))
			if namespaced && p.IntN(3) == 0 {
				s.Namespace = "" // that of the binding
			}
			subjects = append(subjects, s)
		}
	}
	return subjects
}

func (p *randomPolicy) question() authorizationv1.SubjectAccessReviewSpec {
	user, groups := p.own(p.one("ann", "ann", "bob", "bob", "cid")), []string{"system:authenticated"}
	if p.IntN(3) == 0 {
		namespace := p.one(p.namespaces[:]...)
		user, groups = "system:serviceaccount:"+namespace+":"+p.one("robot", "crane"), append(groups, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	if p.IntN(2) == 0 {
		groups = append(groups, p.own(p.one("red", "blue")))
	}
	if p.IntN(8) == 0 {
		path := p.one("/metrics", "/metrics/", "/debug", "/debug/", "/debug/pprof", "/logs", "/logs/x", "/logsx", "/", "*")
		return authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: p.one("get", "post", "put", "*")}}
	}
	return reviewOf(user, groups, p.one("get", "get", "list", "watch", "create", "bind", "*", "GET"), p.one("", "", "", "apps", "apps", "example.com", "other.io", "*"),
		p.one("pods", "pods", "pods/log", "pods/exec", "deployments", "deployments/scale", "deployments/log", "widgets", "widgets/scale", "*", "pods/*", "*/log", "pod"),
		p.one(p.namespaces[0], p.namespaces[0], p.namespaces[1], p.namespaces[1], "default", ""), p.one("", "one", "two", "three"), "")
}

// sentinel allows one user something by each way there is, after all else is written.
func sentinel() []any {
	meta := metav1.ObjectMeta{Name: "sentinel"}
	local := metav1.ObjectMeta{Name: "sentinel", Namespace: "default"}
	rules := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"sentinel.io"}, Resources: []string{resource}}}
	}
	all := []any{&rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules("wide")}, &rbacv1.Role{ObjectMeta: local, Rules: rules("narrow")}}
	wide, narrow := &rbacv1.ClusterRoleBinding{ObjectMeta: meta}, &rbacv1.RoleBinding{ObjectMeta: local}
	wide.RoleRef, wide.Subjects = bindTo("ClusterRole", "sentinel", subject("User", "sentinel"))
	narrow.RoleRef, narrow.Subjects = bindTo("Role", "sentinel", subject("User", "sentinel"))
	return append(all, wide, narrow)
}

// waitForPolicies: informers deliver in order, so who knows the last object of each kind knows all.
func waitForPolicies(ctx context.Context, t *testing.T, k clientset.Interface) {
	t.Helper()
	for _, obj := range sentinel() {
		if err := writePolicyObject(ctx, k, obj); err != nil {
			t.Fatal(err)
		}
	}
	for _, spec := range []authorizationv1.SubjectAccessReviewSpec{
		reviewOf("sentinel", nil, "get", "sentinel.io", "wide", "", "", ""), reviewOf("sentinel", nil, "get", "sentinel.io", "narrow", "default", "", ""),
	} {
		eventually(ctx, t, "allowed: "+describeReview(&spec), func(ctx context.Context) (bool, error) {
			answer, err := k.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed, err
		})
	}
}

func writePolicies(ctx context.Context, t *testing.T, k clientset.Interface, policies []*randomPolicy) {
	t.Helper()
	next := make(chan *randomPolicy)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for p := range next {
				for _, name := range p.namespaces {
					if _, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
						t.Errorf("namespace %s: %v", name, err)
					}
				}
				for _, obj := range p.objects {
					if err := writePolicyObject(ctx, k, obj); err != nil {
						t.Errorf("%+v: %v", obj, err)
					}
				}
			}
		})
	}
	for _, p := range policies {
		next <- p
	}
	close(next)
	wg.Wait()
}

func writePolicyObject(ctx context.Context, k clientset.Interface, obj any) (err error) {
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		_, err = k.RbacV1().ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.Role:
		_, err = k.RbacV1().Roles(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.ClusterRoleBinding:
		_, err = k.RbacV1().ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = k.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	default:
		err = fmt.Errorf("a %T is no policy", obj)
	}
	return err
}

// sortedReasons puts the roles that do not exist, which upstream names in any order, in one.
func sortedReasons(reason string) string {
	start, list, found := strings.Cut(reason, "[")
	if !found || !strings.HasSuffix(list, "]") {
		return reason
	}
	parts := strings.Split(strings.TrimSuffix(list, "]"), ", ")
	slices.Sort(parts)
	return start + "[" + strings.Join(parts, ", ") + "]"
}
