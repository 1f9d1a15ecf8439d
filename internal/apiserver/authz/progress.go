package authz

import (
	"context"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// maxCatchUp bounds how long a request waits for a graph that is behind the cache.
const maxCatchUp = time.Second

// graphProgress has the revision up to which a graph has the changes of each resource. A kubelet may see a pod, and ask for what the pod
// refers to, before the graph's own watch has delivered that pod.
type graphProgress struct {
	mu        sync.Mutex
	revisions map[schema.GroupResource]int64
	// advanced is closed when a revision changes; it is nil while nobody waits.
	advanced chan struct{}
}

// advance records that the graph has the changes of a resource up to an event's object.
func (p *graphProgress) advance(resource schema.GroupResource, obj kind.Object) {
	revision, err := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision <= p.revisions[resource] {
		return
	}
	if p.revisions == nil {
		p.revisions = make(map[schema.GroupResource]int64, len(NodeResources))
	}
	p.revisions[resource] = revision
	if p.advanced != nil {
		close(p.advanced)
		p.advanced = nil
	}
}

// behind returns a channel that is closed at the next progress if the graph lacks changes of these revisions, otherwise nil.
func (p *graphProgress) behind(revisions []int64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, resource := range NodeResources {
		if p.revisions[resource] < revisions[i] {
			if p.advanced == nil {
				p.advanced = make(chan struct{})
			}
			return p.advanced
		}
	}
	return nil
}

// catchUp waits until the graph has every change that the cache had when it was called, and reports whether it had to wait: then a
// decision made before may be wrong.
func (g *NodeGraph) catchUp(ctx context.Context) bool {
	if g.Objects == nil {
		return false
	}
	revisions := make([]int64, len(NodeResources))
	for i, resource := range NodeResources {
		revisions[i] = g.Objects.LastChange(resource)
	}
	advanced := g.progress.behind(revisions)
	if advanced == nil {
		return false
	}
	timeout := time.NewTimer(maxCatchUp)
	defer timeout.Stop()
	for ; advanced != nil; advanced = g.progress.behind(revisions) {
		select {
		case <-advanced:
		case <-timeout.C:
			return true
		case <-ctx.Done():
			return true
		}
	}
	return true
}
