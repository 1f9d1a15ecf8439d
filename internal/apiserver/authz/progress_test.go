package authz

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/apiserver/authn"
)

// aheadCache has changes of pods that its watch has not delivered yet.
type aheadCache struct {
	pods       *watch.FakeWatcher
	lastChange int64
}

func (c *aheadCache) LastChange(resource schema.GroupResource) int64 {
	if resource == corev1.Resource("pods") {
		return c.lastChange
	}
	return 0
}

func (c *aheadCache) Watch(ctx context.Context, gvr schema.GroupVersionResource, _ string, _ *internalversion.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(1, false)
	if gvr.Resource == "pods" {
		w = c.pods
	}
	w.Action(watch.Bookmark, &corev1.Pod{})
	context.AfterFunc(ctx, w.Stop)
	return w, nil
}

// A kubelet may ask for the objects of a pod before the graph has the pod: the request waits for the changes that the cache has, and for no
// others.
func TestNodeWaitsForGraph(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: named("ns", "p"), Spec: corev1.PodSpec{NodeName: "n", ServiceAccountName: "default"}}
	pod.ResourceVersion = "5"
	for name, test := range map[string]struct {
		lastChange int64
		delivered  bool
		want       Decision
		waits      time.Duration
	}{
		"the pod arrives":           {5, true, Allow, 100 * time.Millisecond},
		"nothing is missing":        {0, false, NoOpinion, 0},
		"the change never arrives":  {5, false, NoOpinion, maxCatchUp},
		"a later change is missing": {6, true, Allow, maxCatchUp},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				cache := &aheadCache{watch.NewFakeWithChanSize(2, false), test.lastChange}
				graph := NewNodeGraph()
				graph.Objects = cache
				synced, done := make(chan struct{}), make(chan error, 1)
				go func() {
					done <- SyncNodeGraph(ctx, cache, graph, slog.New(slog.DiscardHandler), func() { close(synced) })
				}()
				<-synced
				if test.delivered {
					time.AfterFunc(100*time.Millisecond, func() { cache.pods.Add(pod) })
				}
				started := time.Now()
				got, reason, err := NewNode(graph).Authorize(ctx, &Attributes{
					User: authn.User{Username: "system:node:n", Groups: []string{"system:nodes"}}, ResourceRequest: true,
					Verb: "create", Resource: "serviceaccounts", Subresource: "token", Namespace: "ns", Name: "default",
				})
				if got != test.want || err != nil {
					t.Errorf("decision %v (%s), %v, want %v", got, reason, err, test.want)
				}
				if waited := time.Since(started); waited != test.waits {
					t.Errorf("waited %s, want %s", waited, test.waits)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
