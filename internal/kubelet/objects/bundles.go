package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// bundles are all trust bundles. A projection may select them by signer and labels, so they cannot be watched
// individually.
type bundles struct {
	dependencies
	resource client.Resource[*certificatesv1.ClusterTrustBundle]
	synced   chan struct{} // closed by the first response

	mu        sync.Mutex
	watched   bool
	hasSynced bool
	failure   error
	pods      map[types.UID]bool
	objects   map[string]*certificatesv1.ClusterTrustBundle
}

// set records whether a pod projects trust bundles. The first pod that does starts the watch, which then continues.
func (b *bundles) set(uid types.UID, projects bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !projects {
		delete(b.pods, uid)
		return
	}
	b.pods[uid] = true
	if !b.watched {
		b.watched = true
		b.goroutines.start(b.watch)
	}
}

func (b *bundles) all() ([]*certificatesv1.ClusterTrustBundle, error) {
	select {
	case <-b.synced:
	case <-time.After(syncTimeout):
		b.mu.Lock()
		defer b.mu.Unlock()
		err := errors.New("timed out waiting for the condition")
		if b.failure != nil {
			err = fmt.Errorf("%w: %w", err, b.failure)
		}
		return nil, fmt.Errorf("failed to sync clustertrustbundle cache: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.objects)), nil
}

func (b *bundles) watch(ctx context.Context) {
	b.resource.Follow(ctx, "", client.Selector{}, client.FollowHandler[*certificatesv1.ClusterTrustBundle]{
		Replace: func(objects []*certificatesv1.ClusterTrustBundle) bool {
			b.change(func() {
				clear(b.objects)
				for _, object := range objects {
					b.objects[object.Name] = object
				}
			})
			return true
		},
		Apply: func(object *certificatesv1.ClusterTrustBundle, deleted bool) bool {
			b.change(func() {
				if b.objects[object.Name] = object; deleted {
					delete(b.objects, object.Name)
				}
			})
			return true
		},
		Fail: func(err error) {
			b.mu.Lock()
			b.failure = err
			b.mu.Unlock()
			b.log.Debug("failed to watch trust bundles", "error", err)
		},
	})
}

// change applies the server's response and notifies the pods that project bundles. They are not notified of the first
// response, for which they wait.
func (b *bundles) change(apply func()) {
	b.mu.Lock()
	apply()
	var notify []types.UID
	if b.hasSynced {
		notify = slices.Collect(maps.Keys(b.pods))
	} else {
		b.hasSynced = true
		close(b.synced)
	}
	b.failure = nil
	b.mu.Unlock()
	for _, uid := range notify {
		b.changed(uid)
	}
}
