package webhook

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skiff/internal/apiserver/admission"
)

// The types of the plugins in metrics.
const (
	stepMutating   = "admit"
	stepValidating = "validating"
)

// Metrics are the metrics of admission webhooks, under upstream's names.
type Metrics struct {
	seconds    *prometheus.HistogramVec
	rejections *prometheus.CounterVec
	failOpen   *prometheus.CounterVec
	requests   *prometheus.CounterVec
	// reloads and lastReload are of the configurations in files.
	reloads    *prometheus.CounterVec
	lastReload *prometheus.GaugeVec
	serverHash string
}

// NewMetrics makes the metrics of the API server with an identity.
func NewMetrics(serverID string) *Metrics {
	reloadLabels := []string{"status", "plugin", "apiserver_id_hash"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "apiserver", Subsystem: "admission", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "apiserver", Subsystem: "admission", Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &Metrics{
		serverHash: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(serverID))),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_manifest_admission_config_controller_automatic_reloads_total",
			Help: "Total number of automatic reloads of admission manifest configuration split by status, plugin, and apiserver identity.",
		}, reloadLabels),
		lastReload: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_manifest_admission_config_controller_automatic_reload_last_timestamp_seconds",
			Help: "Timestamp of the last automatic reload of admission manifest configuration split by status, plugin, and apiserver identity.",
		}, reloadLabels),
		seconds: histogram("webhook_admission_duration_seconds",
			"Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
			[]float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10, 25}, "name", "type", "operation", "rejected"),
		rejections: counter("webhook_rejection_count",
			"Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
			"name", "type", "operation", "error_type", "rejection_code"),
		failOpen: counter("webhook_fail_open_count",
			"Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).", "name", "type"),
		requests: counter("webhook_request_total",
			"Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
			"name", "type", "operation", "code", "rejected"),
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.seconds, m.rejections, m.failOpen, m.requests, m.reloads, m.lastReload}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(to)
	}
}

// reload counts that a plugin has read its configurations in files.
func (m *Metrics) reload(status, plugin string) {
	m.reloads.WithLabelValues(status, plugin, m.serverHash).Inc()
	m.lastReload.WithLabelValues(status, plugin, m.serverHash).SetToCurrentTime()
}

// maxCode bounds the values of a label that webhooks choose.
const maxCode = 600

// call counts a call of a webhook.
func (m *Metrics) call(c *callRecord) {
	rejected := strconv.FormatBool(c.rejected)
	m.requests.WithLabelValues(c.name, c.step, string(c.operation), strconv.Itoa(min(c.code, maxCode)), rejected).Inc()
	m.seconds.WithLabelValues(c.name, c.step, string(c.operation), rejected).Observe(c.elapsed.Seconds())
	if c.errorType != "" {
		m.rejections.WithLabelValues(c.name, c.step, string(c.operation), c.errorType, strconv.Itoa(min(c.code, maxCode))).Inc()
	}
}

// callRecord is what metrics record of a call.
type callRecord struct {
	name, step string
	operation  admission.Operation
	elapsed    time.Duration
	code       int
	rejected   bool
	// errorType is why the write was rejected; empty: it was not, or its client has gone away.
	errorType string
}
