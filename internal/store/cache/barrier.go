package cache

import (
	"context"
	"sync"
	"time"

	"skiff/internal/store"
)

// barrier asks the store for its revision on behalf of many at once. An answer counts only for those who came before the
// question was sent; those who come later share the next question.
type barrier struct {
	current func(context.Context) (store.Revision, error)

	mu      sync.Mutex
	asking  bool
	waiting *question
}

type question struct {
	answered chan struct{}
	revision store.Revision
	err      error
}

func (b *barrier) ask(ctx context.Context) (store.Revision, error) {
	b.mu.Lock()
	if b.waiting == nil {
		b.waiting = &question{answered: make(chan struct{})}
	}
	mine := b.waiting
	if !b.asking {
		b.asking = true
		// The question is everybody's, so it does not end with the context of the first who asked.
		go b.work(context.WithoutCancel(ctx))
	}
	b.mu.Unlock()
	select {
	case <-mine.answered:
		return mine.revision, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// work answers questions until there are none.
func (b *barrier) work(ctx context.Context) {
	for {
		b.mu.Lock()
		q := b.waiting
		b.waiting = nil
		b.asking = q != nil
		b.mu.Unlock()
		if q == nil {
			return
		}
		asked, cancel := context.WithTimeout(ctx, questionTimeout)
		q.revision, q.err = b.current(asked)
		cancel()
		close(q.answered)
	}
}

// questionTimeout ends a question that the store does not answer; those who wait give up earlier by their own contexts.
const questionTimeout = 10 * time.Second
