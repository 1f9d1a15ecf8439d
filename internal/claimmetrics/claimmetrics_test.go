package claimmetrics

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/test/metrics"
)

// Two components of one process count with one counter.
func TestCreates(t *testing.T) {
	registry := prometheus.NewRegistry()
	first, err := NewCreates(registry)
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewCreates(registry)
	if err != nil {
		t.Fatal(err)
	}
	owned := func(apiVersion, kind string) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Controller: ptr.To(true)}}}}
	}
	privileged := owned("scheduling.k8s.io/v1alpha1", "PodGroup")
	privileged.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Exactly: &resourceapi.ExactDeviceRequest{AdminAccess: ptr.To(true)}}}
	first.Count(owned("v1", "Pod"), nil)
	second.Count(owned("v1", "Pod"), nil)
	second.Count(owned("v1", "Pod"), errors.New("forbidden"))
	second.Count(privileged, nil)
	metrics.Check(t, registry, map[string]float64{
		`dynamic_resource_allocation_resourceclaim_creates_total{admin_access=false,owner_api_group=,owner_api_kind=Pod,status=success}`:                      2,
		`dynamic_resource_allocation_resourceclaim_creates_total{admin_access=false,owner_api_group=,owner_api_kind=Pod,status=failure}`:                      1,
		`dynamic_resource_allocation_resourceclaim_creates_total{admin_access=true,owner_api_group=scheduling.k8s.io,owner_api_kind=PodGroup,status=success}`: 1,
	})
	none, err := NewCreates(nil)
	if err != nil {
		t.Fatal(err)
	}
	none.Count(privileged, nil)
}
