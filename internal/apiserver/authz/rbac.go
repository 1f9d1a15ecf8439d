package authz

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"skiff/internal/apiserver/authn"
)

// Policy is where RBAC finds roles and bindings. Objects are shared and read-only. A role that does not exist is nil.
type Policy interface {
	ClusterRole(name string) *rbacv1.ClusterRole
	Role(namespace, name string) *rbacv1.Role
	ClusterRoleBindings() []*rbacv1.ClusterRoleBinding
	RoleBindings(namespace string) []*rbacv1.RoleBinding
	// Revisions must be cheap: it is asked at every decision. Objects read after it was asked may be newer, never older.
	Revisions() PolicyRevisions
}

// PolicyRevisions tell whether anything changed in one of the tables of a Policy: each grows with every change there.
type PolicyRevisions struct {
	ClusterRoles, ClusterRoleBindings, Roles, RoleBindings int64
}

// RBAC allows what roles list to those whom bindings name. It never forbids.
//
// Decisions are made on an index from subjects to the roles bound to them. The part for the whole cluster is rebuilt when
// a cluster role or its bindings change, that for a namespace when it is asked for next after any change. A role's rules
// are compiled when they are first needed, and kept until the role changes.
type RBAC struct {
	policy Policy
	index  atomic.Pointer[index]

	mu sync.Mutex // held while a part of the index is built
	// compiled holds the roles in use by scope and name; those of cluster roles are in the scope "". When roles have changed
	// it becomes former, and what is not asked for again is forgotten with the next change.
	compiled, former map[roleKey]*role
}

// NewRBAC makes an authorizer that follows a policy.
func NewRBAC(policy Policy) *RBAC {
	return &RBAC{policy: policy, compiled: make(map[roleKey]*role)}
}

type roleKey struct{ namespace, name string }

// role is a role's rules in both forms.
type role struct {
	rules []rbacv1.PolicyRule
	once  sync.Once
	set   *ruleSet
}

func (r *role) allows(q *question) bool {
	r.once.Do(func() { r.set = compile(r.rules) })
	return r.set.allows(q)
}

// index is immutable but for the namespaces, which come when they are asked for.
type index struct {
	revisions  PolicyRevisions
	cluster    *scope
	namespaces *sync.Map // namespace → *scope
}

// scope holds the bindings of the whole cluster or of one namespace, by whom they are for. Service accounts are among the users.
type scope struct {
	users, groups map[string][]*grant
}

// grant is one subject of one binding.
type grant struct {
	binding *binding
	subject int
	reason  atomic.Pointer[string]
}

// binding is a binding of either kind. Either role or missing is set.
type binding struct {
	kind, name string // name as it is shown
	namespace  string
	order      int
	ref        *rbacv1.RoleRef
	subjects   []rbacv1.Subject
	role       *role
	missing    error
}

// Authorize implements Authorizer.
func (r *RBAC) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	x := r.current()
	q := newQuestion(a)
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
	if gone := missing(&a.User, x.cluster, local); len(gone) > 0 {
		return NoOpinion, "RBAC: " + utilerrors.NewAggregate(gone).Error(), nil
	}
	return NoOpinion, "", nil
}

// RulesFor implements RuleResolver.
func (r *RBAC) RulesFor(_ context.Context, user authn.User, namespace string) (Rules, error) {
	held, gone := r.policyRules(&user, namespace)
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
	return rules, utilerrors.NewAggregate(gone)
}

// policyRules are the rules of all roles bound to a user, for the whole cluster and in a namespace unless it is empty.
// The errors name the roles that do not exist.
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
	return rules, missing(user, scopes...)
}

// current is the index of the policy as it is now.
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
		r.former, r.compiled = r.compiled, make(map[roleKey]*role)
	}
	fresh := &index{revisions: now, namespaces: new(sync.Map)}
	if x != nil && x.revisions.ClusterRoles == now.ClusterRoles && x.revisions.ClusterRoleBindings == now.ClusterRoleBindings {
		fresh.cluster = x.cluster
	} else {
		fresh.cluster = r.buildCluster()
	}
	r.index.Store(fresh)
	return fresh
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

// scopeOf is the part of an index for one namespace.
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
	// Whoever asks about namespaces that do not exist must not fill the memory.
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
		// A subject that is named twice counts once.
		had := by[key]
		if n := len(had); n > 0 && had[n-1].binding == b {
			continue
		}
		by[key] = append(had, &grant{binding: b, subject: i})
	}
}

const serviceAccountPrefix = "system:serviceaccount:"

// subjectKey is the name of the user or group a subject stands for.
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

// resolve finds the role of a binding in a namespace, which is empty for bindings of the whole cluster. r.mu is held.
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

// compile keeps what was made of a role for as long as its rules are the same slice. r.mu is held.
func (r *RBAC) compile(key roleKey, rules []rbacv1.PolicyRule) *role {
	made := r.compiled[key]
	if made == nil {
		made = r.former[key]
	}
	if made == nil || len(made.rules) != len(rules) || (len(rules) > 0 && &made.rules[0] != &rules[0]) {
		made = &role{rules: rules}
	}
	r.compiled[key] = made
	return made
}

// find returns a grant to the user that allows what is asked.
func (s *scope) find(q *question) *grant {
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

func firstAllowing(grants []*grant, q *question) *grant {
	for _, g := range grants {
		if g.binding.role != nil && g.binding.role.allows(q) {
			return g
		}
	}
	return nil
}

// bindings are those that name the user, in the policy's order.
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

// missing names the roles bound to a user that do not exist.
func missing(user *authn.User, scopes ...*scope) []error {
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

// describe says why a request is allowed, naming the first subject of the binding that the user is.
func (g *grant) describe(user *authn.User) string {
	subject := g.subject
	b := g.binding
	for i := range subject {
		if isSubject(user, &b.subjects[i], b.namespace) {
			return b.describe(i)
		}
	}
	if made := g.reason.Load(); made != nil {
		return *made
	}
	reason := b.describe(subject)
	g.reason.Store(&reason)
	return reason
}

func isSubject(user *authn.User, subject *rbacv1.Subject, namespace string) bool {
	switch subject.Kind {
	case rbacv1.UserKind:
		return user.Username == subject.Name
	case rbacv1.GroupKind:
		return slices.Contains(user.Groups, subject.Name)
	case rbacv1.ServiceAccountKind:
		if subject.Namespace != "" {
			namespace = subject.Namespace
		}
		account, ok := strings.CutPrefix(user.Username, serviceAccountPrefix)
		in, name, _ := strings.Cut(account, ":")
		return ok && in == namespace && name == subject.Name && namespace != ""
	}
	return false
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
