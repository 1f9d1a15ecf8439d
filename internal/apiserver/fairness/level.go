package fairness

import (
	"math"
	"slices"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"skiff/internal/apiserver/authz"
)

// serviceTime is the assumed duration of a request. When it has ended, its queue is charged for the real duration.
const serviceTime = 3 * time.Millisecond

// level is one priority level: its seats and its queues.
//
// The queues share the seats by fair queuing. Virtual time runs in seat-seconds per active queue: it is the work that each active
// queue would have received so far if all were served at once, in equal parts. The next request of a queue has a virtual start
// time (queue.nextStart): when the work before it would be done at that rate. The request with the earliest virtual finish goes
// first.
type level struct {
	name       string
	epoch      time.Time
	retryAfter retryAfter

	// Guarded by Fairness.mu.
	object      *flowcontrolv1.PriorityLevelConfiguration
	quiescing   bool // the object is deleted; the level is removed when it is idle
	bounds      bounds
	demandStats demandStats
	target      float64

	mu                 sync.Mutex
	exempt             bool
	limit              int // current number of seats
	maxSeatsPerRequest int // 0: no limit of the level's own
	handSize           int
	queueLengthLimit   int
	queueCount         int // queues in use; 0: requests are not queued
	queues             []*queue
	lastServed         int // index of the queue
	handsDealt         int
	now                time.Duration // since epoch
	virtualTime        float64

	running               seatList
	executing, usedSeats  int // seats may stay occupied after the request has ended
	waiting, waitingSeats int
	activeQueues          int // queues with waiting or executing requests
	queueSeats            int // occupied or waited for by requests that went through a queue
	demand                demand
	stats                 map[string]*stats // by schema
}

// queue holds the waiting requests of some flows, and counts those that are executing.
type queue struct {
	seatList
	waiting      int
	waitingSeats int
	waitingWork  float64
	executing    int
	usedSeats    int
	nextStart    float64 // virtual start time of the next request
}

// seatList is a list of requests in the order of their arrival.
type seatList struct{ first, last *Seats }

func (l *seatList) add(s *Seats) {
	if s.previous = l.last; l.last != nil {
		l.last.next = s
	} else {
		l.first = s
	}
	l.last = s
}

func (l *seatList) remove(s *Seats) {
	if s.previous != nil {
		s.previous.next = s.next
	} else {
		l.first = s.next
	}
	if s.next != nil {
		s.next.previous = s.previous
	} else {
		l.last = s.previous
	}
	s.previous, s.next = nil, nil
}

// Seats are the seats of one request, which Acquire occupies and Release frees. The zero value is ready for Acquire.
type Seats struct {
	schema *schema
	queue  *queue // nil if the request did not go through one
	watch  bool
	held   bool // the seats are occupied
	// attributes describe the request. They do not change until Release.
	attributes *authz.Attributes

	initial, final, total int // while the request executes, afterwards for its events, and the larger of the two
	finalWork, work       float64
	arrived, began        time.Duration // since the level's epoch
	arrivedVirtual        float64       // virtual time of arrival

	granted        chan struct{} // made when the request must wait
	previous, next *Seats        // in the queue, then among the executing requests
}

// describe sets the request that the seats are for.
func (s *Seats) describe(schema *schema, a *authz.Attributes) {
	s.schema, s.watch, s.attributes = schema, a.ResourceRequest && a.Verb == "watch", a
}

// decision is the outcome of admit.
type decision int

const (
	admitted decision = iota
	queued
	rejected
)

func newLevel(name string, epoch time.Time) *level {
	return &level{name: name, epoch: epoch, now: time.Since(epoch), stats: map[string]*stats{}}
}

// configure applies the level's object and bounds. Surplus queues are removed once they are empty.
func (l *level) configure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.exempt = l.object.Spec.Exempt != nil
	l.queueCount, l.maxSeatsPerRequest = 0, 0
	if l.exempt || l.object.Spec.Limited.LimitResponse.Queuing == nil {
		l.dropQueues()
		return
	}
	queuing := l.object.Spec.Limited.LimitResponse.Queuing
	l.queueCount, l.queueLengthLimit = int(queuing.Queues), int(queuing.QueueLengthLimit)
	l.handSize = min(int(queuing.HandSize), l.queueCount, maxHandSize)
	for len(l.queues) < l.queueCount {
		l.queues = append(l.queues, &queue{})
	}
	l.dropQueues()
	// One request must leave seats for others of its level, and for those in its hand of queues.
	nominal := float64(l.bounds.nominal)
	l.maxSeatsPerRequest = int(max(1, min(math.Ceil(nominal*0.15), math.Floor(nominal/float64(l.handSize)))))
}

// dropQueues removes empty queues beyond queueCount.
func (l *level) dropQueues() {
	if len(l.queues) <= l.queueCount {
		return
	}
	kept := slices.DeleteFunc(l.queues[l.queueCount:], func(q *queue) bool { return !q.active() && q.usedSeats == 0 })
	l.queues = l.queues[:l.queueCount+len(kept)]
	l.lastServed = min(l.lastServed, max(0, len(l.queues)-1))
}

