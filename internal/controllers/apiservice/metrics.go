package apiservice

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the availability of APIServices, under upstream's names.
type Metrics struct {
	unavailable *prometheus.GaugeVec
	changes     *prometheus.CounterVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		unavailable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "aggregator_unavailable_apiservice", Help: "Gauge of APIServices which are marked as unavailable broken down by APIService name.",
		}, []string{"name"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aggregator_unavailable_apiservice_total", Help: "Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
		}, []string{"name", "reason"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.unavailable.Describe(to)
	m.changes.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.unavailable.Collect(to)
	m.changes.Collect(to)
}

// set records whether an APIService is available.
func (m *Metrics) set(name string, available bool) {
	value := 1.0
	if available {
		value = 0
	}
	m.unavailable.WithLabelValues(name).Set(value)
}

// forget removes an APIService that was deleted.
func (m *Metrics) forget(name string) {
	m.unavailable.DeleteLabelValues(name)
	m.changes.DeletePartialMatch(prometheus.Labels{"name": name})
}

func (m *Metrics) becameUnavailable(name, reason string) {
	m.changes.WithLabelValues(name, reason).Inc()
}
