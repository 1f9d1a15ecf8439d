package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"skiff/internal/client"
)

// ErrLeadershipLost means that another process has, or may have, become the leader. The process should exit and restart.
var ErrLeadershipLost = errors.New("leadership lost")

// LeaderElection elects one of several processes. The durations default to upstream's 15, 10 and 2 seconds.
type LeaderElection struct {
	// Namespace and Name of the lease: kube-system and kube-controller-manager, as upstream.
	Namespace, Name string
	// Identity is unique to this process: the hostname and a random suffix.
	Identity                                  string
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// AcquirePeriod is how often a process that does not lead tries to, so that a lease that was released has soon another holder. Default: RetryPeriod,
	// which is also how often the lease is renewed.
	AcquirePeriod time.Duration
	// Events, if set, records changes of leadership as events of the lease.
	Events EventRecorder

	elector atomic.Pointer[leaderelection.LeaderElector]
}

// renewTimeout is the time after the expiry of an unrenewed lease after which the leader is unhealthy.
const renewTimeout = 20 * time.Second

// Check is a health check. It fails when this process leads but has not renewed its lease for too long.
func (e *LeaderElection) Check(context.Context) error {
	if elector := e.elector.Load(); elector != nil {
		return elector.Check(renewTimeout)
	}
	return nil
}

// Run waits until this process is the leader and then calls run, whose context is cancelled when leadership is lost or ctx is done. It
// returns the error of run, ErrLeadershipLost, or nil when ctx was done before this process became the leader.
func (e *LeaderElection) Run(ctx context.Context, c *client.Client, m *Metrics, run func(ctx context.Context) error) error {
	// The lease is renewed until run has returned, even if ctx is done, so that no other process leads meanwhile. Then it is released.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var mu sync.Mutex
	started := false
	runDone := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !started {
			stop()
		}
	})()
	m.leading(e.Name, false)
	retry := cmp.Or(e.RetryPeriod, 2*time.Second)
	lock := &leaseLock{leases: client.For[*coordinationv1.Lease](c), namespace: e.Namespace, name: e.Name, identity: e.Identity, events: e.Events}
	if e.AcquirePeriod > 0 {
		// The elector renews as often as it tries to acquire.
		retry, lock.renewInterval = e.AcquirePeriod, retry
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		Name:          e.Name,
		LeaseDuration: cmp.Or(e.LeaseDuration, 15*time.Second),
		RenewDeadline: cmp.Or(e.RenewDeadline, 10*time.Second),
		RetryPeriod:   retry,
		// Safe because electing is cancelled only after run has returned.
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				mu.Lock()
				started = electing.Err() == nil
				mu.Unlock()
				if !started {
					return
				}
				m.leading(e.Name, true)
				defer m.leading(e.Name, false)
				leading, end := context.WithCancel(leading)
				defer end()
				defer context.AfterFunc(ctx, end)()
				runDone <- run(leading)
				stop()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("create leader elector: %w", err)
	}
	e.elector.Store(elector)
	elector.Run(electing)
	if electing.Err() == nil {
		// The lease could not be renewed, and the context of run has ended.
		return errors.Join(<-runDone, ErrLeadershipLost)
	}
	mu.Lock()
	defer mu.Unlock()
	if !started {
		return nil
	}
	return <-runDone
}

// leaseLock is a resource lock on a Lease that uses the client.
type leaseLock struct {
	leases                    client.Resource[*coordinationv1.Lease]
	namespace, name, identity string
	lease                     *coordinationv1.Lease
	events                    EventRecorder
	// renewInterval is the minimum time between two renewals. Those in between are not written.
	renewInterval time.Duration
}

var _ resourcelock.Interface = (*leaseLock)(nil)

func (l *leaseLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	lease, err := l.leases.Get(ctx, l.namespace, l.name)
	if err != nil {
		return nil, nil, err
	}
	l.lease = lease
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	raw, err := json.Marshal(record)
	return record, raw, err
}

func (l *leaseLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) (err error) {
	l.lease, err = l.leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name},
		Spec:       resourcelock.LeaderElectionRecordToLeaseSpec(&record),
	}, client.WriteOptions{})
	return err
}

func (l *leaseLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.lease == nil {
		return errors.New("lease not initialized, call Get or Create first")
	}
	if l.isRenewal(&record) && time.Since(l.lease.Spec.RenewTime.Time) < l.renewInterval {
		return nil
	}
	lease := l.lease.DeepCopy()
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	updated, err := l.leases.Update(ctx, lease, client.WriteOptions{})
	if err != nil {
		return err
	}
	l.lease = updated
	return nil
}

// isRenewal reports whether the holder of the lease renews it.
func (l *leaseLock) isRenewal(record *resourcelock.LeaderElectionRecord) bool {
	holder, renewed := l.lease.Spec.HolderIdentity, l.lease.Spec.RenewTime
	return holder != nil && *holder == l.identity && record.HolderIdentity == l.identity && renewed != nil
}

func (l *leaseLock) RecordEvent(what string) {
	if l.events != nil && l.lease != nil {
		l.events.Event(l.lease, corev1.EventTypeNormal, "LeaderElection", l.identity+" "+what)
	}
}

func (l *leaseLock) Identity() string { return l.identity }

func (l *leaseLock) Describe() string { return l.namespace + "/" + l.name }
