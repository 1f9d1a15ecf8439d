package balancer

import (
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestEndpointAddresses(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(6443))}, {}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"fd00::1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
			{Addresses: []string{"10.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}, {},
		},
	}
	if got, want := EndpointAddresses(slice), []string{"10.0.0.1:6443", "[fd00::1]:6443"}; !slices.Equal(got, want) {
		t.Errorf("addresses %q, want %q", got, want)
	}
}
