package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/quota"
)

// Watcher watches objects of the server.
type Watcher interface {
	Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, options *internalversion.ListOptions) (watch.Interface, error)
}

// Follower is implemented by plugins that keep an index of objects.
type Follower interface {
	Plugin
	// Follow keeps the index until ctx is done.
	Follow(ctx context.Context, watcher Watcher) error
}

// extendedClaims are the resource claims that were created for the extended resources of pods, by pod, as upstream's index. A quota would otherwise
// read all claims of a namespace for each of them.
type extendedClaims struct {
	mu sync.RWMutex
	// byPod is nil until the first list is complete. owners has the pod of each claim.
	byPod  map[types.UID]map[types.NamespacedName]*resourcev1.ResourceClaim
	owners map[types.NamespacedName]types.UID
}

// errClaimsNotListed is the error of a server that has just been started.
var errClaimsNotListed = errors.New("resource claims have not been listed yet")

// of returns the claims of a pod.
func (x *extendedClaims) of(pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.byPod == nil {
		return nil, errClaimsNotListed
	}
	return slices.Collect(maps.Values(x.byPod[pod.UID])), nil
}

// follow keeps the claims until ctx is done.
func (x *extendedClaims) follow(ctx context.Context, watcher Watcher) error {
	for ctx.Err() == nil {
		if err := x.watch(ctx, watcher); err != nil && ctx.Err() == nil {
			return fmt.Errorf("watch resource claims for quotas: %w", err)
		}
	}
	return nil
}

// watch lists the claims and applies changes until the watch ends.
func (x *extendedClaims) watch(ctx context.Context, watcher Watcher) error {
	w, err := watcher.Watch(ctx, resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), "", &internalversion.ListOptions{SendInitialEvents: new(true)})
	if err != nil {
		return err
	}
	defer w.Stop()
	var listed []*resourcev1.ResourceClaim
	complete := false
	for event := range w.ResultChan() {
		claim, ok := event.Object.(*resourcev1.ResourceClaim)
		switch {
		case !ok:
			return nil // the watch has expired
		case event.Type == watch.Bookmark && !complete:
			complete = true
			x.replace(listed)
		case event.Type == watch.Bookmark:
		case complete:
			x.apply(claim, event.Type == watch.Deleted)
		default:
			listed = append(listed, claim)
		}
	}
	return nil
}

func (x *extendedClaims) replace(all []*resourcev1.ResourceClaim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byPod, x.owners = map[types.UID]map[types.NamespacedName]*resourcev1.ResourceClaim{}, map[types.NamespacedName]types.UID{}
	for _, claim := range all {
		x.set(claim, false)
	}
}

func (x *extendedClaims) apply(claim *resourcev1.ResourceClaim, deleted bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.set(claim, deleted)
}

// set applies a change. The caller holds mu.
func (x *extendedClaims) set(claim *resourcev1.ResourceClaim, deleted bool) {
	key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	if owner, ok := x.owners[key]; ok {
		delete(x.owners, key)
		if delete(x.byPod[owner], key); len(x.byPod[owner]) == 0 {
			delete(x.byPod, owner)
		}
	}
	pod := quota.PodOfExtendedClaim(claim)
	if deleted || pod == nil {
		return
	}
	x.owners[key] = pod.UID
	if x.byPod[pod.UID] == nil {
		x.byPod[pod.UID] = map[types.NamespacedName]*resourcev1.ResourceClaim{}
	}
	x.byPod[pod.UID][key] = claim
}
