package proxy

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"skiff/internal/network/nft"
	"skiff/internal/network/nodeaddr"
)

// labelProxyName marks Services and EndpointSlices that another proxy handles.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// isIgnored reports whether the labels of a Service or of an EndpointSlice leave it to another proxy, or say that its clients use no proxy.
func isIgnored(labels map[string]string) bool {
	_, headless := labels[corev1.IsHeadlessService]
	_, other := labels[labelProxyName]
	return headless || other
}

// isProxied reports whether a Service is one for this proxy: headless and ExternalName Services have nothing to translate.
func isProxied(s *corev1.Service) bool {
	return !isIgnored(s.Labels) && s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone && s.Spec.ClusterIP != ""
}

// servicePorts lists the ports of a Service in each family that it has a cluster IP of.
func servicePorts(s *corev1.Service) (all []servicePort) {
	for _, clusterIP := range addresses(slices.Concat(s.Spec.ClusterIPs, []string{s.Spec.ClusterIP})) {
		is4 := clusterIP.Is4()
		if slices.ContainsFunc(all, func(p servicePort) bool { return p.is4 == is4 }) {
			continue
		}
		ofFamily := func(list []netip.Addr) []netip.Addr {
			return slices.DeleteFunc(list, func(a netip.Addr) bool { return a.Is4() != is4 })
		}
		common := servicePort{
			is4: is4, clusterIP: clusterIP, externalIPs: ofFamily(addresses(s.Spec.ExternalIPs)), loadBalancerIPs: ofFamily(ingressAddresses(s)),
			sourceRanges: sourceRanges(s.Spec.LoadBalancerSourceRanges, is4), affinitySeconds: affinitySeconds(s),
			internalLocal: ptr.Deref(s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) == corev1.ServiceInternalTrafficPolicyLocal,
			externalLocal: isExternallyAccessible(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		}
		for _, port := range s.Spec.Ports {
			proto, ok := nft.ParseProto(string(port.Protocol))
			if port.Protocol == "" {
				proto, ok = nft.TCP, true
			}
			if !ok || port.Port < 1 || port.Port > 65535 {
				continue
			}
			p := common
			p.portName, p.proto, p.port, p.nodePort = port.Name, proto, uint16(port.Port), uint16(port.NodePort)
			p.name = strings.Join([]string{s.Namespace, s.Name, proto.String(), port.Name}, "/")
			all = append(all, p)
		}
	}
	return all
}

// addresses parses IP addresses; invalid ones are ignored.
func addresses(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if a, ok := nodeaddr.Parse(text); ok && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// ingressAddresses are the addresses of a load balancer that are translated on the node: those whose packets arrive with them as destination.
func ingressAddresses(s *corev1.Service) []netip.Addr {
	var texts []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IP != "" && ptr.Deref(ingress.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeVIP {
			texts = append(texts, ingress.IP)
		}
	}
	return addresses(texts)
}

// sourceRanges are the sources that may reach a load balancer; empty: all.
func sourceRanges(texts []string, is4 bool) (all []netip.Prefix) {
	for _, text := range texts {
		_, network, err := netutils.ParseCIDRSloppy(strings.TrimSpace(text))
		if err != nil {
			continue
		}
		address, _ := netip.AddrFromSlice(network.IP)
		if address = address.Unmap(); address.Is4() != is4 {
			continue
		}
		bits, _ := network.Mask.Size()
		if bits == 0 {
			return nil
		}
		all = append(all, netip.PrefixFrom(address, bits))
	}
	return all
}

func affinitySeconds(s *corev1.Service) int32 {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && ptr.Deref(c.ClientIP.TimeoutSeconds, 0) > 0 {
		return *c.ClientIP.TimeoutSeconds
	}
	return corev1.DefaultClientIPServiceAffinitySeconds
}

func isExternallyAccessible(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// healthCheckPort is the port at which the node reports whether it has endpoints of a Service; 0: none.
func healthCheckPort(s *corev1.Service) uint16 {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return 0
	}
	return uint16(s.Spec.HealthCheckNodePort)
}
