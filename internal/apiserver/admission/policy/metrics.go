package policy

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The values of the label error_type.
const (
	errorTypeNone        = "no_error"
	errorTypeCompile     = "compile_error"
	errorTypeInvalid     = "invalid_error"
	errorTypeOutOfBudget = "out_of_budget"
)

// errorTypeOf derives the type of an error from its message.
func errorTypeOf(message string) string {
	switch {
	case strings.HasPrefix(message, "compilation"):
		return errorTypeCompile
	case strings.HasPrefix(message, "validation failed due to running out of cost budget"):
		return errorTypeOutOfBudget
	}
	return errorTypeInvalid
}

// checkMetrics are the metrics of one kind of policy, under upstream's names.
type checkMetrics struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// checkLabels are the labels of a check. Only validating policies have an enforcement action.
type checkLabels struct {
	policy, binding, errorType, action string
}

func (l checkLabels) with(action, errorType string) checkLabels {
	l.action, l.errorType = action, errorType
	return l
}

// checkBuckets are upstream's: an attribute access takes less than half a microsecond, an expression near the cost limit a second.
var checkBuckets = []float64{0.0000005, 0.001, 0.01, 0.1, 1.0}

func newValidatingMetrics() *checkMetrics {
	labels := []string{"policy", "policy_binding", "error_type", "enforcement_action"}
	return &checkMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_validating_admission_policy_check_total",
			Help: "Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.",
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_validating_admission_policy_check_duration_seconds",
			Help:    "Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.",
			Buckets: checkBuckets,
		}, labels),
	}
}

func newMutatingMetrics() *checkMetrics {
	labels := []string{"policy", "policy_binding", "error_type"}
	return &checkMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_mutating_admission_policy_check_total",
			Help: "Mutation admission policy check total, labeled by policy and further identified by binding.",
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_mutating_admission_policy_check_duration_seconds",
			Help:    "Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.",
			Buckets: checkBuckets,
		}, labels),
	}
}

// Describe implements prometheus.Collector.
func (m *checkMetrics) Describe(out chan<- *prometheus.Desc) {
	m.total.Describe(out)
	m.seconds.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *checkMetrics) Collect(out chan<- prometheus.Metric) {
	m.total.Collect(out)
	m.seconds.Collect(out)
}

func (m *checkMetrics) observe(l checkLabels, elapsed time.Duration) {
	values := []string{l.policy, l.binding, l.errorType}
	if l.action != "" {
		values = append(values, l.action)
	}
	m.total.WithLabelValues(values...).Inc()
	m.seconds.WithLabelValues(values...).Observe(elapsed.Seconds())
}
