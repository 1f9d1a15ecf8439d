package authz

import (
	"context"
	"fmt"
	"log/slog"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/kind"
)

// Objects is the API server's own cache. Reads do not wait for the store: every request waits for them.
type Objects interface {
	Get(resource schema.GroupResource, namespace, name string) (kind.Object, error)
	List(resource schema.GroupResource, namespace string, selector labels.Selector) ([]kind.Object, error)
	// LastChange is the revision of the last change of a resource.
	LastChange(resource schema.GroupResource) int64
}

// Watcher watches objects of the API server.
type Watcher interface {
	Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, options *internalversion.ListOptions) (watch.Interface, error)
}

// CachedPolicy is the Policy of the roles and bindings in the server's cache. It is created before the server: Objects must be set before
// the first request.
type CachedPolicy struct {
	Objects Objects
}

// ClusterRole implements Policy.
func (p *CachedPolicy) ClusterRole(name string) *rbacv1.ClusterRole {
	return getCached[*rbacv1.ClusterRole](p, clusterRoles, "", name)
}

// Role implements Policy.
func (p *CachedPolicy) Role(namespace, name string) *rbacv1.Role {
	return getCached[*rbacv1.Role](p, roles, namespace, name)
}

// ClusterRoleBindings implements Policy.
func (p *CachedPolicy) ClusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	return listCached[*rbacv1.ClusterRoleBinding](p, clusterRoleBindings, "")
}

// RoleBindings implements Policy.
func (p *CachedPolicy) RoleBindings(namespace string) []*rbacv1.RoleBinding {
	return listCached[*rbacv1.RoleBinding](p, roleBindings, namespace)
}

// Revisions implements Policy.
func (p *CachedPolicy) Revisions() PolicyRevisions {
	return PolicyRevisions{
		ClusterRoles: p.Objects.LastChange(clusterRoles), ClusterRoleBindings: p.Objects.LastChange(clusterRoleBindings),
		Roles: p.Objects.LastChange(roles), RoleBindings: p.Objects.LastChange(roleBindings),
	}
}

// getCached returns an object of the policy, or nil. Reads of the cache fail only for objects that do not exist.
func getCached[T kind.Object](p *CachedPolicy, resource schema.GroupResource, namespace, name string) T {
	obj, err := p.Objects.Get(resource, namespace, name)
	if err != nil {
		return *new(T)
	}
	return obj.(T)
}

func listCached[T kind.Object](p *CachedPolicy, resource schema.GroupResource, namespace string) []T {
	objs, err := p.Objects.List(resource, namespace, nil)
	if err != nil {
		return nil
	}
	typed := make([]T, len(objs))
	for i, obj := range objs {
		typed[i] = obj.(T)
	}
	return typed
}

// SyncNodeGraph keeps the graph of the Node authorizer up to date until ctx is done. synced is called once, when the graph has all objects
// that existed at the start.
func SyncNodeGraph(ctx context.Context, watcher Watcher, graph *NodeGraph, log *slog.Logger, synced func()) error {
	remaining := len(NodeResources)
	listed := make(chan struct{})
	results := make(chan error, remaining)
	for _, gr := range NodeResources {
		go func() {
			onList := func() { listed <- struct{}{} }
			for ctx.Err() == nil {
				if err := watchIntoGraph(ctx, watcher, gr.WithVersion("v1"), graph, onList); err != nil {
					results <- err
					return
				}
				// The watch has expired or was closed; the next one begins with a list.
				onList = func() {}
				log.Debug("node authorizer restarts watch", "resource", gr.String())
			}
			results <- nil
		}()
	}
	var result error
	for count := 0; count < len(NodeResources); {
		select {
		case <-listed:
			if remaining--; remaining == 0 {
				synced()
			}
		case err := <-results:
			count++
			if err != nil && result == nil && ctx.Err() == nil {
				result = err
			}
		}
	}
	return result
}

// watchIntoGraph applies the changes of one resource to the graph until the watch ends. onList is called after the objects that existed at
// the start.
func watchIntoGraph(ctx context.Context, watcher Watcher, gvr schema.GroupVersionResource, graph *NodeGraph, onList func()) error {
	w, err := watcher.Watch(ctx, gvr, "", &internalversion.ListOptions{SendInitialEvents: new(true)})
	if err != nil {
		return fmt.Errorf("watch %s for the node authorizer: %w", gvr.Resource, err)
	}
	defer w.Stop()
	listed := map[types.NamespacedName]bool{} // until the bookmark
	for event := range w.ResultChan() {
		obj, ok := event.Object.(kind.Object)
		switch {
		case !ok:
			return nil
		case event.Type == watch.Bookmark && listed != nil:
			// What was deleted between two watches gives a node no access any more.
			graph.Retain(gvr.GroupResource(), listed)
			listed = nil
			onList()
		case event.Type == watch.Bookmark:
		case event.Type == watch.Deleted:
			graph.Delete(obj)
		default:
			if listed != nil {
				listed[types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}] = true
			}
			graph.Set(obj)
		}
		if listed == nil {
			graph.progress.advance(gvr.GroupResource(), obj)
		}
	}
	return nil
}
