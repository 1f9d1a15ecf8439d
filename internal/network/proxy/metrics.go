package proxy

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/network/nft"
)

// Metrics counts what a proxy does, under kube-proxy's names and labels. Both families are in one transaction, so they have the same
// values. A nil Metrics counts nothing.
type Metrics struct {
	duration, fullDuration, partialDuration, latency, flowDuration *prometheus.HistogramVec
	last, lastQueued, noLocal                                      *prometheus.GaugeVec
	failures, flowsDeleted, healthzCodes, livezCodes               *prometheus.CounterVec
	endpointsPending, servicesPending                              prometheus.Gauge
	endpointsTotal, servicesTotal                                  prometheus.Counter
}

// label is the name of the family in the API.
func (f family) label() corev1.IPFamily {
	if f.is4 {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	const prefix, perFamily = "kubeproxy_", "ip_family"
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, []string{perFamily})
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	doubling := prometheus.ExponentialBuckets(0.001, 2, 15)
	latency := slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
	m := &Metrics{
		duration:        histogram("sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds", doubling),
		fullDuration:    histogram("sync_full_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for full resyncs", doubling),
		partialDuration: histogram("sync_partial_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for partial resyncs", doubling),
		latency:         histogram("network_programming_duration_seconds", "In Cluster Network Programming Latency in seconds", latency),
		flowDuration:    histogram("conntrack_reconciler_sync_duration_seconds", "ReconcileConntrackFlowsLatency latency in seconds", doubling),
		last:            gauge("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced", perFamily),
		lastQueued:      gauge("sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued", perFamily),
		noLocal:         gauge("sync_proxy_rules_no_local_endpoints_total", "Number of services with a Local traffic policy and no endpoints", "traffic_policy", perFamily),
		failures:        counter("sync_proxy_rules_nftables_sync_failures_total", "Cumulative proxy nftables sync failures", perFamily),
		flowsDeleted:    counter("conntrack_reconciler_deleted_entries_total", "Cumulative conntrack flows deleted by conntrack reconciler", perFamily),
		healthzCodes:    counter("proxy_healthz_total", "Cumulative proxy healthz HTTP status", "code"),
		livezCodes:      counter("proxy_livez_total", "Cumulative proxy livez HTTP status", "code"),
		endpointsPending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "sync_proxy_rules_endpoint_changes_pending", Help: "Pending proxy rules Endpoint changes"}),
		servicesPending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "sync_proxy_rules_service_changes_pending", Help: "Pending proxy rules Service changes"}),
		endpointsTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "sync_proxy_rules_endpoint_changes_total", Help: "Cumulative proxy rules Endpoint changes"}),
		servicesTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "sync_proxy_rules_service_changes_total", Help: "Cumulative proxy rules Service changes"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.duration, m.fullDuration, m.partialDuration, m.latency, m.flowDuration, m.last, m.lastQueued, m.noLocal, m.failures, m.flowsDeleted,
		m.healthzCodes, m.livezCodes, m.endpointsPending, m.servicesPending, m.endpointsTotal, m.servicesTotal,
	} {
		errs = append(errs, registry.Register(c))
	}
	return m, errors.Join(errs...)
}

func observe(h *prometheus.HistogramVec, d time.Duration) {
	for _, f := range families {
		h.WithLabelValues(string(f.label())).Observe(d.Seconds())
	}
}

func setNow(g *prometheus.GaugeVec) {
	for _, f := range families {
		g.WithLabelValues(string(f.label())).SetToCurrentTime()
	}
}

func (m *Metrics) serviceChange(pending int) {
	if m != nil {
		m.servicesTotal.Inc()
		m.servicesPending.Set(float64(pending))
	}
}

func (m *Metrics) endpointChange(pending int) {
	if m != nil {
		m.endpointsTotal.Inc()
		m.endpointsPending.Set(float64(pending))
	}
}

func (m *Metrics) queued() {
	if m != nil {
		setNow(m.lastQueued)
	}
}

// synced records a sync that began at a time.
func (m *Metrics) synced(started time.Time, result nft.Result, err error) {
	if m == nil {
		return
	}
	duration := time.Since(started)
	observe(m.duration, duration)
	if result.Rebuilt || err != nil {
		observe(m.fullDuration, duration)
	} else {
		observe(m.partialDuration, duration)
	}
	if err != nil {
		for _, f := range families {
			m.failures.WithLabelValues(string(f.label())).Inc()
		}
		return
	}
	setNow(m.last)
	m.servicesPending.Set(0)
	m.endpointsPending.Set(0)
}

// programmed records the time since the changes that are now in the rules.
func (m *Metrics) programmed(triggers []time.Time) {
	if m == nil {
		return
	}
	for _, t := range triggers {
		observe(m.latency, time.Since(t))
	}
}

func (m *Metrics) noLocalEndpoints(internal, external map[bool]int) {
	if m == nil {
		return
	}
	for _, f := range families {
		m.noLocal.WithLabelValues("internal", string(f.label())).Set(float64(internal[f.is4]))
		m.noLocal.WithLabelValues("external", string(f.label())).Set(float64(external[f.is4]))
	}
}

func (m *Metrics) reconciledFlows(f family, started time.Time, deleted int) {
	if m != nil {
		m.flowDuration.WithLabelValues(string(f.label())).Observe(time.Since(started).Seconds())
		m.flowsDeleted.WithLabelValues(string(f.label())).Add(float64(deleted))
	}
}

func (m *Metrics) healthz(code string) {
	if m != nil {
		m.healthzCodes.WithLabelValues(code).Inc()
	}
}

func (m *Metrics) livez(code string) {
	if m != nil {
		m.livezCodes.WithLabelValues(code).Inc()
	}
}
