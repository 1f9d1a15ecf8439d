// Package nodeaddr reads addresses of API objects, and the addresses and pod CIDRs of nodes, as the components of the network use them.
package nodeaddr

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"
)

// Primary are the first addresses of each family of a node: internal ones, or else external ones.
func Primary(node *corev1.Node) (primary []netip.Addr) {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, address := range node.Status.Addresses {
			a, ok := Parse(address.Address)
			if address.Type != kind || !ok || slices.ContainsFunc(primary, func(other netip.Addr) bool { return other.Is4() == a.Is4() }) {
				continue
			}
			primary = append(primary, a)
		}
	}
	return primary
}

// Parse parses an address of an API object. Old objects may have IPv4 addresses with leading zeros.
func Parse(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		var ok bool
		a, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(text))
		return a.Unmap(), ok
	}
	if a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// PodCIDRs are the first pod CIDRs of each family of a node.
func PodCIDRs(node *corev1.Node) (all []netip.Prefix) {
	for _, text := range slices.Concat(node.Spec.PodCIDRs, []string{node.Spec.PodCIDR}) {
		p, err := netip.ParsePrefix(text)
		if err == nil && !slices.ContainsFunc(all, func(other netip.Prefix) bool { return other.Addr().Is4() == p.Addr().Is4() }) {
			all = append(all, p.Masked())
		}
	}
	return all
}
