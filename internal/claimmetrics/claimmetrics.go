// Package claimmetrics counts the requests that create ResourceClaims. The resource claim controller creates claims from templates, and the scheduler
// creates those for extended resources. Both count them with one metric, as upstream does, which they share if they run in one process.
package claimmetrics

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Creates counts requests that create claims. nil counts nothing.
type Creates struct{ requests *prometheus.CounterVec }

// NewCreates returns the counter of a registry, which is registered at the first call. A nil registry has none.
func NewCreates(registry prometheus.Registerer) (*Creates, error) {
	if registry == nil {
		return nil, nil
	}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Subsystem: "dynamic_resource_allocation", Name: "resourceclaim_creates_total",
		Help: "Number of ResourceClaims creation requests, categorized by creation status, admin access, and owning API group and kind (either Pod or scheduling.k8s.io/PodGroup)",
	}, []string{"status", "admin_access", "owner_api_group", "owner_api_kind"})
	err := registry.Register(requests)
	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) {
		if existing, ok := registered.ExistingCollector.(*prometheus.CounterVec); ok {
			return &Creates{existing}, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register metrics of resource claims: %w", err)
	}
	return &Creates{requests}, nil
}

// Count counts a request that creates a claim. err is its error.
func (c *Creates) Count(claim *resourceapi.ResourceClaim, err error) {
	if c == nil {
		return
	}
	status := "success"
	if err != nil {
		status = "failure"
	}
	var group, kind string
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil {
		kind = owner.Kind
		if g, _, found := strings.Cut(owner.APIVersion, "/"); found {
			group = g
		}
	}
	c.requests.WithLabelValues(status, strconv.FormatBool(HasAdminAccess(claim)), group, kind).Inc()
}

// HasAdminAccess reports whether a claim requests administrative access to devices.
func HasAdminAccess(claim *resourceapi.ResourceClaim) bool {
	for i := range claim.Spec.Devices.Requests {
		if exactly := claim.Spec.Devices.Requests[i].Exactly; exactly != nil && ptr.Deref(exactly.AdminAccess, false) {
			return true
		}
	}
	return false
}
