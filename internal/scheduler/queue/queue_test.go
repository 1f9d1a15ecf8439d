package queue

import (
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestQueue(t *testing.T) {
	const fit, byName, byTaint = plugins.NodeResourcesFitName, plugins.NodeNameName, plugins.TaintTolerationName
	for name, tell := range map[string]func(w *queueTest){
		// Order.
		"pods are popped by priority, then by the time they were added": func(w *queueTest) {
			w.add(schedulertest.TestPod("low-1", schedulertest.Priority(1)), schedulertest.TestPod("high", schedulertest.Priority(5)), schedulertest.TestPod("low-2", schedulertest.Priority(1)), schedulertest.TestPod("none"))
			w.is("active[high low-1 low-2 none]")
			w.pop("high", "low-1", "low-2", "none", "")
		},
		"the extreme priorities are ordered": func(w *queueTest) {
			w.add(schedulertest.TestPod("least", schedulertest.Priority(math.MinInt32)), schedulertest.TestPod("minus", schedulertest.Priority(-1)), schedulertest.TestPod("none"), schedulertest.TestPod("zero", schedulertest.Priority(0)), schedulertest.TestPod("most", schedulertest.Priority(math.MaxInt32)))
			w.pop("most", "none", "zero", "minus", "least", "")
		},
		"a retried pod is behind pods added meanwhile": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", byName)
			w.after(time.Millisecond)
			w.add(schedulertest.TestPod("b"))
			w.after(time.Minute)
			w.happens(aNodeCame)
			w.add(schedulertest.TestPod("c"))
			w.is("active[a b c]")
			w.pop("a", "b", "c")
		},
		"an attempt renews the time a pod was added": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.add(schedulertest.TestPod("b"))
			w.after(time.Second)
			w.back("a", byName)
			w.after(time.Minute)
			w.happens(aNodeCame)
			w.is("active[b a]")
		},
		"a retried pod of higher priority is popped first": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.Priority(1)))
			w.refused("a", byName)
			w.add(schedulertest.TestPod("b"))
			w.after(time.Minute)
			w.happens(aNodeCame)
			w.pop("a", "b")
		},
		"a pod added twice is queued once, with its last state": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("a", schedulertest.Labelled("new", "yes")))
			w.is("active[a]")
			w.pop("a", "")
			if w.inFlight["a"].PodInfo.Pod.Labels["new"] != "yes" {
				w.t.Error("the old state is tried")
			}
		},

		// Backoff.
		"a rejected pod is retried after its backoff when an event helps": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.now = time.Unix(1001, 0)
			w.refused("a", byName)
			w.pop("b")
			w.is("waiting[a] inFlight[b]")
			w.happens(aNodeCame)
			w.is("backoff[a] inFlight[b]")
			w.now = time.Unix(1002, 0).Add(-1)
			w.add(schedulertest.TestPod("c"))
			w.now = time.Unix(1002, 0).Add(-1)
			w.pop("c")
			w.is("backoff[a] inFlight[b c]")
			w.now = time.Unix(1002, 0)
			w.add(schedulertest.TestPod("d"))
			w.pop("a", "d")
		},
		"an event after the backoff moves a pod to activeQ": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", byName)
			w.after(2 * time.Second)
			w.happens(aNodeCame)
			w.is("active[a]")
		},
		"a backoff ends at a full second": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.now = time.Unix(1000, 300e6)
			w.pop("a")
			w.back("a")
			w.now = time.Unix(1002, -1)
			w.pop("")
			w.now = time.Unix(1002, 0)
			w.pop("a")
		},
		"pods whose backoff ends within the same second come by priority": func(w *queueTest) {
			w.add(schedulertest.TestPod("low", schedulertest.Priority(1)), schedulertest.TestPod("high", schedulertest.Priority(9)))
			w.now = time.Unix(1000, 900e6)
			w.refused("high", byName)
			w.now = time.Unix(1000, 100e6)
			w.refused("low", byName)
			w.happens(aNodeCame)
			w.is("backoff[high low]")
			w.pop("high", "low")
		},
		"pods whose backoff ends in an earlier second are popped first": func(w *queueTest) {
			w.add(schedulertest.TestPod("low", schedulertest.Priority(1)), schedulertest.TestPod("high", schedulertest.Priority(9)))
			w.pop("high", "low")
			w.now = time.Unix(1000, 900e6)
			w.back("low", byName)
			w.now = time.Unix(1001, 100e6)
			w.back("high", byName)
			w.happens(aNodeCame)
			w.is("backoff[low high]")
			w.pop("low", "high")
		},
		"a pod in backoff is popped early when activeQ is empty": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", byName)
			w.pop("")
			w.happens(aNodeCame)
			w.is("backoff[a]")
			w.pop("a")
			w.is("inFlight[a]")
			w.expectAdded("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "backoff:NodeAdd", "active:PopFromBackoffQ")
		},
		"activeQ is popped before pods of higher priority in backoffQ": func(w *queueTest) {
			w.add(schedulertest.TestPod("high", schedulertest.Priority(9)))
			w.refused("high", byName)
			w.happens(aNodeCame)
			w.add(schedulertest.TestPod("low"))
			w.pop("low", "high")
		},
		"a pod whose attempt failed with an error waits for its whole backoff": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a")
			w.is("backoff[a!]")
			w.happens(aNodeCame)
			w.pop("")
			w.now = time.Unix(1003, 0)
			w.pop("a")
			w.expectAdded("active:UnscheduledPodAdd", "backoff:ScheduleAttemptFailure", "active:BackoffComplete")
		},
		"a pod in error backoff does not keep others from being popped early": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a")
			w.after(5 * time.Second)
			w.add(schedulertest.TestPod("b"))
			w.pop("a", "b")
			w.back("a")
			w.after(time.Second)
			w.back("b", byName)
			w.happens(aNodeCame)
			w.is("backoff[b a!]")
			w.pop("b", "")
		},
		"a maximal backoff of zero disables backoff": func(w *queueTest) {
			w.q = New(w.q.profiles, time.Second, 0)
			w.add(schedulertest.TestPod("a"))
			w.now = time.Unix(1000, 5e6)
			w.refused("a", byName)
			w.happens(aNodeCame)
			w.is("active[a]")
			w.refused("a")
			w.pop("a")
		},
		"a rejection resets the count of errors": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			for range 4 {
				w.after(time.Minute)
				w.refused("a")
			}
			w.now = time.Unix(2000, 0)
			w.refused("a", byName)
			w.happens(aNodeCame)
			w.is("backoff[a]")
			w.add(schedulertest.TestPod("b"))
			w.now = time.Unix(2001, 0)
			w.pop("b", "a")
		},
		"the first error after rejections has the initial backoff": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
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
		"an unschedulable pod is retried after five minutes": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.now = time.Unix(2000, 0)
			w.refused("a", byName)
			w.now = time.Unix(2300, 0)
			w.pop("")
			w.now = time.Unix(2330, 0)
			w.pop("a")
			w.expectAdded("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:UnschedulableTimeout")
		},
		"unschedulable pods are flushed every 30 seconds": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.now = time.Unix(2000, 0)
			w.refused("a", byName)
			w.now = time.Unix(2290, 0)
			w.pop("")
			w.now = time.Unix(2320, -1)
			w.pop("")
			w.now = time.Unix(2320, 0)
			w.pop("a")
		},
		"the five minutes begin again with every attempt": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", byName)
			w.after(4 * time.Minute)
			w.happens(aNodeCame)
			w.refused("a", byName)
			w.after(4 * time.Minute)
			w.pop("")
			w.after(2 * time.Minute)
			w.pop("a")
		},
		"an event without registered hints is not kept": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.pop("a")
			w.happens(plugins.Event{Resource: "Secret", Action: plugins.Add})
			w.happens(plugins.Event{Resource: plugins.CSIDriverResource, Action: plugins.Delete})
			if len(w.q.InFlightEvents) != 0 {
				w.t.Errorf("remembered: %v", w.q.InFlightEvents)
			}
		},
		"an event that helps one of the rejecting plugins moves the pod": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.RequestingCPU("1")))
			w.refused("a", byTaint, fit)
			if !w.happens(aPodWent) {
				w.t.Error("it woke nobody")
			}
			w.is("backoff[a]")
		},
		"an event moves only the pods it may help": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.RequestingCPU("1"), schedulertest.Priority(2)), schedulertest.TestPod("b", schedulertest.RequestingCPU("1"), schedulertest.Priority(1)))
			w.refused("a", fit)
			w.refused("b", fit)
			w.q.MoveToActiveOrBackoff(w.s, aPodWent, w.now, func(p *corev1.Pod) bool { return snapshot.PriorityOf(p) <= 1 })
			w.is("backoff[b] waiting[a]")
		},
		"every event moves a pod rejected by a plugin without hints": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", "Extender")
			w.happens(aPodCame)
			w.is("backoff[a]")
		},
		"every event moves a pod rejected by an extender, also events without registered hints": func(w *queueTest) {
			for _, e := range []plugins.Event{
				{Resource: plugins.NodeResource, Action: plugins.UpdateNodeCondition, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")},
				{Resource: plugins.NodeResource, Action: plugins.UpdateNodeAnnotation, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")},
				{Resource: plugins.CSIDriverResource, Action: plugins.Delete},
				{Resource: plugins.AssignedPod, Action: plugins.UpdateOther, Old: schedulertest.TestPod("x", schedulertest.OnNode("n")), New: schedulertest.TestPod("x", schedulertest.OnNode("n"))},
			} {
				w.q = testQueue()
				w.add(schedulertest.TestPod("a"))
				w.refused("a", "Extender")
				if w.happens(e) {
					w.t.Errorf("without extenders %s is heard", e.Label())
				}
				w.q = testQueue()
				w.q.KeepAllEvents = true // as with extenders
				w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
				w.refused("a", "Extender")
				w.refused("b", byTaint)
				w.happens(e)
				w.is("backoff[a] waiting[b]")
				// Nobody ever looks at what has no name.
				if w.happens(plugins.Event{Action: plugins.Add}) {
					w.t.Error("what is of no kind is heard")
				}
			}
		},
		"every event moves a pod rejected by a custom plugin without hints": func(w *queueTest) {
			profile := plugins.DefaultProfile()
			profile.Filters = append(profile.Filters, silentPlugin{})
			w.q = New(map[string]*plugins.Profile{profile.Name: profile}, time.Second, time.Second)
			w.add(schedulertest.TestPod("a"))
			w.refused("a", "Odd")
			w.happens(plugins.Event{Resource: plugins.CSIDriverResource, Action: plugins.Delete})
			w.is("backoff[a]")
		},
		"every event moves a pod of an unknown profile": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", func(p *corev1.Pod) { p.Spec.SchedulerName = "gone" }))
			w.refused("a", byTaint)
			w.happens(aPodCame)
			w.is("backoff[a]")
		},

		// Being tried.
		"an event during the attempt counts": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.happens(aNodeCame)
			w.back("a", byName)
			w.is("backoff[a]")
			w.expectAdded("active:UnscheduledPodAdd", "backoff:ScheduleAttemptFailure")
		},
		"an event during the attempt that does not help leaves the pod unschedulable": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.RequestingCPU("1")))
			w.pop("a")
			w.happens(aPodCame)
			w.back("a", fit)
			w.is("waiting[a]")
		},
		"an event before the attempt does not count": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.pop("a")
			w.happens(aNodeCame)
			w.pop("b")
			w.back("b", byName)
			w.back("a", byName)
			w.is("backoff[a] waiting[b]")
		},
		"events are dropped when no pod is in flight": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.pop("a", "b")
			w.happens(aNodeCame)
			w.q.Done("a")
			if len(w.q.InFlightEvents) != 1 {
				w.t.Errorf("remembered: %v", w.q.InFlightEvents)
			}
			w.q.Done("b")
			if len(w.q.InFlightEvents) != 0 {
				w.t.Errorf("remembered: %v", w.q.InFlightEvents)
			}
			w.is("")
		},
		"an update of the pod itself during the attempt counts": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.update(schedulertest.TestPod("a"), schedulertest.TestPod("a", schedulertest.ToleratesAll))
			w.back("a", byTaint)
			w.is("backoff[a]")
			if len(w.q.All["a"].PodInfo.Pod.Spec.Tolerations) != 1 {
				w.t.Error("the old state is kept")
			}
		},
		"an update of another pod does not count": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.pop("a", "b")
			w.update(schedulertest.TestPod("b"), schedulertest.TestPod("b", schedulertest.ToleratesAll))
			w.back("a", byTaint)
			w.back("b", byTaint)
			w.is("backoff[b] waiting[a]")
		},
		"a pod deleted during its attempt is not requeued": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.q.Delete("a")
			w.back("a", byName)
			w.is("")
		},
		"a deleted pod does not replace a new one of its name": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.q.Delete("a")
			w.add(schedulertest.TestPod("a"))
			w.back("a", byName)
			w.is("active[a]")
		},
		"attempts are counted and the time of the first is kept": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			first := w.now
			for range 3 {
				w.refused("a", byName)
				w.after(time.Minute)
				w.happens(aNodeCame)
			}
			w.pop("a")
			if p := w.inFlight["a"]; p.Attempts != 4 || !p.FirstAttempt.Equal(first) || !p.addedAt.Equal(time.Unix(1000, 0)) {
				w.t.Errorf("%d tries, the first at %v", p.Attempts, p.FirstAttempt)
			}
		},

		// Updates.
		"an update of a pod in activeQ keeps the order": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.Priority(1)), schedulertest.TestPod("b", schedulertest.Priority(2)), schedulertest.TestPod("c", schedulertest.Priority(3)))
			w.update(schedulertest.TestPod("a", schedulertest.Priority(1)), schedulertest.TestPod("a", schedulertest.Priority(9)))
			w.is("active[a c b]")
			w.pop("a", "c", "b")
		},
		"an update of a pod in backoffQ keeps the order": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.Priority(1)), schedulertest.TestPod("b", schedulertest.Priority(2)), schedulertest.TestPod("c", schedulertest.Priority(3)))
			w.pop("c", "b", "a")
			w.happens(aNodeCame)
			for _, name := range []string{"a", "b", "c"} {
				w.back(name, byName)
			}
			w.update(schedulertest.TestPod("a", schedulertest.Priority(1)), schedulertest.TestPod("a", schedulertest.Priority(9)))
			w.pop("a", "c", "b")
		},
		"an update of a pod in backoff leaves it there": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.refused("a", byTaint, byName)
			w.refused("b")
			w.happens(aNodeCame)
			w.update(schedulertest.TestPod("a"), schedulertest.TestPod("a", schedulertest.ToleratesAll))
			w.update(schedulertest.TestPod("b"), schedulertest.TestPod("b", schedulertest.ToleratesAll))
			w.is("backoff[a b!]")
			if len(w.q.All["a"].PodInfo.Pod.Spec.Tolerations) != 1 {
				w.t.Error("the old state is kept")
			}
		},
		"an update that helps moves the pod": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", byTaint)
			w.update(schedulertest.TestPod("a"), schedulertest.TestPod("a", schedulertest.ToleratesAll))
			w.is("backoff[a]")
			w.expectAdded("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "backoff:TargetPodUpdatePodToleration")
		},
		"the part of an update that helps is the event": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.RequestingCPU("2")))
			w.refused("a", byTaint)
			w.after(time.Minute)
			w.update(schedulertest.TestPod("a", schedulertest.RequestingCPU("2")), schedulertest.TestPod("a", schedulertest.RequestingCPU("1"), schedulertest.Labelled("x", "y"), schedulertest.ToleratesAll))
			w.expectAdded("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:TargetPodUpdatePodToleration")
		},
		"an update that does not help is stored and the pod stays unschedulable": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.refused("a", byTaint)
			w.update(schedulertest.TestPod("a"), schedulertest.TestPod("a", schedulertest.Labelled("x", "y")))
			w.is("waiting[a]")
			w.expectAdded("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure")
			if w.q.All["a"].PodInfo.Pod.Labels["x"] != "y" {
				w.t.Error("the old state is kept")
			}
		},
		"an update of an unknown pod adds it": func(w *queueTest) {
			w.update(schedulertest.TestPod("a"), schedulertest.TestPod("a", schedulertest.Labelled("x", "y")))
			w.is("active[a]")
			w.expectAdded("active:UnscheduledPodAdd")
		},

		// Gates.
		"a gated pod is unschedulable": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x")))
			w.is("waiting[a*]")
			w.expectAdded("gated:UnscheduledPodAdd")
			w.pop("")
			w.happens(aNodeCame)
			w.happens(aPodWent)
			w.after(time.Hour)
			w.pop("")
			w.is("waiting[a*]")
		},
		"a pod is active when its last gate is removed": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x", "y")))
			w.update(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x", "y")), schedulertest.TestPod("a", schedulertest.WithSchedulingGates("y")))
			w.is("waiting[a*]")
			w.update(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("y")), schedulertest.TestPod("a", schedulertest.WithSchedulingGates("y"), schedulertest.Labelled("l", "v"), schedulertest.ToleratesAll))
			w.is("waiting[a*]")
			w.update(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("y")), schedulertest.TestPod("a", schedulertest.Labelled("l", "v")))
			w.is("active[a]")
			w.expectAdded("gated:UnscheduledPodAdd", "active:TargetPodUpdatePodSchedulingGatesEliminated")
			w.pop("a")
			w.back("a", byName)
			w.is("waiting[a]")
		},
		"a gated pod is rejected by SchedulingGates once": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x")))
			w.update(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x")), schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x"), schedulertest.Labelled("l", "v")))
			if rules := w.q.All["a"].RejectedBy; !slices.Equal(rules, []string{plugins.SchedulingGatesName}) {
				w.t.Errorf("refused by %v", rules)
			}
		},
		"a profile without SchedulingGates ignores gates": func(w *queueTest) {
			profile, err := plugins.NewProfile(&configv1.KubeSchedulerProfile{Plugins: &configv1.Plugins{PreEnqueue: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: plugins.SchedulingGatesName}}}}})
			if err != nil {
				w.t.Fatal(err)
			}
			w.q = New(map[string]*plugins.Profile{profile.Name: profile}, time.Second, time.Second)
			w.add(schedulertest.TestPod("a", schedulertest.WithSchedulingGates("x")))
			w.is("active[a]")
		},

		// Pods held until their preemption is through.
		"a blocked pod is not moved before it is unblocked": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.q.Block(w.inFlight["a"])
			w.back("a", byName)
			w.happens(aNodeCame)
			w.is("waiting[a#]")
			w.pop("")
			w.q.Unblock("a", w.now, false)
			w.is("backoff[a]")
			w.expectAdded("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "backoff:NodeAdd")
		},
		"a blocked pod is not moved by events during its attempt": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.happens(aNodeCame)
			w.q.Block(w.inFlight["a"])
			w.back("a", byName)
			w.is("waiting[a#]")
			w.after(time.Minute)
			w.q.Unblock("a", w.now, false)
			w.is("active[a]")
		},
		"a blocked pod is not moved by the flush or its own update": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.q.Block(w.inFlight["a"])
			w.back("a", byTaint)
			w.after(time.Hour)
			w.pop("")
			w.update(schedulertest.TestPod("a"), schedulertest.TestPod("a", schedulertest.ToleratesAll))
			w.is("waiting[a#]")
			w.q.Unblock("a", w.now, false)
			w.is("active[a]")
			w.expectAdded("active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:TargetPodUpdatePodToleration")
		},
		"a pod unblocked without an event stays unschedulable": func(w *queueTest) {
			w.add(schedulertest.TestPod("a", schedulertest.RequestingCPU("1")))
			w.pop("a")
			w.q.Block(w.inFlight["a"])
			w.back("a", fit)
			w.happens(aPodCame)
			w.q.Unblock("a", w.now, false)
			w.is("waiting[a]")
			w.happens(aPodWent)
			w.is("backoff[a]")
		},
		"an event before the pod was blocked does not count again": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			for range 2 {
				w.pop("a")
				w.q.Block(w.inFlight["a"])
				w.back("a", byName)
				w.happens(aNodeCame)
				w.q.Unblock("a", w.now, false)
			}
			w.pop("a")
			w.q.Block(w.inFlight["a"])
			w.back("a", byName)
			w.q.Unblock("a", w.now, false)
			w.is("waiting[a]")
		},
		"a pod unblocked for a retry does not wait for its backoff": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.pop("a")
			w.q.Block(w.inFlight["a"])
			w.back("a", byName)
			w.q.Unblock("a", w.now, true)
			w.is("active[b a]")
			w.expectAdded("active:UnscheduledPodAdd", "active:UnscheduledPodAdd", "waiting:ScheduleAttemptFailure", "active:ForceActivate")
		},
		"unblocking an unknown or unblocked pod changes nothing": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"), schedulertest.TestPod("b"))
			w.refused("a", byName)
			w.q.Unblock("a", w.now, true)
			w.q.Unblock("b", w.now, true)
			w.q.Unblock("c", w.now, true)
			w.is("active[b] waiting[a]")
		},
		"a blocked pod can be deleted": func(w *queueTest) {
			w.add(schedulertest.TestPod("a"))
			w.pop("a")
			w.q.Block(w.inFlight["a"])
			w.back("a", byName)
			w.q.Delete("a")
			w.q.Unblock("a", w.now, true)
			w.is("")
		},
	} {
		t.Run(name, func(t *testing.T) { tell(newQueueTest(t)) })
	}
}

