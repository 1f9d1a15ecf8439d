package authn

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// tokenUses counts uses of service-account tokens: legacy tokens, and those that a kubelet replaces in time or has not replaced.
type tokenUses struct{ legacy, stale, valid atomic.Int64 }

// The metrics of service-account tokens, with upstream's names.
var (
	legacyTokensDesc = prometheus.NewDesc("serviceaccount_legacy_tokens_total", "Cumulative legacy service account tokens used", nil, nil)
	staleTokensDesc  = prometheus.NewDesc("serviceaccount_stale_tokens_total", "Cumulative stale projected service account tokens used", nil, nil)
	validTokensDesc  = prometheus.NewDesc("serviceaccount_valid_tokens_total", "Cumulative valid projected service account tokens used", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *ServiceAccounts) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{legacyTokensDesc, staleTokensDesc, validTokensDesc} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (s *ServiceAccounts) Collect(metrics chan<- prometheus.Metric) {
	for desc, count := range map[*prometheus.Desc]*atomic.Int64{legacyTokensDesc: &s.uses.legacy, staleTokensDesc: &s.uses.stale, validTokensDesc: &s.uses.valid} {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(count.Load()))
	}
}
