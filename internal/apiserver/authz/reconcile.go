package authz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	rbacvalidation "k8s.io/component-helpers/auth/rbac/validation"

	"skiff/internal/kind"
	"skiff/internal/rbacrules"
)

var (
	clusterRoles        = rbacv1.Resource("clusterroles")
	clusterRoleBindings = rbacv1.Resource("clusterrolebindings")
	roles               = rbacv1.Resource("roles")
	roleBindings        = rbacv1.Resource("rolebindings")
)

// errUnchanged stops an update that would change nothing.
var errUnchanged = errors.New("unchanged")

// Reconcile makes the store contain at least the policy. Missing objects are created; missing rules are added to roles and
// missing subjects to bindings, and additional ones are kept; a binding with another roleRef is recreated. Objects annotated
// rbac.authorization.kubernetes.io/autoupdate=false are not changed. All objects are tried even if some fail. Finally the rules
// of the aggregated roles are updated.
func Reconcile(ctx context.Context, store kind.Client, p PolicyObjects) error {
	r := reconciler{ctx: ctx, store: store}
	for _, role := range p.ClusterRoles {
		r.role(clusterRoles, role)
	}
	for _, binding := range p.ClusterRoleBindings {
		r.binding(clusterRoleBindings, binding)
	}
	for _, role := range p.Roles {
		r.role(roles, role)
	}
	for _, binding := range p.RoleBindings {
		r.binding(roleBindings, binding)
	}
	r.aggregate()
	return errors.Join(r.errs...)
}

type reconciler struct {
	ctx   context.Context
	store kind.Client
	errs  []error
}

func (r *reconciler) failed(doing string, resource schema.GroupResource, obj kind.Object, err error) {
	name := obj.GetName()
	if obj.GetNamespace() != "" {
		name = obj.GetNamespace() + "/" + name
	}
	r.errs = append(r.errs, fmt.Errorf("%s %s %s: %w", doing, resource, name, err))
}

// role creates a role or adds missing rules to the existing one.
func (r *reconciler) role(resource schema.GroupResource, wanted kind.Object) {
	if r.existing(resource, wanted) == nil {
		return
	}
	r.update(resource, wanted, func(obj kind.Object) bool {
		if role, ok := obj.(*rbacv1.ClusterRole); ok {
			return addClusterRole(role, wanted.(*rbacv1.ClusterRole))
		}
		return addRules(&obj.(*rbacv1.Role).Rules, wanted.(*rbacv1.Role).Rules)
	})
}

