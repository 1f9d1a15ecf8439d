package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/kind"
)

const (
	onlyLoadBalancer   = "may only be used when `type` is 'LoadBalancer'"
	maxAffinitySeconds = 86400 // one day
)

var (
	serviceTypes            = sets.New(corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	sessionAffinities       = sets.New(corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	externalTrafficPolicies = sets.New(corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	internalTrafficPolicies = sets.New(corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	ipFamilies              = sets.New(corev1.IPv4Protocol, corev1.IPv6Protocol)
	ipFamilyPolicies        = sets.New(corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)
	loadBalancerIPModes     = sets.New(corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)
	trafficDistributions    = []string{corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}
)

func validateService(_ *kind.Request, obj, old *corev1.Service) (errs field.ErrorList) {
	if old != nil {
		errs = append(errs, validateClusterIPsChange(obj, old)...)
		errs = append(errs, validateIPFamiliesChange(obj, old)...)
		bothLoadBalancers := old.Spec.Type == corev1.ServiceTypeLoadBalancer && obj.Spec.Type == corev1.ServiceTypeLoadBalancer
		if bothLoadBalancers && !same(old.Spec.LoadBalancerClass, obj.Spec.LoadBalancerClass) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "loadBalancerClass"), obj.Spec.LoadBalancerClass, "may not change once set"))
		}
		if needsHealthCheckPort(old) && needsHealthCheckPort(obj) && obj.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "healthCheckNodePort"), "field is immutable"))
		}
	}
	errs = append(errs, validateTopologyAnnotations(obj)...)
	errs = append(errs, validateServiceByType(obj)...)
	errs = append(errs, validateServicePorts(obj)...)
	errs = append(errs, validateServiceAffinity(obj)...)
	errs = append(errs, validateClusterIPs(obj, old)...)
	errs = append(errs, validateExternalIPs(obj, old)...)
	errs = append(errs, validateSourceRanges(obj, old)...)
	errs = append(errs, validateLoadBalancerClass(obj)...)
	return append(errs, validateTraffic(obj)...)
}

func validateTopologyAnnotations(obj *corev1.Service) field.ErrorList {
	hints, hinted := obj.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	mode, set := obj.Annotations[corev1.AnnotationTopologyMode]
	if !hinted || !set || hints == mode {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
		fmt.Sprintf("must match annotations[%s] when both are specified", corev1.DeprecatedAnnotationTopologyAwareHints))}
}

func validateServiceByType(obj *corev1.Service) (errs field.ErrorList) {
	spec, path := &obj.Spec, field.NewPath("spec")
	external := spec.Type == corev1.ServiceTypeExternalName
	if len(spec.Ports) == 0 && !isHeadless(obj) && !external {
		errs = append(errs, field.Required(path.Child("ports"), ""))
	}
	if needsNodePort(obj) && isHeadless(obj) {
		errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIPs[0], fmt.Sprintf("may not be set to 'None' for %s services", spec.Type)))
	}
	if external {
		forbid := func(set bool, name string) {
			if set {
				errs = append(errs, field.Forbidden(path.Child(name), "may not be set for ExternalName services"))
			}
		}
		forbid(len(spec.ClusterIPs) > 0, "clusterIPs")
		forbid(len(spec.IPFamilies) > 0, "ipFamilies")
		forbid(spec.IPFamilyPolicy != nil, "ipFamilyPolicy")
		if name := strings.TrimSuffix(spec.ExternalName, "."); name != "" {
			errs = append(errs, kind.Invalid(path.Child("externalName"), name, validation.IsDNS1123Subdomain(name))...)
		} else {
			errs = append(errs, field.Required(path.Child("externalName"), ""))
		}
	}
	if spec.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), ""))
	} else {
		errs = append(errs, supported(path.Child("type"), spec.Type, serviceTypes)...)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		if spec.AllocateLoadBalancerNodePorts == nil {
			errs = append(errs, field.Required(field.NewPath("allocateLoadBalancerNodePorts"), ""))
		}
	} else if spec.AllocateLoadBalancerNodePorts != nil {
		errs = append(errs, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), onlyLoadBalancer))
	}
	return errs
}

