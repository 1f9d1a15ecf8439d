package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
)

// Metrics counts what a scheduler does, under upstream's names and labels. A nil Metrics counts nothing.
type Metrics struct {
	registry                                      prometheus.Registerer
	attempts, incoming                            *prometheus.CounterVec
	preemptions                                   prometheus.Counter
	attemptDuration, untilBound                   *prometheus.HistogramVec
	extensionPointDuration, pluginDuration        *prometheus.HistogramVec
	algorithm, podAttempts, victims               prometheus.Histogram
	pending, cacheSize, unschedulable, goroutines *prometheus.Desc
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	plain := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	doubling := prometheus.ExponentialBuckets
	m := &Metrics{
		registry: registry,
		attempts: counter("scheduler_schedule_attempts_total",
			"Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.", "result", "profile"),
		incoming:    counter("scheduler_queue_incoming_pods_total", "Number of pods added to scheduling queues by event and queue type.", "queue", "event"),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{Name: "scheduler_preemption_attempts_total", Help: "Total preemption attempts in the cluster till now"}),
		attemptDuration: histogram("scheduler_scheduling_attempt_duration_seconds",
			"Scheduling attempt latency in seconds (scheduling algorithm + binding)", doubling(0.001, 2, 15), "result", "profile"),
		untilBound: histogram("scheduler_pod_scheduling_sli_duration_seconds",
			"E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.", doubling(0.01, 2, 20), "attempts"),
		extensionPointDuration: histogram("scheduler_framework_extension_point_duration_seconds",
			"Latency for running all plugins of a specific extension point.", doubling(0.0001, 2, 12), "extension_point", "status", "profile"),
		pluginDuration: histogram("scheduler_plugin_execution_duration_seconds",
			"Duration for running a plugin at a specific extension point.", doubling(0.00001, 1.5, 20), "plugin", "extension_point", "status"),
		algorithm:   plain("scheduler_scheduling_algorithm_duration_seconds", "Scheduling algorithm latency in seconds", doubling(0.001, 2, 15)),
		podAttempts: plain("scheduler_pod_scheduling_attempts", "Number of attempts to successfully schedule a pod.", doubling(1, 2, 5)),
		victims:     plain("scheduler_preemption_victims", "Number of selected preemption victims for preemption initiated by a single pod", doubling(1, 2, 7)),
		pending: prometheus.NewDesc("scheduler_pending_pods",
			"Number of pending pods, by the queue type: active, backoff, unschedulable (tried in vain) and gated (never tried, because of scheduling gates).", []string{"queue"}, nil),
		cacheSize: prometheus.NewDesc("scheduler_cache_size", "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", []string{"type"}, nil),
		unschedulable: prometheus.NewDesc("scheduler_unschedulable_pods",
			"The number of unschedulable pods broken down by plugin name. A pod counts for all plugins that caused it to not schedule.", []string{"plugin", "profile"}, nil),
		goroutines: prometheus.NewDesc("scheduler_goroutines", "Number of running goroutines split by the work they do such as binding.", []string{"operation"}, nil),
	}
	for _, c := range []prometheus.Collector{m.attempts, m.incoming, m.preemptions, m.attemptDuration, m.untilBound, m.extensionPointDuration, m.pluginDuration, m.algorithm, m.podAttempts, m.victims} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// observe makes a scheduler tell its metrics.
func (m *Metrics) observe(s *Scheduler) error {
	if m == nil {
		return nil
	}
	// A scheduler of another time may have been there.
	m.registry.Unregister(gauges{s})
	if err := m.registry.Register(gauges{s}); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	queues := map[queue.Location]string{queue.InActiveQ: "active", queue.InBackoffQ: "backoff", queue.InUnschedulablePods: "unschedulable"}
	s.queue.OnAdd = func(to queue.Location, gated bool, event string) {
		queue := queues[to]
		if gated {
			queue = "gated"
		}
		m.incoming.WithLabelValues(queue, event).Inc()
	}
	return nil
}

// gauges tells of a scheduler what it is at the moment it is asked.
type gauges struct{ s *Scheduler }

