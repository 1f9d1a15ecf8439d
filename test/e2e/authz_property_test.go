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

// TestRandomPoliciesLikeUpstream gives both servers the same random roles and bindings and compares 10,000 access reviews. There are
// few verbs and resources, so that rules often match; each policy has its own namespaces, users and groups, so that all exist at the
// same time and the test waits for upstream's informers only once.
func TestRandomPoliciesLikeUpstream(t *testing.T) {
	t.Parallel()
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
	var reviews []authorizationv1.SubjectAccessReviewSpec
	for i := range randomPolicies {
		p := newRandomPolicy(i)
		policies = append(policies, p)
		for range decisionsPerPolicy {
			reviews = append(reviews, p.randomReview())
		}
	}
	var statuses [2][]authorizationv1.SubjectAccessReviewStatus
	for i, c := range []*cluster.Cluster{ours, theirs} {
		config, err := c.Config()
		if err != nil {
			t.Fatal(err)
		}
		k := clientset.NewForConfigOrDie(config)
		writePolicies(ctx, t, k, policies)
		waitForPolicies(ctx, t, k)
		statuses[i] = reviewAll(ctx, t, k, reviews)
	}
	var allowed, dangling int
	for i := range reviews {
		got, want := statuses[0][i], statuses[1][i]
		if want.Allowed {
			allowed++
			// Where several bindings allow a request, each server names the one it finds first.
			if strings.HasPrefix(got.Reason, "RBAC: allowed by ") && strings.HasPrefix(want.Reason, "RBAC: allowed by ") {
				got.Reason, want.Reason = "", ""
			}
		} else if want.Reason != "" {
			dangling++
		}
		got.Reason, want.Reason = sortedReasons(got.Reason), sortedReasons(want.Reason)
		if got != want {
			t.Errorf("%s:\n ours   %+v\n theirs %+v", describeReview(&reviews[i]), got, want)
		}
	}
	t.Logf("%d decisions, %d allowed, %d denied with bindings to roles that do not exist", len(reviews), allowed, dangling)
	if allowed < len(reviews)/5 || allowed > len(reviews)*4/5 || dangling < len(reviews)/50 {
		t.Error("the reviews do not cover enough outcomes")
	}
}

// randomPolicy is a set of roles and bindings in two namespaces, with subjects that no other policy has.
type randomPolicy struct {
	*rand.Rand
	number     int
	namespaces [2]string
	objects    []any
}

func newRandomPolicy(number int) *randomPolicy {
	p := &randomPolicy{Rand: rand.New(rand.NewPCG(3, uint64(number))), number: number}
	p.namespaces = [2]string{p.uniqueName("left"), p.uniqueName("right")}
	for i := range 5 {
		p.objects = append(p.objects, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: p.uniqueName(fmt.Sprint("role-", i))}, Rules: p.rules(true)})
	}
	for _, namespace := range p.namespaces {
		for i := range 3 {
			p.objects = append(p.objects, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.uniqueName(fmt.Sprint("role-", i))}, Rules: p.rules(false)})
		}
		for i := range 6 {
			p.objects = append(p.objects, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.uniqueName(fmt.Sprint("binding-", i))},
				RoleRef:    p.roleRef(p.pickOne("Role", "ClusterRole"), 4), Subjects: p.subjects(true),
			})
		}
	}
	for i := range 4 {
		p.objects = append(p.objects, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: p.uniqueName(fmt.Sprint("binding-", i))}, RoleRef: p.roleRef("ClusterRole", 6), Subjects: p.subjects(false)})
	}
	return p
}

// uniqueName returns a name that no other policy uses.
func (p *randomPolicy) uniqueName(name string) string { return fmt.Sprintf("p%d-%s", p.number, name) }

func (p *randomPolicy) pickOne(of ...string) string { return of[p.IntN(len(of))] }

// pickSome picks one to three different values.
func (p *randomPolicy) pickSome(of ...string) []string {
	drawn := make([]string, 0, 3)
	for range 1 + p.IntN(3) {
		if word := p.pickOne(of...); !slices.Contains(drawn, word) {
			drawn = append(drawn, word)
		}
	}
	return drawn
}

