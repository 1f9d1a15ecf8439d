package client

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/metrics"
)

// requestMetrics are the metrics of all REST clients of the process, under upstream's names.
type requestMetrics struct {
	results   *prometheus.CounterVec
	durations *prometheus.HistogramVec
}

// client-go accepts one registration per process.
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

// eventsDropped counts the dropped events of all broadcasters of the process.
var eventsDropped = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "events_dropped_total", Help: "Number of events that were not recorded because too many were queued.",
})

// RegisterMetrics registers the metrics of this process's clients.
func RegisterMetrics(registry prometheus.Registerer) error {
	m := newRequestMetrics()
	if err := registry.Register(m.results); err != nil {
		return err
	}
	if err := registry.Register(m.durations); err != nil {
		return err
	}
	return registry.Register(eventsDropped)
}

// Increment counts a response.
func (m *requestMetrics) Increment(_ context.Context, code, method, host string) {
	m.results.WithLabelValues(code, host, method).Inc()
}

// Observe records the latency of a request.
func (m *requestMetrics) Observe(_ context.Context, verb string, u url.URL, duration time.Duration) {
	m.durations.WithLabelValues(u.Host, verb).Observe(duration.Seconds())
}
