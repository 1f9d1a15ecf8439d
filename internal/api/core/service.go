package core

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Service is a union by its type: when the type changes, fields of the old type are cleared and their addresses and ports
// released. The hooks in servicealloc.go allocate addresses and ports before validation.
var Service = kind.Of(kind.Definition[*corev1.Service]{
	GVK: corev1.SchemeGroupVersion.WithKind("Service"), Plural: "services", Short: []string{"svc"}, Categories: []string{"all"}, Namespaced: true, Prefix: "services/specs",
	List: &corev1.ServiceList{},

	ValidateName: apivalidation.NameIsDNSLabel,
	Default:      defaultService,
	Prepare: func(_ *kind.Request, obj, old *corev1.Service) {
		if old != nil {
			dropTypeDependentFields(obj, old)
		}
	},
	Validate: validateService,
	Canonicalize: func(obj *corev1.Service) {
		if obj.Spec.Type == corev1.ServiceTypeExternalName {
			obj.Spec.InternalTrafficPolicy = nil
		}
	},
	Warn:                warnService,
	AllowCreateOnUpdate: true,
	Subresources: []kind.Subresource{
		{Name: "proxy", GVK: corev1.SchemeGroupVersion.WithKind("ServiceProxyOptions"), Verbs: proxyVerbs, ConnectOptions: serviceProxyOptions},
	},

	CopyStatus: func(to, from *corev1.Service) { to.Status = from.Status },
	ValidateStatus: func(_ *kind.Request, obj, old *corev1.Service) field.ErrorList {
		return validateLoadBalancerStatus(obj, &old.Status.LoadBalancer, field.NewPath("status", "loadBalancer", "ingress"))
	},
	WarnStatus: func(obj, _ *corev1.Service) (warnings []string) {
		for i, ingress := range obj.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), ingress.IP)...)
			}
		}
		return warnings
	},

	BeforeCreate:  allocateNewService,
	BeforeUpdate:  allocateServiceChange,
	AfterUpdate:   releaseServiceChange,
	AfterDelete:   releaseService,
	ReturnDeleted: true,

	Fields: map[string]func(*corev1.Service) string{
		"spec.clusterIP": func(obj *corev1.Service) string { return obj.Spec.ClusterIP },
		"spec.type":      func(obj *corev1.Service) string { return string(obj.Spec.Type) },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Type", "string", corev1.ServiceSpec{}.SwaggerDoc()["type"]),
		kind.Column("Cluster-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
		kind.Column("External-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
		kind.Column("Port(s)", "string", corev1.ServiceSpec{}.SwaggerDoc()["ports"]),
		kind.AgeColumn(),
		kind.Wide("Selector", "string", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
	},
	Row: serviceRow,
})

func defaultService(obj *corev1.Service) {
	spec := &obj.Spec
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	switch config := spec.SessionAffinityConfig; spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
			timeout := corev1.DefaultClientIPServiceAffinitySeconds
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	}
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range spec.Ports {
		port := &spec.Ports[i]
		if port.Protocol == "" {
			port.Protocol = corev1.ProtocolTCP
		}
		if port.TargetPort == intstr.FromInt32(0) || port.TargetPort == intstr.FromString("") {
			port.TargetPort = intstr.FromInt32(port.Port)
		}
	}
	if externallyAccessible(obj) && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	switch spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if spec.InternalTrafficPolicy == nil {
			policy := corev1.ServiceInternalTrafficPolicyCluster
			spec.InternalTrafficPolicy = &policy
		}
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if spec.AllocateLoadBalancerNodePorts == nil {
		allocate := true
		spec.AllocateLoadBalancerNodePorts = &allocate
	}
	for i := range obj.Status.LoadBalancer.Ingress {
		if ingress := &obj.Status.LoadBalancer.Ingress[i]; ingress.IP != "" && ingress.IPMode == nil {
			mode := corev1.LoadBalancerIPModeVIP
			ingress.IPMode = &mode
		}
	}
}

func externallyAccessible(obj *corev1.Service) bool {
	switch obj.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(obj.Spec.ExternalIPs) > 0
	}
	return false
}

