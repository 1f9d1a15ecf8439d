package core

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

func TestServiceDefaults(t *testing.T) {
	obj := service("a", serviceType("LoadBalancer"), func(obj *corev1.Service) {
		obj.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		obj.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	})
	Service.Default(obj)
	spec := obj.Spec
	if *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds != 10800 || spec.Ports[0].Protocol != "TCP" || spec.Ports[0].TargetPort.IntVal != 80 ||
		spec.ExternalTrafficPolicy != "Cluster" || *spec.InternalTrafficPolicy != "Cluster" || !*spec.AllocateLoadBalancerNodePorts || *obj.Status.LoadBalancer.Ingress[0].IPMode != "VIP" {
		t.Errorf("%+v", obj)
	}
	plain := service("a")
	Service.Default(plain)
	if plain.Spec.Type != "ClusterIP" || plain.Spec.ExternalTrafficPolicy != "" || plain.Spec.AllocateLoadBalancerNodePorts != nil || plain.Spec.SessionAffinity != "None" {
		t.Errorf("%+v", plain.Spec)
	}
}

func TestServiceValidation(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*corev1.Service)
		want   []string
	}{
		{"fine", func(*corev1.Service) {}, nil},
		{"type", serviceType("Other"), []string{"spec.type: Unsupported value"}},
		{"external name", serviceType("ExternalName"), []string{"spec.externalName: Required value"}},
		{"headless node port", func(s *corev1.Service) { s.Spec.Type = "NodePort"; clusterIP("None")(s) }, []string{"spec.clusterIPs[0]: Invalid value: may not be set to 'None' for NodePort services"}},
		{"port names", ports(corev1.ServicePort{Port: 1}, corev1.ServicePort{Name: "a", Port: 2}, corev1.ServicePort{Name: "a", Port: 2}), []string{"spec.ports[0].name: Required value", "spec.ports[2].name: Duplicate value", "spec.ports[2]: Duplicate value"}},
		{"port", ports(corev1.ServicePort{Port: 70000, Protocol: "X"}), []string{"spec.ports[0].port: Invalid value", "spec.ports[0].targetPort: Invalid value", "spec.ports[0].protocol: Unsupported value"}},
		{"affinity", func(s *corev1.Service) {
			s.Spec.SessionAffinity = "ClientIP"
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](90000)}}
		}, []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: must be greater than 0 and less than 86400"}},
		{"addresses", func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.0.0.1", []string{"10.0.0.2", "10.0.0.3", "x"}
		}, []string{"spec.clusterIPs: Invalid value: first value must match `clusterIP`", "spec.clusterIPs[2]: Invalid value", "spec.clusterIPs: Invalid value: may only hold up to 2 values"}},
		{"families", func(s *corev1.Service) {
			clusterIP("10.0.0.1")(s)
			s.Spec.IPFamilies = []corev1.IPFamily{"IPv6", "IPv6"}
			s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicy("Any"))
		}, []string{"spec.ipFamilies[1]: Duplicate value", "spec.ipFamilyPolicy: Unsupported value", "spec.clusterIPs[0]: Invalid value: expected an IPv6 value as indicated by `ipFamilies[0]`"}},
		{"external IP", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"127.0.0.1"} }, []string{"spec.externalIPs[0]: Invalid value: may not be in the loopback range"}},
		{"source ranges", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.1/8"} }, []string{"spec.LoadBalancerSourceRanges: Forbidden", "spec.LoadBalancerSourceRanges[0]: Invalid value"}},
		{"class", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("a") }, []string{"spec.loadBalancerClass: Forbidden"}},
		{"health check", func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 1 }, []string{"spec.healthCheckNodePort: Invalid value: may only be set when"}},
		{"needs a health check port", func(s *corev1.Service) { s.Spec.Type = "LoadBalancer"; localTraffic(s) }, []string{"spec.healthCheckNodePort: Required value"}},
		{"external policy", localTraffic, []string{"spec.externalTrafficPolicy: Invalid value: may only be set for externally-accessible services"}},
		{"distribution", func(s *corev1.Service) { s.Spec.TrafficDistribution = ptr.To("Far") }, []string{"spec.trafficDistribution: Unsupported value"}},
		{"annotations", func(s *corev1.Service) {
			s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto", corev1.DeprecatedAnnotationTopologyAwareHints: "off"}
		}, []string{"metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: must match"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(Service, request, service("a", test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
	old := service("a", clusterIP("10.0.0.1"), serviceType("LoadBalancer"), func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/a") })
	changed := old.DeepCopy()
	changed.Spec.LoadBalancerClass = nil
	_, errs := kindtest.Update(Service, request, changed, old)
	kindtest.Errors(t, errs, "spec.loadBalancerClass: Invalid value: may not change once set")
}

func TestServiceStatusAndRow(t *testing.T) {
	old := service("a", serviceType("LoadBalancer"), clusterIP("10.0.0.1"), ports(corev1.ServicePort{Port: 80, NodePort: 30001}, corev1.ServicePort{Port: 81, Protocol: "UDP"}))
	Service.Default(old)
	old.CreationTimestamp = hourly
	checkRow(t, Service, old, "a", "LoadBalancer", "10.0.0.1", "<pending>", "80:30001/TCP,81/UDP", "60m", "app=a")
	changed := old.DeepCopy()
	changed.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "010.0.0.1"}, {Hostname: "10.0.0.1"}, {Hostname: "b.example", IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)}}
	_, errs := kindtest.UpdateSubresource(Service, "status", request, changed, old)
	kindtest.Errors(t, errs,
		"status.loadBalancer.ingress[0].ip: Invalid value: must not have leading 0s",
		"status.loadBalancer.ingress[1].hostname: Invalid value: must be a DNS name, not an IP address",
		"status.loadBalancer.ingress[2].ipMode: Forbidden")
	changed.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}, {IP: "192.0.2.1"}}
	changed.Spec.ExternalIPs = []string{"192.0.2.9"}
	checkRow(t, Service, changed, "a", "LoadBalancer", "10.0.0.1", "192.0.2.1,192.0.2.2,192.0.2.9", "80:30001/TCP,81/UDP", "60m", "app=a")
	plain := service("p", serviceType("ExternalName"), func(s *corev1.Service) { s.Spec.ExternalName, s.Spec.Ports, s.Spec.Selector = "example.com", nil, nil })
	checkRow(t, Service, plain, "p", "ExternalName", "<none>", "example.com", "<none>", "<unknown>", "<none>")
	if Service.Fields["spec.type"](plain) != "ExternalName" || Service.Fields["spec.clusterIP"](old) != "10.0.0.1" {
		t.Error("fields")
	}
	odd := service("o", clusterIP("None"), func(s *corev1.Service) {
		s.Spec.ExternalName, s.Spec.TrafficDistribution, s.Spec.LoadBalancerIP = "x", ptr.To("PreferClose"), "192.0.2.1"
	})
	Service.Default(odd)
	want := []string{
		"spec.loadBalancerIP is ignored for headless services",
		`spec.externalName is ignored when spec.type is not "ExternalName"`,
		`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`,
	}
	if got := Service.Warn(odd, nil); !slices.Equal(got, want) {
		t.Errorf("warnings %q", got)
	}
}
