package health

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// SLIs count the results of health checks, for /metrics/slis.
type SLIs struct {
	last    *prometheus.GaugeVec
	total   *prometheus.CounterVec
	handler http.Handler
}

// NewSLIs returns the metrics of a component's checks, in a registry of their own.
func NewSLIs() *SLIs {
	m := &SLIs{
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "This metric records the result of a single healthcheck.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "This metric records the results of all healthcheck.",
		}, []string{"name", "type", "status"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// Describe implements prometheus.Collector.
func (m *SLIs) Describe(descs chan<- *prometheus.Desc) {
	m.last.Describe(descs)
	m.total.Describe(descs)
}

// Collect implements prometheus.Collector.
func (m *SLIs) Collect(metrics chan<- prometheus.Metric) {
	m.last.Collect(metrics)
	m.total.Collect(metrics)
}

// ServeHTTP serves /metrics/slis.
func (m *SLIs) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

// Observe returns the checks of one of the paths healthz, livez and readyz, with their results counted.
func (m *SLIs) Observe(checks Checks, root string) Checks {
	observed := make(Checks, len(checks))
	for i, check := range checks {
		observed[i] = check
		last := m.last.WithLabelValues(check.Name, root)
		passed, failed := m.total.WithLabelValues(check.Name, root, "success"), m.total.WithLabelValues(check.Name, root, "error")
		observed[i].Check = func(ctx context.Context) error {
			err := check.Check(ctx)
			if err != nil {
				last.Set(0)
				failed.Inc()
			} else {
				last.Set(1)
				passed.Inc()
			}
			return err
		}
	}
	return observed
}
