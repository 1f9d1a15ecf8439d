package hostnet

import (
	"fmt"
	"net"
	"net/netip"
)

// Addresses lists the addresses of the host's interfaces.
func Addresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var all []netip.Addr
	for _, address := range list {
		if network, ok := address.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(network.IP); ok {
				all = append(all, a.Unmap())
			}
		}
	}
	return all, nil
}
