package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// numbers reads what a registry has: "name{label=value,...}" and the value, or the count of a histogram.
func numbers(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := strings.TrimPrefix(family.GetName(), "scheduler_") + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.Counter != nil:
				all[name] = m.Counter.GetValue()
			case m.Gauge != nil:
				all[name] = m.Gauge.GetValue()
			case m.Histogram != nil:
				all[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return all
}

// A life of pods, and what is counted of it.
func TestMetrics(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		f.notify(func() {
			f.scheduler.metrics = metrics
			if err := metrics.observe(f.scheduler); err != nil {
				t.Error(err)
			}
			decision.SetOptions(f.scheduler.snapshot, decision.Options{Timed: metrics.pluginTimer()})
		})
		f.addNode(schedulertest.TestNode("a"))
		f.addPod(schedulertest.TestPod("weak", schedulertest.RequestingCPU("3")))
		f.pass(time.Second)
		f.addPod(schedulertest.TestPod("strong", schedulertest.RequestingCPU("3"), schedulertest.Priority(10)))
		f.addPod(schedulertest.TestPod("giant", schedulertest.RequestingCPU("30")))
		f.addPod(schedulertest.TestPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }))
		f.pass(time.Minute)
		f.refuse = func(pod *corev1.Pod, _ string) error {
			if pod.Name == "unlucky" && f.bound["unlucky"] == 0 {
				f.bound["unlucky"] = -1
				return errors.New("out of order")
			}
			return nil
		}
		f.addPod(schedulertest.TestPod("unlucky", schedulertest.RequestingCPU("100m")))
		f.pass(time.Minute)
		got := numbers(t, registry)
		for name, want := range map[string]float64{
			"schedule_attempts_total{profile=default-scheduler,result=scheduled}":   3,
			"schedule_attempts_total{profile=default-scheduler,result=error}":       1,
			"pending_pods{queue=active}":                                            0,
			"pending_pods{queue=backoff}":                                           0,
			"pending_pods{queue=unschedulable}":                                     1,
			"pending_pods{queue=gated}":                                             1,
			"unschedulable_pods{plugin=NodeResourcesFit,profile=default-scheduler}": 1,
			"unschedulable_pods{plugin=SchedulingGates,profile=default-scheduler}":  1,
			"cache_size{type=nodes}":                                                1,
			"cache_size{type=pods}":                                                 2,
			"cache_size{type=assumed_pods}":                                         0,
			"goroutines{operation=binding}":                                         0,
			"preemption_victims{}":                                                  1,
			"pod_scheduling_attempts{}":                                             3,
			"pod_scheduling_sli_duration_seconds{attempts=1}":                       1,
			"pod_scheduling_sli_duration_seconds{attempts=2}":                       2,
			"queue_incoming_pods_total{event=UnscheduledPodAdd,queue=active}":       4,
			"queue_incoming_pods_total{event=UnscheduledPodAdd,queue=gated}":        1,
			"framework_extension_point_duration_seconds{extension_point=Bind,profile=default-scheduler,status=Success}": 3,
			"framework_extension_point_duration_seconds{extension_point=Bind,profile=default-scheduler,status=Error}":   1,
		} {
			if value, there := got[name]; !there || value != want {
				t.Errorf("%s is %v, want %v", name, value, want)
			}
		}
		for _, name := range []string{
			"schedule_attempts_total{profile=default-scheduler,result=unschedulable}", "scheduling_attempt_duration_seconds{profile=default-scheduler,result=unschedulable}",
			"scheduling_algorithm_duration_seconds{}", "preemption_attempts_total{}", "queue_incoming_pods_total{event=ScheduleAttemptFailure,queue=unschedulable}",
			"framework_extension_point_duration_seconds{extension_point=PostFilter,profile=default-scheduler,status=Unschedulable}",
			"plugin_execution_duration_seconds{extension_point=PreFilter,plugin=TaintToleration,status=Success}",
			"plugin_execution_duration_seconds{extension_point=PreScore,plugin=NodeResourcesFit,status=Success}",
		} {
			if got[name] == 0 {
				t.Errorf("%s is missing among %v", name, got)
			}
		}
	})
}

func TestMetricsAreOptional(t *testing.T) {
	var none *Metrics
	if err := none.observe(nil); err != nil {
		t.Error(err)
	}
	if none.pluginTimer() != nil {
		t.Error("plugins are timed")
	}
	none.attempted(nil, nil, time.Time{})
	none.bound(nil, time.Time{})
	none.preempted(nil)
	none.timed("Bind", nil)(nil)
	registry := prometheus.NewRegistry()
	if _, err := NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := NewMetrics(registry); err == nil {
		t.Error("the same metrics were registered twice")
	}
}

