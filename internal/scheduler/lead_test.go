package scheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
)

// slowServer takes its time to bind, and gives up when nobody waits for it any more.
type slowServer struct {
	*fakeServer
	takes time.Duration
}

func (s slowServer) Bind(ctx context.Context, pod *corev1.Pod, node string) error {
	select {
	case <-time.After(s.takes):
		return s.fakeServer.Bind(ctx, pod, node)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// manyPods adds pods that all fit, more than may be in flight.
func (f *fakeServer) manyPods(n int) {
	f.addNode(schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, fmt.Sprint(n))))
	for i := range n {
		f.addPod(schedulertest.TestPod(fmt.Sprint("p", i)))
	}
}

func (f *fakeServer) wantAllBoundOnce(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		if name := fmt.Sprint("p", i); f.boundTimes(name) != 1 || f.nodeOf(name) != "a" {
			t.Fatalf("%s was bound %d times and is on node %q", name, f.boundTimes(name), f.nodeOf(name))
		}
	}
	if known := f.podCount(); known != n {
		t.Errorf("the scheduler takes %d pods to be on nodes, want %d", known, n)
	}
}

// What has to be written about failed bindings waits while the bindings themselves are in flight.
func TestAllBindingsFailAtOnce(t *testing.T) {
	const n = 2 * maxInFlight
	withFakeServer(t, nil, func(f *fakeServer) {
		broken := time.Now().Add(time.Second)
		f.refuse = func(*corev1.Pod, string) error {
			if time.Now().Before(broken) {
				return errors.New("out of order")
			}
			return nil
		}
		f.manyPods(n)
		f.pass(2 * time.Minute)
		f.wantAllBoundOnce(t, n)
	})
}

// A scheduler that loses the lead takes back what it could not write, and goes on from there when it leads again.
func TestRunAgain(t *testing.T) {
	const n = 2 * maxInFlight
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, nil)
		f.scheduler.binder.Writer = slowServer{f, time.Second}
		run := func(d time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := f.scheduler.Run(ctx); err != nil {
				t.Fatal(err)
			}
		}
		f.manyPods(n)
		f.addPod(schedulertest.TestPod("giant", schedulertest.RequestingCPU("5")))
		run(1500 * time.Millisecond)
		bound := 0
		for i := range n {
			bound += f.boundTimes(fmt.Sprint("p", i))
		}
		if bound != maxInFlight {
			t.Fatalf("%d pods were bound when the lead was lost, want the %d whose time had come", bound, maxInFlight)
		}
		if known := f.podCount(); known != bound {
			t.Errorf("the scheduler takes %d pods to be on nodes, want %d", known, bound)
		}
		run(time.Minute)
		f.wantAllBoundOnce(t, n)
		if active, backoff, waiting, inFlight := f.scheduler.Pending(); active+backoff+inFlight != 0 || waiting != 1 {
			t.Errorf("pending are %d active, %d backing off, %d waiting, %d in flight; want the giant waiting", active, backoff, waiting, inFlight)
		}
	})
}

// While another scheduler leads, its bindings are seen; what it leaves behind is done by whoever leads next.
func TestFollowingWhileAnotherLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, nil)
		f.addNode(schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "2")))
		f.addPod(schedulertest.TestPod("theirs", schedulertest.RequestingCPU("1")))
		f.addPod(schedulertest.TestPod("gone", schedulertest.RequestingCPU("1")))
		f.addPod(schedulertest.TestPod("left", schedulertest.RequestingCPU("1")))
		time.Sleep(time.Second)
		f.addPod(schedulertest.TestPod("late", schedulertest.RequestingCPU("1")))
		f.change("theirs", func(p *corev1.Pod) { p.Spec.NodeName = "a" })
		f.removePod("gone")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.scheduler.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if f.boundTimes("theirs") != 0 || f.boundTimes("gone") != 0 || f.boundTimes("left") != 1 || f.boundTimes("late") != 0 {
			t.Errorf("bound: %v; only the pod left behind fits", f.bound)
		}
	})
}
