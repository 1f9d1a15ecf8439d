package controller

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// Metrics are the metrics of the controllers of a process. The names of the workqueue metrics, of running_managed_controllers and of
// leader_election_master_status are upstream's. A nil *Metrics records nothing.
type Metrics struct {
	registry                     prometheus.Registerer
	depth, unfinished, longest   *prometheus.GaugeVec
	adds, retries                *prometheus.CounterVec
	queueDuration, workDuration  *prometheus.HistogramVec
	syncs, skips                 *prometheus.CounterVec
	syncDuration                 *prometheus.HistogramVec
	runningControllers, isLeader *prometheus.GaugeVec
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	queueBuckets := []float64{1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100, 1000}
	m := &Metrics{
		registry:           registry,
		depth:              gauge("workqueue_depth", "Current depth of workqueue", "name"),
		unfinished:         gauge("workqueue_unfinished_work_seconds", "How many seconds of work is in progress and has not been observed by work_duration yet.", "name"),
		longest:            gauge("workqueue_longest_running_processor_seconds", "How many seconds the longest running worker has been processing one key.", "name"),
		adds:               counter("workqueue_adds_total", "Total number of adds handled by workqueue", "name"),
		retries:            counter("workqueue_retries_total", "Total number of retries handled by workqueue", "name"),
		queueDuration:      histogram("workqueue_queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested.", queueBuckets, "name"),
		workDuration:       histogram("workqueue_work_duration_seconds", "How long in seconds processing an item from workqueue takes.", queueBuckets, "name"),
		syncs:              counter("controller_syncs_total", "Total number of syncs, by controller and result.", "controller", "result"),
		skips:              counter("controller_stale_sync_skips_total", "Total number of syncs postponed because the informers had not observed the last write.", "controller"),
		syncDuration:       histogram("controller_sync_duration_seconds", "How long in seconds a sync of a key takes.", prometheus.ExponentialBuckets(0.0001, 4, 10), "controller"),
		runningControllers: gauge("running_managed_controllers", "Indicates where instances of a controller are currently running", "name", "manager"),
		isLeader:           gauge("leader_election_master_status", "1 while this process leads.", "name"),
	}
	for _, c := range []prometheus.Collector{m.depth, m.unfinished, m.longest, m.adds, m.retries, m.queueDuration, m.workDuration,
		m.syncs, m.skips, m.syncDuration, m.runningControllers, m.isLeader} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Register registers the metrics of a single controller. They replace those of an earlier term as leader. Without Metrics it does
// nothing.
func (s *Setup) Register(collectors ...prometheus.Collector) error {
	if s.loop.metrics == nil {
		return nil
	}
	for _, c := range collectors {
		s.loop.metrics.registry.Unregister(c)
		if err := s.loop.metrics.registry.Register(c); err != nil {
			return fmt.Errorf("register metrics of %s: %w", s.loop.definition.Name, err)
		}
	}
	return nil
}

// Registry is for metrics that controllers share with other components; nil without Metrics.
func (s *Setup) Registry() prometheus.Registerer {
	if s.loop.metrics == nil {
		return nil
	}
	return s.loop.metrics.registry
}

func (m *Metrics) synced(controller string, took time.Duration, err error) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	m.syncs.WithLabelValues(controller, result).Inc()
	m.syncDuration.WithLabelValues(controller).Observe(took.Seconds())
}

func (m *Metrics) skipped(controller string) {
	if m != nil {
		m.skips.WithLabelValues(controller).Inc()
	}
}

func (m *Metrics) running(controller string, now bool) {
	if m != nil {
		m.runningControllers.WithLabelValues(controller, "kube-controller-manager").Set(boolToFloat(now))
	}
}

func (m *Metrics) leading(name string, now bool) {
	if m != nil {
		m.isLeader.WithLabelValues(name).Set(boolToFloat(now))
	}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// The methods below implement workqueue.MetricsProvider.

// NewDepthMetric counts the queued keys.
func (m *Metrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return m.depth.WithLabelValues(name)
}

// NewAddsMetric counts the keys added.
func (m *Metrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return m.adds.WithLabelValues(name)
}

// NewLatencyMetric measures how long keys are queued.
func (m *Metrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return m.queueDuration.WithLabelValues(name)
}

// NewWorkDurationMetric measures how long keys are processed.
func (m *Metrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return m.workDuration.WithLabelValues(name)
}

// NewUnfinishedWorkSecondsMetric measures work in progress.
func (m *Metrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.unfinished.WithLabelValues(name)
}

// NewLongestRunningProcessorSecondsMetric measures the oldest work in progress.
func (m *Metrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.longest.WithLabelValues(name)
}

// NewRetriesMetric counts retries.
func (m *Metrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return m.retries.WithLabelValues(name)
}
