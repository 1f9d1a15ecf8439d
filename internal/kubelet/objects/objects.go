// Package objects caches the config maps, secrets and trust bundles that the pods of this node reference.
//
// A node may only read a secret that one of its pods references, and may only list or watch it by name. Each object
// therefore has a watch of its own, from when the first pod that references it is registered until the last one is
// removed. When an object changes, the pods that reference it are synced, so that their volumes are updated at once.
// Immutable objects are read once and not watched.
package objects

import (
	"context"
	"log/slog"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// Cache caches the objects. All methods may be called concurrently. Returned objects are read-only.
type Cache struct {
	dependencies
	configMaps *watchedKind[*corev1.ConfigMap]
	secrets    *watchedKind[*corev1.Secret]
	bundles    *bundles
}

// dependencies are shared by the watches of all kinds.
type dependencies struct {
	goroutines *goroutines
	changed    func(pod types.UID)
	log        *slog.Logger
}

// New returns an empty cache. changed is called with each pod that references an object that has changed; it must not
// block and is not called after Run has returned.
func New(c *client.Client, changed func(pod types.UID), log *slog.Logger) *Cache {
	d := dependencies{goroutines: &goroutines{}, changed: changed, log: log}
	return &Cache{
		dependencies: d,
		configMaps: newWatchedKind(client.For[*corev1.ConfigMap](c), "configmap",
			func(m *corev1.ConfigMap) bool { return m.Immutable != nil && *m.Immutable }, d),
		secrets: newWatchedKind(client.For[*corev1.Secret](c), "secret",
			func(s *corev1.Secret) bool { return s.Immutable != nil && *s.Immutable }, d),
		bundles: &bundles{
			dependencies: d, resource: client.For[*certificatesv1.ClusterTrustBundle](c),
			synced: make(chan struct{}), pods: map[types.UID]bool{}, objects: map[string]*certificatesv1.ClusterTrustBundle{},
		},
	}
}

// Run watches until ctx is done, and returns when all watches have ended.
func (c *Cache) Run(ctx context.Context) error {
	c.goroutines.run(ctx)
	return nil
}

// Register watches the objects a pod references. It is called again when the pod is updated; objects it no longer
// references are dropped.
func (c *Cache) Register(pod *corev1.Pod) {
	refs := referencesOf(pod)
	c.configMaps.set(pod.UID, pod.Namespace, refs.configMaps)
	c.secrets.set(pod.UID, pod.Namespace, refs.secrets)
	c.bundles.set(pod.UID, refs.bundles)
}

// Unregister drops the objects a pod referenced.
func (c *Cache) Unregister(uid types.UID) {
	c.configMaps.set(uid, "", nil)
	c.secrets.set(uid, "", nil)
	c.bundles.set(uid, false)
}

// ConfigMap returns a config map that a registered pod references. It waits up to syncTimeout for the first response of
// the server.
func (c *Cache) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	return c.configMaps.get(types.NamespacedName{Namespace: namespace, Name: name})
}

// Secret returns a secret that a registered pod references. It waits up to syncTimeout for the first response of the
// server.
func (c *Cache) Secret(namespace, name string) (*corev1.Secret, error) {
	return c.secrets.get(types.NamespacedName{Namespace: namespace, Name: name})
}

// TrustBundles returns all trust bundles of the cluster. They are watched once a pod projects one.
func (c *Cache) TrustBundles() ([]*certificatesv1.ClusterTrustBundle, error) {
	return c.bundles.all()
}

// goroutines runs functions in goroutines until the context of run is done. Functions passed to start before run are queued.
type goroutines struct {
	mu      sync.Mutex
	ctx     context.Context
	stopped bool
	queued  []func(context.Context)
	running sync.WaitGroup
}

func (g *goroutines) start(loop func(context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ctx == nil:
		g.queued = append(g.queued, loop)
	case !g.stopped:
		g.running.Go(func() { loop(g.ctx) })
	}
}

func (g *goroutines) run(ctx context.Context) {
	g.mu.Lock()
	g.ctx = ctx
	for _, loop := range g.queued {
		g.running.Go(func() { loop(ctx) })
	}
	g.queued = nil
	g.mu.Unlock()
	<-ctx.Done()
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.running.Wait()
}
