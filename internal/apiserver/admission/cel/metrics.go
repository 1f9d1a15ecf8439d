package cel

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of match conditions, under upstream's names. One is shared by policies and webhooks.
type Metrics struct {
	errors, exclusions *prometheus.CounterVec
	seconds            *prometheus.HistogramVec
}

// NewMetrics makes the metrics of one server.
func NewMetrics() *Metrics {
	labels := []string{"name", "kind", "type", "operation"}
	const identified = ", identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit)."
	return &Metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_match_condition_evaluation_errors_total",
			Help: "Admission match condition evaluation errors count" + identified,
		}, labels),
		exclusions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_match_condition_exclusions_total",
			Help: "Admission match condition evaluation exclusions count" + identified,
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_admission_match_condition_evaluation_seconds",
			Help:    "Admission match condition evaluation time in seconds, identified by name and broken out for each kind containing matchConditions (webhook or policy), operation and type (validate or admit).",
			Buckets: []float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25},
		}, labels),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.errors.Describe(out)
	m.exclusions.Describe(out)
	m.seconds.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.errors.Collect(out)
	m.exclusions.Collect(out)
	m.seconds.Collect(out)
}

// observe records one evaluation of an owner's conditions.
func (m *Metrics) observe(owner Owner, operation string, elapsed time.Duration, failed int, excluded bool) {
	labels := []string{owner.Name, owner.Kind, owner.Type, operation}
	m.seconds.WithLabelValues(labels...).Observe(elapsed.Seconds())
	if failed > 0 {
		m.errors.WithLabelValues(labels...).Add(float64(failed))
	}
	if excluded {
		m.exclusions.WithLabelValues(labels...).Inc()
	}
}