func (l *level) setLimit(seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.limit = seats
	l.dispatch()
}

// sampleDemand returns the demand since the last call. It is called with Fairness.mu held.
func (l *level) sampleDemand() *allocation {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.demand.sample(&l.demandStats)
	return &allocation{bounds: l.bounds, exempt: l.exempt, peak: l.demandStats.peak, smoothed: l.demandStats.smoothed, current: l.limit}
}

func (l *level) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.executing == 0 && l.waiting == 0
}

// advance brings the level's clocks up to now. Everything that changes the level calls it first, with l.mu held.
func (l *level) advance() {
	now := time.Since(l.epoch)
	seconds := (now - l.now).Seconds()
	l.now = now
	l.demand.elapse(seconds)
	if l.activeQueues > 0 {
		l.virtualTime += seconds * float64(min(l.queueSeats, l.limit)) / float64(l.activeQueues)
	} else {
		l.virtualTime = 0 // no queue refers to it
	}
}

// updateDemand must be called whenever seats are occupied, waited for or freed.
func (l *level) updateDemand() { l.demand.set(l.usedSeats + l.waitingSeats) }

// admit starts the request, rejects it, or queues it.
func (l *level) admit(s *Seats, flow uint64, work Work) decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.arrive(s, work)
	counts := s.schema.stats
	if l.queueCount == 0 {
		if !l.exempt && !l.fits(s.total) {
			counts.reject(reasonLimit, 0)
			return rejected
		}
		l.start(s)
		return admitted
	}
	s.queue = l.chooseQueue(flow)
	if l.waiting == 0 && l.usedSeats < l.limit && l.fits(s.total) {
		s.queue.activate(l.virtualTime)
		l.start(s)
		return admitted
	}
	if l.usedSeats >= l.limit && s.queue.waiting >= l.queueLengthLimit {
		counts.reject(reasonFull, 0)
		return rejected
	}
	s.granted = make(chan struct{}, 1)
	l.enqueue(s)
	l.dispatch()
	return queued
}

// arrive sets the work of a request that arrives now.
func (l *level) arrive(s *Seats, work Work) {
	s.setWork(work, l.maxSeatsPerRequest)
	s.arrived, s.arrivedVirtual = l.now, l.virtualTime
	s.schema.stats.seats.observe(seatBounds, float64(s.total))
}

// occupy starts the request, whether there are seats for it or not.
func (l *level) occupy(s *Seats, flow uint64, work Work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.arrive(s, work)
	if l.queueCount > 0 {
		s.queue = l.chooseQueue(flow)
		s.queue.activate(l.virtualTime)
	}
	l.start(s)
}

// fits reports whether enough seats are free. A request that needs more than the level has executes alone.
func (l *level) fits(seats int) bool {
	if seats > l.limit {
		return l.executing == 0
	}
	return l.usedSeats+seats <= l.limit
}

// activate prepares the queue for a request that arrives now: an idle queue has no credit from the past.
func (q *queue) activate(virtualTime float64) {
	if !q.active() || q.waiting == 0 && q.nextStart < virtualTime {
		q.nextStart = virtualTime
	}
}

func (q *queue) active() bool { return q.waiting > 0 || q.executing > 0 }

// clampStart keeps the next request's virtual start from being before its arrival.
func (q *queue) clampStart() {
	if q.first != nil {
		q.nextStart = max(q.nextStart, q.first.arrivedVirtual)
	}
}

// start occupies the seats of a request. Its queue, if it has one, must be active.
func (l *level) start(s *Seats) {
	if s.final > l.limit && l.limit > 0 && !l.exempt {
		s.final = l.limit // fewer seats, for longer
		s.total = max(s.initial, s.final)
	}
	s.held, s.began = true, l.now
	l.running.add(s)
	l.executing++
	l.usedSeats += s.total
	if q := s.queue; q != nil {
		if !q.active() {
			l.activeQueues++
		}
		q.executing++
		q.usedSeats += s.total
		l.queueSeats += s.total
		q.nextStart += s.work
	}
	l.updateDemand()
	s.schema.stats.start(s, !l.exempt)
}

// Held reports whether the seats are occupied.
func (s *Seats) Held() bool { return s.held }

// Limited reports whether the seats are those of a limited level. Those of the exempt one are only counted.
func (s *Seats) Limited() bool {
	if s.schema == nil {
		return false
	}
	l := s.schema.level
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.exempt
}

// Suspend is Release for a request that will acquire seats again: its events come later.
func (s *Seats) Suspend() {
	s.final, s.finalWork = 0, 0
	s.Release()
}

