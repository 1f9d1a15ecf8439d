package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
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
	story(t, nil, func(f *fakeServer) {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		f.tell(func() {
			f.scheduler.metrics = metrics
			if err := metrics.observe(f.scheduler); err != nil {
				t.Error(err)
			}
			metrics.timeRules(f.scheduler.snapshot)
		})
		f.addNode(testNode("a"))
		f.addPod(testPod("weak", asksCPU("3")))
		f.pass(time.Second)
		f.addPod(testPod("strong", asksCPU("3"), priority(10)))
		f.addPod(testPod("giant", asksCPU("30")))
		f.addPod(testPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }))
		f.pass(time.Minute)
		f.refuse = func(pod *corev1.Pod, _ string) error {
			if pod.Name == "unlucky" && f.bound["unlucky"] == 0 {
				f.bound["unlucky"] = -1
				return errors.New("out of order")
			}
			return nil
		}
		f.addPod(testPod("unlucky", asksCPU("100m")))
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
	none.timeRules(nil)
	none.tried(nil, nil, time.Time{})
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
	for want, e := range map[string]Event{
		"NodeAdd":                {Resource: NodeResource, Action: Add},
		"NodeUpdateNodeTaint":    {Resource: NodeResource, Action: UpdateNodeTaint},
		"AssignedPodDelete":      {Resource: AssignedPod, Action: Delete},
		"TargetPodUpdate":        {Resource: TargetPod, Action: updateOther},
		"PersistentVolumeUpdate": {Resource: PersistentVolumeResource, Action: UpdateNodeLabel | UpdateNodeTaint},
	} {
		if got := e.label(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for want, err := range map[string]error{"Success": nil, "Unschedulable": &FitError{}, "Error": errors.New("x")} {
		if got := statusOf(err); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if statusOf(fmt.Errorf("x: %w", ErrNoNodes)) != "Unschedulable" {
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
	metrics.timeRules(s.snapshot)
	profile := s.profiles[corev1.DefaultSchedulerName]
	s.nodeAdded(testNode("a"))
	if _, err := Schedule(s.snapshot, infoOf(t, testPod("p")), profile); err != nil {
		t.Fatal(err)
	}
	s.podAdded(testPod("q"))
	began := time.Now()
	p := &queued{info: infoOf(t, testPod("p")), attempts: 2, firstTry: began}
	metrics.bound(p, began)
	metrics.preempted(&Preemption{Victims: []*corev1.Pod{testPod("v"), testPod("w")}})
	metrics.preempted(nil)
	metrics.timed("Bind", profile)(nil)
	waiting := &queued{info: infoOf(t, testPod("r")), rules: []string{nodeResourcesFitName}}
	s.queue.all["r"], s.queue.waiting["r"] = waiting, waiting
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
		metrics.bound(&queued{info: infoOf(t, testPod("p")), attempts: tries, firstTry: time.Now()}, time.Now())
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
		{nil, "scheduled"}, {&FitError{}, "unschedulable"}, {ErrNoNodes, "unschedulable"}, {fmt.Errorf("x: %w", &FitError{}), "unschedulable"}, {errors.New("x"), "error"}, {ErrHopeless, "error"},
	} {
		registry := prometheus.NewRegistry()
		metrics, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		metrics.tried(testPod("p", func(p *corev1.Pod) { p.Spec.SchedulerName = "own" }), test.err, time.Now())
		got := numbers(t, registry)
		if got["schedule_attempts_total{profile=own,result="+test.want+"}"] != 1 || got["scheduling_attempt_duration_seconds{profile=own,result="+test.want+"}"] != 1 {
			t.Errorf("%v: %v, want %s", test.err, got, test.want)
		}
	}
}