// Describe names the gauges.
func (g gauges) Describe(descriptions chan<- *prometheus.Desc) {
	m := g.s.metrics
	for _, d := range []*prometheus.Desc{m.pending, m.cacheSize, m.unschedulable, m.goroutines} {
		descriptions <- d
	}
}

// Collect counts.
func (g gauges) Collect(values chan<- prometheus.Metric) {
	s, m := g.s, g.s.metrics
	s.mu.Lock()
	defer s.mu.Unlock()
	tell := func(d *prometheus.Desc, n int, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	active, backoff, waiting, _ := s.queue.Len()
	gated := 0
	type refuser struct{ rule, profile string }
	refused := map[refuser]int{}
	for _, p := range s.queue.UnschedulablePods {
		if p.Gated || p.WaitsForClaims {
			gated++
		}
		for _, rule := range p.RejectedBy {
			refused[refuser{rule, p.PodInfo.Pod.Spec.SchedulerName}]++
		}
	}
	tell(m.pending, active, "active")
	tell(m.pending, backoff, "backoff")
	tell(m.pending, waiting-gated, "unschedulable")
	tell(m.pending, gated, "gated")
	for r, n := range refused {
		tell(m.unschedulable, n, r.rule, r.profile)
	}
	assumed := 0
	for _, p := range s.snapshot.PodEntries {
		if p.Assumed {
			assumed++
		}
	}
	tell(m.cacheSize, s.snapshot.NodeCount, "nodes")
	tell(m.cacheSize, len(s.snapshot.PodEntries), "pods")
	tell(m.cacheSize, assumed, "assumed_pods")
	tell(m.goroutines, len(s.inFlight), "binding")
}

// The results of a try.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// attempted counts the end of a try that began at a time.
func (m *Metrics) attempted(pod *corev1.Pod, err error, began time.Time) {
	if m == nil {
		return
	}
	result := resultScheduled
	if err != nil {
		if result = resultError; decision.IsUnschedulable(err) {
			result = resultUnschedulable
		}
	}
	m.attempts.WithLabelValues(result, pod.Spec.SchedulerName).Inc()
	m.attemptDuration.WithLabelValues(result, pod.Spec.SchedulerName).Observe(time.Since(began).Seconds())
}

// bound counts a pod that has got its node.
func (m *Metrics) bound(p *queue.QueuedPod, began time.Time) {
	if m == nil {
		return
	}
	m.attempted(p.PodInfo.Pod, nil, began)
	m.podAttempts.Observe(float64(p.Attempts))
	label := "15+"
	if p.Attempts < 15 {
		label = strconv.Itoa(p.Attempts)
	}
	m.untilBound.WithLabelValues(label).Observe(time.Since(p.FirstAttempt).Seconds())
}

func (m *Metrics) preempted(way *plugins.Preemption) {
	if m == nil {
		return
	}
	m.preemptions.Inc()
	if way != nil {
		m.victims.Observe(float64(len(way.Victims)))
	}
}

// timed measures a step of a try from now on until the function it returns is called with the step's outcome.
func (m *Metrics) timed(point string, profile *plugins.Profile) func(error) {
	if m == nil {
		return func(error) {}
	}
	began := time.Now()
	return func(err error) {
		m.extensionPointDuration.WithLabelValues(point, statusOf(err), profile.Name).Observe(time.Since(began).Seconds())
	}
}

// pluginTimer measures plugins; nil when nothing is counted.
func (m *Metrics) pluginTimer() func(plugin, extensionPoint string) func(*plugins.Refusal) {
	if m == nil {
		return nil
	}
	return func(plugin, extensionPoint string) func(*plugins.Refusal) {
		began := time.Now()
		return func(r *plugins.Refusal) {
			m.pluginDuration.WithLabelValues(plugin, extensionPoint, r.Status()).Observe(time.Since(began).Seconds())
		}
	}
}

// statusOf is how upstream names an outcome.
func statusOf(err error) string {
	var fit *decision.FitError
	switch {
	case err == nil:
		return "Success"
	case errors.As(err, &fit), errors.Is(err, decision.ErrNoNodes), errors.Is(err, decision.ErrPreemptionNotHelpful):
		return "Unschedulable"
	}
	return "Error"
}
