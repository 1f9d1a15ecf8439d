package authz

import (
	rbacv1 "k8s.io/api/rbac/v1"
)

// StaticPolicy is a Policy that does not change.
type StaticPolicy struct {
	clusterRoles        map[string]*rbacv1.ClusterRole
	roles               map[roleKey]*rbacv1.Role
	clusterRoleBindings []*rbacv1.ClusterRoleBinding
	roleBindings        map[string][]*rbacv1.RoleBinding
}

// NewStaticPolicy makes a policy of the given objects.
func NewStaticPolicy(p PolicyObjects) *StaticPolicy {
	s := &StaticPolicy{
		clusterRoles:        make(map[string]*rbacv1.ClusterRole, len(p.ClusterRoles)),
		roles:               make(map[roleKey]*rbacv1.Role, len(p.Roles)),
		clusterRoleBindings: p.ClusterRoleBindings,
		roleBindings:        make(map[string][]*rbacv1.RoleBinding),
	}
	for _, r := range p.ClusterRoles {
		s.clusterRoles[r.Name] = r
	}
	for _, r := range p.Roles {
		s.roles[roleKey{r.Namespace, r.Name}] = r
	}
	for _, b := range p.RoleBindings {
		s.roleBindings[b.Namespace] = append(s.roleBindings[b.Namespace], b)
	}
	return s
}

// ClusterRole implements Policy.
func (s *StaticPolicy) ClusterRole(name string) *rbacv1.ClusterRole { return s.clusterRoles[name] }

// Role implements Policy.
func (s *StaticPolicy) Role(namespace, name string) *rbacv1.Role {
	return s.roles[roleKey{namespace, name}]
}

// ClusterRoleBindings implements Policy.
func (s *StaticPolicy) ClusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	return s.clusterRoleBindings
}

// RoleBindings implements Policy.
func (s *StaticPolicy) RoleBindings(namespace string) []*rbacv1.RoleBinding {
	return s.roleBindings[namespace]
}

// Revisions implements Policy.
func (s *StaticPolicy) Revisions() PolicyRevisions { return PolicyRevisions{} }
