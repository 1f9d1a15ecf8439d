package resourceclaim

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"

	"skiff/internal/claimmetrics"
	"skiff/internal/controller"
)

// claimMetrics are the metrics of the resource claim controller, under upstream's names.
type claimMetrics struct {
	creates *claimmetrics.Creates
	counts  *claimCounts
}

// newClaimMetrics makes the metrics and registers them.
func newClaimMetrics(s *controller.Setup) (*claimMetrics, error) {
	creates, err := claimmetrics.NewCreates(s.Registry())
	if err != nil {
		return nil, err
	}
	m := &claimMetrics{
		creates: creates,
		counts: &claimCounts{counts: map[claimCategory]int{}, desc: prometheus.NewDesc("dynamic_resource_allocation_resource_claims",
			"Number of ResourceClaims, categorized by allocation status, admin access, and source. Source can be 'resource_claim_template' (created from a template), "+
				"'extended_resource' (extended resources), or empty (manually created by a user).", []string{"allocated", "admin_access", "source"}, nil)},
	}
	return m, s.Register(m.counts)
}

// claimCounts are the numbers of cached claims, which the handlers of the claims keep.
type claimCounts struct {
	desc *prometheus.Desc

	mu     sync.Mutex
	counts map[claimCategory]int
}

type claimCategory struct {
	allocated, adminAccess bool
	source                 string
}

func (c *claimCounts) add(claim *resourceapi.ResourceClaim, n int) {
	category := claimCategory{claim.Status.Allocation != nil, claimmetrics.HasAdminAccess(claim), sourceOf(claim)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[category] += n; c.counts[category] == 0 {
		delete(c.counts, category)
	}
}

// Describe implements prometheus.Collector.
func (c *claimCounts) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *claimCounts) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range c.counts {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), strconv.FormatBool(k.allocated), strconv.FormatBool(k.adminAccess), k.source)
	}
}

// sourceOf returns what a claim was created from, "" if by a user.
func sourceOf(claim *resourceapi.ResourceClaim) string {
	switch {
	case claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] == "true":
		return "extended_resource"
	case claim.Annotations[resourceapi.PodResourceClaimAnnotation] != "":
		return "resource_claim_template"
	}
	return ""
}
