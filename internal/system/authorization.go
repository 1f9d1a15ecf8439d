package system

import (
	"context"
	"fmt"
	"log/slog"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

// The tables RBAC is made of.
var (
	clusterRoles        = rbacv1.SchemeGroupVersion.WithResource("clusterroles")
	clusterRoleBindings = rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")
	roles               = rbacv1.SchemeGroupVersion.WithResource("roles")
	roleBindings        = rbacv1.SchemeGroupVersion.WithResource("rolebindings")
)

// policy is RBAC's roles and bindings as the server's own cache has them. It exists before the server does; until local is set
// there are none.
type policy struct {
	local *apiserver.Local
}

// ClusterRole implements authz.Policy.
func (p *policy) ClusterRole(name string) *rbacv1.ClusterRole {
	return find[*rbacv1.ClusterRole](p, clusterRoles, "", name)
}

// Role implements authz.Policy.
func (p *policy) Role(namespace, name string) *rbacv1.Role {
	return find[*rbacv1.Role](p, roles, namespace, name)
}

// ClusterRoleBindings implements authz.Policy.
func (p *policy) ClusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	return all[*rbacv1.ClusterRoleBinding](p, clusterRoleBindings, "")
}

// RoleBindings implements authz.Policy.
func (p *policy) RoleBindings(namespace string) []*rbacv1.RoleBinding {
	return all[*rbacv1.RoleBinding](p, roleBindings, namespace)
}

// Revisions implements authz.Policy.
func (p *policy) Revisions() authz.PolicyRevisions {
	return authz.PolicyRevisions{
		ClusterRoles: p.local.LastChange(clusterRoles), ClusterRoleBindings: p.local.LastChange(clusterRoleBindings),
		Roles: p.local.LastChange(roles), RoleBindings: p.local.LastChange(roleBindings),
	}
}

// find returns an object of the policy, or nil. Reads of the own cache fail only for what is not there.
func find[T kind.Object](p *policy, gvr schema.GroupVersionResource, namespace, name string) T {
	obj, err := p.local.Get(context.Background(), gvr, namespace, name)
	if err != nil {
		return *new(T)
	}
	return obj.(T)
}

func all[T kind.Object](p *policy, gvr schema.GroupVersionResource, namespace string) []T {
	objs, _, err := p.local.List(context.Background(), gvr, namespace, nil, nil)
	if err != nil {
		return nil
	}
	typed := make([]T, len(objs))
	for i, obj := range objs {
		typed[i] = obj.(T)
	}
	return typed
}

// feedNodeGraph keeps the Node authorizer's graph in step with the cache until ctx ends. loaded is called once, when everything
// that was there has been seen.
func feedNodeGraph(ctx context.Context, local *apiserver.Local, graph *authz.NodeGraph, log *slog.Logger, loaded func()) error {
	remaining := len(authz.NodeResources)
	seen := make(chan struct{})
	failed := make(chan error, remaining)
	for _, gr := range authz.NodeResources {
		go func() {
			first := func() { seen <- struct{}{} }
			for ctx.Err() == nil {
				if err := followIntoGraph(ctx, local, gr.WithVersion("v1"), graph, first); err != nil {
					failed <- err
					return
				}
				// The watch fell behind or was ended; what is there now counts.
				first = func() {}
				log.Debug("the node graph follows anew", "resource", gr.String())
			}
			failed <- nil
		}()
	}
	var result error
	for ended := 0; ended < len(authz.NodeResources); {
		select {
		case <-seen:
			if remaining--; remaining == 0 {
				loaded()
			}
		case err := <-failed:
			ended++
			if err != nil && result == nil && ctx.Err() == nil {
				result = err
			}
		}
	}
	return result
}

// followIntoGraph carries the changes of one resource into the graph until the watch ends.
func followIntoGraph(ctx context.Context, local *apiserver.Local, gvr schema.GroupVersionResource, graph *authz.NodeGraph, first func()) error {
	w, err := local.Watch(ctx, gvr, "", &internalversion.ListOptions{SendInitialEvents: new(true)})
	if err != nil {
		return fmt.Errorf("watch %s for the node authorizer: %w", gvr.Resource, err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		obj, ok := event.Object.(kind.Object)
		switch {
		case event.Type == watch.Bookmark:
			first()
		case !ok:
			return nil
		case event.Type == watch.Deleted:
			graph.Delete(obj)
		default:
			graph.Set(obj)
		}
	}
	return nil
}
