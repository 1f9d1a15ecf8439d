package audit

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxQueuedBytes bounds the memory of a queue, in addition to the number of events. Buffers up to maxReusedBytes are reused.
const (
	maxQueuedBytes = 64 << 20
	maxReusedBytes = 16 << 20
)

// queue collects encoded events for the goroutine that delivers them.
type queue struct {
	// blocking senders wait for free space; otherwise events are dropped when the queue is full.
	blocking bool
	// separator is appended to each event.
	separator byte
	// limit is the maximum number of queued events; batch and batchBytes are the maximum size of a batch, 0 means no maximum.
	limit, batch, batchBytes int
	// batchWait is how long the first event of a batch waits for others.
	batchWait time.Duration
	throttle  *rate.Limiter // nil: none
	// deliver is called with whole events. It may keep the bytes if retains is set.
	deliver func(events []byte, count int)
	retains bool
	lost    func(events int, err error)

	mu     sync.Mutex
	space  sync.Cond // signals free space; uses mu
	closed bool
	// pending are the queued events, ends their end offsets.
	pending, spare []byte
	ends           []int
	first, full    chan struct{} // signal that there is an event, or a full batch
}

var (
	errQueueFull   = errors.New("audit buffer queue blocked")
	errQueueClosed = errors.New("audit backend shut down")
)

func newQueue(d *BackendOptions, batchWait time.Duration, separator byte) *queue {
	q := &queue{
		separator: separator, limit: d.BufferSize, batchWait: batchWait,
		first: make(chan struct{}, 1), full: make(chan struct{}, 1),
	}
	if d.MaxSize > 1 {
		q.batch, q.batchWait = d.MaxSize, d.MaxWait
	}
	if d.Truncate {
		q.batchBytes = int(d.MaxBatchBytes)
	}
	if d.Throttle {
		q.throttle = rate.NewLimiter(rate.Limit(d.QPS), d.Burst)
	}
	q.space.L = &q.mu
	return q
}

// put queues an event.
func (q *queue) put(event []byte) {
	q.mu.Lock()
	for !q.closed && len(q.ends) > 0 && (len(q.ends) >= q.limit || len(q.pending)+len(event) > maxQueuedBytes) {
		if !q.blocking {
			q.mu.Unlock()
			q.lost(1, errQueueFull)
			return
		}
		q.space.Wait()
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

// run delivers until ctx is done, and then the remaining events; later events are dropped.
func (q *queue) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-q.first:
		case <-ctx.Done():
			continue
		}
		timer := time.NewTimer(q.batchWait)
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
	q.space.Broadcast()
	q.mu.Unlock()
	for q.deliverOne(context.Background()) {
	}
}

// deliverOne delivers a batch. It reports whether there is another full one.
func (q *queue) deliverOne(ctx context.Context) (more bool) {
	if q.throttle != nil {
		_ = q.throttle.Wait(ctx) // queued events are delivered even when ctx is done
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
	// The remaining events move to the other buffer, so that events is not shared while it is delivered.
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
	q.space.Broadcast()
	q.mu.Unlock()
	q.deliver(events, count)
	if !q.retains && cap(events) <= maxReusedBytes {
		q.mu.Lock()
		q.spare = events[:0]
		q.mu.Unlock()
	}
	return more
}
