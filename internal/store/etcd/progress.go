package etcd

import (
	"sync"
	"sync/atomic"

	"skiff/internal/store"
)

// streams are the running watches of an etcd that others write to.
type streams struct {
	mu      sync.Mutex
	running map[*streamProgress]struct{}
}

// streamProgress is how far a watch is.
type streamProgress struct {
	delivered atomic.Int64
	lagging   chan struct{} // requests progress now
}

// add registers a watch that starts after a revision. It must be removed.
func (s *streams) add(after store.Revision) *streamProgress {
	p := &streamProgress{lagging: make(chan struct{}, 1)}
	p.delivered.Store(after)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[*streamProgress]struct{}{}
	}
	s.running[p] = struct{}{}
	return p
}

func (s *streams) remove(p *streamProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, p)
}

// requestProgress requests progress from the watches that have not delivered a revision, because a caller is about to wait for it.
func (s *streams) requestProgress(revision store.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.running {
		if p.delivered.Load() < revision {
			select {
			case p.lagging <- struct{}{}:
			default:
			}
		}
	}
}