func validateServicePorts(obj *corev1.Service) (errs field.ErrorList) {
	type portKey struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, given := sets.New[string](), sets.New[portKey](), sets.New[portKey]()
	for i := range obj.Spec.Ports {
		port, path := &obj.Spec.Ports[i], field.NewPath("spec", "ports").Index(i)
		errs = append(errs, validateServicePort(port, len(obj.Spec.Ports) > 1, path)...)
		if port.Name != "" {
			if names.Has(port.Name) {
				errs = append(errs, field.Duplicate(path.Child("name"), port.Name))
			}
			names.Insert(port.Name)
		}
		if port.NodePort != 0 {
			if obj.Spec.Type == corev1.ServiceTypeClusterIP {
				errs = append(errs, field.Forbidden(path.Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
			}
			if given.Has(portKey{port.Protocol, port.NodePort}) {
				errs = append(errs, field.Duplicate(path.Child("nodePort"), port.NodePort))
			}
			given.Insert(portKey{port.Protocol, port.NodePort})
		}
		if ports.Has(portKey{port.Protocol, port.Port}) {
			errs = append(errs, field.Duplicate(path, corev1.ServicePort{Protocol: port.Protocol, Port: port.Port}))
		}
		ports.Insert(portKey{port.Protocol, port.Port})
	}
	return errs
}

func validateServicePort(port *corev1.ServicePort, requireName bool, path *field.Path) (errs field.ErrorList) {
	errs = validateEndpointPort(&corev1.EndpointPort{Name: port.Name, Port: port.Port, Protocol: port.Protocol}, requireName, path)
	if target := port.TargetPort; target.Type == intstr.Int {
		errs = append(errs, kind.Invalid(path.Child("targetPort"), target.IntValue(), validation.IsValidPortNum(target.IntValue()))...)
	} else {
		errs = append(errs, kind.Invalid(path.Child("targetPort"), target.StrVal, validation.IsValidPortName(target.StrVal))...)
	}
	if port.AppProtocol != nil {
		errs = append(errs, kind.Invalid(path.Child("appProtocol"), *port.AppProtocol, validation.IsQualifiedName(*port.AppProtocol))...)
	}
	return errs
}

func validateServiceAffinity(obj *corev1.Service) (errs field.ErrorList) {
	spec, path := &obj.Spec, field.NewPath("spec")
	if spec.Selector != nil {
		errs = append(errs, metavalidation.ValidateLabels(spec.Selector, path.Child("selector"))...)
	}
	if spec.SessionAffinity == "" {
		errs = append(errs, field.Required(path.Child("sessionAffinity"), ""))
	} else {
		errs = append(errs, supported(path.Child("sessionAffinity"), spec.SessionAffinity, sessionAffinities)...)
	}
	config, path := spec.SessionAffinityConfig, path.Child("sessionAffinityConfig")
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if config != nil {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("must not be set when session affinity is %s", corev1.ServiceAffinityNone)))
		}
	case corev1.ServiceAffinityClientIP:
		needed := fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)
		switch timeout := path.Child("clientIP", "timeoutSeconds"); {
		case config == nil:
			errs = append(errs, field.Required(path, needed))
		case config.ClientIP == nil:
			errs = append(errs, field.Required(path.Child("clientIP"), needed))
		case config.ClientIP.TimeoutSeconds == nil:
			errs = append(errs, field.Required(timeout, needed))
		case *config.ClientIP.TimeoutSeconds <= 0 || *config.ClientIP.TimeoutSeconds > maxAffinitySeconds:
			errs = append(errs, field.Invalid(timeout, config.ClientIP.TimeoutSeconds, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds)))
		}
	}
	return errs
}

// validateClusterIPs validates clusterIP, clusterIPs, ipFamilies and ipFamilyPolicy against one another. Allocation calls it
// too, before it allocates anything.
func validateClusterIPs(obj, old *corev1.Service) (errs field.ErrorList) {
	spec, path := &obj.Spec, field.NewPath("spec")
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	ips, families := path.Child("clusterIPs"), path.Child("ipFamilies")
	switch {
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(ips, ""))
	case spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	seen := sets.New[corev1.IPFamily]()
	for i, family := range spec.IPFamilies {
		errs = append(errs, supported(families.Index(i), family, ipFamilies)...)
		if seen.Has(family) {
			errs = append(errs, field.Duplicate(families.Index(i), family))
		}
		seen.Insert(family)
	}
	if spec.IPFamilyPolicy != nil && !ipFamilyPolicies.Has(*spec.IPFamilyPolicy) {
		errs = append(errs, field.NotSupported(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, sets.List(ipFamilyPolicies)))
	}
	wrong := validateIPStrings(spec.ClusterIPs, old, ips)
	errs = append(errs, wrong...)
	if len(spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	if len(wrong) > 0 {
		return errs
	}
	if len(spec.ClusterIPs) > 1 {
		dual, err := netutils.IsDualStackIPStrings(spec.ClusterIPs)
		if err != nil {
			errs = append(errs, field.InternalError(ips, fmt.Errorf("failed to check for dual stack with error:%v", err)))
		}
		if !dual {
			errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "may specify no more than one IP for each IP family"))
		}
	}
	if isHeadless(obj) {
		return errs
	}
	for i, ip := range spec.ClusterIPs[:min(len(spec.ClusterIPs), len(spec.IPFamilies))] {
		if family := spec.IPFamilies[i]; ipFamilies.Has(family) && (family == corev1.IPv6Protocol) != netutils.IsIPv6String(ip) {
			errs = append(errs, field.Invalid(ips.Index(i), ip, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", family, i)))
		}
	}
	return errs
}

func validateIPStrings(ips []string, old *corev1.Service, path *field.Path) (errs field.ErrorList) {
	var stored []string
	if old != nil {
		stored = old.Spec.ClusterIPs
	}
	for i, ip := range ips {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(ips) > 1 {
				errs = append(errs, field.Invalid(path, ips, "'None' must be the first and only value"))
			}
			continue
		}
		errs = append(errs, validation.IsValidIPForLegacyField(path.Index(i), ip, true, stored)...)
	}
	return errs
}

