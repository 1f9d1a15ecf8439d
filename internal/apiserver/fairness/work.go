package fairness

import (
	"sync"
	"time"

	"skiff/internal/apiserver/authz"
)

// Work is what a request is expected to cost.
type Work struct {
	// Seats are taken while the request runs; none means one.
	Seats int
	// Late is how many seats the events of a write take when they go to its watchers, for lateTime, after the request has been
	// answered.
	Late int
}

const (
	// mostSeats is what one request takes at most.
	mostSeats = 10
	// seatBytes of a list take one seat. A list is sent while it is read from memory, so that it never holds more than listBytes.
	seatBytes = 100_000
	listBytes = 1_000_000
	// seatWatches watches of what is written take one seat for lateTime. Fewer do not count.
	seatWatches = 10
	lateTime    = 5 * time.Millisecond
)

// ListWork is the work of sending a number of objects of an average size.
func ListWork(objects, size int) Work {
	return Work{Seats: (min(objects*size, listBytes) + seatBytes - 1) / seatBytes}
}

// WriteWork is the work of a write that so many watch.
func WriteWork(watches int) Work {
	if watches < seatWatches {
		return Work{}
	}
	return Work{Late: (watches + seatWatches - 1) / seatWatches}
}

// size tells the turn what its work is, where a request may take so many seats at most (0: no bound of the level's own).
func (t *Turn) size(w Work, most int) {
	if most == 0 || most > mostSeats {
		most = mostSeats
	}
	t.initial = min(max(w.Seats, 1), most)
	t.late, t.lateWork = min(w.Late, most), seatSeconds(w.Late, lateTime)
	t.seats = max(t.initial, t.late)
	t.work = seatSeconds(t.initial, serviceTime) + t.lateWork
}

// lateness is how long the seats are kept after the request has been answered. The work is the same whether many seats are kept
// shortly or few for longer.
func (t *Turn) lateness() time.Duration {
	if t.late == 0 {
		return 0
	}
	return time.Duration(t.lateWork / float64(t.late) * float64(time.Second))
}

func seatSeconds(seats int, d time.Duration) float64 { return float64(seats) * d.Seconds() }

// Watches counts the watches of each resource. The zero value is ready.
type Watches struct {
	mu     sync.RWMutex
	all    map[watched]int // of a resource, whatever else they name
	counts map[watched]int
}

// watched is what a watch is for.
type watched struct{ group, resource, namespace, name string }

// Begin counts a watch until the function it returns is called.
func (w *Watches) Begin(a *authz.Attributes) (end func()) {
	all := watched{group: a.Group, resource: a.Resource}
	one := watched{group: a.Group, resource: a.Resource, namespace: a.Namespace, name: a.Name}
	w.add(all, one, 1)
	return func() { w.add(all, one, -1) }
}

func (w *Watches) add(all, one watched, delta int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all, w.counts = map[watched]int{}, map[watched]int{}
	}
	w.all[all] += delta
	if w.counts[one] += delta; w.counts[one] == 0 {
		delete(w.counts, one)
	}
}

// Interested is how many watches a write is told to. When they are too few to count it may be less.
func (w *Watches) Interested(a *authz.Attributes) int {
	key := watched{group: a.Group, resource: a.Resource}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if all := w.all[key]; all < seatWatches {
		return all
	}
	sum := w.counts[key]
	if a.Namespace != "" {
		key.namespace = a.Namespace
		sum += w.counts[key]
	}
	if a.Name != "" {
		key.name = a.Name
		sum += w.counts[key]
	}
	return sum
}
