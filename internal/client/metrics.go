package client

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/metrics"
)

// requestMetrics counts the requests of every client of the process that goes over the network, under upstream's names.
type requestMetrics struct {
	results   *prometheus.CounterVec
	durations *prometheus.HistogramVec
}

// The library underneath takes one listener for the whole process, once.
var newRequestMetrics = sync.OnceValue(func() *requestMetrics {
	m := &requestMetrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total", Help: "Number of HTTP requests, partitioned by status code, method, and host.",
		}, []string{"code", "host", "method"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_request_duration_seconds", Help: "Request latency in seconds. Broken down by verb, and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0},
		}, []string{"host", "verb"}),
	}
	metrics.Register(metrics.RegisterOpts{RequestResult: m, RequestLatency: m})
	return m
})

// RegisterMetrics shows the requests of this process's clients in a registry.
func RegisterMetrics(registry prometheus.Registerer) error {
	m := newRequestMetrics()
	if err := registry.Register(m.results); err != nil {
		return err
	}
	return registry.Register(m.durations)
}

// Increment counts an answer.
func (m *requestMetrics) Increment(_ context.Context, code, method, host string) {
	m.results.WithLabelValues(code, host, method).Inc()
}

// Observe measures how long an answer took.
func (m *requestMetrics) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	m.durations.WithLabelValues(u.Host, verb).Observe(took.Seconds())
}
