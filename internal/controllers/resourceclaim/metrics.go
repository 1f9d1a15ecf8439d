package resourceclaim

import (
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// claimMetrics are the metrics of the resource claim controller, under upstream's names.
type claimMetrics struct {
	creates *prometheus.CounterVec
	counts  *claimCounts
}

func newClaimMetrics() *claimMetrics {
	return &claimMetrics{
		creates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "dynamic_resource_allocation", Name: "resourceclaim_creates_total",
			Help: "Number of ResourceClaims creation requests, categorized by creation status, admin access, and owning API group and kind (either Pod or scheduling.k8s.io/PodGroup)",
		}, []string{"status", "admin_access", "owner_api_group", "owner_api_kind"}),
		counts: &claimCounts{counts: map[claimCategory]int{}, desc: prometheus.NewDesc("dynamic_resource_allocation_resource_claims",
			"Number of ResourceClaims, categorized by allocation status, admin access, and source. Source can be 'resource_claim_template' (created from a template), "+
				"'extended_resource' (extended resources), or empty (manually created by a user).", []string{"allocated", "admin_access", "source"}, nil)},
	}
}

func (m *claimMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.creates, m.counts}
}

// created counts a request that creates a claim. The status is success or failure.
func (m *claimMetrics) created(claim *resourceapi.ResourceClaim, status string) {
	var group, kind string
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil {
		kind = owner.Kind
		if g, _, found := strings.Cut(owner.APIVersion, "/"); found {
			group = g
		}
	}
	m.creates.WithLabelValues(status, strconv.FormatBool(hasAdminAccess(claim)), group, kind).Inc()
}

func hasAdminAccess(claim *resourceapi.ResourceClaim) bool {
	for i := range claim.Spec.Devices.Requests {
		if exactly := claim.Spec.Devices.Requests[i].Exactly; exactly != nil && ptr.Deref(exactly.AdminAccess, false) {
			return true
		}
	}
	return false
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
	category := claimCategory{claim.Status.Allocation != nil, hasAdminAccess(claim), sourceOf(claim)}
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
