package fairness

import (
	"math"
	"slices"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// serviceTime is how long a request is expected to run. When it has ended, its queue is charged what it really took.
const serviceTime = 3 * time.Millisecond

// level is one priority level: its seats and its queues.
//
// The queues share the seats by a clock that runs in seat-seconds per queue (progress): it says how much work each queue with
// anything to do would have had done if all were served at once, in equal parts. A queue's next request is due (queue.next) when
// the work of those before it would be done at that rate; the request goes first that would be finished first.
type level struct {
	name  string
	epoch time.Time
	retry retry

	// Guarded by Fairness.mu.
	object  *flowcontrolv1.PriorityLevelConfiguration
	leaving bool // the object is gone; the level goes when it is idle
	bounds  bounds
	wish    wish
	target  float64

	mu       sync.Mutex
	exempt   bool
	limit    int // seats the level has now
	mostOf   int // seats of one request at most; 0: no bound
	hand     int
	length   int // of one queue at most
	count    int // queues to be dealt; 0: nobody waits
	queues   []*queue
	robin    int // the queue that was served last
	dealt    int // hands
	now      time.Duration
	progress float64

	running, used         int // requests and their seats; seats may be kept longer than requests run
	waiting, waitingSeats int
	busy                  int // queues with requests waiting or running
	queuedSeats           int // used or waited for by requests of queues
	demand                demand
	stats                 map[string]*stats // by schema
}

// queue is where requests of some flows wait. Those that run are still counted.
type queue struct {
	first, last  *Turn
	waiting      int
	waitingSeats int
	waitingWork  float64
	running      int
	used         int     // seats
	next         float64 // the progress at which the next request is due
}

// Turn is one request's. The zero value is ready for Enter.
type Turn struct {
	schema *schema
	queue  *queue // nil if the request did not go through one
	watch  bool
	held   bool // seats are taken

	initial, late, seats int // seats: the larger of the others
	lateWork, work       float64
	arrived, began       time.Duration
	arrival              float64 // the progress when the request came

	granted        chan struct{} // made when the request must wait
	before, behind *Turn         // in the queue
}

// verdict is what becomes of a request that comes.
type verdict int

const (
	admitted verdict = iota
	queued
	refused
)

func newLevel(name string, epoch time.Time) *level {
	return &level{name: name, epoch: epoch, now: time.Since(epoch), stats: map[string]*stats{}}
}

// configure makes the level what its object and its bounds say. Queues that are too many go when they are empty.
func (l *level) configure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.exempt = l.object.Spec.Exempt != nil
	l.count, l.mostOf = 0, 0
	if l.exempt || l.object.Spec.Limited.LimitResponse.Queuing == nil {
		l.dropQueues()
		return
	}
	queuing := l.object.Spec.Limited.LimitResponse.Queuing
	l.count, l.length = int(queuing.Queues), int(queuing.QueueLengthLimit)
	l.hand = min(int(queuing.HandSize), l.count, largestHand)
	for len(l.queues) < l.count {
		l.queues = append(l.queues, &queue{})
	}
	l.dropQueues()
	// One request shall leave room for others of its level, and for those of its hand.
	nominal := float64(l.bounds.nominal)
	l.mostOf = int(max(1, min(math.Ceil(nominal*0.15), math.Floor(nominal/float64(l.hand)))))
}

// dropQueues removes empty queues beyond the count.
func (l *level) dropQueues() {
	if len(l.queues) <= l.count {
		return
	}
	kept := slices.DeleteFunc(l.queues[l.count:], func(q *queue) bool { return !q.active() && q.used == 0 })
	l.queues = l.queues[:l.count+len(kept)]
	l.robin = min(l.robin, max(0, len(l.queues)-1))
}

func (l *level) setLimit(seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.limit = seats
	l.dispatch()
}

// claim reads what was demanded since the last time. It is called with Fairness.mu held.
func (l *level) claim() *claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.demand.take(&l.wish)
	return &claim{bounds: l.bounds, exempt: l.exempt, peak: l.wish.peak, wanted: l.wish.smoothed, current: l.limit}
}

