package scheduler

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxRunningQueries bounds the queries that run at once. Each has a copy of the snapshot, and copying it takes the lock that
	// scheduling needs too.
	maxRunningQueries = 2
	// maxWaitingQueries bounds the queries that wait for others to end. More are rejected.
	maxWaitingQueries = 16
	// queryRetryAfter is the Retry-After of rejected queries, in seconds.
	queryRetryAfter = 1
)

// queryLimit is a semaphore for queries with a bounded number of waiters. Waiters acquire it in the order they came.
type queryLimit struct {
	running, waiting chan struct{}
}

func newQueryLimit() queryLimit {
	return queryLimit{running: make(chan struct{}, maxRunningQueries), waiting: make(chan struct{}, maxWaitingQueries)}
}

// acquire waits until a query may run. The caller calls release when the query has ended. It fails when too many queries wait, or when ctx
// is done.
func (l queryLimit) acquire(ctx context.Context) (release func(), err error) {
	release = func() { <-l.running }
	select {
	case l.running <- struct{}{}:
		return release, nil
	default:
	}
	select {
	case l.waiting <- struct{}{}:
		defer func() { <-l.waiting }()
	default:
		return nil, apierrors.NewTooManyRequests("too many queries to the scheduler, please try again later", queryRetryAfter)
	}
	select {
	case l.running <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, errQueryEnded(ctx)
	}
}

// errQueryEnded is the error of a query whose request has ended.
func errQueryEnded(ctx context.Context) error {
	return apierrors.NewTimeoutError("the request ended before the query: "+context.Cause(ctx).Error(), queryRetryAfter)
}
