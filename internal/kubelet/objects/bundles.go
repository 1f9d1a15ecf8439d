package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// bundles is all trust bundles: a projection may choose them by signer and labels, so none can be watched alone.
type bundles struct {
	resource client.Resource[*certificatesv1.ClusterTrustBundle]
	loops    *loops
	changed  func(types.UID)
	log      *slog.Logger
	answered chan struct{} // closed by the first answer

	mu      sync.Mutex
	watched bool
	known   bool
	failure error
	pods    map[types.UID]bool
	objects map[string]*certificatesv1.ClusterTrustBundle
}

// set says whether a pod projects trust bundles. The first that does starts the watch, which then stays.
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
		b.loops.start(b.follow)
	}
}

func (b *bundles) all() ([]*certificatesv1.ClusterTrustBundle, error) {
	select {
	case <-b.answered:
	case <-time.After(firstAnswer):
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

func (b *bundles) follow(ctx context.Context) {
	follow(ctx, b.resource, "", client.Selector{}, sink[*certificatesv1.ClusterTrustBundle]{
		replace: func(objects []*certificatesv1.ClusterTrustBundle) bool {
			b.change(func() {
				clear(b.objects)
				for _, object := range objects {
					b.objects[object.Name] = object
				}
			})
			return true
		},
		apply: func(object *certificatesv1.ClusterTrustBundle, deleted bool) bool {
			b.change(func() {
				if b.objects[object.Name] = object; deleted {
					delete(b.objects, object.Name)
				}
			})
			return true
		},
		fail: func(err error) {
			b.mu.Lock()
			b.failure = err
			b.mu.Unlock()
			b.log.Debug("trust bundles are not read", "error", err)
		},
	})
}

// change takes in what the server said and tells every pod that projects bundles, but for the first answer, for which they wait.
func (b *bundles) change(apply func()) {
	b.mu.Lock()
	apply()
	var tell []types.UID
	if b.known {
		tell = slices.Collect(maps.Keys(b.pods))
	} else {
		b.known = true
		close(b.answered)
	}
	b.failure = nil
	b.mu.Unlock()
	for _, uid := range tell {
		b.changed(uid)
	}
}
