package authz

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"skiff/internal/apiserver/authn"
)

// Policy gives RBAC the roles and bindings. Objects are shared and read-only. A role that does not exist is nil.
type Policy interface {
	ClusterRole(name string) *rbacv1.ClusterRole
	Role(namespace, name string) *rbacv1.Role
	ClusterRoleBindings() []*rbacv1.ClusterRoleBinding
	RoleBindings(namespace string) []*rbacv1.RoleBinding
	// Revisions must be cheap: it is called for every request. Objects read after the call may be newer, never older.
	Revisions() PolicyRevisions
}

// PolicyRevisions are the revisions of the four kinds of a Policy. Each grows with every change of an object of its kind.
type PolicyRevisions struct {
	ClusterRoles, ClusterRoleBindings, Roles, RoleBindings int64
}

// RBAC allows the subjects of role bindings what the roles list. It never denies.
//
// Requests are authorized with an index from subjects to the roles bound to them. Its cluster scope is rebuilt when a cluster
// role or cluster role binding changes, the scope of a namespace on its first use after any change. The rules of a role are
// compiled on first use and kept until the role changes.
type RBAC struct {
	policy Policy
	index  atomic.Pointer[index]

	mu sync.Mutex // held while a scope of the index is built
	// compiled has the roles in use by namespace and name; cluster roles have the namespace "". When roles have changed, it
	// becomes previous; roles that are not used again are dropped with the next change.
	compiled, previous map[roleKey]*role
}

// NewRBAC makes an authorizer that uses a policy.
func NewRBAC(policy Policy) *RBAC {
	return &RBAC{policy: policy, compiled: make(map[roleKey]*role)}
}

type roleKey struct{ namespace, name string }

// role has the rules of a role, and their compiled form.
type role struct {
	rules []rbacv1.PolicyRule
	once  sync.Once
	set   *ruleSet
}

func (r *role) allows(q *query) bool {
	r.once.Do(func() { r.set = compile(r.rules) })
	return r.set.allows(q)
}

// index is immutable except for the namespaces, which are added on first use.
type index struct {
	revisions  PolicyRevisions
	cluster    *scope
	namespaces *sync.Map // namespace → *scope
}

// scope has the bindings of the whole cluster or of one namespace by subject. Service accounts are users.
type scope struct {
	users, groups map[string][]*grant
}

// grant is one subject of one binding.
type grant struct {
	binding *binding
	subject int
	reason  atomic.Pointer[string]
}

// binding is a RoleBinding or ClusterRoleBinding. Either role or missing is set.
type binding struct {
	kind, name string // name is as in reasons
	namespace  string
	order      int
	ref        *rbacv1.RoleRef
	subjects   []rbacv1.Subject
	groups     map[string]int // the first subject for each group
	role       *role
	missing    error
}

// Authorize implements Authorizer.
func (r *RBAC) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	x := r.current()
	q := newQuery(a)
	if g := x.cluster.find(&q); g != nil {
		return Allow, g.describe(&a.User), nil
	}
	var local *scope
	if a.Namespace != "" {
		local = r.scopeOf(x, a.Namespace)
		if g := local.find(&q); g != nil {
			return Allow, g.describe(&a.User), nil
		}
	}
	if errs := missingRoles(&a.User, x.cluster, local); len(errs) > 0 {
		return NoOpinion, "RBAC: " + utilerrors.NewAggregate(errs).Error(), nil
	}
	return NoOpinion, "", nil
}

