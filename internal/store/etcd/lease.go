package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A lease costs etcd as much as a write, so writes that expire at about the same time share one: an object may live up to
// a twentieth of its time to live longer, but no more than a minute. A lease's keys are deleted in one step when
// it ends; leaseObjects bounds how many that can be.
const (
	leaseShare   = 20
	leaseSlack   = time.Minute
	leaseObjects = 1000
)

// leases hands out the lease for a time to live.
type leases struct {
	grant func(ctx context.Context, seconds int64) (int64, error)

	mu     sync.Mutex
	shared map[time.Duration]*lease // by time to live
}

type lease struct {
	id      int64
	expires time.Time
	objects int
}

// get returns a lease that ends no sooner than ttl from now; 0, which is none, when ttl is 0.
func (l *leases) get(ctx context.Context, ttl time.Duration) (int64, error) {
	if ttl <= 0 {
		return 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if last := l.shared[ttl]; last != nil && !now.Add(ttl).After(last.expires) && last.objects < leaseObjects {
		last.objects++
		return last.id, nil
	}
	slack := min(ttl/leaseShare, leaseSlack)
	// etcd counts in seconds.
	seconds := int64((ttl + slack + time.Second - 1) / time.Second)
	id, err := l.grant(ctx, seconds)
	if err != nil {
		return 0, fmt.Errorf("grant a lease of %d s: %w", seconds, err)
	}
	if l.shared == nil {
		l.shared = map[time.Duration]*lease{}
	}
	for other, last := range l.shared {
		if now.Add(other).After(last.expires) {
			delete(l.shared, other) // spent
		}
	}
	l.shared[ttl] = &lease{id: id, expires: now.Add(time.Duration(seconds) * time.Second), objects: 1}
	return id, nil
}