// isHeadless: the service has no cluster IP; its name resolves to its endpoints.
func isHeadless(obj *corev1.Service) bool {
	return len(obj.Spec.ClusterIPs) == 1 && obj.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func needsClusterIP(obj *corev1.Service) bool { return obj.Spec.Type != corev1.ServiceTypeExternalName }

func needsNodePort(obj *corev1.Service) bool {
	return obj.Spec.Type == corev1.ServiceTypeNodePort || obj.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func needsHealthCheckPort(obj *corev1.Service) bool {
	return obj.Spec.Type == corev1.ServiceTypeLoadBalancer && obj.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// dropTypeDependentFields clears fields that no longer apply, may have been set by the server, and were not changed by the
// client: if a client changes such a field, validation refuses it.
func dropTypeDependentFields(obj, old *corev1.Service) {
	spec, before := &obj.Spec, &old.Spec
	if needsClusterIP(old) && !needsClusterIP(obj) {
		if spec.ClusterIP == before.ClusterIP && slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
			spec.ClusterIP, spec.ClusterIPs = "", nil
		}
		if slices.Equal(spec.IPFamilies, before.IPFamilies) {
			spec.IPFamilies = nil
		}
		if same(spec.IPFamilyPolicy, before.IPFamilyPolicy) {
			spec.IPFamilyPolicy = nil
		}
	}
	if needsNodePort(old) && !needsNodePort(obj) && nodePorts(old).IsSuperset(nodePorts(obj)) {
		for i := range spec.Ports {
			spec.Ports[i].NodePort = 0
		}
	}
	if needsHealthCheckPort(old) && !needsHealthCheckPort(obj) && spec.HealthCheckNodePort == before.HealthCheckNodePort {
		spec.HealthCheckNodePort = 0
	}
	if before.Type == corev1.ServiceTypeLoadBalancer && spec.Type != corev1.ServiceTypeLoadBalancer {
		if same(spec.AllocateLoadBalancerNodePorts, before.AllocateLoadBalancerNodePorts) {
			spec.AllocateLoadBalancerNodePorts = nil
		}
		if same(spec.LoadBalancerClass, before.LoadBalancerClass) {
			spec.LoadBalancerClass = nil
		}
	}
	if externallyAccessible(old) && !externallyAccessible(obj) && spec.ExternalTrafficPolicy == before.ExternalTrafficPolicy {
		spec.ExternalTrafficPolicy = ""
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		obj.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

// nodePorts are the node ports of the service's ports, without the health check node port.
func nodePorts(obj *corev1.Service) sets.Set[int32] {
	ports := sets.New[int32]()
	for _, port := range obj.Spec.Ports {
		if port.NodePort != 0 {
			ports.Insert(port.NodePort)
		}
	}
	return ports
}

func same[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func warnService(obj, _ *corev1.Service) (warnings []string) {
	warn := func(applies bool, format string, args ...any) {
		if applies {
			warnings = append(warnings, fmt.Sprintf(format, args...))
		}
	}
	spec, path := &obj.Spec, field.NewPath("spec")
	_, hints := obj.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	warn(hints, "annotation %s is deprecated, please use %s instead", corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode)
	if spec.ClusterIP != "" && spec.ClusterIP != corev1.ClusterIPNone {
		for i, ip := range spec.ClusterIPs {
			warnings = append(warnings, validation.GetWarningsForIP(path.Child("clusterIPs").Index(i), ip)...)
		}
	}
	headless := spec.Type == corev1.ServiceTypeClusterIP && spec.ClusterIP == corev1.ClusterIPNone
	warn(headless && spec.LoadBalancerIP != "", "spec.loadBalancerIP is ignored for headless services")
	warn(headless && len(spec.ExternalIPs) > 0, "spec.externalIPs is ignored for headless services")
	warn(headless && spec.SessionAffinity != corev1.ServiceAffinityNone, "spec.SessionAffinity is ignored for headless services")
	for i, ip := range spec.ExternalIPs {
		warnings = append(warnings, validation.GetWarningsForIP(path.Child("externalIPs").Index(i), ip)...)
	}
	external := spec.Type == corev1.ServiceTypeExternalName
	warn(len(spec.ExternalIPs) > 0 && !headless && !external, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	if spec.LoadBalancerIP != "" {
		warnings = append(warnings, validation.GetWarningsForIP(path.Child("loadBalancerIP"), spec.LoadBalancerIP)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		warnings = append(warnings, validation.GetWarningsForCIDR(path.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	warn(external && len(spec.ExternalIPs) > 0, "spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName)
	warn(!external && spec.ExternalName != "", "spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName)
	warn(spec.TrafficDistribution != nil && *spec.TrafficDistribution == corev1.ServiceTrafficDistributionPreferClose,
		"spec.trafficDistribution: %q is deprecated; use %q", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone)
	return warnings
}

func serviceRow(obj *corev1.Service, now time.Time) []any {
	clusterIP := "<none>"
	if len(obj.Spec.ClusterIPs) > 0 {
		clusterIP = obj.Spec.ClusterIPs[0]
	}
	var ports []string
	for _, port := range obj.Spec.Ports {
		text := fmt.Sprintf("%d/%s", port.Port, port.Protocol)
		if port.NodePort > 0 {
			text = fmt.Sprintf("%d:%d/%s", port.Port, port.NodePort, port.Protocol)
		}
		ports = append(ports, text)
	}
	return []any{
		obj.Name, string(obj.Spec.Type), clusterIP, serviceExternalIP(obj), orElse(strings.Join(ports, ","), "<none>"),
		kind.Age(obj.CreationTimestamp, now), labels.FormatLabels(obj.Spec.Selector),
	}
}

func serviceExternalIP(obj *corev1.Service) string {
	switch obj.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return orElse(strings.Join(obj.Spec.ExternalIPs, ","), "<none>")
	case corev1.ServiceTypeLoadBalancer:
		found := sets.New[string]()
		for _, ingress := range obj.Status.LoadBalancer.Ingress {
			if address := orElse(ingress.IP, ingress.Hostname); address != "" {
				found.Insert(address)
			}
		}
		return orElse(strings.Join(append(sets.List(found), obj.Spec.ExternalIPs...), ","), "<pending>")
	case corev1.ServiceTypeExternalName:
		return obj.Spec.ExternalName
	}
	return "<unknown>"
}
