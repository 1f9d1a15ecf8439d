package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"skiff/internal/claimmetrics"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
)

// Metrics counts what a scheduler does, under upstream's names and labels. A nil Metrics counts nothing.
type Metrics struct {
	registry                                      prometheus.Registerer
	attempts, incoming, evaluations               *prometheus.CounterVec
	preemptions                                   prometheus.Counter
	attemptDuration, untilBound                   *prometheus.HistogramVec
	extensionPointDuration, pluginDuration        *prometheus.HistogramVec
	algorithm, podAttempts, victims               prometheus.Histogram
	pending, cacheSize, unschedulable, goroutines *prometheus.Desc
	evaluated                                     map[*plugins.Profile]profileEvaluations
	claimCreates                                  *claimmetrics.Creates
}

// profileEvaluations are the counters of the plugins of a profile that evaluate every pod that is scheduled.
type profileEvaluations struct{ filter, score []prometheus.Counter }

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
		incoming: counter("scheduler_queue_incoming_pods_total", "Number of pods added to scheduling queues by event and queue type.", "queue", "event"),
		evaluations: counter("scheduler_plugin_evaluation_total",
			"Number of attempts to schedule pods by each plugin and the extension point (Filter and Score). A plugin evaluates all nodes at once.",
			"plugin", "extension_point", "profile"),
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
	for _, c := range []prometheus.Collector{m.attempts, m.incoming, m.evaluations, m.preemptions, m.attemptDuration, m.untilBound, m.extensionPointDuration, m.pluginDuration, m.algorithm, m.podAttempts, m.victims} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	var err error
	m.claimCreates, err = claimmetrics.NewCreates(registry)
	return m, err
}

// claimCreated counts a request that creates the claim for the extended resources of a pod.
func (m *Metrics) claimCreated(claim *resourcev1.ResourceClaim, err error) {
	if m != nil {
		m.claimCreates.Count(claim, err)
	}
}

// observe registers the gauges of a scheduler and counts the pods it queues.
func (m *Metrics) observe(s *Scheduler) error {
	if m == nil {
		return nil
	}
	// An earlier scheduler of this process may have registered its gauges.
	m.registry.Unregister(gauges{s})
	if err := m.registry.Register(gauges{s}); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	m.evaluated = map[*plugins.Profile]profileEvaluations{}
	for _, profile := range s.profiles {
		m.evaluated[profile] = m.evaluationsOf(profile)
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

func (m *Metrics) evaluationsOf(profile *plugins.Profile) (all profileEvaluations) {
	for _, name := range profile.FilterNames() {
		all.filter = append(all.filter, m.evaluations.WithLabelValues(name, "Filter", profile.Name))
	}
	for _, scorer := range profile.Scorers {
		all.score = append(all.score, m.evaluations.WithLabelValues(scorer.Plugin.Name(), "Score", profile.Name))
	}
	for name, weight := range map[string]int64{plugins.PodTopologySpreadName: profile.SpreadWeight, plugins.InterPodAffinityName: profile.AffinityWeight} {
		if weight > 0 {
			all.score = append(all.score, m.evaluations.WithLabelValues(name, "Score", profile.Name))
		}
	}
	return all
}

// decided counts the decision about a pod: how long it took, and the plugins that evaluated the pod.
func (m *Metrics) decided(profile *plugins.Profile, err error, took time.Duration) {
	if m == nil {
		return
	}
	m.algorithm.Observe(took.Seconds())
	m.extensionPointDuration.WithLabelValues("Filter", statusOf(err), profile.Name).Observe(took.Seconds())
	evaluated := m.evaluated[profile]
	for _, counter := range evaluated.filter {
		counter.Inc()
	}
	if err == nil {
		for _, counter := range evaluated.score {
			counter.Inc()
		}
	}
}

// gauges collects the current state of a scheduler.
type gauges struct{ s *Scheduler }

// Describe names the gauges.
func (g gauges) Describe(descriptions chan<- *prometheus.Desc) {
	m := g.s.metrics
	for _, d := range []*prometheus.Desc{m.pending, m.cacheSize, m.unschedulable, m.goroutines} {
		descriptions <- d
	}
}

// Collect sends the current values.
func (g gauges) Collect(values chan<- prometheus.Metric) {
	s, m := g.s, g.s.metrics
	s.mu.Lock()
	defer s.mu.Unlock()
	send := func(d *prometheus.Desc, n int, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	active, backoff, waiting, _ := s.queue.Len()
	gated := 0
	type rejection struct{ plugin, profile string }
	rejections := map[rejection]int{}
	for _, p := range s.queue.UnschedulablePods {
		if p.Gated || p.WaitsForClaims {
			gated++
		}
		for _, plugin := range p.RejectedBy {
			rejections[rejection{plugin, p.PodInfo.Pod.Spec.SchedulerName}]++
		}
	}
	send(m.pending, active, "active")
	send(m.pending, backoff, "backoff")
	send(m.pending, waiting-gated, "unschedulable")
	send(m.pending, gated, "gated")
	for r, n := range rejections {
		send(m.unschedulable, n, r.plugin, r.profile)
	}
	assumed := 0
	for _, p := range s.snapshot.PodEntries {
		if p.Assumed {
			assumed++
		}
	}
	send(m.cacheSize, s.snapshot.NodeCount, "nodes")
	send(m.cacheSize, len(s.snapshot.PodEntries), "pods")
	send(m.cacheSize, assumed, "assumed_pods")
	send(m.goroutines, len(s.inFlight), "binding")
}

// The results of a scheduling attempt.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// attempted counts a scheduling attempt that began at a time.
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

// bound counts a pod that has been bound.
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

func (m *Metrics) preempted(best *plugins.Preemption) {
	if m == nil {
		return
	}
	m.preemptions.Inc()
	if best != nil {
		m.victims.Observe(float64(len(best.Victims)))
	}
}

// timed measures an extension point from now on until the function it returns is called with the result.
func (m *Metrics) timed(point string, profile *plugins.Profile) func(error) {
	if m == nil {
		return func(error) {}
	}
	began := time.Now()
	return func(err error) {
		m.extensionPointDuration.WithLabelValues(point, statusOf(err), profile.Name).Observe(time.Since(began).Seconds())
	}
}

// pluginTimer measures the execution of plugins; it is nil when m is.
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

// statusOf is upstream's name of a result.
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