func TestQueueWakesOnlyPodsAChangeMayHelp(t *testing.T) {
	green := schedulertest.Labelled("color", "green")
	small, big := schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "1")), schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "8"))
	tainted := schedulertest.TestNode("n", schedulertest.Taint("k", "", corev1.TaintEffectNoSchedule))
	tests := map[string]struct {
		pod   *corev1.Pod
		rule  string
		event plugins.Event
		wakes bool
	}{
		"resources: a pod is deleted":                        {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.AssignedPod, plugins.Delete, schedulertest.TestPod("o", schedulertest.OnNode("n")), nil), true},
		"resources: a pod is added":                          {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.AssignedPod, plugins.Add, nil, schedulertest.TestPod("o", schedulertest.OnNode("n"))), false},
		"resources: a large node is added":                   {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.NodeResource, plugins.Add, nil, big), true},
		"resources: a small node is added":                   {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.NodeResource, plugins.Add, nil, small), false},
		"resources: a node has more":                         {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.NodeResource, plugins.UpdateNodeAllocatable, small, big), true},
		"resources: a node gets a label":                     {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.NodeResource, plugins.UpdateNodeLabel, small, big), false},
		"resources: a pod requests less CPU":                 {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.AssignedPod, plugins.UpdatePodScaleDown, schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.RequestingCPU("2")), schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.RequestingCPU("1"))), true},
		"resources: a pod requests less memory":              {schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), plugins.NodeResourcesFitName, eventOf(plugins.AssignedPod, plugins.UpdatePodScaleDown, schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.RequestingMemory("2Gi")), schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.RequestingMemory("1Gi"))), false},
		"taint: removed":                                     {schedulertest.TestPod("p"), plugins.TaintTolerationName, eventOf(plugins.NodeResource, plugins.UpdateNodeTaint, tainted, small), true},
		"taint: a tainted node is added":                     {schedulertest.TestPod("p"), plugins.TaintTolerationName, eventOf(plugins.NodeResource, plugins.Add, nil, tainted), false},
		"unschedulable node: uncordoned":                     {schedulertest.TestPod("p"), plugins.NodeUnschedulableName, eventOf(plugins.NodeResource, plugins.UpdateNodeTaint, schedulertest.TestNode("n", schedulertest.Cordoned), small), true},
		"node affinity: the label is added":                  {schedulertest.TestPod("p", schedulertest.Selecting("a", "b")), plugins.NodeAffinityName, eventOf(plugins.NodeResource, plugins.UpdateNodeLabel, small, schedulertest.TestNode("n", schedulertest.NodeLabel("a", "b"))), true},
		"node affinity: another label is added":              {schedulertest.TestPod("p", schedulertest.Selecting("a", "b")), plugins.NodeAffinityName, eventOf(plugins.NodeResource, plugins.UpdateNodeLabel, small, schedulertest.TestNode("n", schedulertest.NodeLabel("a", "c"))), false},
		"ports: freed":                                       {schedulertest.TestPod("p", schedulertest.Port(80, "", "TCP")), plugins.NodePortsName, eventOf(plugins.AssignedPod, plugins.Delete, schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.Port(80, "", "TCP")), nil), true},
		"ports: another freed":                               {schedulertest.TestPod("p", schedulertest.Port(80, "", "TCP")), plugins.NodePortsName, eventOf(plugins.AssignedPod, plugins.Delete, schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.Port(81, "", "TCP")), nil), false},
		"affinity: a matching pod is added":                  {schedulertest.TestPod("p", schedulertest.WithAffinity(corev1.LabelHostname, "color", "green")), plugins.InterPodAffinityName, eventOf(plugins.AssignedPod, plugins.Add, nil, schedulertest.TestPod("o", schedulertest.OnNode("n"), green)), true},
		"affinity: another pod is added":                     {schedulertest.TestPod("p", schedulertest.WithAffinity(corev1.LabelHostname, "color", "green")), plugins.InterPodAffinityName, eventOf(plugins.AssignedPod, plugins.Add, nil, schedulertest.TestPod("o", schedulertest.OnNode("n"))), false},
		"anti-affinity: a matching pod is deleted":           {schedulertest.TestPod("p", schedulertest.WithAntiAffinity(corev1.LabelHostname, "color", "green")), plugins.InterPodAffinityName, eventOf(plugins.AssignedPod, plugins.Delete, schedulertest.TestPod("o", schedulertest.OnNode("n"), green), nil), true},
		"anti-affinity: a pod whose term matches is deleted": {schedulertest.TestPod("p", green), plugins.InterPodAffinityName, eventOf(plugins.AssignedPod, plugins.Delete, schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "color", "green")), nil), true},
		"anti-affinity: a matching pod changes its label":    {schedulertest.TestPod("p", schedulertest.WithAntiAffinity(corev1.LabelHostname, "color", "green")), plugins.InterPodAffinityName, eventOf(plugins.AssignedPod, plugins.UpdatePodLabel, schedulertest.TestPod("o", schedulertest.OnNode("n"), green), schedulertest.TestPod("o", schedulertest.OnNode("n"), schedulertest.Labelled("color", "red"))), true},
		"spread: a counted pod is deleted":                   {schedulertest.TestPod("p", green, schedulertest.Spread(corev1.LabelHostname, 1, corev1.DoNotSchedule, "color=green")), plugins.PodTopologySpreadName, eventOf(plugins.AssignedPod, plugins.Delete, schedulertest.TestPod("o", schedulertest.OnNode("n"), green), nil), true},
		"spread: another pod is deleted":                     {schedulertest.TestPod("p", green, schedulertest.Spread(corev1.LabelHostname, 1, corev1.DoNotSchedule, "color=green")), plugins.PodTopologySpreadName, eventOf(plugins.AssignedPod, plugins.Delete, schedulertest.TestPod("o", schedulertest.OnNode("n")), nil), false},
		"spread: a node without the key":                     {schedulertest.TestPod("p", green, schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "color=green")), plugins.PodTopologySpreadName, eventOf(plugins.NodeResource, plugins.Add, nil, small), false},
		"spread: a node with the key":                        {schedulertest.TestPod("p", green, schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "color=green")), plugins.PodTopologySpreadName, eventOf(plugins.NodeResource, plugins.Add, nil, schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		"an extender's rejection: any event":                 {schedulertest.TestPod("p"), "Extender", eventOf(plugins.NodeResource, plugins.Add, nil, small), true},
		"an event of a resource without hints":               {schedulertest.TestPod("p"), "Extender", eventOf(plugins.Resource("Secret"), plugins.Add, nil, small), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			q, s, now := testQueue(), snapshot.NewSnapshot(), time.Unix(1000, 0)
			info := snapshottest.PodInfo(t, test.pod)
			q.Add(info, now)
			p, _ := q.Pop(now)
			q.AddUnschedulable(s, p, []string{test.rule}, now)
			if woke := q.MoveToActiveOrBackoff(s, test.event, now, nil); woke != test.wakes {
				t.Errorf("woken: %v, want %v", woke, test.wakes)
			}
			// The same change while the pod is being tried counts just as well.
			q = testQueue()
			q.Add(info, now)
			p, _ = q.Pop(now)
			q.MoveToActiveOrBackoff(s, test.event, now, nil)
			q.AddUnschedulable(s, p, []string{test.rule}, now)
			if waits := p.Location == InUnschedulablePods; waits == test.wakes {
				t.Errorf("the change during the try is lost, or counts in vain: place %d", p.Location)
			}
		})
	}
}
