package controller

import (
	"sync"
	"time"
)

// A sync that examines all pods of a large workload, or all nodes, costs time proportional to their number, and so many objects change
// often. So that the cost of n changes is not quadratic, syncs of one key are spaced by spacePerObject for every object that the last one
// examined: a workload of 40 pods is not delayed, one of 4,000 pods is synced at most once per second.
const (
	spacePerObject = 250 * time.Microsecond
	minSpace       = 10 * time.Millisecond
	maxSpace       = 5 * time.Second
)

// Sized is implemented by views of which many objects may be part.
type Sized interface {
	// Size is the number of objects that Reconcile examines.
	Size() int
}

// spacing tracks until when large keys are not synced again.
type spacing struct {
	mu    sync.Mutex
	until map[Key]time.Time
}

func newSpacing() *spacing { return &spacing{until: map[Key]time.Time{}} }

// record notes that a sync of the key examines so many objects. Zero forgets the key.
func (s *spacing) record(key Key, objects int, now time.Time) {
	space := min(time.Duration(objects)*spacePerObject, maxSpace)
	s.mu.Lock()
	defer s.mu.Unlock()
	if space < minSpace {
		delete(s.until, key)
		return
	}
	s.until[key] = now.Add(space)
}

// delay is the time until the key may be synced.
func (s *spacing) delay(key Key, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.until[key].Sub(now))
}
