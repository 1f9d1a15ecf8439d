// Package objects holds the config maps, secrets and trust bundles that the pods of this node name, and nothing else.
//
// A node may read a secret only while one of its pods names it, and may list or watch it only by its very name. So each object is
// watched singly, from the moment the first pod that names it is registered until the last one is gone. A change is told to every
// pod that names the object, so that its volumes follow at once. Objects that say they are immutable are read once and then left
// alone.
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

// Objects is the node's view of what its pods name. All methods may be called concurrently. Objects returned are read-only.
type Objects struct {
	log        *slog.Logger
	loops      *loops
	configMaps *family[*corev1.ConfigMap]
	secrets    *family[*corev1.Secret]
	bundles    *bundles
}

// New makes the view. changed is called, never concurrently with Run's end, with each pod that names an object that has changed; it must not block.
func New(c *client.Client, changed func(pod types.UID), log *slog.Logger) *Objects {
	o := &Objects{log: log, loops: &loops{}}
	o.configMaps = newFamily(client.For[*corev1.ConfigMap](c), "configmap", o.loops, changed, log,
		func(m *corev1.ConfigMap) bool { return m.Immutable != nil && *m.Immutable })
	o.secrets = newFamily(client.For[*corev1.Secret](c), "secret", o.loops, changed, log,
		func(s *corev1.Secret) bool { return s.Immutable != nil && *s.Immutable })
	o.bundles = &bundles{
		resource: client.For[*certificatesv1.ClusterTrustBundle](c), loops: o.loops, changed: changed, log: log,
		answered: make(chan struct{}), pods: map[types.UID]bool{}, objects: map[string]*certificatesv1.ClusterTrustBundle{},
	}
	return o
}

// Run watches until ctx ends, and returns when all watches have.
func (o *Objects) Run(ctx context.Context) error {
	o.loops.run(ctx)
	return nil
}

// Register makes sure that what a pod names is watched. It is called for every new version of a pod: one that names other
// objects than before lets go of the old ones.
func (o *Objects) Register(pod *corev1.Pod) {
	named := namesOf(pod)
	o.configMaps.set(pod.UID, pod.Namespace, named.configMaps)
	o.secrets.set(pod.UID, pod.Namespace, named.secrets)
	o.bundles.set(pod.UID, named.bundles)
}

// Unregister lets go of what a pod named.
func (o *Objects) Unregister(uid types.UID) {
	o.configMaps.set(uid, "", nil)
	o.secrets.set(uid, "", nil)
	o.bundles.set(uid, false)
}

// ConfigMap returns a config map that a registered pod names. It waits for the first answer of the server for a moment.
func (o *Objects) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	return o.configMaps.get(types.NamespacedName{Namespace: namespace, Name: name})
}

// Secret returns a secret that a registered pod names. It waits for the first answer of the server for a moment.
func (o *Objects) Secret(namespace, name string) (*corev1.Secret, error) {
	return o.secrets.get(types.NamespacedName{Namespace: namespace, Name: name})
}

// TrustBundles returns all trust bundles of the cluster. They are watched from the first time a pod projects one.
func (o *Objects) TrustBundles() ([]*certificatesv1.ClusterTrustBundle, error) {
	return o.bundles.all()
}

// loops runs goroutines that end with Run. What is started earlier waits for it.
type loops struct {
	mu      sync.Mutex
	ctx     context.Context
	ended   bool
	waiting []func(context.Context)
	running sync.WaitGroup
}

func (l *loops) start(loop func(context.Context)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ctx == nil:
		l.waiting = append(l.waiting, loop)
	case !l.ended:
		l.running.Go(func() { loop(l.ctx) })
	}
}

func (l *loops) run(ctx context.Context) {
	l.mu.Lock()
	l.ctx = ctx
	for _, loop := range l.waiting {
		l.running.Go(func() { loop(ctx) })
	}
	l.waiting = nil
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.running.Wait()
}
