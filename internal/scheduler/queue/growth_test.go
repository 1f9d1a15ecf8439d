package queue

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// countingProfile has two plugins, one with a hint for nodes and one for pods, neither of which ever helps.
func countingProfile(calls *int) map[string]*plugins.Profile {
	hint := func(resource plugins.Resource) []plugins.QueueingHint {
		return []plugins.QueueingHint{{Resource: resource, Action: plugins.Add, Helps: func(*snapshot.Snapshot, *corev1.Pod, any, any) bool { *calls++; return false }}}
	}
	return map[string]*plugins.Profile{corev1.DefaultSchedulerName: {Name: corev1.DefaultSchedulerName, Hints: map[string][]plugins.QueueingHint{
		"ForNodes": hint(plugins.NodeResource), "ForPods": hint(plugins.AssignedPod),
	}}}
}

// The pods that an event cannot help cost it nothing, however many there are.
func TestPodsPerEvent(t *testing.T) {
	const small, factor = 10, 4
	var calls, examined [2]int
	for i, n := range []int{small, small * factor} {
		q, now := New(countingProfile(&calls[i]), time.Second, time.Minute), time.Unix(1000, 0)
		s := snapshot.NewSnapshot()
		for pod := range n + 2 {
			q.Add(snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", pod))), now)
			popped, _ := q.Pop(now)
			rejectedBy := []string{"ForNodes"}
			if pod < 2 {
				rejectedBy = []string{"ForPods", "ForNodes"}
			}
			q.AddUnschedulable(s, popped, rejectedBy, now)
		}
		q.MoveToActiveOrBackoff(s, plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Add}, now, func(*corev1.Pod) bool { examined[i]++; return true })
	}
	if calls != [2]int{2, 2} || examined != calls {
		t.Errorf("beside %d and %d pods that the event cannot help, %d pods are examined and %d hints called; want 2", small, small*factor, examined, calls)
	}
}

// The events that are kept for pods in flight are those since the oldest of them was popped, although there is always one in flight.
func TestEventsInFlight(t *testing.T) {
	calls, now := 0, time.Unix(1000, 0)
	q, s := New(countingProfile(&calls), time.Second, time.Minute), snapshot.NewSnapshot()
	pop := func(name string) *QueuedPod {
		q.Add(snapshottest.PodInfo(t, schedulertest.TestPod(name)), now)
		p, _ := q.Pop(now)
		return p
	}
	happen := func(events int) {
		for range events {
			q.MoveToActiveOrBackoff(s, plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Add}, now, nil)
		}
	}
	last := pop("first")
	for i := range 1000 {
		happen(10)
		next := pop(fmt.Sprint("p", i))
		q.Done(last.PodInfo.Pod.UID)
		last = next
		if n := len(q.InFlightEvents); n > 20 {
			t.Fatalf("%d events are kept after %d pods, of which one is in flight", n, i)
		}
	}

	// Each pod has missed the events since it was popped, in whatever order the pods leave.
	q.Done(last.PodInfo.Pod.UID)
	a := pop("a")
	happen(3)
	b := pop("b")
	happen(4)
	q.AddUnschedulable(s, a, []string{"ForNodes"}, now)
	a.backoffEnd = time.Time{}
	q.requeue(a, now, "")
	if again, _ := q.Pop(now); again != a {
		t.Fatal("another pod is popped")
	}
	happen(5)
	for p, missed := range map[*QueuedPod]int{a: 5, b: 9} {
		if got := len(q.missedEvents(p)); got != missed {
			t.Errorf("%s has missed %d events, want %d", p.PodInfo.Pod.Name, got, missed)
		}
	}
	for _, uid := range []types.UID{b.PodInfo.Pod.UID, a.PodInfo.Pod.UID} {
		q.Done(uid)
	}
	if len(q.InFlightEvents)+len(q.inFlight.popped)+q.inFlight.count != 0 {
		t.Errorf("%d events and %d pods are kept", len(q.InFlightEvents), len(q.inFlight.popped))
	}
}
