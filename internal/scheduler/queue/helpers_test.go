package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func testQueue() *Queue {
	p := plugins.DefaultProfile()
	return New(map[string]*plugins.Profile{p.Name: p}, time.Second, 10*time.Second)
}

// queueTest is a queue and what was added to its parts.
type queueTest struct {
	t        *testing.T
	q        *Queue
	s        *snapshot.Snapshot
	now      time.Time
	inFlight map[string]*QueuedPod
	added    []string
}

func newQueueTest(t *testing.T) *queueTest {
	w := &queueTest{t: t, q: testQueue(), s: snapshot.NewSnapshot(), now: time.Unix(1000, 0), inFlight: map[string]*QueuedPod{}}
	w.listen()
	return w
}

func (w *queueTest) listen() {
	names := map[Location]string{InActiveQ: "active", InBackoffQ: "backoff", InUnschedulablePods: "waiting"}
	w.q.OnAdd = func(to Location, gated bool, event string) {
		name := names[to]
		if gated {
			name = "gated"
		}
		w.added = append(w.added, name+":"+event)
	}
}

// after lets time go by.
func (w *queueTest) after(d time.Duration) { w.now = w.now.Add(d) }

// add lets pods come, a millisecond apart.
func (w *queueTest) add(pods ...*corev1.Pod) {
	w.t.Helper()
	for _, p := range pods {
		w.q.Add(snapshottest.PodInfo(w.t, p), w.now)
		w.after(time.Millisecond)
	}
}

// pop takes out pods and expects these, in order; "" stands for none.
func (w *queueTest) pop(names ...string) {
	w.t.Helper()
	for _, want := range names {
		p, wait := w.q.Pop(w.now)
		got := ""
		if p != nil {
			got = p.PodInfo.Pod.Name
			w.inFlight[got] = p
		} else if wait <= 0 || wait > 30*time.Second {
			w.t.Errorf("look again after %v", wait)
		}
		if got != want {
			w.t.Fatalf("popped %q, want %q", got, want)
		}
	}
}

// back returns a pod that was taken out; without rules the try failed by itself.
func (w *queueTest) back(name string, rules ...string) {
	w.q.AddUnschedulable(w.s, w.inFlight[name], rules, w.now)
	delete(w.inFlight, name)
}

// refused tries a pod in vain.
func (w *queueTest) refused(name string, rules ...string) {
	w.t.Helper()
	w.pop(name)
	w.back(name, rules...)
}

func (w *queueTest) happens(e plugins.Event) bool {
	return w.q.MoveToActiveOrBackoff(w.s, e, w.now, nil)
}

func (w *queueTest) update(old, now *corev1.Pod) {
	w.t.Helper()
	w.q.Update(w.s, old, snapshottest.PodInfo(w.t, now), w.now)
}

// is compares where the pods are. Pods whose try failed are marked !, gated ones *, held ones #.
func (w *queueTest) is(want string) {
	w.t.Helper()
	if got := placesOf(w.q); got != want {
		w.t.Fatalf("%s, want %s", got, want)
	}
}

// expectAdded compares what has come to the places since the last time.
func (w *queueTest) expectAdded(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.added, want) {
		w.t.Fatalf("came %v, want %v", w.added, want)
	}
	w.added = nil
}

func placesOf(q *Queue) string {
	var parts []string
	tell := func(place string, names []string) {
		if len(names) > 0 {
			parts = append(parts, place+"["+strings.Join(names, " ")+"]")
		}
	}
	ordered := func(h *podHeap, mark string) (names []string) {
		pods := slices.Clone(h.pods)
		slices.SortFunc(pods, func(a, b *QueuedPod) int {
			switch {
			case h.before(a, b):
				return -1
			case h.before(b, a):
				return 1
			}
			return 0
		})
		for _, p := range pods {
			names = append(names, p.PodInfo.Pod.Name+mark)
		}
		return names
	}
	tell("active", ordered(&q.activeQ, ""))
	tell("backoff", append(ordered(&q.backoffQ, ""), ordered(&q.errorBackoffQ, "!")...))
	var waiting, inFlight []string
	for _, p := range q.All {
		name := p.PodInfo.Pod.Name
		if p.Gated {
			name += "*"
		}
		if p.blocked {
			name += "#"
		}
		switch p.Location {
		case InUnschedulablePods:
			waiting = append(waiting, name)
		case IsInFlight:
			inFlight = append(inFlight, name)
		}
	}
	slices.Sort(waiting)
	slices.Sort(inFlight)
	tell("waiting", waiting)
	tell("inFlight", inFlight)
	active, backoff, waits, inFlightCount := q.Len()
	if active != len(q.activeQ.pods) || backoff != len(q.backoffQ.pods)+len(q.errorBackoffQ.pods) || waits != len(waiting) || inFlightCount != len(inFlight) || len(q.All) != active+backoff+waits+inFlightCount {
		parts = append(parts, fmt.Sprint("but counted ", active, backoff, waits, inFlightCount, " of ", len(q.All)))
	}
	return strings.Join(parts, " ")
}

// silentPlugin gives no hints.
type silentPlugin struct{}

func (silentPlugin) Name() string { return "Odd" }

func (silentPlugin) Filter(*snapshot.Snapshot, *snapshot.PodInfo) (plugins.Filter, *plugins.Refusal) {
	return plugins.Filter{}, nil
}

var (
	aNodeCame = plugins.Event{Resource: plugins.NodeResource, Action: plugins.Add, New: schedulertest.TestNode("n")}
	aPodWent  = plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: schedulertest.TestPod("gone", schedulertest.OnNode("n"), schedulertest.RequestingCPU("1"))}
	aPodCame  = plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Add, New: schedulertest.TestPod("new", schedulertest.OnNode("n"))}
)

func eventOf(resource plugins.Resource, action plugins.Action, old, now any) plugins.Event {
	return plugins.Event{Resource: resource, Action: action, Old: old, New: now}
}
