package fairness

import (
	"sync"
	"time"

	"skiff/internal/apiserver/authz"
)

// Work is the estimated cost of a request.
type Work struct {
	// InitialSeats are occupied while the request executes; zero means one.
	InitialSeats int
	// FinalSeats are occupied for eventDuration after the response to a write, while its events go to the watches.
	FinalSeats int
}

const (
	// maxSeats is the most that one request occupies.
	maxSeats = 10
	// A list occupies one seat for every seatBytes, up to listBytes: it is sent while it is read, so it never holds more.
	seatBytes = 100_000
	listBytes = 1_000_000
	// A write occupies one final seat for every watchesPerSeat watches, for eventDuration. Fewer watches do not count.
	watchesPerSeat = 10
	eventDuration  = 5 * time.Millisecond
)

// ListWork estimates a list of a number of objects of an average size.
func ListWork(objects, size int) Work {
	return Work{InitialSeats: (min(objects*size, listBytes) + seatBytes - 1) / seatBytes}
}

// WriteWork estimates a write that is seen by a number of watches.
func WriteWork(watches int) Work {
	if watches < watchesPerSeat {
		return Work{}
	}
	return Work{FinalSeats: (watches + watchesPerSeat - 1) / watchesPerSeat}
}

// setWork computes the seats for the work. limit is the most seats of one request in the level; 0 means maxSeats.
func (s *Seats) setWork(w Work, limit int) {
	if limit == 0 || limit > maxSeats {
		limit = maxSeats
	}
	s.initial = min(max(w.InitialSeats, 1), limit)
	s.final, s.finalWork = min(w.FinalSeats, limit), seatSeconds(w.FinalSeats, eventDuration)
	s.total = max(s.initial, s.final)
	s.work = seatSeconds(s.initial, serviceTime) + s.finalWork
}

// additionalLatency is how long the seats stay occupied after the response. The work is the same whether many seats are occupied
// briefly or few for longer.
func (s *Seats) additionalLatency() time.Duration {
	if s.final == 0 {
		return 0
	}
	return time.Duration(s.finalWork / float64(s.final) * float64(time.Second))
}

func seatSeconds(seats int, d time.Duration) float64 { return float64(seats) * d.Seconds() }

// Watches counts the watches of each resource. The zero value is ready.
type Watches struct {
	mu         sync.RWMutex
	byResource map[watchTarget]int // only group and resource are set
	byTarget   map[watchTarget]int
}

// watchTarget is what a watch selects: a resource, a namespace of it, or one object.
type watchTarget struct{ group, resource, namespace, name string }

// Register counts a watch until the function it returns is called.
func (w *Watches) Register(a *authz.Attributes) (unregister func()) {
	resource := watchTarget{group: a.Group, resource: a.Resource}
	target := watchTarget{group: a.Group, resource: a.Resource, namespace: a.Namespace, name: a.Name}
	w.add(resource, target, 1)
	return func() { w.add(resource, target, -1) }
}

func (w *Watches) add(resource, target watchTarget, delta int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byResource == nil {
		w.byResource, w.byTarget = map[watchTarget]int{}, map[watchTarget]int{}
	}
	w.byResource[resource] += delta
	if w.byTarget[target] += delta; w.byTarget[target] == 0 {
		delete(w.byTarget, target)
	}
}

// InterestedCount is the number of watches that receive an event of a write. Below watchesPerSeat it is only an upper bound.
func (w *Watches) InterestedCount(a *authz.Attributes) int {
	key := watchTarget{group: a.Group, resource: a.Resource}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if all := w.byResource[key]; all < watchesPerSeat {
		return all
	}
	sum := w.byTarget[key]
	if a.Namespace != "" {
		key.namespace = a.Namespace
		sum += w.byTarget[key]
	}
	if a.Name != "" {
		key.name = a.Name
		sum += w.byTarget[key]
	}
	return sum
}
