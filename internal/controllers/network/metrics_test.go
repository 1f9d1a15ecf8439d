package network

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/metrics"
)

// The metrics of slices follow what the plans make of them.
func TestSliceMetrics(t *testing.T) {
	m := newSliceMetrics()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	slice := func(name string, from, to int) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, AddressType: discoveryv1.AddressTypeIPv4}
		for i := from; i < to; i++ {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.0.0.", i)}})
		}
		return s
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{TrafficDistribution: new("PreferSameZone")}}
	before := []*discoveryv1.EndpointSlice{slice("a", 0, 4), slice("b", 4, 6)}
	var plan controller.Plan
	plan.AddStep(controller.NewUpdate(slice("a", 1, 4)), controller.NewCreate(slice("", 6, 7)))
	plan.AddStep(controller.NewDelete(before[1]))
	m.reconciled(slicesView{service: service, slices: before, maxEndpoints: 4}, plan)
	metrics.Check(t, registry, map[string]float64{
		"endpoint_slice_controller_endpoints_desired{}": 4, "endpoint_slice_controller_num_endpoint_slices{}": 2,
		"endpoint_slice_controller_desired_endpoint_slices{}":                                                   1,
		"endpoint_slice_controller_services_count_by_traffic_distribution{traffic_distribution=PreferSameZone}": 1,
		"endpoint_slice_controller_endpoints_added_per_sync{}":                                                  1,
	})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		want := map[string]float64{"endpoint_slice_controller_endpoints_added_per_sync": 1, "endpoint_slice_controller_endpoints_removed_per_sync": 3}
		if sum, ok := want[family.GetName()]; ok && family.Metric[0].Histogram.GetSampleSum() != sum {
			t.Errorf("%s: %v endpoints, want %v", family.GetName(), family.Metric[0].Histogram.GetSampleSum(), sum)
		}
	}
	m.forget(controller.KeyOf(service))
	metrics.Check(t, registry, map[string]float64{"endpoint_slice_controller_endpoints_desired{}": 0, "endpoint_slice_controller_num_endpoint_slices{}": 0})
}
