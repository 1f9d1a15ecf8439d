package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"skiff/internal/store"
)

// A lease costs etcd as much as a write, so writes that expire at about the same time share one: an object may outlive its
// TTL by a twentieth, at most a minute. The keys of a lease are deleted in one transaction when it expires;
// maxLeaseObjects bounds how many.
const (
	leaseSlackFraction = 20
	maxLeaseSlack      = time.Minute
	maxLeaseObjects    = 1000
)

// leases returns the lease for a TTL.
type leases struct {
	grant func(ctx context.Context, seconds int64) (int64, error)

	// semaphore is held while shared is used. A caller does not wait longer for it than its context allows: etcd may be slow to grant a lease.
	semaphore chan struct{}
	made      sync.Once
	shared    map[time.Duration]*lease // by TTL
}

type lease struct {
	id      int64
	expires time.Time
	objects int
}

// get returns a lease that expires no sooner than ttl from now; 0, no lease, when ttl is 0.
func (l *leases) get(ctx context.Context, ttl time.Duration) (int64, error) {
	if ttl <= 0 {
		return 0, nil
	}
	l.made.Do(func() { l.semaphore = make(chan struct{}, 1) })
	select {
	case l.semaphore <- struct{}{}:
		defer func() { <-l.semaphore }()
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for a lease: %w", ctx.Err())
	}
	now := time.Now()
	if last := l.shared[ttl]; last != nil && !now.Add(ttl).After(last.expires) && last.objects < maxLeaseObjects {
		last.objects++
		return last.id, nil
	}
	slack := min(ttl/leaseSlackFraction, maxLeaseSlack)
	// etcd's unit is one second.
	seconds := int64((ttl + slack + time.Second - 1) / time.Second)
	id, err := l.grant(ctx, seconds)
	if err != nil {
		return 0, fmt.Errorf("grant lease of %d s: %w", seconds, err)
	}
	if l.shared == nil {
		l.shared = map[time.Duration]*lease{}
	}
	for other, last := range l.shared {
		if now.Add(other).After(last.expires) {
			delete(l.shared, other) // expired
		}
	}
	l.shared[ttl] = &lease{id: id, expires: now.Add(time.Duration(seconds) * time.Second), objects: 1}
	return id, nil
}

// errNoLease: etcd does not have a lease. Nothing was written.
var errNoLease = fmt.Errorf("etcd has lost a lease: %w", store.ErrUnavailable)

// use writes with the lease for a TTL. etcd may not have one that was shared: an external etcd was restored from a snapshot, or the host was suspended, which this
// process's clock does not count. Then another lease is granted.
func (l *leases) use(ctx context.Context, ttl time.Duration, write func(lease int64) error) error {
	id, err := l.get(ctx, ttl)
	if err != nil {
		return err
	}
	if err = write(id); id == 0 || !errors.Is(err, errNoLease) {
		return err
	}
	l.forget(ttl, id)
	if id, err = l.get(ctx, ttl); err != nil {
		return err
	}
	return write(id)
}

// forget makes get grant another lease for a TTL instead of one.
func (l *leases) forget(ttl time.Duration, id int64) {
	l.semaphore <- struct{}{}
	defer func() { <-l.semaphore }()
	if last := l.shared[ttl]; last != nil && last.id == id {
		delete(l.shared, ttl)
	}
}
