package webhook

import (
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of calls to webhooks, under upstream's names.
type Metrics struct {
	*CertificateMetrics
	conversions       *prometheus.CounterVec
	conversionSeconds *prometheus.HistogramVec
	definitionSeconds *prometheus.HistogramVec
}

// CertificateMetrics count connections that fail because the server's certificate is out of date.
type CertificateMetrics struct{ missingSAN, insecureSHA1 prometheus.Counter }

// NewCertificateMetrics makes the metrics of one sort of servers, whose names begin with prefix.
func NewCertificateMetrics(prefix string) *CertificateMetrics {
	return &CertificateMetrics{
		missingSAN: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "_x509_missing_san_total", Help: "Counts the number of requests to servers missing SAN extension in their serving certificate OR the number of connection failures due to the lack of x509 certificate SAN extension missing (either/or, based on the runtime environment)",
		}),
		insecureSHA1: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "_x509_insecure_sha1_total", Help: "Counts the number of requests to servers with insecure SHA1 signatures in their serving certificate OR the number of connection failures due to the insecure SHA1 signatures (either/or, based on the runtime environment)",
		}),
	}
}

// Describe implements prometheus.Collector.
func (m *CertificateMetrics) Describe(to chan<- *prometheus.Desc) {
	m.missingSAN.Describe(to)
	m.insecureSHA1.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *CertificateMetrics) Collect(to chan<- prometheus.Metric) {
	m.missingSAN.Collect(to)
	m.insecureSHA1.Collect(to)
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		CertificateMetrics: NewCertificateMetrics("apiserver_webhooks"),
		conversions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_conversion_webhook_request_total", Help: "Counter for conversion webhook requests with success/failure and failure error type",
		}, []string{"result", "failure_type"}),
		conversionSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_conversion_webhook_duration_seconds", Help: "Conversion webhook request latency",
			Buckets: []float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 45, 60},
		}, []string{"result", "failure_type"}),
		definitionSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_crd_conversion_webhook_duration_seconds", Help: "CRD webhook conversion duration in seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"crd_name", "from_version", "to_version", "succeeded"}),
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.CertificateMetrics, m.conversions, m.conversionSeconds, m.definitionSeconds}
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

// conversion counts a request to a conversion webhook. failure is empty for a success.
func (m *Metrics) conversion(elapsed time.Duration, failure string) {
	result := "success"
	if failure != "" {
		result = "failure"
	}
	m.conversions.WithLabelValues(result, failure).Inc()
	m.conversionSeconds.WithLabelValues(result, failure).Observe(elapsed.Seconds())
}

// certificateCounter counts the failures of a transport.
type certificateCounter struct {
	http.RoundTripper
	metrics *CertificateMetrics
}

func (c *certificateCounter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(request)
	if err == nil {
		return response, nil
	}
	var insecure x509.InsecureAlgorithmError
	switch {
	case errors.As(err, &insecure):
		if algorithm := x509.SignatureAlgorithm(insecure); algorithm == x509.SHA1WithRSA || algorithm == x509.ECDSAWithSHA1 || algorithm == x509.DSAWithSHA1 {
			c.metrics.insecureSHA1.Inc()
		}
	case strings.Contains(err.Error(), "x509: certificate relies on legacy Common Name field"):
		c.metrics.missingSAN.Inc()
	}
	return nil, err
}