func (l *level) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running == 0 && l.waiting == 0
}

// advance lets the time pass that has passed. Everything that changes the level calls it first, with l.mu held.
func (l *level) advance() {
	now := time.Since(l.epoch)
	seconds := (now - l.now).Seconds()
	l.now = now
	l.demand.pass(seconds)
	if l.busy > 0 {
		l.progress += seconds * float64(min(l.queuedSeats, l.limit)) / float64(l.busy)
	} else {
		l.progress = 0 // nobody remembers a reading of this clock
	}
}

// changed is to be called when seats were taken, waited for or given back.
func (l *level) changed() { l.demand.set(l.used + l.waitingSeats) }

// enter admits the request, refuses it, or puts it in a queue.
func (l *level) enter(t *Turn, flow uint64, work Work) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	t.size(work, l.mostOf)
	t.arrived, t.arrival = l.now, l.progress
	s := t.schema.stats
	s.seats.observe(seatBounds, float64(t.seats))
	if l.count == 0 {
		if !l.exempt && !l.fits(t.seats) {
			s.refuse(reasonLimit, 0)
			return refused
		}
		l.begin(t)
		return admitted
	}
	t.queue = l.choose(flow)
	if l.waiting == 0 && l.used < l.limit && l.fits(t.seats) {
		t.queue.open(l.progress)
		l.begin(t)
		return admitted
	}
	if l.used >= l.limit && t.queue.waiting >= l.length {
		s.refuse(reasonFull, 0)
		return refused
	}
	t.granted = make(chan struct{}, 1)
	l.enqueue(t)
	l.dispatch()
	return queued
}

// fits reports whether there are enough free seats. What is wider than the level runs alone.
func (l *level) fits(seats int) bool {
	if seats > l.limit {
		return l.running == 0
	}
	return l.used+seats <= l.limit
}

// open makes the queue ready for a request that comes now: it has no claim from before, when nothing of it was here.
func (q *queue) open(progress float64) {
	if !q.active() || q.waiting == 0 && q.next < progress {
		q.next = progress
	}
}

func (q *queue) active() bool { return q.waiting > 0 || q.running > 0 }

// bound keeps a queue from being owed what it could not have used: nothing is due before it came.
func (q *queue) bound() {
	if q.first != nil {
		q.next = max(q.next, q.first.arrival)
	}
}

// begin gives a request its seats. Its queue, if it has one, must be open.
func (l *level) begin(t *Turn) {
	if t.late > l.limit && l.limit > 0 && !l.exempt {
		t.late = l.limit // for longer
		t.seats = max(t.initial, t.late)
	}
	t.held, t.began = true, l.now
	l.running++
	l.used += t.seats
	if q := t.queue; q != nil {
		if !q.active() {
			l.busy++
		}
		q.running++
		q.used += t.seats
		l.queuedSeats += t.seats
		q.next += t.work
	}
	l.changed()
	t.schema.stats.begin(t, !l.exempt)
}

// Leave ends the request's turn and lets others begin. Only the first call of a turn that was admitted counts.
func (t *Turn) Leave() {
	if !t.held {
		return
	}
	t.held = false
	l := t.schema.level
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	took := l.now - t.began
	l.running--
	if q := t.queue; q != nil {
		q.running--
		if !q.active() {
			l.busy--
		}
		q.next += seatSeconds(t.initial, took-serviceTime)
		q.bound()
	}
	t.schema.stats.end(t, took)
	if late := t.lateness(); late > 0 {
		q, s, seats := t.queue, t.schema.stats, t.seats
		time.AfterFunc(late, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.advance()
			l.release(q, s, seats)
			l.dispatch()
		})
	} else {
		l.release(t.queue, t.schema.stats, t.seats)
	}
	l.dispatch()
}

// release gives seats back.
func (l *level) release(q *queue, s *stats, seats int) {
	l.used -= seats
	s.usedSeats -= seats
	if q != nil {
		q.used -= seats
		l.queuedSeats -= seats
		l.dropQueues()
	}
	l.changed()
}