// validateClusterIPsChange: the first address never changes; the second may be added and removed.
func validateClusterIPsChange(obj, old *corev1.Service) (errs field.ErrorList) {
	if !needsClusterIP(obj) || !needsClusterIP(old) || isHeadless(obj) && isHeadless(old) {
		return nil
	}
	path, ips, before := field.NewPath("spec", "clusterIPs"), obj.Spec.ClusterIPs, old.Spec.ClusterIPs
	if len(ips) == len(before) {
		for i, ip := range before {
			if ip != ips[i] {
				errs = append(errs, field.Invalid(path.Index(i), ips, "may not change once set"))
			}
		}
		return errs
	}
	if len(before) > 0 && len(ips) == 0 {
		errs = append(errs, field.Invalid(path.Index(0), ips, "primary clusterIP can not be unset"))
	}
	if len(before) > 0 && len(ips) > 0 && ips[0] != before[0] {
		errs = append(errs, field.Invalid(path.Index(0), ips, "may not change once set"))
	}
	if len(before) > len(ips) && len(ips) == 1 && !isSingleStack(obj) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), obj.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary clusterIP"))
	}
	return errs
}

func validateIPFamiliesChange(obj, old *corev1.Service) (errs field.ErrorList) {
	if !needsClusterIP(obj) || !needsClusterIP(old) || isHeadless(obj) || isHeadless(old) {
		return nil
	}
	path, families, before := field.NewPath("spec", "ipFamilies"), obj.Spec.IPFamilies, old.Spec.IPFamilies
	if len(families) == len(before) {
		for i, family := range before {
			if family != families[i] {
				errs = append(errs, field.Invalid(path.Index(0), families, "may not change once set"))
			}
		}
		return errs
	}
	if len(before) > len(families) && len(obj.Spec.ClusterIPs) == 0 {
		errs = append(errs, field.Invalid(path.Index(0), families, "primary ipFamily can not be unset"))
	}
	if len(before) > 0 && len(families) > 0 && families[0] != before[0] {
		errs = append(errs, field.Invalid(path.Index(0), obj.Spec.ClusterIPs, "may not change once set"))
	}
	if len(before) > len(families) && len(families) == 1 && !isSingleStack(obj) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), obj.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary ipFamily"))
	}
	return errs
}

func isSingleStack(obj *corev1.Service) bool {
	return obj.Spec.IPFamilyPolicy != nil && *obj.Spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
}

func validateExternalIPs(obj, old *corev1.Service) (errs field.ErrorList) {
	var stored []string
	if old != nil {
		stored = old.Spec.ExternalIPs
	}
	for i, ip := range obj.Spec.ExternalIPs {
		path := field.NewPath("spec", "externalIPs").Index(i)
		if wrong := validation.IsValidIPForLegacyField(path, ip, true, stored); len(wrong) > 0 {
			errs = append(errs, wrong...)
		} else {
			errs = append(errs, ValidateEndpointIP(ip, path)...)
		}
	}
	return errs
}

