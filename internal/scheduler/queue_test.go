package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"

	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

func testQueue() *Queue {
	p := DefaultProfile()
	return NewQueue(map[string]*Profile{p.Name: p}, time.Second, 10*time.Second)
}

// queueStory is a queue and what has come to its places.
type queueStory struct {
	t      *testing.T
	q      *Queue
	s      *Snapshot
	now    time.Time
	flying map[string]*queued
	came   []string
}

func newQueueStory(t *testing.T) *queueStory {
	w := &queueStory{t: t, q: testQueue(), s: NewSnapshot(), now: time.Unix(1000, 0), flying: map[string]*queued{}}
	w.listen()
	return w
}

func (w *queueStory) listen() {
	names := map[place]string{isActive: "active", isBackoff: "backoff", isWaiting: "waiting"}
	w.q.came = func(to place, gated bool, event string) {
		name := names[to]
		if gated {
			name = "gated"
		}
		w.came = append(w.came, name+":"+event)
	}
}

// after lets time go by.
func (w *queueStory) after(d time.Duration) { w.now = w.now.Add(d) }

// add lets pods come, a millisecond apart.
func (w *queueStory) add(pods ...*corev1.Pod) {
	w.t.Helper()
	for _, p := range pods {
		w.q.Add(infoOf(w.t, p), w.now)
		w.after(time.Millisecond)
	}
}

// pop takes out pods and expects these, in order; "" stands for none.
func (w *queueStory) pop(names ...string) {
	w.t.Helper()
	for _, want := range names {
		p, wait := w.q.Pop(w.now)
		got := ""
		if p != nil {
			got = p.info.Pod.Name
			w.flying[got] = p
		} else if wait <= 0 || wait > 30*time.Second {
			w.t.Errorf("look again after %v", wait)
		}
		if got != want {
			w.t.Fatalf("popped %q, want %q", got, want)
		}
	}
}

// back returns a pod that was taken out; without rules the try failed by itself.
func (w *queueStory) back(name string, rules ...string) {
	w.q.Return(w.s, w.flying[name], rules, w.now)
	delete(w.flying, name)
}

// refused tries a pod in vain.
func (w *queueStory) refused(name string, rules ...string) {
	w.t.Helper()
	w.pop(name)
	w.back(name, rules...)
}

func (w *queueStory) happens(e Event) bool { return w.q.Move(w.s, e, w.now, nil) }

func (w *queueStory) update(old, now *corev1.Pod) {
	w.t.Helper()
	w.q.Update(w.s, old, infoOf(w.t, now), w.now)
}

// is compares where the pods are. Pods whose try failed are marked !, gated ones *, held ones #.
func (w *queueStory) is(want string) {
	w.t.Helper()
	if got := placesOf(w.q); got != want {
		w.t.Fatalf("%s, want %s", got, want)
	}
}

// told compares what has come to the places since the last time.
func (w *queueStory) told(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.came, want) {
		w.t.Fatalf("came %v, want %v", w.came, want)
	}
	w.came = nil
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
		slices.SortFunc(pods, func(a, b *queued) int {
			switch {
			case h.before(a, b):
				return -1
			case h.before(b, a):
				return 1
			}
			return 0
		})
		for _, p := range pods {
			names = append(names, p.info.Pod.Name+mark)
		}
		return names
	}
	tell("active", ordered(&q.active, ""))
	tell("backoff", append(ordered(&q.backoff, ""), ordered(&q.erred, "!")...))
	var waiting, flying []string
	for _, p := range q.all {
		name := p.info.Pod.Name
		if p.gated {
			name += "*"
		}
		if p.held {
			name += "#"
		}
		switch p.place {
		case isWaiting:
			waiting = append(waiting, name)
		case isFlying:
			flying = append(flying, name)
		}
	}
	slices.Sort(waiting)
	slices.Sort(flying)
	tell("waiting", waiting)
	tell("flying", flying)
	active, backoff, waits, flies := q.Len()
	if active != len(q.active.pods) || backoff != len(q.backoff.pods)+len(q.erred.pods) || waits != len(waiting) || flies != len(flying) || len(q.all) != active+backoff+waits+flies {
		parts = append(parts, fmt.Sprint("but counted ", active, backoff, waits, flies, " of ", len(q.all)))
	}
	return strings.Join(parts, " ")
}

func gatedBy(names ...string) podOption {
	return func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
		}
	}
}

var (
	aNodeCame    = Event{Resource: NodeResource, Action: Add, New: testNode("n")}
	aPodWent     = Event{Resource: AssignedPod, Action: Delete, Old: testPod("gone", on("n"), asksCPU("1"))}
	aPodCame     = Event{Resource: AssignedPod, Action: Add, New: testPod("new", on("n"))}
	toleratesAll = tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})
)

