package cache

import (
	"context"
	"sync"
	"time"

	"skiff/internal/store"
)

// barrier reads the store's revision for many callers at once. A result is valid only for the callers that arrived
// before the read was sent; later callers share the next read.
type barrier struct {
	current func(context.Context) (store.Revision, error)

	mu      sync.Mutex
	reading bool
	next    *revisionRead
}

type revisionRead struct {
	done     chan struct{}
	revision store.Revision
	err      error
}

func (b *barrier) read(ctx context.Context) (store.Revision, error) {
	b.mu.Lock()
	if b.next == nil {
		b.next = &revisionRead{done: make(chan struct{})}
	}
	mine := b.next
	if !b.reading {
		b.reading = true
		// The read is shared, so it does not end with the context of its first caller.
		go b.run(context.WithoutCancel(ctx))
	}
	b.mu.Unlock()
	select {
	case <-mine.done:
		return mine.revision, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run sends reads until no caller waits.
func (b *barrier) run(ctx context.Context) {
	for {
		b.mu.Lock()
		q := b.next
		b.next = nil
		b.reading = q != nil
		b.mu.Unlock()
		if q == nil {
			return
		}
		limited, cancel := context.WithTimeout(ctx, revisionReadTimeout)
		q.revision, q.err = b.current(limited)
		cancel()
		close(q.done)
	}
}

// revisionReadTimeout limits a read; callers give up earlier by their own contexts.
const revisionReadTimeout = 10 * time.Second
