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