// Release frees the seats and starts waiting requests. Calls after the first, and calls for a rejected request, do nothing.
func (s *Seats) Release() {
	if !s.held {
		return
	}
	s.held = false
	l := s.schema.level
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	took := l.now - s.began
	l.running.remove(s)
	l.executing--
	if q := s.queue; q != nil {
		q.executing--
		if !q.active() {
			l.activeQueues--
		}
		q.nextStart += seatSeconds(s.initial, took-serviceTime)
		q.clampStart()
	}
	s.schema.stats.finish(s, took)
	if final := s.additionalLatency(); final > 0 {
		q, counts, seats := s.queue, s.schema.stats, s.total
		time.AfterFunc(final, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.advance()
			l.freeSeats(q, counts, seats)
			l.dispatch()
		})
	} else {
		l.freeSeats(s.queue, s.schema.stats, s.total)
	}
	l.dispatch()
}

// freeSeats frees seats.
func (l *level) freeSeats(q *queue, counts *stats, seats int) {
	l.usedSeats -= seats
	counts.usedSeats -= seats
	if q != nil {
		q.usedSeats -= seats
		l.queueSeats -= seats
		l.dropQueues()
	}
	l.updateDemand()
}

func (l *level) enqueue(s *Seats) {
	q := s.queue
	q.activate(l.virtualTime)
	if !q.active() {
		l.activeQueues++
	}
	q.add(s)
	l.countWaiting(s, 1)
	q.clampStart()
	s.schema.stats.length.observe(lengthBounds, float64(q.waiting))
}

// countWaiting adds a request to the counts of waiting ones (sign 1) or removes it (sign -1).
func (l *level) countWaiting(s *Seats, sign int) {
	q, counts, seats := s.queue, s.schema.stats, sign*s.total
	q.waiting += sign
	q.waitingSeats += seats
	q.waitingWork += float64(sign) * s.work
	if q.waiting == 0 {
		q.waitingWork = 0 // floating-point sums do not return to zero exactly
	}
	l.waiting += sign
	l.waitingSeats += seats
	l.queueSeats += seats
	counts.waiting += sign
	counts.waitingSeats += seats
	l.updateDemand()
}

// dequeue removes a request from its queue.
func (l *level) dequeue(s *Seats) {
	s.queue.remove(s)
	l.countWaiting(s, -1)
}

// cancelWait removes a request from its queue when it has waited too long. It returns false when the request has just been started.
func (l *level) cancelWait(s *Seats) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	if s.held {
		return false
	}
	l.dequeue(s)
	if !s.queue.active() {
		l.activeQueues--
	}
	s.queue.clampStart()
	s.schema.stats.reject(reasonTimeout, (l.now - s.arrived).Seconds())
	l.dropQueues()
	return true
}

// dispatch starts as many waiting requests as there are seats for.
func (l *level) dispatch() {
	for l.waiting > 0 && l.usedSeats < l.limit {
		index := l.nextQueue()
		q := l.queues[index]
		s := q.first
		if !l.fits(s.total) {
			// It gets the next free seats: other requests must not starve it.
			s.schema.stats.noAccommodation++
			return
		}
		l.dequeue(s)
		if !q.active() {
			l.activeQueues-- // start counts it again
		}
		l.lastServed = index
		l.start(s)
		q.clampStart()
		s.granted <- struct{}{}
	}
}

// nextQueue is the queue whose first request has the earliest virtual finish. Ties go to the queue served longest ago.
func (l *level) nextQueue() (best int) {
	earliest := math.Inf(1)
	for i := range l.queues {
		index := (l.lastServed + 1 + i) % len(l.queues)
		q := l.queues[index]
		if q.first == nil {
			continue
		}
		if finish := q.nextStart + q.first.work; finish < earliest {
			earliest, best = finish, index
		}
	}
	return best
}

// maxHandSize is more than validation allows: a 60-bit hash cannot deal a larger hand.
const maxHandSize = 32

// chooseQueue deals the flow its hand of queues and returns the one with the least work waiting.
func (l *level) chooseQueue(flow uint64) *queue {
	var cards [maxHandSize]int
	hand := dealHand(flow, l.queueCount, l.handSize, cards[:0])
	// Hands overlap. Starting at another card each time spreads ties.
	start := l.handsDealt % len(hand)
	l.handsDealt++
	var best *queue
	for i := range hand {
		q := l.queues[hand[(start+i)%len(hand)]]
		if best == nil || q.waitingWork < best.waitingWork {
			best = q
		}
	}
	return best
}

// dealHand draws distinct cards from a deck by the hash (shuffle sharding) and returns them in ascending order.
func dealHand(hash uint64, deck, size int, hand []int) []int {
	for i := range size {
		remaining := uint64(deck - i)
		card := int(hash % remaining)
		hash /= remaining
		// card is an index among the remaining cards; skip the drawn ones.
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

// statsOf returns the metrics of a schema in this level.
func (l *level) statsOf(schema string) *stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stats[schema] == nil {
		l.stats[schema] = &stats{}
	}
	return l.stats[schema]
}
