package authz

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	rbacvalidation "k8s.io/component-helpers/auth/rbac/validation"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

// Escalation prevents privilege escalation: a user may write only roles whose permissions the user has, and bind only roles all
// of whose permissions the user has. The verb escalate on roles, the verb bind on the bound role, and membership in
// system:masters bypass the check.
type Escalation struct {
	// RBAC resolves the permissions of users. Permissions granted by other authorizers are not considered.
	RBAC *RBAC
	// Authorizer authorizes the verbs escalate and bind.
	Authorizer Authorizer
}

// Check checks the write of a role or a binding; other kinds are ignored. a is the request, whose name is empty when the object
// is created by POST; old is nil on create. It must run before the object is validated and stored.
func (e *Escalation) Check(ctx context.Context, a *Attributes, obj, old kind.Object) error {
	if slices.Contains(a.User.Groups, authn.GroupMasters) {
		return nil
	}
	switch obj := obj.(type) {
	case *rbacv1.Role:
		if e.mayEscalate(ctx, a) || onlyOwnersChange(obj, old) {
			return nil
		}
		return forbidden("roles", obj.Name, e.checkRules(a, obj.Rules, a.Namespace))
	case *rbacv1.ClusterRole:
		if e.mayEscalate(ctx, a) || onlyOwnersChange(obj, old) {
			return nil
		}
		return forbidden("clusterroles", obj.Name, e.checkClusterRole(a, obj, old))
	case *rbacv1.RoleBinding:
		if onlyOwnersChange(obj, old) {
			return nil
		}
		return e.checkBinding(ctx, a, boundRole{"rolebindings", obj.Name, obj.RoleRef, a.Namespace})
	case *rbacv1.ClusterRoleBinding:
		if onlyOwnersChange(obj, old) {
			return nil
		}
		return e.checkBinding(ctx, a, boundRole{"clusterrolebindings", obj.Name, obj.RoleRef, ""})
	}
	return nil
}

func forbidden(resource, name string, err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewForbidden(rbacv1.Resource(resource), name, err)
}

// onlyOwnersChange reports whether only owner references and finalizers change, which garbage collection does.
func onlyOwnersChange(obj, old kind.Object) bool {
	if old == nil || reflect.ValueOf(old).IsNil() {
		return false
	}
	copied := obj.DeepCopyObject().(kind.Object)
	copied.SetOwnerReferences(old.GetOwnerReferences())
	copied.SetFinalizers(old.GetFinalizers())
	copied.SetManagedFields(old.GetManagedFields())
	return equality.Semantic.DeepEqual(copied, old)
}

func (e *Escalation) mayEscalate(ctx context.Context, a *Attributes) bool {
	if a.Group != rbacv1.GroupName || (a.Resource != "roles" && a.Resource != "clusterroles") {
		return false
	}
	return e.allowed(ctx, &Attributes{
		User: a.User, Verb: "escalate", ResourceRequest: true,
		Group: a.Group, Version: "*", Resource: a.Resource, Namespace: a.Namespace, Name: a.Name,
	})
}

// mayBind authorizes the verb bind in the namespace of the binding, so that binding a cluster role can be delegated per namespace.
func (e *Escalation) mayBind(ctx context.Context, user authn.User, ref rbacv1.RoleRef, namespace string) bool {
	resource := ""
	switch ref.Kind {
	case "ClusterRole":
		resource = "clusterroles"
	case "Role":
		resource = "roles"
	default:
		return false
	}
	return e.allowed(ctx, &Attributes{
		User: user, Verb: "bind", ResourceRequest: true,
		Group: ref.APIGroup, Version: "*", Resource: resource, Namespace: namespace, Name: ref.Name,
	})
}

func (e *Escalation) allowed(ctx context.Context, a *Attributes) bool {
	decision, _, _ := e.Authorizer.Authorize(ctx, a)
	return decision == Allow
}

// everything is what an aggregation rule can select.
var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

func (e *Escalation) checkClusterRole(a *Attributes, role *rbacv1.ClusterRole, old kind.Object) error {
	if err := e.checkRules(a, role.Rules, ""); err != nil {
		return err
	}
	before, _ := old.(*rbacv1.ClusterRole)
	if !aggregates(role) && !aggregates(before) {
		return nil
	}
	if e.checkRules(a, everything, "") != nil {
		return errors.New("must have cluster-admin privileges to use the aggregationRule")
	}
	return nil
}

func aggregates(role *rbacv1.ClusterRole) bool {
	return role != nil && role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}

// boundRole is the role of a binding. namespace is empty for a cluster role binding.
type boundRole struct {
	resource, binding string
	ref               rbacv1.RoleRef
	namespace         string
}

func (e *Escalation) checkBinding(ctx context.Context, a *Attributes, b boundRole) error {
	if e.mayBind(ctx, a.User, b.ref, b.namespace) {
		return nil
	}
	rules, err := e.RBAC.rulesOf(b.ref, b.namespace)
	if err != nil {
		return forRequestedResource(a, err)
	}
	return forbidden(b.resource, b.binding, e.checkRules(a, rules, b.namespace))
}

// rulesOf are the rules of the role that a binding refers to.
func (r *RBAC) rulesOf(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, err := r.resolve(&ref, namespace)
	if err != nil {
		return nil, err
	}
	return found.rules, nil
}

// forRequestedResource rewrites a not-found error of a role to the resource of the request, as upstream does.
func forRequestedResource(a *Attributes, err error) error {
	var status *apierrors.StatusError
	if errors.As(err, &status) && apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(schema.GroupResource{Group: a.Group, Resource: a.Resource}, status.ErrStatus.Details.Name)
	}
	return err
}

// checkRules returns an error unless the user has all permissions of the rules in the namespace or, if it is empty, in the whole
// cluster. The error lists the missing permissions.
func (e *Escalation) checkRules(a *Attributes, rules []rbacv1.PolicyRule, namespace string) error {
	user := &a.User
	held, unresolved := e.RBAC.policyRules(user, namespace)
	covered, missing := rbacvalidation.Covers(held, rules)
	if covered {
		return nil
	}
	var lines []string
	for _, rule := range compact(missing) {
		lines = append(lines, describeRule(rule))
	}
	slices.Sort(lines)
	text := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		user.Username, user.Groups, strings.Join(slices.Compact(lines), "\n"))
	if len(unresolved) > 0 {
		for i, err := range unresolved {
			unresolved[i] = forRequestedResource(a, err)
		}
		text += fmt.Sprintf("; resolution errors: [%v]", utilerrors.NewAggregate(unresolved))
	}
	return errors.New(text)
}

// compact merges rules that differ only in their verbs. Each rule has one verb, one resource and at most one name.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	type key struct{ group, resource, name string }
	at := make(map[key]int)
	var joined []rbacv1.PolicyRule
	for _, rule := range rules {
		if len(rule.Resources) == 1 {
			k := key{rule.APIGroups[0], rule.Resources[0], strings.Join(rule.ResourceNames, "\x00")}
			if len(rule.ResourceNames) == 0 {
				k.name = "\x00"
			}
			if i, ok := at[k]; ok {
				joined[i].Verbs = append(joined[i].Verbs, rule.Verbs...)
				continue
			}
			at[k] = len(joined)
		}
		joined = append(joined, rule)
	}
	return joined
}

func describeRule(rule rbacv1.PolicyRule) string {
	var parts []string
	for _, part := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", rule.APIGroups}, {"Resources", rule.Resources}, {"NonResourceURLs", rule.NonResourceURLs},
		{"ResourceNames", rule.ResourceNames}, {"Verbs", rule.Verbs},
	} {
		if len(part.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", part.name, part.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
