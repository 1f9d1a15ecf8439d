package controller

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

// TestHandover: a lease that is released has another holder within two seconds, and is not renewed more often for that.
func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := inprocess.Start(t, t.Context())
		metrics, err := NewMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		leads := make(chan string, 2)
		run := func(identity string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			election := &LeaderElection{Namespace: "kube-system", Name: "lock", Identity: identity, AcquirePeriod: 500 * time.Millisecond}
			go func() {
				ended <- election.Run(ctx, c, metrics, func(ctx context.Context) error {
					leads <- identity
					<-ctx.Done()
					return nil
				})
			}()
			return func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}
		stopFirst := run("first")
		if leader := <-leads; leader != "first" {
			t.Fatalf("%s leads", leader)
		}
		defer run("second")()
		before, err := client.For[*coordinationv1.Lease](c).Get(t.Context(), "kube-system", "lock")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		after, err := client.For[*coordinationv1.Lease](c).Get(t.Context(), "kube-system", "lock")
		if err != nil {
			t.Fatal(err)
		}
		if writes := revisionOf(t, after) - revisionOf(t, before); writes < 8 || writes > 10 {
			t.Errorf("%d renewals in 20 s", writes)
		}
		released := time.Now()
		stopFirst()
		if leader := <-leads; leader != "second" || time.Since(released) >= 2*time.Second {
			t.Errorf("%s leads after %v", leader, time.Since(released))
		}
	})
}

func revisionOf(t *testing.T, lease *coordinationv1.Lease) int {
	t.Helper()
	revision, err := strconv.Atoi(lease.ResourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// TestLeaseLock: the lease contains the written record, and an update without a read fails.
func TestLeaseLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := inprocess.Start(t, t.Context())
		s := &fakeWriter{}
		lock := func(identity string) *leaseLock {
			return &leaseLock{leases: client.For[*coordinationv1.Lease](c), namespace: "kube-system", name: "lock", identity: identity, events: s}
		}
		first, second := lock("a"), lock("b")
		if first.Identity() != "a" || first.Describe() != "kube-system/lock" {
			t.Errorf("%s, %s", first.Identity(), first.Describe())
		}
		at := metav1.NewTime(time.Now())
		record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15, AcquireTime: at, RenewTime: at, LeaderTransitions: 2}
		if _, _, err := first.Get(t.Context()); !apierrors.IsNotFound(err) {
			t.Errorf("a lease that is not there: %v", err)
		}
		if err := first.Update(t.Context(), record); err == nil {
			t.Error("a lease nobody has read was overwritten")
		}
		first.RecordEvent("became leader")
		if len(s.events) != 0 {
			t.Errorf("told of a lease that is not there: %q", s.events)
		}
		if err := first.Create(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		if err := second.Create(t.Context(), record); !apierrors.IsAlreadyExists(err) {
			t.Errorf("made twice: %v", err)
		}
		got, raw, err := second.Get(t.Context())
		if err != nil || got.HolderIdentity != "a" || got.LeaseDurationSeconds != 15 || got.LeaderTransitions != 2 || !got.RenewTime.Equal(&at) || len(raw) == 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		record.HolderIdentity = "b"
		if err := second.Update(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		if err := first.Update(t.Context(), record); !apierrors.IsConflict(err) {
			t.Errorf("what was written meanwhile was overwritten: %v", err)
		}
		if err := second.Update(t.Context(), record); err != nil {
			t.Errorf("its own write is no conflict: %v", err)
		}
		second.RecordEvent("became leader")
		if len(s.events) != 1 || s.events[0] != "lock Normal LeaderElection: b became leader" {
			t.Errorf("%q", s.events)
		}
	})
}