func (l *level) enqueue(t *Turn) {
	q := t.queue
	q.open(l.progress)
	if !q.active() {
		l.busy++
	}
	if t.before = q.last; q.last != nil {
		q.last.behind = t
	} else {
		q.first = t
	}
	q.last = t
	l.wait(t, 1)
	q.bound()
	t.schema.stats.length.observe(lengthBounds, float64(q.waiting))
}

// wait counts a request as waiting, or no longer.
func (l *level) wait(t *Turn, sign int) {
	q, s, seats := t.queue, t.schema.stats, sign*t.seats
	q.waiting += sign
	q.waitingSeats += seats
	q.waitingWork += float64(sign) * t.work
	if q.waiting == 0 {
		q.waitingWork = 0 // sums of fractions do not always come back to nothing
	}
	l.waiting += sign
	l.waitingSeats += seats
	l.queuedSeats += seats
	s.waiting += sign
	s.waitingSeats += seats
	l.changed()
}

// unlink takes a request out of its queue.
func (l *level) unlink(t *Turn) {
	q := t.queue
	if t.before != nil {
		t.before.behind = t.behind
	} else {
		q.first = t.behind
	}
	if t.behind != nil {
		t.behind.before = t.before
	} else {
		q.last = t.before
	}
	t.before, t.behind = nil, nil
	l.wait(t, -1)
}

// abandon takes a request out of its queue that has waited long enough. It reports false when its turn has just come.
func (l *level) abandon(t *Turn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	if t.held {
		return false
	}
	l.unlink(t)
	if !t.queue.active() {
		l.busy--
	}
	t.queue.bound()
	t.schema.stats.refuse(reasonTimeout, (l.now - t.arrived).Seconds())
	l.dropQueues()
	return true
}

// dispatch lets as many waiting requests begin as there are seats for.
func (l *level) dispatch() {
	for l.waiting > 0 && l.used < l.limit {
		index := l.nextQueue()
		q := l.queues[index]
		t := q.first
		if !l.fits(t.seats) {
			// It gets the seats that become free: others must not pass it for ever.
			t.schema.stats.tooWide++
			return
		}
		l.unlink(t)
		if !q.active() {
			l.busy-- // begin counts it again
		}
		l.robin = index
		l.begin(t)
		q.bound()
		t.granted <- struct{}{}
	}
}

// nextQueue is the queue whose first request would be finished first. Among equals it is the one that was served longest ago.
func (l *level) nextQueue() (best int) {
	earliest := math.Inf(1)
	for i := range l.queues {
		index := (l.robin + 1 + i) % len(l.queues)
		q := l.queues[index]
		if q.first == nil {
			continue
		}
		if finish := q.next + q.first.work; finish < earliest {
			earliest, best = finish, index
		}
	}
	return best
}

// largestHand is more than validation allows: a hash of 60 bits deals no larger one.
const largestHand = 32

// choose deals the flow its hand of queues and picks the one with the least work waiting.
func (l *level) choose(flow uint64) *queue {
	var cards [largestHand]int
	hand := deal(flow, l.count, l.hand, cards[:0])
	// Hands overlap. Beginning each time with another card spreads what is equal.
	start := l.dealt % len(hand)
	l.dealt++
	var best *queue
	for i := range hand {
		q := l.queues[hand[(start+i)%len(hand)]]
		if best == nil || q.waitingWork < best.waitingWork {
			best = q
		}
	}
	return best
}

// deal draws cards from a deck, each at most once, as the hash says, and returns them in ascending order.
func deal(hash uint64, deck, size int, hand []int) []int {
	for i := range size {
		remaining := uint64(deck - i)
		card := int(hash % remaining)
		hash /= remaining
		// card counts those that are left; it moves up past those that were drawn.
		at := 0
		for at < len(hand) && hand[at] <= card {
			card++
			at++
		}
		hand = hand[:len(hand)+1]
		copy(hand[at+1:], hand[at:])
		hand[at] = card
	}
	return hand
}

// statsOf returns the counts of a schema in this level.
func (l *level) statsOf(schema string) *stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stats[schema] == nil {
		l.stats[schema] = &stats{}
	}
	return l.stats[schema]
}
