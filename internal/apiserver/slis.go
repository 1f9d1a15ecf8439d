package apiserver

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"skiff/internal/health"
)

// slis count the results of health checks, for /metrics/slis.
type slis struct {
	last    *prometheus.GaugeVec
	total   *prometheus.CounterVec
	handler http.Handler
}

func newSLIs() *slis {
	m := &slis{
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "This metric records the result of a single healthcheck.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "This metric records the results of all healthcheck.",
		}, []string{"name", "type", "status"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.last, m.total, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// observe returns the checks of one of the paths healthz, livez and readyz, with their results counted.
func (m *slis) observe(checks health.Checks, root string) health.Checks {
	observed := make(health.Checks, len(checks))
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
