package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// Metrics counts what a scheduler does, under upstream's names and labels. A nil Metrics counts nothing.
type Metrics struct {
	registry                         prometheus.Registerer
	attempts, incoming               *prometheus.CounterVec
	preemptions                      prometheus.Counter
	attemptDuration, untilBound      *prometheus.HistogramVec
	points, rules                    *prometheus.HistogramVec
	algorithm, triesPerPod, victims  prometheus.Histogram
	pending, cached, refusing, flows *prometheus.Desc
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
		points: histogram("scheduler_framework_extension_point_duration_seconds",
			"Latency for running all plugins of a specific extension point.", doubling(0.0001, 2, 12), "extension_point", "status", "profile"),
		rules: histogram("scheduler_plugin_execution_duration_seconds",
			"Duration for running a plugin at a specific extension point.", doubling(0.00001, 1.5, 20), "plugin", "extension_point", "status"),
		algorithm:   plain("scheduler_scheduling_algorithm_duration_seconds", "Scheduling algorithm latency in seconds", doubling(0.001, 2, 15)),
		triesPerPod: plain("scheduler_pod_scheduling_attempts", "Number of attempts to successfully schedule a pod.", doubling(1, 2, 5)),
		victims:     plain("scheduler_preemption_victims", "Number of selected preemption victims for preemption initiated by a single pod", doubling(1, 2, 7)),
		pending: prometheus.NewDesc("scheduler_pending_pods",
			"Number of pending pods, by the queue type: active, backoff, unschedulable (tried in vain) and gated (never tried, because of scheduling gates).", []string{"queue"}, nil),
		cached: prometheus.NewDesc("scheduler_cache_size", "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", []string{"type"}, nil),
		refusing: prometheus.NewDesc("scheduler_unschedulable_pods",
			"The number of unschedulable pods broken down by plugin name. A pod counts for all plugins that caused it to not schedule.", []string{"plugin", "profile"}, nil),
		flows: prometheus.NewDesc("scheduler_goroutines", "Number of running goroutines split by the work they do such as binding.", []string{"operation"}, nil),
	}
	for _, c := range []prometheus.Collector{m.attempts, m.incoming, m.preemptions, m.attemptDuration, m.untilBound, m.points, m.rules, m.algorithm, m.triesPerPod, m.victims} {
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
	queues := map[place]string{isActive: "active", isBackoff: "backoff", isWaiting: "unschedulable"}
	s.queue.came = func(to place, gated bool, event string) {
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
	for _, d := range []*prometheus.Desc{m.pending, m.cached, m.refusing, m.flows} {
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
	for _, p := range s.queue.waiting {
		if p.gated || p.incomplete {
			gated++
		}
		for _, rule := range p.rules {
			refused[refuser{rule, p.info.Pod.Spec.SchedulerName}]++
		}
	}
	tell(m.pending, active, "active")
	tell(m.pending, backoff, "backoff")
	tell(m.pending, waiting-gated, "unschedulable")
	tell(m.pending, gated, "gated")
	for r, n := range refused {
		tell(m.refusing, n, r.rule, r.profile)
	}
	assumed := 0
	for _, p := range s.snapshot.pods {
		if p.assumed {
			assumed++
		}
	}
	tell(m.cached, s.snapshot.count, "nodes")
	tell(m.cached, len(s.snapshot.pods), "pods")
	tell(m.cached, assumed, "assumed_pods")
	tell(m.flows, len(s.inFlight), "binding")
}

// The results of a try.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// tried counts the end of a try that began at a time.
func (m *Metrics) tried(pod *corev1.Pod, err error, began time.Time) {
	if m == nil {
		return
	}
	result := resultScheduled
	if err != nil {
		if result = resultError; IsUnschedulable(err) {
			result = resultUnschedulable
		}
	}
	m.attempts.WithLabelValues(result, pod.Spec.SchedulerName).Inc()
	m.attemptDuration.WithLabelValues(result, pod.Spec.SchedulerName).Observe(time.Since(began).Seconds())
}

// bound counts a pod that has got its node.
func (m *Metrics) bound(p *queued, began time.Time) {
	if m == nil {
		return
	}
	m.tried(p.info.Pod, nil, began)
	m.triesPerPod.Observe(float64(p.attempts))
	label := "15+"
	if p.attempts < 15 {
		label = strconv.Itoa(p.attempts)
	}
	m.untilBound.WithLabelValues(label).Observe(time.Since(p.firstTry).Seconds())
}

func (m *Metrics) preempted(way *Preemption) {
	if m == nil {
		return
	}
	m.preemptions.Inc()
	if way != nil {
		m.victims.Observe(float64(len(way.Victims)))
	}
}

// timed measures a step of a try from now on until the function it returns is called with the step's outcome.
func (m *Metrics) timed(point string, profile *Profile) func(error) {
	if m == nil {
		return func(error) {}
	}
	began := time.Now()
	return func(err error) {
		m.points.WithLabelValues(point, statusOf(err), profile.Name).Observe(time.Since(began).Seconds())
	}
}

// timeRules makes Schedule measure the rules it asks about one pod.
func (m *Metrics) timeRules(s *Snapshot) {
	if m == nil {
		return
	}
	s.timed = func(rule, point string) func(*Refusal) {
		began := time.Now()
		return func(r *Refusal) {
			m.rules.WithLabelValues(rule, point, r.status()).Observe(time.Since(began).Seconds())
		}
	}
}

// status is how upstream names what a rule says.
func (r *Refusal) status() string {
	switch {
	case r == nil:
		return "Success"
	case r.Err != nil:
		return "Error"
	case r.Unresolvable:
		return "UnschedulableAndUnresolvable"
	}
	return "Unschedulable"
}

// statusOf is how upstream names an outcome.
func statusOf(err error) string {
	var fit *FitError
	switch {
	case err == nil:
		return "Success"
	case errors.As(err, &fit), errors.Is(err, ErrNoNodes), errors.Is(err, ErrHopeless):
		return "Unschedulable"
	}
	return "Error"
}
