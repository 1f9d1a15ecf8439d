package authz

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/kind"
)

// fakeCache has one cluster role and no changes.
type fakeCache struct{ role *rbacv1.ClusterRole }

func (c fakeCache) Get(resource schema.GroupResource, _, name string) (kind.Object, error) {
	if resource.Resource == "clusterroles" && name == c.role.Name {
		return c.role, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (c fakeCache) List(schema.GroupResource, string, labels.Selector) ([]kind.Object, error) {
	return nil, nil
}

func (c fakeCache) Watch(ctx context.Context, gvr schema.GroupVersionResource, _ string, _ *internalversion.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(1, false)
	w.Action(watch.Bookmark, &corev1.Pod{})
	context.AfterFunc(ctx, w.Stop)
	return w, nil
}

func (c fakeCache) LastChange(resource schema.GroupResource) int64 {
	if resource == rbacv1.Resource("roles") {
		return 7
	}
	return 0
}

func TestCachedPolicy(t *testing.T) {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}}
	p := &CachedPolicy{Objects: fakeCache{role}}
	if got := p.ClusterRole("view"); got != role {
		t.Errorf("cluster role %v, want that of the cache", got)
	}
	if got := p.Role("default", "view"); got != nil {
		t.Errorf("role %v, want none", got)
	}
	if got := p.RoleBindings("default"); len(got) != 0 {
		t.Errorf("role bindings %v, want none", got)
	}
	if got := p.Revisions(); got.Roles != 7 || got.ClusterRoles != 0 {
		t.Errorf("revisions %+v", got)
	}
}

// The graph is synced when every watch has sent its bookmark; the sync ends with ctx.
func TestSyncNodeGraph(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	synced := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- SyncNodeGraph(ctx, fakeCache{}, NewNodeGraph(), slog.New(slog.DiscardHandler), func() { close(synced) })
	}()
	<-synced
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// interruptedWatch sends the pods of one list after the other, each in a watch of its own, and no objects of other resources.
type interruptedWatch struct {
	lists chan []*corev1.Pod
}

func (c interruptedWatch) Watch(ctx context.Context, gvr schema.GroupVersionResource, _ string, _ *internalversion.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(10, false)
	if gvr.Resource != "pods" {
		w.Action(watch.Bookmark, &corev1.Pod{})
		context.AfterFunc(ctx, w.Stop)
		return w, nil
	}
	select {
	case pods := <-c.lists:
		for _, pod := range pods {
			w.Add(pod)
		}
		w.Action(watch.Bookmark, &corev1.Pod{})
		w.Stop()
	case <-ctx.Done():
		w.Stop()
	}
	return w, nil
}

// A pod that was deleted while its watch was interrupted gives its node no access any more.
func TestNodeGraphAfterInterruption(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: named("ns", name), Spec: corev1.PodSpec{NodeName: "n", ImagePullSecrets: []corev1.LocalObjectReference{local("of-" + name)}}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	graph, watcher := NewNodeGraph(), interruptedWatch{make(chan []*corev1.Pod)}
	done := make(chan error, 1)
	go func() {
		done <- SyncNodeGraph(ctx, watcher, graph, slog.New(slog.DiscardHandler), func() {})
	}()
	for _, pods := range [][]*corev1.Pod{{pod("a"), pod("b")}, {pod("a")}, {pod("a")}} {
		watcher.lists <- pods // the list before it has been handled
	}
	for name, want := range map[string]bool{"of-a": true, "of-b": false} {
		if got := graph.isRelated(related{relatedSecret, "ns", name}, "n"); got != want {
			t.Errorf("the node has access to %s: %t", name, got)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
