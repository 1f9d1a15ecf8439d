package core

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The objects that every cluster has. The server creates them if they are missing, the ServiceCIDR before the services,
// because services get their addresses from it.

const (
	kubernetesService = "kubernetes"
	httpsPort         = "https"
)

// SystemNamespaces are the namespaces that the server creates.
func SystemNamespaces() []*corev1.Namespace {
	var namespaces []*corev1.Namespace
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		namespaces = append(namespaces, &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
		})
	}
	return namespaces
}

// NewDefaultServiceCIDR is the range of cluster IPs from the server's configuration: one CIDR, or one of each family, the
// default family first. A create drops its status; DefaultServiceCIDRReady must be set afterwards through the status
// subresource or Client.Update. A ServiceCIDR without the condition is used nevertheless.
func NewDefaultServiceCIDR(cidrs []string, now metav1.Time) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{Name: DefaultServiceCIDR},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		Status:     networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{DefaultServiceCIDRReady(now)}},
	}
}

// DefaultServiceCIDRReady is the condition of the default ServiceCIDR.
func DefaultServiceCIDRReady(now metav1.Time) metav1.Condition {
	return metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		Message: "Kubernetes default Service CIDR is ready", LastTransitionTime: now,
	}
}

// FirstServiceIP is the first usable address of a CIDR; the API server's own service has it.
func FirstServiceIP(cidr string) (netip.Addr, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("parse service CIDR: %w", err)
	}
	r := newAddressRange(prefix)
	if !r.usable() {
		return netip.Addr{}, fmt.Errorf("service CIDR %s has no usable addresses", cidr)
	}
	return r.first, nil
}

// NewKubernetesService is the service of the API server: port 443 of its cluster IP leads to the server's secure port.
func NewKubernetesService(ip netip.Addr, securePort int32) *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name: kubernetesService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip.String(), IPFamilyPolicy: &single, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: httpsPort, Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(securePort)}},
		},
	}
}

// NewKubernetesEndpoints are the addresses of the API servers, as Endpoints. The label keeps the mirroring controller from
// creating a slice for them: the server writes its own.
func NewKubernetesEndpoints(servers []netip.Addr, securePort int32) *corev1.Endpoints {
	var addresses []corev1.EndpointAddress
	for _, ip := range servers {
		addresses = append(addresses, corev1.EndpointAddress{IP: ip.String()})
	}
	return &corev1.Endpoints{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{
			Name: kubernetesService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
		Subsets: []corev1.EndpointSubset{{
			Addresses: addresses,
			Ports:     []corev1.EndpointPort{{Name: httpsPort, Protocol: corev1.ProtocolTCP, Port: securePort}},
		}},
	}
}

// NewKubernetesEndpointSlice are the same addresses as a slice. It has one family: IPv6 if all servers have it, otherwise
// IPv4.
func NewKubernetesEndpointSlice(servers []netip.Addr, securePort int32) *discoveryv1.EndpointSlice {
	family := corev1.IPv6Protocol
	for _, ip := range servers {
		if ip.Is4() {
			family = corev1.IPv4Protocol
		}
	}
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name: kubernetesService, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelServiceName: kubernetesService},
		},
		AddressType: discoveryv1.AddressType(family),
	}
	name, protocol := httpsPort, corev1.ProtocolTCP
	slice.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &securePort}}
	for _, ip := range servers {
		if familyOf(ip) == family {
			ready := true
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
	}
	return slice
}
