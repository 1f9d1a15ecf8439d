package audit

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// queuedBytes bounds what waits in a queue, besides the number of events: large objects must not fill the memory. Buffers up to
// keptBytes are used again.
const (
	queuedBytes = 64 << 20
	keptBytes   = 16 << 20
)

// queue gathers encoded events for the one goroutine that delivers them.
type queue struct {
	// waits: a sender waits for room; otherwise what finds none is lost.
	waits bool
	// separator stands behind each event.
	separator byte
	// limit is how many events wait at most; batch and batchBytes bound what is delivered at once, 0 means no bound.
	limit, batch, batchBytes int
	// linger is how long the first event of a batch waits for others.
	linger   time.Duration
	throttle *rate.Limiter // nil: none
	// deliver gets whole events. It may keep the bytes if keeps is set.
	deliver func(events []byte, count int)
	keeps   bool
	lost    func(events int, err error)

	mu     sync.Mutex
	room   sync.Cond // waited for on mu
	closed bool
	// pending are the events, ends the offsets at which they end.
	pending, spare []byte
	ends           []int
	first, full    chan struct{} // hold a token when there is an event, or a whole batch
}

var (
	errQueueFull   = errors.New("audit buffer queue blocked")
	errQueueClosed = errors.New("audit backend shut down")
)

func newQueue(d *Delivery, linger time.Duration, separator byte) *queue {
	q := &queue{
		separator: separator, limit: d.BufferSize, linger: linger,
		first: make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
	if d.MaxSize > 1 {
		q.batch, q.linger = d.MaxSize, d.MaxWait
	}
	if d.Truncate {
		q.batchBytes = int(d.MaxBatchBytes)
	}
	if d.Throttle {
		q.throttle = rate.NewLimiter(rate.Limit(d.QPS), d.Burst)
	}
	q.room.L = &q.mu
	return q
}

// put adds an event to those that wait.
func (q *queue) put(event []byte) {
	q.mu.Lock()
	for !q.closed && len(q.ends) > 0 && (len(q.ends) >= q.limit || len(q.pending)+len(event) > queuedBytes) {
		if !q.waits {
			q.mu.Unlock()
			q.lost(1, errQueueFull)
			return
		}
		q.room.Wait()
	}
	if q.closed {
		q.mu.Unlock()
		q.lost(1, errQueueClosed)
		return
	}
	q.pending = append(append(q.pending, event...), q.separator)
	q.ends = append(q.ends, len(q.pending))
	count := len(q.ends)
	q.mu.Unlock()
	if count == 1 {
		signal(q.first)
	}
	if count == q.batch {
		signal(q.full)
	}
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// run delivers until ctx ends, and then what is left; later events are lost.
func (q *queue) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-q.first:
		case <-ctx.Done():
			continue
		}
		timer := time.NewTimer(q.linger)
		select {
		case <-timer.C:
		case <-q.full:
		case <-ctx.Done():
		}
		timer.Stop()
		for q.deliverOne(ctx) && ctx.Err() == nil {
		}
	}
	q.mu.Lock()
	q.closed = true
	q.room.Broadcast()
	q.mu.Unlock()
	for q.deliverOne(context.Background()) {
	}
}

// deliverOne delivers a batch. It reports whether there is another whole one.
func (q *queue) deliverOne(ctx context.Context) (more bool) {
	if q.throttle != nil {
		_ = q.throttle.Wait(ctx) // what waits is delivered also when ctx has ended
	}
	q.mu.Lock()
	if len(q.ends) == 0 {
		q.mu.Unlock()
		return false
	}
	count := len(q.ends)
	if q.batch > 0 {
		count = min(count, q.batch)
	}
	if q.batchBytes > 0 {
		for count > 1 && q.ends[count-1] > q.batchBytes {
			count--
		}
	}
	size := q.ends[count-1]
	events := q.pending[:size]
	rest := q.pending[size:]
	// What remains moves into the other buffer, so that events is nobody else's while it is delivered.
	q.pending = append(q.spare[:0], rest...)
	q.spare = nil
	left := q.ends[:0]
	for _, end := range q.ends[count:] {
		left = append(left, end-size)
	}
	q.ends = left
	more = q.closed && len(left) > 0 || q.batch > 0 && len(left) >= q.batch || q.batchBytes > 0 && len(q.pending) >= q.batchBytes
	if len(left) > 0 && !more {
		signal(q.first)
	}
	q.room.Broadcast()
	q.mu.Unlock()
	q.deliver(events, count)
	if !q.keeps && cap(events) <= keptBytes {
		q.mu.Lock()
		q.spare = events[:0]
		q.mu.Unlock()
	}
	return more
}
