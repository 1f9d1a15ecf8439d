package scaling

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// autoscalerMetrics are the metrics of the autoscaler, under upstream's names.
type autoscalerMetrics struct {
	reconciliations, computations               *prometheus.CounterVec
	reconciliationDuration, computationDuration *prometheus.HistogramVec
}

func newAutoscalerMetrics() *autoscalerMetrics {
	const subsystem = "horizontal_pod_autoscaler_controller"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, labels)
	}
	const labels = " The label 'action' is 'scale_down', 'scale_up' or 'none', the label 'error' is 'spec', 'internal' or 'none'."
	const metricType = " The label 'metric_type' corresponds to HPA.spec.metrics[*].type."
	return &autoscalerMetrics{
		reconciliations:        counter("reconciliations_total", "Number of reconciliations of HPA controller."+labels, "action", "error"),
		computations:           counter("metric_computation_total", "Number of metric computations."+labels+metricType, "action", "error", "metric_type"),
		reconciliationDuration: histogram("reconciliation_duration_seconds", "The time(seconds) that the HPA controller takes to reconcile once."+labels, "action", "error"),
		computationDuration:    histogram("metric_computation_duration_seconds", "The time(seconds) that the HPA controller takes to calculate one metric."+labels+metricType, "action", "error", "metric_type"),
	}
}

func (m *autoscalerMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.reconciliations, m.computations, m.reconciliationDuration, m.computationDuration}
}

// errSpec marks an error whose cause is the spec of the autoscaler.
var errSpec = errors.New("invalid spec")

// specError is an error that is errSpec as well. Its text is that of the error.
type specError struct{ error }

func (e specError) Is(target error) bool { return target == errSpec }
func (e specError) Unwrap() error        { return e.error }

func errorLabel(err error) string {
	switch {
	case err == nil:
		return "none"
	case errors.Is(err, errSpec):
		return "spec"
	}
	return "internal"
}

func actionLabel(current, desired int32) string {
	switch {
	case desired > current:
		return "scale_up"
	case desired < current:
		return "scale_down"
	}
	return "none"
}

func (m *autoscalerMetrics) reconciled(action string, err error, took time.Duration) {
	m.reconciliations.WithLabelValues(action, errorLabel(err)).Inc()
	m.reconciliationDuration.WithLabelValues(action, errorLabel(err)).Observe(took.Seconds())
}

func (m *autoscalerMetrics) computed(action string, err error, of autoscalingv2.MetricSourceType, took time.Duration) {
	m.computations.WithLabelValues(action, errorLabel(err), string(of)).Inc()
	m.computationDuration.WithLabelValues(action, errorLabel(err), string(of)).Observe(took.Seconds())
}
