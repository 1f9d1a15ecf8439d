package queue

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
)

// A pod is forgotten wherever it is, and forgetting it again, or one nobody knows, does no harm.
func TestQueueDelete(t *testing.T) {
	for where, bring := range map[string]func(w *queueTest){
		"active[a b] inFlight[]": func(w *queueTest) { w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b")) },
		"waiting[a b]": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.refused("a", plugins.NodeNameName)
			w.refused("b", plugins.NodeNameName)
		},
		"backoff[a b]": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.pop("a", "b")
			w.happens(aNodeCame)
			w.back("a", plugins.NodeNameName)
			w.back("b", plugins.NodeNameName)
		},
		"backoff[a! b!]": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.refused("a")
			w.refused("b")
		},
		"waiting[a* b*]": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x")), schedulertest.TestPod("b", schedulertest.WithSchedulingGates("x")))
		},
		"inFlight[a b]": func(w *queueTest) { w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b")); w.pop("a", "b") },
		"backoff[a] waiting[b]": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.refused("a", plugins.NodeNameName)
			w.refused("b", plugins.TaintTolerationName)
			w.happens(plugins.Event{Resource: plugins.NodeResource, Action: plugins.Add, New: schedulertest.TestNode("n", schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule))})
		},
	} {
		t.Run(where, func(t *testing.T) {
			w := newQueueTest(t)
			bring(w)
			w.is(strings.TrimSuffix(where, " inFlight[]"))
			for _, uid := range []types.UID{"b", "b", "nobody"} {
				w.q.Delete(uid)
			}
			if _, there := w.q.All["b"]; there || len(w.q.All) != 1 {
				t.Errorf("left: %s", placesOf(w.q))
			}
			w.q.Delete("a")
			w.is("")
			if len(w.q.InFlightEvents) != 0 {
				t.Errorf("remembered: %v", w.q.InFlightEvents)
			}
		})
	}
}

// Backoff doubles from the initial one to the longest.
func TestQueueBackoff(t *testing.T) {
	for _, test := range []struct {
		initial, most time.Duration
		want          []time.Duration // of the tries, one after another
	}{
		{time.Second, 10 * time.Second, []time.Duration{1e9, 2e9, 4e9, 8e9, 10e9, 10e9}},
		{time.Second, 8 * time.Second, []time.Duration{1e9, 2e9, 4e9, 8e9, 8e9}},
		{time.Second, time.Second, []time.Duration{1e9, 1e9}},
		{5 * time.Second, time.Second, []time.Duration{1e9, 1e9}},
		{3 * time.Second, 7 * time.Second, []time.Duration{3e9, 6e9, 7e9}},
		{1, 9, []time.Duration{1, 2, 4, 8, 9}},
		{time.Second, 0, []time.Duration{0, 0}},
		{0, 10 * time.Second, []time.Duration{0, 0, 0}},
		{time.Nanosecond, math.MaxInt64, []time.Duration{1, 2, 4, 8}},
	} {
		q := New(nil, test.initial, test.most)
		for i, want := range test.want {
			if got := q.backoffOf(&QueuedPod{unschedulableCount: i + 1}); got != want {
				t.Errorf("%v to %v: after %d refusals %v, want %v", test.initial, test.most, i+1, got, want)
			}
			if got := q.backoffOf(&QueuedPod{unschedulableCount: 40, consecutiveErrors: i + 1}); got != want {
				t.Errorf("%v to %v: after %d failures %v, want %v", test.initial, test.most, i+1, got, want)
			}
		}
		if got := q.backoffOf(&QueuedPod{}); got != 0 {
			t.Errorf("%v to %v: before the first try %v", test.initial, test.most, got)
		}
		for _, tries := range []int{31, 32, 33, 63, 64, 65, 1000} {
			if got := q.backoffOf(&QueuedPod{consecutiveErrors: tries}); test.initial > time.Millisecond && got != test.most || got < 0 {
				t.Errorf("%v to %v: after %d failures %v", test.initial, test.most, tries, got)
			}
		}
	}
	for _, test := range []struct{ now, backoff, end time.Duration }{
		{0, 0, 0},
		{5e8, 0, 5e8},
		{0, 1e9, 1e9},
		{1, 1e9, 2e9},
		{999999999, 1e9, 2e9},
		{1e9, 1e9, 2e9},
		{0, 1, 1e9},
	} {
		if got := backoffEndOf(time.Unix(0, int64(test.now)), test.backoff).Sub(time.Unix(0, 0)); got != test.end {
			t.Errorf("a backoff of %v from %v ends at %v, want %v", test.backoff, test.now, got, test.end)
		}
	}
}

// Without a pod to pop, Pop returns the time until the next backoff ends or the next flush of unschedulable pods.
func TestPopReturnsWaitTime(t *testing.T) {
	for name, test := range map[string]struct {
		tell func(w *queueTest)
		want time.Duration
	}{
		"an empty queue":  {func(*queueTest) {}, 30 * time.Second},
		"half a look ago": {func(w *queueTest) { w.pop(""); w.after(10 * time.Second) }, 20 * time.Second},
		"a pod that waits": {func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", plugins.NodeNameName)
			w.now = time.Unix(1010, 0)
		}, 20 * time.Second},
		"a failed try": {func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.now = time.Unix(1005, 0)
			w.refused("a")
			w.after(300 * time.Millisecond)
		}, 700 * time.Millisecond},
		"two failed tries": {func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.now = time.Unix(1005, 0)
			w.pop("a", "b")
			w.back("b")
			w.after(500 * time.Millisecond)
			w.back("a")
		}, 500 * time.Millisecond},
		"a failed try long ago": {func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.now = time.Unix(1005, 0)
			for range 6 {
				w.refused("a")
				w.after(10 * time.Second)
			}
			w.pop("a")
			w.now = time.Unix(1100, 0)
			w.back("a")
			w.now = time.Unix(1110, -1)
		}, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueueTest(t)
			w.now = time.Unix(1000, 0)
			w.pop("")
			if name == "an empty queue" {
				w = newQueueTest(t)
			}
			test.tell(w)
			if p, wait := w.q.Pop(w.now); p != nil || wait != test.want && name != "an empty queue" || wait > test.want {
				t.Errorf("look again after %v, want %v", wait, test.want)
			}
		})
	}
}
