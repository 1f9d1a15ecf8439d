package policy

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what a Policy does. A nil Metrics counts nothing.
type Metrics struct {
	duration, latency, wait                   prometheus.Histogram
	failures, flowsDeleted                    prometheus.Counter
	policies, isolatedPods, profiles, classes prometheus.Gauge
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	const prefix = "network_policy_"
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	}
	m := &Metrics{
		duration:     histogram("sync_duration_seconds", "Time to compute changed network policy rules and send them to the kernel, in seconds"),
		latency:      histogram("programming_duration_seconds", "Time from the event of a change until its rules are in the kernel, in seconds"),
		wait:         histogram("pod_wait_duration_seconds", "Time that a new pod has waited for its network policy rules, in seconds"),
		failures:     counter("sync_failures_total", "Cumulative failures to sync network policy rules"),
		flowsDeleted: counter("conntrack_deleted_entries_total", "Cumulative connections that were cut because they became denied"),
		policies:     gauge("policies", "Number of NetworkPolicies"),
		isolatedPods: gauge("isolated_pods", "Number of pods of this node that NetworkPolicies select"),
		profiles:     gauge("profiles", "Number of different sets of policies that select pods of this node"),
		classes:      gauge("classes", "Number of different sets of selectors that match pods"),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.duration, m.latency, m.wait, m.failures, m.flowsDeleted, m.policies, m.isolatedPods, m.profiles, m.classes} {
		errs = append(errs, registry.Register(c))
	}
	return m, errors.Join(errs...)
}

// synced records a sync that began at a time. since is the time of the first change that it applied; zero: there was none.
func (m *Metrics) synced(started, since time.Time, stats Stats, err error) {
	if m == nil {
		return
	}
	m.duration.Observe(time.Since(started).Seconds())
	if err != nil {
		m.failures.Inc()
		return
	}
	if !since.IsZero() {
		m.latency.Observe(time.Since(since).Seconds())
	}
	m.policies.Set(float64(stats.Policies))
	m.isolatedPods.Set(float64(stats.IsolatedPods))
	m.profiles.Set(float64(stats.Profiles))
	m.classes.Set(float64(stats.Classes))
}

func (m *Metrics) cut(flows int) {
	if m != nil {
		m.flowsDeleted.Add(float64(flows))
	}
}

// waited records that a pod's rules are in force.
func (m *Metrics) waited(since time.Time) {
	if m != nil {
		m.wait.Observe(time.Since(since).Seconds())
	}
}
