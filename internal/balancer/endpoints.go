package balancer

import (
	"net"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// EndpointAddresses are the addresses, as host:port, of the endpoints of a slice that are ready. Those of the Service `kubernetes` are API servers.
func EndpointAddresses(slice *discoveryv1.EndpointSlice) []string {
	var addresses []string
	for _, port := range slice.Ports {
		if port.Port == nil {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; (ready == nil || *ready) && len(endpoint.Addresses) > 0 {
				addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port))))
			}
		}
	}
	return addresses
}