func TestQueue(t *testing.T) {
	const fit, byName, byTaint = nodeResourcesFitName, nodeNameName, taintTolerationName
	for name, tell := range map[string]func(w *queueStory){
		// Order.
		"the highest priority first, then who came first": func(w *queueStory) {
			w.add(testPod("low-1", priority(1)), testPod("high", priority(5)), testPod("low-2", priority(1)), testPod("none"))
			w.is("active[high low-1 low-2 none]")
			w.pop("high", "low-1", "low-2", "none", "")
		},
		"priorities from the lowest to the highest": func(w *queueStory) {
			w.add(testPod("least", priority(math.MinInt32)), testPod("minus", priority(-1)), testPod("none"), testPod("zero", priority(0)), testPod("most", priority(math.MaxInt32)))
			w.pop("most", "none", "zero", "minus", "least", "")
		},
		"who comes back goes behind those who came meanwhile": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a", byName)
			w.after(time.Millisecond)
			w.add(testPod("b"))
			w.after(time.Minute)
			w.happens(aNodeCame)
			w.add(testPod("c"))
			w.is("active[a b c]")
			w.pop("a", "b", "c")
		},
		"a try counts as coming anew": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.add(testPod("b"))
			w.after(time.Second)
			w.back("a", byName)
			w.after(time.Minute)
			w.happens(aNodeCame)
			w.is("active[b a]")
		},
		"a more important pod goes first even if it comes back": func(w *queueStory) {
			w.add(testPod("a", priority(1)))
			w.refused("a", byName)
			w.add(testPod("b"))
			w.after(time.Minute)
			w.happens(aNodeCame)
			w.pop("a", "b")
		},
		"a pod that comes twice is there once, with its last state": func(w *queueStory) {
			w.add(testPod("a"), testPod("a", labelled("new", "yes")))
			w.is("active[a]")
			w.pop("a", "")
			if w.flying["a"].info.Pod.Labels["new"] != "yes" {
				w.t.Error("the old state is tried")
			}
		},

		// Backoff.
		"a refused pod waits, and is tried a second later when something helps": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.now = time.Unix(1001, 0)
			w.refused("a", byName)
			w.pop("b")
			w.is("waiting[a] flying[b]")
			w.happens(aNodeCame)
			w.is("backoff[a] flying[b]")
			w.now = time.Unix(1002, 0).Add(-1)
			w.add(testPod("c"))
			w.now = time.Unix(1002, 0).Add(-1)
			w.pop("c")
			w.is("backoff[a] flying[b c]")
			w.now = time.Unix(1002, 0)
			w.add(testPod("d"))
			w.pop("a", "d")
		},
		"after its backoff a pod is woken right to the active ones": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a", byName)
			w.after(2 * time.Second)
			w.happens(aNodeCame)
			w.is("active[a]")
		},
		"a backoff ends at a full second": func(w *queueStory) {
			w.add(testPod("a"))
			w.now = time.Unix(1000, 300e6)
			w.pop("a")
			w.back("a")
			w.now = time.Unix(1002, -1)
			w.pop("")
			w.now = time.Unix(1002, 0)
			w.pop("a")
		},
		"pods whose backoff ends within the same second come by priority": func(w *queueStory) {
			w.add(testPod("low", priority(1)), testPod("high", priority(9)))
			w.now = time.Unix(1000, 900e6)
			w.refused("high", byName)
			w.now = time.Unix(1000, 100e6)
			w.refused("low", byName)
			w.happens(aNodeCame)
			w.is("backoff[high low]")
			w.pop("high", "low")
		},
		"but not before those of an earlier second": func(w *queueStory) {
			w.add(testPod("low", priority(1)), testPod("high", priority(9)))
			w.pop("high", "low")
			w.now = time.Unix(1000, 900e6)
			w.back("low", byName)
			w.now = time.Unix(1001, 100e6)
			w.back("high", byName)
			w.happens(aNodeCame)
			w.is("backoff[low high]")
			w.pop("low", "high")
		},
		"nobody waits for the end of a backoff while nobody else wants to be tried": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a", byName)
			w.pop("")
			w.happens(aNodeCame)
			w.is("backoff[a]")
			w.pop("a")
			w.is("flying[a]")
			w.told("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "backoff:NodeAdd", "active:PopFromBackoffQ")
		},
		"who is active goes before the most important in backoff": func(w *queueStory) {
			w.add(testPod("high", priority(9)))
			w.refused("high", byName)
			w.happens(aNodeCame)
			w.add(testPod("low"))
			w.pop("low", "high")
		},
		"a try that failed by itself waits its time out": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a")
			w.is("backoff[a!]")
			w.happens(aNodeCame)
			w.pop("")
			w.now = time.Unix(1003, 0)
			w.pop("a")
			w.told("active:UnscheduledPodAdd", "backoff:ScheduleAttemptFailure", "active:BackoffComplete")
		},
		"and does not keep others from being tried early": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a")
			w.after(5 * time.Second)
			w.add(testPod("b"))
			w.pop("a", "b")
			w.back("a")
			w.after(time.Second)
			w.back("b", byName)
			w.happens(aNodeCame)
			w.is("backoff[b a!]")
			w.pop("b", "")
		},
		"without a longest backoff there is none": func(w *queueStory) {
			w.q = NewQueue(w.q.profiles, time.Second, 0)
			w.add(testPod("a"))
			w.now = time.Unix(1000, 5e6)
			w.refused("a", byName)
			w.happens(aNodeCame)
			w.is("active[a]")
			w.refused("a")
			w.pop("a")
		},
		"a refusal makes the failures before it forgotten": func(w *queueStory) {
			w.add(testPod("a"))
			for range 4 {
				w.after(time.Minute)
				w.refused("a")
			}
			w.now = time.Unix(2000, 0)
			w.refused("a", byName)
			w.happens(aNodeCame)
			w.is("backoff[a]")
			w.add(testPod("b"))
			w.now = time.Unix(2001, 0)
			w.pop("b", "a")
		},
		"a failure after refusals is the first": func(w *queueStory) {
			w.add(testPod("a"))
			for range 4 {
				w.after(time.Minute)
				w.refused("a", byName)
				w.after(time.Minute)
				w.happens(aNodeCame)
			}
			w.now = time.Unix(3000, 0)
			w.refused("a")
			w.now = time.Unix(3001, -1)
			w.pop("")
			w.now = time.Unix(3001, 0)
			w.pop("a")
		},

		// Waiting.
		"nobody waits longer than five minutes": func(w *queueStory) {
			w.add(testPod("a"))
			w.now = time.Unix(2000, 0)
			w.refused("a", byName)
			w.now = time.Unix(2300, 0)
			w.pop("")
			w.now = time.Unix(2330, 0)
			w.pop("a")
			w.told("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:UnschedulableTimeout")
		},
		"who has waited too long is looked for every half minute": func(w *queueStory) {
			w.add(testPod("a"))
			w.now = time.Unix(2000, 0)
			w.refused("a", byName)
			w.now = time.Unix(2290, 0)
			w.pop("")
			w.now = time.Unix(2320, -1)
			w.pop("")
			w.now = time.Unix(2320, 0)
			w.pop("a")
		},
		"the five minutes begin anew with every try": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a", byName)
			w.after(4 * time.Minute)
			w.happens(aNodeCame)
			w.refused("a", byName)
			w.after(4 * time.Minute)
			w.pop("")
			w.after(2 * time.Minute)
			w.pop("a")
		},
		"a change nobody cares about is not remembered": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.pop("a")
			w.happens(Event{Resource: "Secret", Action: Add})
			w.happens(Event{Resource: CSIDriverResource, Action: Delete})
			if len(w.q.happened) != 0 {
				w.t.Errorf("remembered: %v", w.q.happened)
			}
		},
		"a change that helps one of the rules is enough": func(w *queueStory) {
			w.add(testPod("a", asksCPU("1")))
			w.refused("a", byTaint, fit)
			if !w.happens(aPodWent) {
				w.t.Error("it woke nobody")
			}
			w.is("backoff[a]")
		},
		"a change may be for some pods only": func(w *queueStory) {
			w.add(testPod("a", asksCPU("1"), priority(2)), testPod("b", asksCPU("1"), priority(1)))
			w.refused("a", fit)
			w.refused("b", fit)
			w.q.Move(w.s, aPodWent, w.now, func(p *corev1.Pod) bool { return priorityOf(p) <= 1 })
			w.is("backoff[b] waiting[a]")
		},
		"a rule without hints is helped by everything": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a", extenderName)
			w.happens(aPodCame)
			w.is("backoff[a]")
		},
		"whom an extender has refused everything may help, also what no rule cares about": func(w *queueStory) {
			configuration := &configv1.KubeSchedulerConfiguration{Extenders: []configv1.Extender{{URLPrefix: "http://x", FilterVerb: "filter"}}}
			for _, e := range []Event{
				{Resource: NodeResource, Action: UpdateNodeCondition, Old: testNode("n"), New: testNode("n")},
				{Resource: NodeResource, Action: UpdateNodeAnnotation, Old: testNode("n"), New: testNode("n")},
				{Resource: CSIDriverResource, Action: Delete},
				{Resource: AssignedPod, Action: updateOther, Old: testPod("x", on("n")), New: testPod("x", on("n"))},
			} {
				w.q = testQueue()
				w.add(testPod("a"))
				w.refused("a", extenderName)
				if w.happens(e) {
					w.t.Errorf("without extenders %s is heard", e.label())
				}
				s, err := newScheduler(configuration, nil)
				if err != nil {
					w.t.Fatal(err)
				}
				w.q = s.queue
				w.add(testPod("a"), testPod("b"))
				w.refused("a", extenderName)
				w.refused("b", byTaint)
				w.happens(e)
				w.is("backoff[a] waiting[b]")
				// Nobody ever looks at what has no name.
				if w.happens(Event{Action: Add}) {
					w.t.Error("what is of no kind is heard")
				}
			}
		},
		"so for a rule of one's own that gives no hints": func(w *queueStory) {
			profile := DefaultProfile()
			profile.filters = append(profile.filters, oddRule{})
			w.q = NewQueue(map[string]*Profile{profile.Name: profile}, time.Second, time.Second)
			w.add(testPod("a"))
			w.refused("a", "Odd")
			w.happens(Event{Resource: CSIDriverResource, Action: Delete})
			w.is("backoff[a]")
		},
		"a pod of an unknown profile is woken by everything": func(w *queueStory) {
			w.add(testPod("a", func(p *corev1.Pod) { p.Spec.SchedulerName = "gone" }))
			w.refused("a", byTaint)
			w.happens(aPodCame)
			w.is("backoff[a]")
		},

		// Being tried.
		"a change during the try counts": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.happens(aNodeCame)
			w.back("a", byName)
			w.is("backoff[a]")
			w.told("active:UnscheduledPodAdd", "backoff:ScheduleAttemptFailure")
		},
		"a change during the try that does not help counts in vain": func(w *queueStory) {
			w.add(testPod("a", asksCPU("1")))
			w.pop("a")
			w.happens(aPodCame)
			w.back("a", fit)
			w.is("waiting[a]")
		},
		"a change before the try does not count": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.pop("a")
			w.happens(aNodeCame)
			w.pop("b")
			w.back("b", byName)
			w.back("a", byName)
			w.is("backoff[a] waiting[b]")
		},
		"changes are forgotten when nobody is being tried": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.pop("a", "b")
			w.happens(aNodeCame)
			w.q.Done("a")
			if len(w.q.happened) != 1 {
				w.t.Errorf("remembered: %v", w.q.happened)
			}
			w.q.Done("b")
			if len(w.q.happened) != 0 {
				w.t.Errorf("remembered: %v", w.q.happened)
			}
			w.is("")
		},
		"the pod's own change during the try counts": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.update(testPod("a"), testPod("a", toleratesAll))
			w.back("a", byTaint)
			w.is("backoff[a]")
			if len(w.q.all["a"].info.Pod.Spec.Tolerations) != 1 {
				w.t.Error("the old state is kept")
			}
		},
		"another pod's own change does not": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.pop("a", "b")
			w.update(testPod("b"), testPod("b", toleratesAll))
			w.back("a", byTaint)
			w.back("b", byTaint)
			w.is("backoff[b] waiting[a]")
		},
		"a pod deleted during its try does not come back": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.q.Delete("a")
			w.back("a", byName)
			w.is("")
		},
		"nor does it replace one that was made anew": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.q.Delete("a")
			w.add(testPod("a"))
			w.back("a", byName)
			w.is("active[a]")
		},
		"tries are counted, and the first is remembered": func(w *queueStory) {
			w.add(testPod("a"))
			first := w.now
			for range 3 {
				w.refused("a", byName)
				w.after(time.Minute)
				w.happens(aNodeCame)
			}
			w.pop("a")
			if p := w.flying["a"]; p.attempts != 4 || !p.firstTry.Equal(first) || !p.arrived.Equal(time.Unix(1000, 0)) {
				w.t.Errorf("%d tries, the first at %v", p.attempts, p.firstTry)
			}
		},

		// Updates.
		"an update of an active pod keeps the order right": func(w *queueStory) {
			w.add(testPod("a", priority(1)), testPod("b", priority(2)), testPod("c", priority(3)))
			w.update(testPod("a", priority(1)), testPod("a", priority(9)))
			w.is("active[a c b]")
			w.pop("a", "c", "b")
		},
		"and so does one of pods in backoff": func(w *queueStory) {
			w.add(testPod("a", priority(1)), testPod("b", priority(2)), testPod("c", priority(3)))
			w.pop("c", "b", "a")
			w.happens(aNodeCame)
			for _, name := range []string{"a", "b", "c"} {
				w.back(name, byName)
			}
			w.update(testPod("a", priority(1)), testPod("a", priority(9)))
			w.pop("a", "c", "b")
		},
		"an update of a pod in backoff leaves it there": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.refused("a", byTaint, byName)
			w.refused("b")
			w.happens(aNodeCame)
			w.update(testPod("a"), testPod("a", toleratesAll))
			w.update(testPod("b"), testPod("b", toleratesAll))
			w.is("backoff[a b!]")
			if len(w.q.all["a"].info.Pod.Spec.Tolerations) != 1 {
				w.t.Error("the old state is kept")
			}
		},
		"an update that helps wakes the pod": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a", byTaint)
			w.update(testPod("a"), testPod("a", toleratesAll))
			w.is("backoff[a]")
			w.told("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "backoff:TargetPodUpdatePodToleration")
		},
		"of an update's parts the one that helps is named": func(w *queueStory) {
			w.add(testPod("a", asksCPU("2")))
			w.refused("a", byTaint)
			w.after(time.Minute)
			w.update(testPod("a", asksCPU("2")), testPod("a", asksCPU("1"), labelled("x", "y"), toleratesAll))
			w.told("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:TargetPodUpdatePodToleration")
		},
		"an update that does not help leaves the pod waiting, but is taken over": func(w *queueStory) {
			w.add(testPod("a"))
			w.refused("a", byTaint)
			w.update(testPod("a"), testPod("a", labelled("x", "y")))
			w.is("waiting[a]")
			w.told("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure")
			if w.q.all["a"].info.Pod.Labels["x"] != "y" {
				w.t.Error("the old state is kept")
			}
		},
		"an update of a pod that is not there brings it": func(w *queueStory) {
			w.update(testPod("a"), testPod("a", labelled("x", "y")))
			w.is("active[a]")
			w.told("active:UnscheduledPodAdd")
		},

		// Gates.
		"a gated pod waits": func(w *queueStory) {
			w.add(testPod("a", gatedBy("x")))
			w.is("waiting[a*]")
			w.told("gated:UnscheduledPodAdd")
			w.pop("")
			w.happens(aNodeCame)
			w.happens(aPodWent)
			w.after(time.Hour)
			w.pop("")
			w.is("waiting[a*]")
		},
		"until its last gate is gone": func(w *queueStory) {
			w.add(testPod("a", gatedBy("x", "y")))
			w.update(testPod("a", gatedBy("x", "y")), testPod("a", gatedBy("y")))
			w.is("waiting[a*]")
			w.update(testPod("a", gatedBy("y")), testPod("a", gatedBy("y"), labelled("l", "v"), toleratesAll))
			w.is("waiting[a*]")
			w.update(testPod("a", gatedBy("y")), testPod("a", labelled("l", "v")))
			w.is("active[a]")
			w.told("gated:UnscheduledPodAdd", "active:TargetPodUpdatePodSchedulingGatesEliminated")
			w.pop("a")
			w.back("a", byName)
			w.is("waiting[a]")
		},
		"a gated pod counts as refused by its gates, once": func(w *queueStory) {
			w.add(testPod("a", gatedBy("x")))
			w.update(testPod("a", gatedBy("x")), testPod("a", gatedBy("x"), labelled("l", "v")))
			if rules := w.q.all["a"].rules; !slices.Equal(rules, []string{schedulingGatesName}) {
				w.t.Errorf("refused by %v", rules)
			}
		},
		"a profile without the rule knows no gates": func(w *queueStory) {
			profile, err := newProfile(&configv1.KubeSchedulerProfile{Plugins: &configv1.Plugins{PreEnqueue: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: schedulingGatesName}}}}})
			if err != nil {
				w.t.Fatal(err)
			}
			w.q = NewQueue(map[string]*Profile{profile.Name: profile}, time.Second, time.Second)
			w.add(testPod("a", gatedBy("x")))
			w.is("active[a]")
		},

		// Pods held until their preemption is through.
		"a held pod is not woken before it is released": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.q.Hold(w.flying["a"])
			w.back("a", byName)
			w.happens(aNodeCame)
			w.is("waiting[a#]")
			w.pop("")
			w.q.Release("a", w.now, false)
			w.is("backoff[a]")
			w.told("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "backoff:NodeAdd")
		},
		"nor by what happened during its try": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.happens(aNodeCame)
			w.q.Hold(w.flying["a"])
			w.back("a", byName)
			w.is("waiting[a#]")
			w.after(time.Minute)
			w.q.Release("a", w.now, false)
			w.is("active[a]")
		},
		"nor by having waited too long, or by its own update": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.q.Hold(w.flying["a"])
			w.back("a", byTaint)
			w.after(time.Hour)
			w.pop("")
			w.update(testPod("a"), testPod("a", toleratesAll))
			w.is("waiting[a#]")
			w.q.Release("a", w.now, false)
			w.is("active[a]")
			w.told("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:TargetPodUpdatePodToleration")
		},
		"released without help it goes on waiting": func(w *queueStory) {
			w.add(testPod("a", asksCPU("1")))
			w.pop("a")
			w.q.Hold(w.flying["a"])
			w.back("a", fit)
			w.happens(aPodCame)
			w.q.Release("a", w.now, false)
			w.is("waiting[a]")
			w.happens(aPodWent)
			w.is("backoff[a]")
		},
		"what helped before it was held does not count again": func(w *queueStory) {
			w.add(testPod("a"))
			for range 2 {
				w.pop("a")
				w.q.Hold(w.flying["a"])
				w.back("a", byName)
				w.happens(aNodeCame)
				w.q.Release("a", w.now, false)
			}
			w.pop("a")
			w.q.Hold(w.flying["a"])
			w.back("a", byName)
			w.q.Release("a", w.now, false)
			w.is("waiting[a]")
		},
		"released to be retried it does not wait for its backoff": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.pop("a")
			w.q.Hold(w.flying["a"])
			w.back("a", byName)
			w.q.Release("a", w.now, true)
			w.is("active[b a]")
			w.told("active:UnscheduledPodAdd", "active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:ForceActivate")
		},
		"a release of nobody, or of a pod that is not held, changes nothing": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.refused("a", byName)
			w.q.Release("a", w.now, true)
			w.q.Release("b", w.now, true)
			w.q.Release("c", w.now, true)
			w.is("active[b] waiting[a]")
		},
		"a held pod can be deleted": func(w *queueStory) {
			w.add(testPod("a"))
			w.pop("a")
			w.q.Hold(w.flying["a"])
			w.back("a", byName)
			w.q.Delete("a")
			w.q.Release("a", w.now, true)
			w.is("")
		},
	} {
		t.Run(name, func(t *testing.T) { tell(newQueueStory(t)) })
	}
}