// RulesFor implements RuleResolver.
func (r *RBAC) RulesFor(_ context.Context, user authn.User, namespace string) (Rules, error) {
	held, errs := r.policyRules(&user, namespace)
	var rules Rules
	for i := range held {
		rule := &held[i]
		if len(rule.Resources) > 0 {
			rules.Resources = append(rules.Resources, authorizationv1.ResourceRule{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			rules.Paths = append(rules.Paths, authorizationv1.NonResourceRule{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	return rules, utilerrors.NewAggregate(errs)
}

// policyRules are the rules of all roles bound to a user, for the whole cluster and in a namespace unless it is empty.
// The errors are those of roles that do not exist.
func (r *RBAC) policyRules(user *authn.User, namespace string) ([]rbacv1.PolicyRule, []error) {
	x := r.current()
	scopes := []*scope{x.cluster}
	if namespace != "" {
		scopes = append(scopes, r.scopeOf(x, namespace))
	}
	var rules []rbacv1.PolicyRule
	for _, s := range scopes {
		for _, b := range s.bindings(user) {
			if b.role != nil {
				rules = append(rules, b.role.rules...)
			}
		}
	}
	return rules, missingRoles(user, scopes...)
}

// current is the index of the current policy.
func (r *RBAC) current() *index {
	x := r.index.Load()
	if x != nil && x.revisions == r.policy.Revisions() {
		return x
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.policy.Revisions()
	x = r.index.Load()
	if x != nil && x.revisions == now {
		return x
	}
	if x != nil && (x.revisions.ClusterRoles != now.ClusterRoles || x.revisions.Roles != now.Roles) {
		r.previous, r.compiled = r.compiled, make(map[roleKey]*role)
	}
	next := &index{revisions: now, namespaces: new(sync.Map)}
	if x != nil && x.revisions.ClusterRoles == now.ClusterRoles && x.revisions.ClusterRoleBindings == now.ClusterRoleBindings {
		next.cluster = x.cluster
	} else {
		next.cluster = r.buildCluster()
	}
	r.index.Store(next)
	return next
}

func (r *RBAC) buildCluster() *scope {
	all := r.policy.ClusterRoleBindings()
	built := newScope()
	for i, b := range all {
		built.add(&binding{
			kind: "ClusterRoleBinding", name: b.Name, order: i, ref: &b.RoleRef, subjects: b.Subjects,
		}, r)
	}
	return built
}

// scopeOf is the scope of one namespace.
func (r *RBAC) scopeOf(x *index, namespace string) *scope {
	if found, ok := x.namespaces.Load(namespace); ok {
		return found.(*scope)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := x.namespaces.Load(namespace); ok {
		return found.(*scope)
	}
	all := r.policy.RoleBindings(namespace)
	// Requests for namespaces that do not exist must not use memory.
	if len(all) == 0 {
		return emptyScope
	}
	built := newScope()
	for i, b := range all {
		built.add(&binding{
			kind: "RoleBinding", name: b.Name + "/" + b.Namespace, namespace: b.Namespace, order: i, ref: &b.RoleRef, subjects: b.Subjects,
		}, r)
	}
	x.namespaces.Store(namespace, built)
	return built
}

var emptyScope = newScope()

func newScope() *scope {
	return &scope{users: make(map[string][]*grant), groups: make(map[string][]*grant)}
}

func (s *scope) add(b *binding, r *RBAC) {
	if len(b.subjects) == 0 {
		return
	}
	b.role, b.missing = r.resolve(b.ref, b.namespace)
	for i := range b.subjects {
		by := s.users
		if b.subjects[i].Kind == rbacv1.GroupKind {
			by = s.groups
		}
		key, ok := subjectKey(&b.subjects[i], b.namespace)
		if !ok {
			continue
		}
		if _, known := b.groups[key]; !known && b.subjects[i].Kind == rbacv1.GroupKind {
			if b.groups == nil {
				b.groups = make(map[string]int)
			}
			b.groups[key] = i
		}
		// A subject that occurs twice is added once.
		had := by[key]
		if n := len(had); n > 0 && had[n-1].binding == b {
			continue
		}
		by[key] = append(had, &grant{binding: b, subject: i})
	}
}

const serviceAccountPrefix = "system:serviceaccount:"

// subjectKey is the name of the user or group that a subject means.
func subjectKey(subject *rbacv1.Subject, namespace string) (string, bool) {
	switch subject.Kind {
	case rbacv1.UserKind, rbacv1.GroupKind:
		return subject.Name, true
	case rbacv1.ServiceAccountKind:
		if subject.Namespace != "" {
			namespace = subject.Namespace
		}
		return serviceAccountPrefix + namespace + ":" + subject.Name, namespace != ""
	}
	return "", false
}

// resolve finds the role of a binding in a namespace, which is empty for cluster role bindings. r.mu must be held.
func (r *RBAC) resolve(ref *rbacv1.RoleRef, namespace string) (*role, error) {
	switch ref.Kind {
	case "ClusterRole":
		if found := r.policy.ClusterRole(ref.Name); found != nil {
			return r.compile(roleKey{"", ref.Name}, found.Rules), nil
		}
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), ref.Name)
	case "Role":
		if found := r.policy.Role(namespace, ref.Name); found != nil {
			return r.compile(roleKey{namespace, ref.Name}, found.Rules), nil
		}
		return nil, apierrors.NewNotFound(rbacv1.Resource("role"), ref.Name)
	}
	return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

// compile returns the cached role as long as its rules are the same slice. r.mu must be held.
func (r *RBAC) compile(key roleKey, rules []rbacv1.PolicyRule) *role {
	cached := r.compiled[key]
	if cached == nil {
		cached = r.previous[key]
	}
	if cached == nil || len(cached.rules) != len(rules) || (len(rules) > 0 && &cached.rules[0] != &rules[0]) {
		cached = &role{rules: rules}
	}
	r.compiled[key] = cached
	return cached
}

// find returns a grant to the user that allows the request.
func (s *scope) find(q *query) *grant {
	if g := firstAllowing(s.users[q.User.Username], q); g != nil {
		return g
	}
	for _, group := range q.User.Groups {
		if g := firstAllowing(s.groups[group], q); g != nil {
			return g
		}
	}
	return nil
}

func firstAllowing(grants []*grant, q *query) *grant {
	for _, g := range grants {
		if g.binding.role != nil && g.binding.role.allows(q) {
			return g
		}
	}
	return nil
}

// bindings are those that have the user as a subject, in the policy's order.
func (s *scope) bindings(user *authn.User) []*binding {
	var found []*binding
	collect := func(grants []*grant) {
		for _, g := range grants {
			found = append(found, g.binding)
		}
	}
	collect(s.users[user.Username])
	for _, group := range user.Groups {
		collect(s.groups[group])
	}
	slices.SortFunc(found, func(a, b *binding) int { return cmp.Compare(a.order, b.order) })
	return slices.Compact(found)
}

// missingRoles are the errors of roles that are bound to a user and do not exist.
func missingRoles(user *authn.User, scopes ...*scope) []error {
	var errs []error
	collect := func(grants []*grant) {
		for _, g := range grants {
			if g.binding.missing != nil {
				errs = append(errs, g.binding.missing)
			}
		}
	}
	for _, s := range scopes {
		if s == nil {
			continue
		}
		collect(s.users[user.Username])
		for _, group := range user.Groups {
			collect(s.groups[group])
		}
	}
	return errs
}

// describe is the reason why a request is allowed. It has the first subject of the binding that matches the user. Only a group can come before
// the subject of the grant: grants of users are found first, and have the user's first subject. A binding can have thousands of subjects, so
// they are not searched.
func (g *grant) describe(user *authn.User) string {
	b, first := g.binding, g.subject
	if len(b.groups) > 0 {
		for _, group := range user.Groups {
			if subject, ok := b.groups[group]; ok {
				first = min(first, subject)
			}
		}
	}
	if first != g.subject {
		return b.describe(first)
	}
	if cached := g.reason.Load(); cached != nil {
		return *cached
	}
	reason := b.describe(first)
	g.reason.Store(&reason)
	return reason
}

func (b *binding) describe(subject int) string {
	s := &b.subjects[subject]
	name := s.Name
	if s.Kind == rbacv1.ServiceAccountKind {
		namespace := b.namespace
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		name += "/" + namespace
	}
	return fmt.Sprintf("RBAC: allowed by %s %q of %s %q to %s %q", b.kind, b.name, b.ref.Kind, b.ref.Name, s.Kind, name)
}