func validateSourceRanges(obj, old *corev1.Service) (errs field.ErrorList) {
	onlyThere := func(path *field.Path) {
		if obj.Spec.Type != corev1.ServiceTypeLoadBalancer {
			errs = append(errs, field.Forbidden(path, onlyLoadBalancer))
		}
	}
	if ranges := obj.Spec.LoadBalancerSourceRanges; len(ranges) > 0 {
		path := field.NewPath("spec", "LoadBalancerSourceRanges")
		onlyThere(path)
		var stored []string
		if old != nil {
			for _, cidr := range old.Spec.LoadBalancerSourceRanges {
				stored = append(stored, strings.TrimSpace(cidr))
			}
		}
		for i, cidr := range ranges {
			errs = append(errs, validation.IsValidCIDRForLegacyField(path.Index(i), strings.TrimSpace(cidr), true, stored)...)
		}
		return errs
	}
	text, set := obj.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !set {
		return nil
	}
	path := field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	onlyThere(path)
	if old != nil && old.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] == text {
		return errs
	}
	if text = strings.TrimSpace(text); text != "" {
		for _, cidr := range strings.Split(text, ",") {
			errs = append(errs, validation.IsValidCIDRForLegacyField(path, strings.TrimSpace(cidr), true, nil)...)
		}
	}
	return errs
}

func validateLoadBalancerClass(obj *corev1.Service) field.ErrorList {
	class, path := obj.Spec.LoadBalancerClass, field.NewPath("spec", "loadBalancerClass")
	switch {
	case class == nil:
		return nil
	case obj.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return field.ErrorList{field.Forbidden(path, onlyLoadBalancer)}
	}
	return kind.Invalid(path, *class, validation.IsQualifiedName(*class))
}

func validateTraffic(obj *corev1.Service) (errs field.ErrorList) {
	spec, path := &obj.Spec, field.NewPath("spec")
	external := path.Child("externalTrafficPolicy")
	switch policy := spec.ExternalTrafficPolicy; {
	case !externallyAccessible(obj) && policy != "":
		errs = append(errs, field.Invalid(external, policy, "may only be set for externally-accessible services"))
	case externallyAccessible(obj) && policy == "":
		errs = append(errs, field.Required(external, ""))
	case policy != "":
		errs = append(errs, supported(external, policy, externalTrafficPolicies)...)
	}
	health := path.Child("healthCheckNodePort")
	switch port := spec.HealthCheckNodePort; {
	case !needsHealthCheckPort(obj) && port != 0:
		errs = append(errs, field.Invalid(health, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	case needsHealthCheckPort(obj) && port == 0:
		errs = append(errs, field.Required(health, ""))
	case port != 0:
		errs = append(errs, kind.Invalid(health, port, validation.IsValidPortNum(int(port)))...)
	}
	internal := path.Child("internalTrafficPolicy")
	if policy := spec.InternalTrafficPolicy; policy != nil {
		errs = append(errs, supported(internal, *policy, internalTrafficPolicies)...)
	} else if serviceTypes.Has(spec.Type) && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(internal, ""))
	}
	if distribution := spec.TrafficDistribution; distribution != nil && !slices.Contains(trafficDistributions, *distribution) {
		errs = append(errs, field.NotSupported(path.Child("trafficDistribution"), *distribution, trafficDistributions))
	}
	return errs
}

func validateLoadBalancerStatus(obj *corev1.Service, old *corev1.LoadBalancerStatus, path *field.Path) (errs field.ErrorList) {
	status := &obj.Status.LoadBalancer
	if obj.Spec.Type != corev1.ServiceTypeLoadBalancer && len(status.Ingress) > 0 {
		return field.ErrorList{field.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")}
	}
	var stored []string
	for _, ingress := range old.Ingress {
		if ingress.IP != "" {
			stored = append(stored, ingress.IP)
		}
	}
	for i, ingress := range status.Ingress {
		idxPath := path.Index(i)
		if ingress.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(idxPath.Child("ip"), ingress.IP, true, stored)...)
		}
		switch mode := ingress.IPMode; {
		case mode == nil && ingress.IP != "":
			errs = append(errs, field.Required(idxPath.Child("ipMode"), "must be specified when `ip` is set"))
		case mode != nil && ingress.IP == "":
			errs = append(errs, field.Forbidden(idxPath.Child("ipMode"), "may not be specified when `ip` is not set"))
		case mode != nil && !loadBalancerIPModes.Has(*mode):
			errs = append(errs, field.NotSupported(idxPath.Child("ipMode"), mode, sets.List(loadBalancerIPModes)))
		}
		if ingress.Hostname != "" {
			errs = append(errs, kind.Invalid(idxPath.Child("hostname"), ingress.Hostname, validation.IsDNS1123Subdomain(ingress.Hostname))...)
			if netutils.ParseIPSloppy(ingress.Hostname) != nil {
				errs = append(errs, field.Invalid(idxPath.Child("hostname"), ingress.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}