// A pod is forgotten wherever it is, and forgetting it again, or one nobody knows, does no harm.
func TestQueueDelete(t *testing.T) {
	for where, bring := range map[string]func(w *queueStory){
		"active[a b] flying[]": func(w *queueStory) { w.add(testPod("a"), testPod("b")) },
		"waiting[a b]": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.refused("a", nodeNameName)
			w.refused("b", nodeNameName)
		},
		"backoff[a b]": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.pop("a", "b")
			w.happens(aNodeCame)
			w.back("a", nodeNameName)
			w.back("b", nodeNameName)
		},
		"backoff[a! b!]": func(w *queueStory) { w.add(testPod("a"), testPod("b")); w.refused("a"); w.refused("b") },
		"waiting[a* b*]": func(w *queueStory) { w.add(testPod("a", gatedBy("x")), testPod("b", gatedBy("x"))) },
		"flying[a b]":    func(w *queueStory) { w.add(testPod("a"), testPod("b")); w.pop("a", "b") },
		"backoff[a] waiting[b]": func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.refused("a", nodeNameName)
			w.refused("b", taintTolerationName)
			w.happens(Event{Resource: NodeResource, Action: Add, New: testNode("n", taint("k", "v", corev1.TaintEffectNoSchedule))})
		},
	} {
		t.Run(where, func(t *testing.T) {
			w := newQueueStory(t)
			bring(w)
			w.is(strings.TrimSuffix(where, " flying[]"))
			for _, uid := range []types.UID{"b", "b", "nobody"} {
				w.q.Delete(uid)
			}
			if _, there := w.q.all["b"]; there || len(w.q.all) != 1 {
				t.Errorf("left: %s", placesOf(w.q))
			}
			w.q.Delete("a")
			w.is("")
			if len(w.q.happened) != 0 {
				t.Errorf("remembered: %v", w.q.happened)
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
		q := NewQueue(nil, test.initial, test.most)
		for i, want := range test.want {
			if got := q.backoffOf(&queued{refusals: i + 1}); got != want {
				t.Errorf("%v to %v: after %d refusals %v, want %v", test.initial, test.most, i+1, got, want)
			}
			if got := q.backoffOf(&queued{refusals: 40, errors: i + 1}); got != want {
				t.Errorf("%v to %v: after %d failures %v, want %v", test.initial, test.most, i+1, got, want)
			}
		}
		if got := q.backoffOf(&queued{}); got != 0 {
			t.Errorf("%v to %v: before the first try %v", test.initial, test.most, got)
		}
		for _, tries := range []int{31, 32, 33, 63, 64, 65, 1000} {
			if got := q.backoffOf(&queued{errors: tries}); test.initial > time.Millisecond && got != test.most || got < 0 {
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
		if got := endOf(time.Unix(0, int64(test.now)), test.backoff).Sub(time.Unix(0, 0)); got != test.end {
			t.Errorf("a backoff of %v from %v ends at %v, want %v", test.backoff, test.now, got, test.end)
		}
	}
}

// When there is nobody to try, the queue tells when to look again: when the first failed try may be repeated, or to see who has waited too long.
func TestQueueTellsWhenToLookAgain(t *testing.T) {
	for name, test := range map[string]struct {
		tell func(w *queueStory)
		want time.Duration
	}{
		"an empty queue":   {func(*queueStory) {}, 30 * time.Second},
		"half a look ago":  {func(w *queueStory) { w.pop(""); w.after(10 * time.Second) }, 20 * time.Second},
		"a pod that waits": {func(w *queueStory) { w.add(testPod("a")); w.refused("a", nodeNameName); w.now = time.Unix(1010, 0) }, 20 * time.Second},
		"a failed try": {func(w *queueStory) {
			w.add(testPod("a"))
			w.now = time.Unix(1005, 0)
			w.refused("a")
			w.after(300 * time.Millisecond)
		}, 700 * time.Millisecond},
		"two failed tries": {func(w *queueStory) {
			w.add(testPod("a"), testPod("b"))
			w.now = time.Unix(1005, 0)
			w.pop("a", "b")
			w.back("b")
			w.after(500 * time.Millisecond)
			w.back("a")
		}, 500 * time.Millisecond},
		"a failed try long ago": {func(w *queueStory) {
			w.add(testPod("a"))
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
			w := newQueueStory(t)
			w.now = time.Unix(1000, 0)
			w.pop("")
			if name == "an empty queue" {
				w = newQueueStory(t)
			}
			test.tell(w)
			if p, wait := w.q.Pop(w.now); p != nil || wait != test.want && name != "an empty queue" || wait > test.want {
				t.Errorf("look again after %v, want %v", wait, test.want)
			}
		})
	}
}

func TestQueueWakesOnlyPodsAChangeMayHelp(t *testing.T) {
	green := labelled("color", "green")
	small, big := testNode("n", nodeHas(corev1.ResourceCPU, "1")), testNode("n", nodeHas(corev1.ResourceCPU, "8"))
	tainted := testNode("n", taint("k", "", corev1.TaintEffectNoSchedule))
	tests := map[string]struct {
		pod   *corev1.Pod
		rule  string
		event Event
		wakes bool
	}{
		"room: a pod goes":                    {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, Delete, testPod("o", on("n")), nil}, true},
		"room: a pod comes":                   {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, Add, nil, testPod("o", on("n"))}, false},
		"room: a large node comes":            {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, Add, nil, big}, true},
		"room: a small node comes":            {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, Add, nil, small}, false},
		"room: a node grows":                  {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, UpdateNodeAllocatable, small, big}, true},
		"room: a node is relabelled":          {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{NodeResource, UpdateNodeLabel, small, big}, false},
		"room: a pod shrinks":                 {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, UpdatePodScaleDown, testPod("o", on("n"), asksCPU("2")), testPod("o", on("n"), asksCPU("1"))}, true},
		"room: a pod shrinks in memory":       {testPod("p", asksCPU("2")), nodeResourcesFitName, Event{AssignedPod, UpdatePodScaleDown, testPod("o", on("n"), asksMemory("2Gi")), testPod("o", on("n"), asksMemory("1Gi"))}, false},
		"taint: removed":                      {testPod("p"), taintTolerationName, Event{NodeResource, UpdateNodeTaint, tainted, small}, true},
		"taint: a tainted node comes":         {testPod("p"), taintTolerationName, Event{NodeResource, Add, nil, tainted}, false},
		"cordon: lifted":                      {testPod("p"), nodeUnschedulableName, Event{NodeResource, UpdateNodeTaint, testNode("n", cordoned), small}, true},
		"node affinity: the label comes":      {testPod("p", selecting("a", "b")), nodeAffinityName, Event{NodeResource, UpdateNodeLabel, small, testNode("n", nodeLabel("a", "b"))}, true},
		"node affinity: another label comes":  {testPod("p", selecting("a", "b")), nodeAffinityName, Event{NodeResource, UpdateNodeLabel, small, testNode("n", nodeLabel("a", "c"))}, false},
		"ports: freed":                        {testPod("p", port(80, "", "TCP")), nodePortsName, Event{AssignedPod, Delete, testPod("o", on("n"), port(80, "", "TCP")), nil}, true},
		"ports: another freed":                {testPod("p", port(80, "", "TCP")), nodePortsName, Event{AssignedPod, Delete, testPod("o", on("n"), port(81, "", "TCP")), nil}, false},
		"affinity: the friend comes":          {testPod("p", near(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, Add, nil, testPod("o", on("n"), green)}, true},
		"affinity: a stranger comes":          {testPod("p", near(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, Add, nil, testPod("o", on("n"))}, false},
		"affinity: the enemy goes":            {testPod("p", away(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, Delete, testPod("o", on("n"), green), nil}, true},
		"affinity: one who hated us goes":     {testPod("p", green), interPodAffinityName, Event{AssignedPod, Delete, testPod("o", on("n"), away(corev1.LabelHostname, "color", "green")), nil}, true},
		"affinity: the enemy changes color":   {testPod("p", away(corev1.LabelHostname, "color", "green")), interPodAffinityName, Event{AssignedPod, UpdatePodLabel, testPod("o", on("n"), green), testPod("o", on("n"), labelled("color", "red"))}, true},
		"spread: one of ours goes":            {testPod("p", green, spread(corev1.LabelHostname, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{AssignedPod, Delete, testPod("o", on("n"), green), nil}, true},
		"spread: a stranger goes":             {testPod("p", green, spread(corev1.LabelHostname, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{AssignedPod, Delete, testPod("o", on("n")), nil}, false},
		"spread: a node without the key":      {testPod("p", green, spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{NodeResource, Add, nil, small}, false},
		"spread: a node with the key":         {testPod("p", green, spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "color", "green")), podTopologySpreadName, Event{NodeResource, Add, nil, testNode("n", zone("1"))}, true},
		"an extender's refusal: any change":   {testPod("p"), extenderName, Event{NodeResource, Add, nil, small}, true},
		"no interest in what nobody asks for": {testPod("p"), extenderName, Event{Resource("Secret"), Add, nil, small}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q, s, now := testQueue(), NewSnapshot(), time.Unix(1000, 0)
			info := infoOf(t, test.pod)
			q.Add(info, now)
			p, _ := q.Pop(now)
			q.Return(s, p, []string{test.rule}, now)
			if woke := q.Move(s, test.event, now, nil); woke != test.wakes {
				t.Errorf("woken: %v, want %v", woke, test.wakes)
			}
			// The same change while the pod is being tried counts just as well.
			q = testQueue()
			q.Add(info, now)
			p, _ = q.Pop(now)
			q.Move(s, test.event, now, nil)
			q.Return(s, p, []string{test.rule}, now)
			if waits := p.place == isWaiting; waits == test.wakes {
				t.Errorf("the change during the try is lost, or counts in vain: place %d", p.place)
			}
		})
	}
}

// queueModel is the queue as a list that is searched anew for every question. Times are in milliseconds.
type queueModel struct {
	pods []*modelPod
	now  int64
	next int64 // when those who have waited too long are looked for
}

type modelPod struct {
	name                      string
	priority                  int32
	place                     place
	since, until              int64
	refusals, failures, tries int
	rules                     []string
	heard                     []string // while it is being tried
	gated, held, helped       bool
}

// before is the order of equals in place: of active pods by priority and time, of those in backoff by the second it ends first.
func (m *queueModel) before(a, b *modelPod) int {
	if a.place == isBackoff {
		if c := cmp.Compare(a.until, b.until); c != 0 {
			return c
		}
	}
	return cmp.Or(-cmp.Compare(a.priority, b.priority), cmp.Compare(a.since, b.since))
}

func (m *queueModel) in(places ...place) (all []*modelPod) {
	for _, p := range m.pods {
		if slices.Contains(places, p.place) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, m.before)
	return all
}

func (m *queueModel) String() string {
	var parts []string
	for _, place := range []struct {
		name string
		of   place
	}{{"active", isActive}, {"backoff", isBackoff}, {"waiting", isWaiting}, {"flying", isFlying}} {
		var names, erred []string
		for _, p := range m.in(place.of) {
			name := p.name
			if p.gated {
				name += "*"
			}
			if p.held {
				name += "#"
			}
			if place.of == isBackoff && len(p.rules) == 0 {
				erred = append(erred, name+"!")
			} else {
				names = append(names, name)
			}
		}
		if place.of == isWaiting || place.of == isFlying {
			slices.Sort(names)
		}
		if names = append(names, erred...); len(names) > 0 {
			parts = append(parts, place.name+"["+strings.Join(names, " ")+"]")
		}
	}
	return strings.Join(parts, " ")
}

func (m *queueModel) wake(p *modelPod) {
	switch {
	case p.held:
		p.helped, p.place = true, isWaiting
	case p.until > m.now:
		p.place = isBackoff
	default:
		p.place = isActive
	}
}

func (m *queueModel) pop() *modelPod {
	if m.now >= m.next {
		m.next = m.now + 30000
		for _, p := range m.in(isWaiting) {
			if !p.gated && m.now-p.since > 300000 {
				m.wake(p)
			}
		}
	}
	var first *modelPod
	for _, p := range m.in(isBackoff) {
		if p.until <= m.now {
			p.place = isActive
		} else if first == nil && len(p.rules) > 0 {
			first = p
		}
	}
	if active := m.in(isActive); len(active) > 0 {
		first = active[0]
	}
	if first != nil {
		first.place, first.heard = isFlying, nil
		first.tries++
	}
	return first
}

func (m *queueModel) back(p *modelPod, rules []string) {
	tries := 0
	if p.rules = rules; len(rules) == 0 {
		p.failures++
		tries = p.failures
	} else {
		p.refusals++
		p.failures = 0
		tries = p.refusals
	}
	p.since = m.now
	wait := int64(1000)
	for range tries - 1 {
		wait = min(2*wait, 10000)
	}
	p.until = (m.now + wait + 999) / 1000 * 1000
	switch {
	case len(rules) == 0:
		p.place = isBackoff
	case slices.ContainsFunc(p.heard, func(rule string) bool { return slices.Contains(rules, rule) }):
		m.wake(p)
	default:
		p.place = isWaiting
	}
}

// happens tells of a change that helps those a rule has refused.
func (m *queueModel) happens(rule string) {
	for _, p := range m.in(isWaiting, isFlying) {
		if p.place == isFlying {
			p.heard = append(p.heard, rule)
		} else if !p.gated && slices.Contains(p.rules, rule) {
			m.wake(p)
		}
	}
}

// TestQueueEqualsModel does random things to a queue and to the model of it.
func TestQueueEqualsModel(t *testing.T) {
	helping := map[string]Event{nodeNameName: aNodeCame, nodeResourcesFitName: aPodWent, interPodAffinityName: aPodCame}
	rules := []string{nodeNameName, nodeResourcesFitName, interPodAffinityName}
	seen := map[string]int{}
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 7))
		m, w := &queueModel{now: 1000000}, newQueueStory(t)
		step := func(name string) {
			seen[name]++
			if got, want := placesOf(w.q), m.String(); got != want {
				t.Fatalf("seed %d, after %s at %d: %s, want %s", seed, name, m.now, got, want)
			}
		}
		for i := range 400 {
			m.now += 1 + random.Int64N(300)
			if random.IntN(60) == 0 {
				m.now += 330000
			}
			w.now = time.UnixMilli(m.now)
			someone := func(places ...place) (*modelPod, *queued) {
				all := m.in(places...)
				if len(all) == 0 {
					return nil, nil
				}
				p := all[random.IntN(len(all))]
				return p, w.q.all[types.UID(p.name)]
			}
			switch k := random.IntN(12); {
			case k < 2:
				p := &modelPod{name: fmt.Sprint("p", i), priority: random.Int32N(3), since: m.now, place: isActive}
				pod := queueModelPod(p)
				if random.IntN(8) == 0 {
					p.place, p.gated = isWaiting, true
					gatedBy("x")(pod)
				}
				m.pods = append(m.pods, p)
				w.q.Add(infoOf(t, pod), w.now)
				step("add")
			case k < 6:
				p := m.pop()
				got, _ := w.q.Pop(w.now)
				if (p == nil) != (got == nil) || p != nil && (got.info.Pod.Name != p.name || got.attempts != p.tries) {
					t.Fatalf("seed %d: popped %+v, want %+v", seed, got, p)
				}
				step("pop")
			case k < 9:
				p, real := someone(isFlying)
				if p == nil {
					continue
				}
				var by []string
				for _, rule := range rules {
					if random.IntN(3) == 0 {
						by = append(by, rule)
					}
				}
				if random.IntN(4) == 0 && len(by) > 0 {
					p.held, p.helped = true, false
					w.q.Hold(real)
				}
				m.back(p, by)
				w.q.Return(w.s, real, by, w.now)
				step("return")
			case k == 9:
				rule := rules[random.IntN(len(rules))]
				m.happens(rule)
				w.happens(helping[rule])
				step("change")
			case k == 10:
				p, _ := someone(isActive, isBackoff, isWaiting, isFlying)
				if p == nil {
					continue
				}
				if random.IntN(2) == 0 || !p.gated {
					m.pods = slices.DeleteFunc(m.pods, func(other *modelPod) bool { return other == p })
					w.q.Delete(types.UID(p.name))
					step("delete")
					continue
				}
				p.gated, p.place = false, isActive
				w.update(testPod(p.name, gatedBy("x")), queueModelPod(p))
				step("open gates")
			case k == 11:
				p, _ := someone(isWaiting)
				if p == nil || !p.held {
					continue
				}
				retry := random.IntN(3) == 0
				p.held = false
				switch {
				case retry:
					p.place = isActive
				case p.helped:
					m.wake(p)
				}
				w.q.Release(types.UID(p.name), w.now, retry)
				step("release")
			}
		}
	}
	for _, what := range []string{"add", "pop", "return", "change", "delete", "open gates", "release"} {
		if seen[what] < 50 {
			t.Errorf("%s happened %d times only", what, seen[what])
		}
	}
}

// queueModelPod is a pod that each of the changes helps past one rule only: no node is large enough for it, and none has racks.
func queueModelPod(p *modelPod) *corev1.Pod {
	return testPod(p.name, priority(p.priority), asksCPU("9"), func(pod *corev1.Pod) {
		affinityOf(pod).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{podTermOf("rack", nil)}}
	})
}
