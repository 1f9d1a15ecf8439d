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

// ErrLeadershipLost says that another process has, or may have, taken over. The process should end and start anew.
var ErrLeadershipLost = errors.New("leadership lost")

// LeaderElection lets one of several processes work. The durations default to upstream's 15, 10 and 2 seconds.
type LeaderElection struct {
	// Namespace and Name of the lease: kube-system and kube-controller-manager, as upstream has them.
	Namespace, Name string
	// Identity tells this process from its peers: the host's name and something random.
	Identity                                  string
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Events, if set, tells in the lease's namespace who leads.
	Events Teller

	elector atomic.Pointer[leaderelection.LeaderElector]
}

// overdue is how long a leader may go without renewing its lease beyond the lease's life before it counts as hung.
const overdue = 20 * time.Second

// Check fails when this process should lead but has not renewed its lease for too long. Who does not lead is well.
func (e *LeaderElection) Check(context.Context) error {
	if elector := e.elector.Load(); elector != nil {
		return elector.Check(overdue)
	}
	return nil
}

// Lead waits until this process leads and then calls run, whose context ends when leadership or ctx does. It returns what run
// returned, ErrLeadershipLost, or nil when ctx ended before this process ever led.
func (e *LeaderElection) Lead(ctx context.Context, c *client.Client, m *Metrics, run func(ctx context.Context) error) error {
	// The election outlives ctx until run has wound up, so that nobody else leads meanwhile; then the lease is given back.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var mu sync.Mutex
	leads := false
	finished := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !leads {
			stop()
		}
	})()
	m.leading(e.Name, false)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          &leaseLock{leases: client.For[*coordinationv1.Lease](c), namespace: e.Namespace, name: e.Name, identity: e.Identity, events: e.Events},
		Name:          e.Name,
		LeaseDuration: cmp.Or(e.LeaseDuration, 15*time.Second),
		RenewDeadline: cmp.Or(e.RenewDeadline, 10*time.Second),
		RetryPeriod:   cmp.Or(e.RetryPeriod, 2*time.Second),
		// Safe, because electing is only cancelled when run has returned.
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				mu.Lock()
				leads = electing.Err() == nil
				mu.Unlock()
				if !leads {
					return
				}
				m.leading(e.Name, true)
				defer m.leading(e.Name, false)
				leading, end := context.WithCancel(leading)
				defer end()
				defer context.AfterFunc(ctx, end)()
				finished <- run(leading)
				stop()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare leader election: %w", err)
	}
	e.elector.Store(elector)
	elector.Run(electing)
	if electing.Err() == nil {
		// The lease could not be renewed. run's context has ended with it.
		return errors.Join(<-finished, ErrLeadershipLost)
	}
	mu.Lock()
	defer mu.Unlock()
	if !leads {
		return nil
	}
	return <-finished
}

// leaseLock is a lock made of a Lease, reached through the client.
type leaseLock struct {
	leases                    client.Resource[*coordinationv1.Lease]
	namespace, name, identity string
	lease                     *coordinationv1.Lease
	events                    Teller
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
		return errors.New("the lease was neither read nor created")
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

func (l *leaseLock) RecordEvent(what string) {
	if l.events != nil && l.lease != nil {
		l.events.Event(l.lease, corev1.EventTypeNormal, "LeaderElection", l.identity+" "+what)
	}
}

func (l *leaseLock) Identity() string { return l.identity }

func (l *leaseLock) Describe() string { return l.namespace + "/" + l.name }