// update adds what is missing in an object, including labels and annotations. add reports whether it changed the object.
func (r *reconciler) update(resource schema.GroupResource, wanted kind.Object, add func(obj kind.Object) bool) {
	_, err := r.store.Update(r.ctx, resource, wanted.GetNamespace(), wanted.GetName(), func(obj kind.Object) error {
		if isProtected(obj) {
			return errUnchanged
		}
		changed := add(obj)
		if merged := merge(wanted.GetLabels(), obj.GetLabels()); !maps.Equal(merged, obj.GetLabels()) {
			obj.SetLabels(merged)
			changed = true
		}
		if merged := merge(wanted.GetAnnotations(), obj.GetAnnotations()); !maps.Equal(merged, obj.GetAnnotations()) {
			obj.SetAnnotations(merged)
			changed = true
		}
		if !changed {
			return errUnchanged
		}
		return nil
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		r.failed("update", resource, wanted, err)
	}
}

func isProtected(obj kind.Object) bool {
	return obj.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false"
}

// merge merges two maps. Existing values take precedence.
func merge(wanted, existing map[string]string) map[string]string {
	merged := make(map[string]string, len(wanted)+len(existing))
	maps.Copy(merged, wanted)
	maps.Copy(merged, existing)
	return merged
}

// addClusterRole adds what is missing in a cluster role. The rules of an aggregated role are computed and not compared.
func addClusterRole(to, wanted *rbacv1.ClusterRole) (changed bool) {
	if wanted.AggregationRule == nil {
		changed = addRules(&to.Rules, wanted.Rules)
		if to.AggregationRule != nil {
			to.AggregationRule, changed = nil, true
		}
		return changed
	}
	if to.AggregationRule == nil {
		to.AggregationRule = &rbacv1.AggregationRule{}
	}
	selectors := &to.AggregationRule.ClusterRoleSelectors
	for _, selector := range wanted.AggregationRule.ClusterRoleSelectors {
		if !slices.ContainsFunc(*selectors, func(had metav1.LabelSelector) bool { return equality.Semantic.DeepEqual(had, selector) }) {
			*selectors = append(*selectors, selector)
			changed = true
		}
	}
	return changed
}

func addRules(to *[]rbacv1.PolicyRule, wanted []rbacv1.PolicyRule) bool {
	covered, missing := rbacvalidation.Covers(*to, wanted)
	if !covered {
		*to = append(*to, missing...)
	}
	return !covered
}

// binding creates a binding, adds missing subjects to the existing one, or replaces one with another roleRef.
func (r *reconciler) binding(resource schema.GroupResource, wanted kind.Object) {
	existing := r.existing(resource, wanted)
	if existing == nil {
		return
	}
	wantedRef, wantedSubjects := refAndSubjects(wanted)
	if ref, _ := refAndSubjects(existing); *ref != *wantedRef {
		r.replace(resource, existing, wanted)
		return
	}
	r.update(resource, wanted, func(obj kind.Object) (changed bool) {
		_, subjects := refAndSubjects(obj)
		for _, subject := range *wantedSubjects {
			if !slices.Contains(*subjects, subject) {
				*subjects = append(*subjects, subject)
				changed = true
			}
		}
		return changed
	})
}

// replace deletes and recreates an object, because the roleRef of a binding is immutable.
func (r *reconciler) replace(resource schema.GroupResource, existing, wanted kind.Object) {
	if isProtected(existing) {
		return
	}
	uid := existing.GetUID()
	err := r.store.Delete(r.ctx, resource, existing.GetNamespace(), existing.GetName(), &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err == nil || apierrors.IsNotFound(err) {
		_, err = r.store.Create(r.ctx, resource, wanted.DeepCopyObject().(kind.Object))
	}
	if err != nil {
		r.failed("replace", resource, wanted, err)
	}
}

func refAndSubjects(obj kind.Object) (*rbacv1.RoleRef, *[]rbacv1.Subject) {
	switch obj := obj.(type) {
	case *rbacv1.ClusterRoleBinding:
		return &obj.RoleRef, &obj.Subjects
	case *rbacv1.RoleBinding:
		return &obj.RoleRef, &obj.Subjects
	}
	panic(fmt.Sprintf("%T is not a binding", obj))
}

// existing returns the existing object. If there is none, it creates the wanted one and returns nil.
func (r *reconciler) existing(resource schema.GroupResource, wanted kind.Object) kind.Object {
	found, err := r.store.Get(r.ctx, resource, wanted.GetNamespace(), wanted.GetName())
	if apierrors.IsNotFound(err) {
		found = nil
		_, err = r.store.Create(r.ctx, resource, wanted.DeepCopyObject().(kind.Object))
		if apierrors.IsAlreadyExists(err) {
			found, err = r.store.Get(r.ctx, resource, wanted.GetNamespace(), wanted.GetName())
		}
	}
	if err != nil {
		r.failed("create", resource, wanted, err)
		return nil
	}
	return found
}

// aggregate updates the rules of the aggregated roles, which depend on the other roles.
func (r *reconciler) aggregate() {
	all, err := r.store.List(r.ctx, clusterRoles, "")
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("list %s: %w", clusterRoles, err))
		return
	}
	var typed []*rbacv1.ClusterRole
	for _, obj := range all {
		typed = append(typed, obj.(*rbacv1.ClusterRole))
	}
	for _, role := range rbacrules.Aggregate(typed) {
		if _, err := r.store.Update(r.ctx, clusterRoles, "", role.Name, func(obj kind.Object) error {
			obj.(*rbacv1.ClusterRole).Rules = role.Rules
			return nil
		}); err != nil {
			r.failed("aggregate", clusterRoles, role, err)
		}
	}
}