func TestEventLabels(t *testing.T) {
	for want, e := range map[string]plugins.Event{
		"NodeAdd":                {Resource: plugins.NodeResource, Action: plugins.Add},
		"NodeUpdateNodeTaint":    {Resource: plugins.NodeResource, Action: plugins.UpdateNodeTaint},
		"AssignedPodDelete":      {Resource: plugins.AssignedPod, Action: plugins.Delete},
		"TargetPodUpdate":        {Resource: plugins.TargetPod, Action: plugins.UpdateOther},
		"PersistentVolumeUpdate": {Resource: plugins.PersistentVolumeResource, Action: plugins.UpdateNodeLabel | plugins.UpdateNodeTaint},
	} {
		if got := e.Label(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for want, err := range map[string]error{"Success": nil, "Unschedulable": &decision.FitError{}, "Error": errors.New("x")} {
		if got := statusOf(err); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if statusOf(fmt.Errorf("x: %w", decision.ErrNoNodes)) != "Unschedulable" {
		t.Error("a cluster without nodes is an error")
	}
}

// Names, labels, kinds and buckets are upstream's: dashboards read them.
func TestMetricsAreUpstreams(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newScheduler(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.metrics = metrics
	if err := metrics.observe(s); err != nil {
		t.Fatal(err)
	}
	// Observed twice, as by a scheduler that came after another, nothing is there twice.
	if err := metrics.observe(s); err != nil {
		t.Fatal(err)
	}
	decision.SetOptions(s.snapshot, decision.Options{Timed: metrics.pluginTimer()})
	profile := s.profiles[corev1.DefaultSchedulerName]
	s.nodeAdded(schedulertest.TestNode("a"))
	if _, err := decision.Schedule(s.snapshot, snapshottest.PodInfo(t, schedulertest.TestPod("p")), profile); err != nil {
		t.Fatal(err)
	}
	s.podAdded(schedulertest.TestPod("q"))
	began := time.Now()
	p := &queue.QueuedPod{PodInfo: snapshottest.PodInfo(t, schedulertest.TestPod("p")), Attempts: 2, FirstAttempt: began}
	metrics.bound(p, began)
	metrics.preempted(&plugins.Preemption{Victims: []*corev1.Pod{schedulertest.TestPod("v"), schedulertest.TestPod("w")}})
	metrics.preempted(nil)
	metrics.timed("Bind", profile)(nil)
	waiting := &queue.QueuedPod{PodInfo: snapshottest.PodInfo(t, schedulertest.TestPod("r")), RejectedBy: []string{plugins.NodeResourcesFitName}}
	s.queue.All["r"], s.queue.UnschedulablePods["r"] = waiting, waiting
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	type shape struct {
		kind    string
		labels  string
		buckets int
		first   float64
	}
	got := map[string]shape{}
	for _, family := range families {
		x := shape{kind: family.GetType().String()}
		for _, l := range family.Metric[0].Label {
			x.labels += l.GetName() + " "
		}
		if h := family.Metric[0].Histogram; h != nil {
			x.buckets, x.first = len(h.Bucket), h.Bucket[0].GetUpperBound()
		}
		got[family.GetName()] = x
	}
	want := map[string]shape{
		"scheduler_schedule_attempts_total":                    {"COUNTER", "profile result ", 0, 0},
		"scheduler_queue_incoming_pods_total":                  {"COUNTER", "event queue ", 0, 0},
		"scheduler_plugin_evaluation_total":                    {"COUNTER", "extension_point plugin profile ", 0, 0},
		"scheduler_preemption_attempts_total":                  {"COUNTER", "", 0, 0},
		"scheduler_scheduling_attempt_duration_seconds":        {"HISTOGRAM", "profile result ", 15, 0.001},
		"scheduler_scheduling_algorithm_duration_seconds":      {"HISTOGRAM", "", 15, 0.001},
		"scheduler_pod_scheduling_sli_duration_seconds":        {"HISTOGRAM", "attempts ", 20, 0.01},
		"scheduler_pod_scheduling_attempts":                    {"HISTOGRAM", "", 5, 1},
		"scheduler_preemption_victims":                         {"HISTOGRAM", "", 7, 1},
		"scheduler_framework_extension_point_duration_seconds": {"HISTOGRAM", "extension_point profile status ", 12, 0.0001},
		"scheduler_plugin_execution_duration_seconds":          {"HISTOGRAM", "extension_point plugin status ", 20, 0.00001},
		"scheduler_pending_pods":                               {"GAUGE", "queue ", 0, 0},
		"scheduler_cache_size":                                 {"GAUGE", "type ", 0, 0},
		"scheduler_unschedulable_pods":                         {"GAUGE", "plugin profile ", 0, 0},
		"scheduler_goroutines":                                 {"GAUGE", "operation ", 0, 0},
	}
	for name, x := range want {
		if got[name] != x {
			t.Errorf("%s is %+v, want %+v", name, got[name], x)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s is not one of upstream's that are kept here", name)
	}
	numbers := numbers(t, registry)
	for name, value := range map[string]float64{
		"preemption_attempts_total{}": 2, "preemption_victims{}": 1, "cache_size{type=nodes}": 1, "pending_pods{queue=active}": 1, "pending_pods{queue=unschedulable}": 1,
		"unschedulable_pods{plugin=NodeResourcesFit,profile=default-scheduler}": 1, "pod_scheduling_sli_duration_seconds{attempts=2}": 1,
	} {
		if numbers[name] != value {
			t.Errorf("%s is %v, want %v", name, numbers[name], value)
		}
	}
}

// Many tries are counted together, as upstream does.
func TestTriesAreLabelled(t *testing.T) {
	for tries, label := range map[int]string{1: "1", 2: "2", 14: "14", 15: "15+", 16: "15+", 400: "15+"} {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		metrics.bound(&queue.QueuedPod{PodInfo: snapshottest.PodInfo(t, schedulertest.TestPod("p")), Attempts: tries, FirstAttempt: time.Now()}, time.Now())
		if got := numbers(t, registry); got["pod_scheduling_sli_duration_seconds{attempts="+label+"}"] != 1 || got["schedule_attempts_total{profile=default-scheduler,result=scheduled}"] != 1 {
			t.Errorf("%d tries: %v", tries, got)
		}
	}
}

// The result of a try is one of three words.
func TestResultsOfTries(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, "scheduled"}, {&decision.FitError{}, "unschedulable"}, {decision.ErrNoNodes, "unschedulable"}, {fmt.Errorf("x: %w", &decision.FitError{}), "unschedulable"}, {errors.New("x"), "error"}, {decision.ErrPreemptionNotHelpful, "error"},
	} {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		metrics.attempted(schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.SchedulerName = "own" }), test.err, time.Now())
		got := numbers(t, registry)
		if got["schedule_attempts_total{profile=own,result="+test.want+"}"] != 1 || got["scheduling_attempt_duration_seconds{profile=own,result="+test.want+"}"] != 1 {
			t.Errorf("%v: %v, want %s", test.err, got, test.want)
		}
	}
}

// Gauges have the current values: pods by location in the queue, by plugin and profile, and in the cache.
func TestGaugesAreAsTheSchedulerIs(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	before, s := newFakeServer(t, nil).scheduler, newFakeServer(t, nil).scheduler
	for _, one := range []*Scheduler{before, s} { // the later takes the earlier's place
		one.metrics = metrics
		if err := metrics.observe(one); err != nil {
			t.Fatal(err)
		}
	}
	before.nodeAdded(schedulertest.TestNode("old"))
	expect := func(what string, want map[string]float64) {
		t.Helper()
		got := numbers(t, registry)
		for name := range got {
			if family, _, _ := strings.Cut(name, "{"); family != "pending_pods" && family != "cache_size" && family != "unschedulable_pods" && family != "goroutines" {
				delete(got, name)
			}
		}
		for _, name := range []string{"pending_pods{queue=active}", "pending_pods{queue=backoff}", "pending_pods{queue=unschedulable}", "pending_pods{queue=gated}", "cache_size{type=nodes}", "cache_size{type=pods}", "cache_size{type=assumed_pods}", "goroutines{operation=binding}"} {
			if _, there := want[name]; !there {
				want[name] = 0
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("at first", map[string]float64{})
	s.nodeAdded(schedulertest.TestNode("a"))
	s.nodeAdded(schedulertest.TestNode("b"))
	s.podAdded(schedulertest.TestPod("runs", schedulertest.OnNode("a")))
	s.podAdded(schedulertest.TestPod("lost", schedulertest.OnNode("ghost"))) // its node is none
	s.snapshot.Assume(snapshottest.PodInfo(t, schedulertest.TestPod("decided")), "b")
	expect("nodes and pods", map[string]float64{"cache_size{type=nodes}": 2, "cache_size{type=pods}": 3, "cache_size{type=assumed_pods}": 1})
	s.nodeDeleted(schedulertest.TestNode("b"))
	expect("a node less", map[string]float64{"cache_size{type=nodes}": 1, "cache_size{type=pods}": 3, "cache_size{type=assumed_pods}": 1})
	s.podAdded(schedulertest.TestPod("decided", schedulertest.OnNode("b")))
	wait := func(name, profile string, change func(*queue.QueuedPod), rejectedBy ...string) {
		p := &queue.QueuedPod{PodInfo: snapshottest.PodInfo(t, schedulertest.TestPod(name, func(p *corev1.Pod) { p.Spec.SchedulerName = profile })), RejectedBy: rejectedBy, Location: queue.InUnschedulablePods}
		change(p)
		s.queue.All[p.PodInfo.Pod.UID], s.queue.UnschedulablePods[p.PodInfo.Pod.UID] = p, p
	}
	wait("1", "default-scheduler", func(*queue.QueuedPod) {}, plugins.NodeResourcesFitName, plugins.NodeAffinityName)
	wait("2", "default-scheduler", func(*queue.QueuedPod) {}, plugins.NodeResourcesFitName)
	wait("3", "other", func(*queue.QueuedPod) {}, plugins.NodeResourcesFitName)
	wait("4", "other", func(*queue.QueuedPod) {})
	wait("5", "other", func(p *queue.QueuedPod) { p.Gated = true }, "SchedulingGates")
	wait("6", "other", func(p *queue.QueuedPod) { p.WaitsForClaims = true }, plugins.DynamicResourcesName)
	wait("7", "other", func(p *queue.QueuedPod) { p.Gated, p.WaitsForClaims = true, true })
	s.podAdded(schedulertest.TestPod("new"))
	expect("those who wait", map[string]float64{
		"cache_size{type=nodes}": 1, "cache_size{type=pods}": 3, "pending_pods{queue=active}": 1, "pending_pods{queue=unschedulable}": 4, "pending_pods{queue=gated}": 3,
		"unschedulable_pods{plugin=NodeResourcesFit,profile=default-scheduler}": 2, "unschedulable_pods{plugin=NodeAffinity,profile=default-scheduler}": 1,
		"unschedulable_pods{plugin=NodeResourcesFit,profile=other}": 1, "unschedulable_pods{plugin=SchedulingGates,profile=other}": 1, "unschedulable_pods{plugin=DynamicResources,profile=other}": 1,
	})
}

// Pods that come to a place of the queue are counted under its name; those with gates under theirs, wherever they are.
func TestIncomingPods(t *testing.T) {
	for _, test := range []struct {
		to    queue.Location
		gated bool
		want  string
	}{{queue.InActiveQ, false, "active"}, {queue.InBackoffQ, false, "backoff"}, {queue.InUnschedulablePods, false, "unschedulable"}, {queue.InUnschedulablePods, true, "gated"}} {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		s := newFakeServer(t, nil).scheduler
		s.metrics = metrics
		if err := metrics.observe(s); err != nil {
			t.Fatal(err)
		}
		s.queue.OnAdd(test.to, test.gated, "NodeAdd")
		s.queue.OnAdd(test.to, test.gated, "NodeAdd")
		s.queue.OnAdd(test.to, test.gated, "NodeDelete")
		got := numbers(t, registry)
		if got["queue_incoming_pods_total{event=NodeAdd,queue="+test.want+"}"] != 2 || got["queue_incoming_pods_total{event=NodeDelete,queue="+test.want+"}"] != 1 {
			t.Errorf("%v, want them in %s", got, test.want)
		}
	}
}

// Steps are timed from their beginning to their end, under the name of their outcome.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		profile := &plugins.Profile{Name: "own"}
		began := time.Now()
		for i, outcome := range []error{nil, decision.ErrPreemptionNotHelpful, decision.ErrNoNodes, fmt.Errorf("x: %w", &decision.FitError{}), errors.New("x")} {
			done := metrics.timed("Bind", profile)
			time.Sleep(time.Second << i)
			done(outcome)
		}
		for i, r := range []*plugins.Refusal{nil, plugins.Refuse("x", false, "y"), plugins.Refuse("x", true, "y"), {Plugin: "x", Err: errors.New("z")}} {
			done := metrics.pluginTimer()("Rule", "Filter")
			time.Sleep(time.Second << i)
			done(r)
		}
		metrics.bound(&queue.QueuedPod{PodInfo: snapshottest.PodInfo(t, schedulertest.TestPod("p")), Attempts: 3, FirstAttempt: began.Add(-time.Minute)}, time.Now().Add(-2*time.Second))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{} // sums
		for _, family := range families {
			for _, m := range family.Metric {
				name := strings.TrimSuffix(strings.TrimPrefix(family.GetName(), "scheduler_"), "_duration_seconds")
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				if m.Histogram != nil && m.Histogram.GetSampleCount() > 0 {
					got[name] = m.Histogram.GetSampleSum()
				}
			}
		}
		if want := map[string]float64{
			"framework_extension_point Bind own Success": 1, "framework_extension_point Bind own Unschedulable": 2 + 4 + 8, "framework_extension_point Bind own Error": 16,
			"plugin_execution Filter Rule Success": 1, "plugin_execution Filter Rule Unschedulable": 2, "plugin_execution Filter Rule UnschedulableAndUnresolvable": 4, "plugin_execution Filter Rule Error": 8,
			"scheduling_attempt default-scheduler scheduled": 2, "pod_scheduling_attempts": 3, "pod_scheduling_sli 3": 60 + 31 + 15,
		}; !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