func (p *randomPolicy) rules(urls bool) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for range 1 + p.IntN(4) {
		if urls && p.IntN(4) == 0 {
			rules = append(rules, rbacv1.PolicyRule{Verbs: p.pickSome("get", "post", "*"), NonResourceURLs: p.pickSome("/metrics", "/debug/*", "/logs*", "/logs", "/", "/debug/pprof", "*")})
			continue
		}
		rule := rbacv1.PolicyRule{
			Verbs: p.pickSome("get", "list", "watch", "create", "bind", "*"), APIGroups: p.pickSome("", "", "apps", "example.com", "*"),
			Resources: p.pickSome("pods", "pods/log", "deployments", "deployments/scale", "widgets", "pods/*", "*/scale", "*/log", "*"),
		}
		if p.IntN(4) == 0 {
			rule.ResourceNames = p.pickSome("one", "two", "")
		}
		rules = append(rules, rule)
	}
	return rules
}

// roleRef names a role that may not exist: fewer than `roles` roles do.
func (p *randomPolicy) roleRef(kind string, roles int) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: p.uniqueName(fmt.Sprint("role-", p.IntN(roles)))}
}

// subjects returns random subjects: service accounts appear as such, as users by their full name, and through the groups of all
// service accounts.
func (p *randomPolicy) subjects(namespaced bool) []rbacv1.Subject {
	var subjects []rbacv1.Subject
	for range 1 + p.IntN(3) {
		switch p.IntN(6) {
		case 0, 1:
			subjects = append(subjects, subject(rbacv1.UserKind, p.uniqueName(p.pickOne("ann", "bob"))))
		case 2:
			subjects = append(subjects, subject(rbacv1.GroupKind, p.uniqueName(p.pickOne("red", "blue"))))
		case 3:
			subjects = append(subjects, subject(rbacv1.GroupKind, "system:serviceaccounts:"+p.pickOne(p.namespaces[:]...)))
		case 4:
			subjects = append(subjects, subject(rbacv1.UserKind, "system:serviceaccount:"+p.pickOne(p.namespaces[:]...)+":"+p.pickOne("robot", "crane")))
		case 5:
			s := subject(rbacv1.ServiceAccountKind, p.pickOne(p.namespaces[:]...)+"/"+p.pickOne("robot", "crane"))
			if namespaced && p.IntN(3) == 0 {
				s.Namespace = "" // that of the binding
			}
			subjects = append(subjects, s)
		}
	}
	return subjects
}

func (p *randomPolicy) randomReview() authorizationv1.SubjectAccessReviewSpec {
	user, groups := p.uniqueName(p.pickOne("ann", "ann", "bob", "bob", "cid")), []string{"system:authenticated"}
	if p.IntN(3) == 0 {
		namespace := p.pickOne(p.namespaces[:]...)
		user, groups = "system:serviceaccount:"+namespace+":"+p.pickOne("robot", "crane"), append(groups, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	if p.IntN(2) == 0 {
		groups = append(groups, p.uniqueName(p.pickOne("red", "blue")))
	}
	if p.IntN(8) == 0 {
		path := p.pickOne("/metrics", "/metrics/", "/debug", "/debug/", "/debug/pprof", "/logs", "/logs/x", "/logsx", "/", "*")
		return authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: p.pickOne("get", "post", "put", "*")}}
	}
	return reviewOf(user, groups, p.pickOne("get", "get", "list", "watch", "create", "bind", "*", "GET"), p.pickOne("", "", "", "apps", "apps", "example.com", "other.io", "*"),
		p.pickOne("pods", "pods", "pods/log", "pods/exec", "deployments", "deployments/scale", "deployments/log", "widgets", "widgets/scale", "*", "pods/*", "*/log", "pod"),
		p.pickOne(p.namespaces[0], p.namespaces[0], p.namespaces[1], p.namespaces[1], "default", ""), p.pickOne("", "one", "two", "three"), "")
}

// sentinel returns the objects that are written last; each way to bind a role allows one user something.
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

// waitForPolicies waits for the sentinel: informers deliver in order, so whoever has the last object of each kind has all.
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
			created, err := k.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
			return err == nil && created.Status.Allowed, err
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
		err = fmt.Errorf("%T is not an RBAC object", obj)
	}
	return err
}

// sortedReasons sorts the roles that do not exist: upstream lists them in any order.
func sortedReasons(reason string) string {
	start, list, found := strings.Cut(reason, "[")
	if !found || !strings.HasSuffix(list, "]") {
		return reason
	}
	parts := strings.Split(strings.TrimSuffix(list, "]"), ", ")
	slices.Sort(parts)
	return start + "[" + strings.Join(parts, ", ") + "]"
}
