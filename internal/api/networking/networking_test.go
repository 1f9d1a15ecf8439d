package networking

import (
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

var now = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "ns", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}
}

func checkRow(t *testing.T, k *kind.Kind, obj kind.Object, want ...any) {
	t.Helper()
	if got := k.Row(obj, now); !reflect.DeepEqual(got, want) {
		t.Errorf("row\n got %#v\nwant %#v", got, want)
	}
}

func backend(name string, port int32) networkingv1.IngressBackend {
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: name, Port: networkingv1.ServiceBackendPort{Number: port}}}
}

func ingress(changes ...func(*networkingv1.IngressSpec)) *networkingv1.Ingress {
	obj := &networkingv1.Ingress{ObjectMeta: named("i"), Spec: networkingv1.IngressSpec{DefaultBackend: ptr.To(backend("s", 80))}}
	for _, change := range changes {
		change(&obj.Spec)
	}
	return obj
}

func route(host, path string, pathType networkingv1.PathType) networkingv1.IngressRule {
	return networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
		Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &pathType, Backend: backend("s", 80)}},
	}}}
}

func TestIngress(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*networkingv1.IngressSpec)
		want   []string
	}{
		{"default backend", func(*networkingv1.IngressSpec) {}, nil},
		{"nothing", func(s *networkingv1.IngressSpec) { s.DefaultBackend = nil }, []string{"spec: Invalid value: either `defaultBackend` or `rules` must be specified"}},
		{"routes", func(s *networkingv1.IngressSpec) {
			s.Rules = []networkingv1.IngressRule{route("*.example.com", "/a", "Prefix"), route("", "", "ImplementationSpecific")}
		}, nil},
		{"hosts", func(s *networkingv1.IngressSpec) {
			s.Rules = []networkingv1.IngressRule{route("10.0.0.1", "/", "Exact"), route("a*b", "/", "Exact")}
		}, []string{"spec.rules[0].host: Invalid value: must be a DNS name, not an IP address", "spec.rules[1].host: Invalid value: a wildcard DNS-1123 subdomain"}},
		{"paths", func(s *networkingv1.IngressSpec) {
			s.Rules = []networkingv1.IngressRule{route("", "a//b", "Exact"), route("", "/..", "Prefix"), route("", "/", "Other"), {IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{}}}}
		}, []string{
			"spec.rules[0].http.paths[0].path: Invalid value: must be an absolute path", "spec.rules[0].http.paths[0].path: Invalid value: must not contain '//'",
			"spec.rules[1].http.paths[0].path: Invalid value: cannot end with '/..'", "spec.rules[2].http.paths[0].pathType: Unsupported value", "spec.rules[3].http.paths: Required value",
		}},
		{"backends", func(s *networkingv1.IngressSpec) { s.DefaultBackend = &networkingv1.IngressBackend{} }, []string{"spec.defaultBackend: Invalid value: resource or service backend is required"}},
		{"service", func(s *networkingv1.IngressSpec) { s.DefaultBackend = ptr.To(backend("A", 0)) }, []string{"spec.defaultBackend.service.name: Invalid value", "spec.defaultBackend: Required value: port name or number is required"}},
		{"resource", func(s *networkingv1.IngressSpec) {
			s.DefaultBackend = &networkingv1.IngressBackend{Resource: &corev1.TypedLocalObjectReference{Name: "a/b"}}
		}, []string{"spec.defaultBackend.resource.kind: Required value", "spec.defaultBackend.resource.name: Invalid value"}},
		{"tls", func(s *networkingv1.IngressSpec) {
			s.TLS = []networkingv1.IngressTLS{{Hosts: []string{"A"}, SecretName: "_"}}
		}, []string{"spec.tls[0].hosts[0]: Invalid value", "spec.tls[0].secretName: Invalid value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(Ingress, nil, ingress(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
	old := ingress(func(s *networkingv1.IngressSpec) { s.TLS = []networkingv1.IngressTLS{{SecretName: "_"}} })
	_, errs := kindtest.Update(Ingress, nil, old, old)
	kindtest.Errors(t, errs)

	annotated := ingress(func(s *networkingv1.IngressSpec) { s.IngressClassName = ptr.To("a") })
	annotated.Annotations = map[string]string{classAnnotation: "b"}
	_, errs = kindtest.Create(Ingress, nil, annotated)
	kindtest.Errors(t, errs, "annotations.kubernetes.io/ingress.class: Invalid value: must match `ingressClassName` when both are specified")
	annotated.Spec.IngressClassName = nil
	if len(Ingress.Warn(annotated, nil)) != 1 || len(Ingress.Warn(annotated, annotated)) != 0 {
		t.Error("the annotation warns at creation")
	}
	shown := ingress(func(s *networkingv1.IngressSpec) {
		s.Rules = []networkingv1.IngressRule{{Host: "a"}, {Host: "b"}, {}, {Host: "c"}, {Host: "d"}}
		s.TLS = []networkingv1.IngressTLS{{}}
	})
	shown.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{Hostname: "z"}, {IP: "192.0.2.1"}}
	checkRow(t, Ingress, shown, "i", "<none>", "a,b,c + 2 more...", "192.0.2.1,z", "80, 443", "60m")
	checkRow(t, Ingress, ingress(), "i", "<none>", "*", "", "80", "60m")
	shown.Status.LoadBalancer.Ingress[1].IP = "x"
	_, errs = kindtest.UpdateSubresource(Ingress, "status", nil, shown, ingress())
	kindtest.Errors(t, errs, "status.loadBalancer.ingress[1].ip: Invalid value")
	if !Ingress.SpecChanged(shown, old) || Ingress.SpecChanged(old, old.DeepCopy()) {
		t.Error("generation")
	}
}

func TestIngressClass(t *testing.T) {
	class := func(parameters *networkingv1.IngressClassParametersReference) *networkingv1.IngressClass {
		return &networkingv1.IngressClass{ObjectMeta: named("c"), Spec: networkingv1.IngressClassSpec{Controller: "example.com/x", Parameters: parameters}}
	}
	for _, test := range []struct {
		parameters *networkingv1.IngressClassParametersReference
		want       []string
	}{
		{nil, nil},
		{&networkingv1.IngressClassParametersReference{Kind: "K", Name: "n"}, nil},
		{&networkingv1.IngressClassParametersReference{}, []string{"spec.parameters.kind: Required value", "spec.parameters.name: Required value"}},
		{&networkingv1.IngressClassParametersReference{Kind: "K", Name: "n", Scope: ptr.To("Namespace")}, []string{"spec.parameters.namespace: Required value"}},
		{&networkingv1.IngressClassParametersReference{Kind: "K", Name: "n", Namespace: ptr.To("ns")}, []string{"spec.parameters.namespace: Forbidden"}},
		{&networkingv1.IngressClassParametersReference{Kind: "K", Name: "n", Scope: ptr.To("World")}, []string{"spec.parameters.scope: Unsupported value"}},
	} {
		_, errs := kindtest.Create(IngressClass, nil, class(test.parameters))
		kindtest.Errors(t, errs, test.want...)
	}
	changed := class(nil)
	changed.Spec.Controller = "no-path"
	_, errs := kindtest.Update(IngressClass, nil, changed, class(nil))
	kindtest.Errors(t, errs, "spec.controller: Invalid value: field is immutable", "spec.controller: Invalid value: must be a domain-prefixed path")
	shown := class(&networkingv1.IngressClassParametersReference{APIGroup: ptr.To("g"), Kind: "K", Name: "n"})
	shown.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
	checkRow(t, IngressClass, shown, "c (default)", "example.com/x", "K.g/n", "60m")
}

func TestNetworkPolicy(t *testing.T) {
	policy := func(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: named("n"), Spec: networkingv1.NetworkPolicySpec{Egress: []networkingv1.NetworkPolicyEgressRule{{Ports: ports, To: peers}}}}
	}
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	for _, test := range []struct {
		name string
		obj  *networkingv1.NetworkPolicy
		want []string
	}{
		{"fine", policy([]networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(80)), EndPort: ptr.To[int32](90)}}, block("10.0.0.0/8", "10.1.0.0/16")), nil},
		{"ports", policy([]networkingv1.NetworkPolicyPort{
			{Protocol: ptr.To(corev1.Protocol("X"))}, {EndPort: ptr.To[int32](1)}, {Port: ptr.To(intstr.FromInt32(80)), EndPort: ptr.To[int32](70)}, {Port: ptr.To(intstr.FromString("a")), EndPort: ptr.To[int32](70)},
		}), []string{
			"spec.egress[0].ports[0].protocol: Unsupported value", "spec.egress[0].ports[1].endPort: Invalid value: may not be specified when `port` is not specified",
			"spec.egress[0].ports[2].endPort: Invalid value: must be greater than or equal to `port`", "spec.egress[0].ports[3].endPort: Invalid value: may not be specified when `port` is non-numeric",
		}},
		{"peers", policy(nil, networkingv1.NetworkPolicyPeer{}, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}, IPBlock: &networkingv1.IPBlock{}}, block("10.0.0.0/8", "11.0.0.0/9")), []string{
			"spec.egress[0].to[0]: Required value: must specify a peer", "spec.egress[0].to[1].ipBlock.cidr: Required value", "spec.egress[0].to[1]: Forbidden: may not specify both ipBlock and another peer",
			"spec.egress[0].to[2].ipBlock.except[0]: Invalid value: must be a strict subset of `cidr`",
		}},
		{"types", &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Other"}}}, []string{"spec.policyTypes[0]: Unsupported value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(NetworkPolicy, nil, test.obj)
			kindtest.Errors(t, errs, test.want...)
		})
	}
	sloppy := policy(nil, block("010.0.0.0/8"))
	_, errs := kindtest.Create(NetworkPolicy, nil, sloppy)
	kindtest.Errors(t, errs, "spec.egress[0].to[0].ipBlock.cidr: Invalid value")
	updated, errs := kindtest.Update(NetworkPolicy, nil, sloppy, sloppy)
	kindtest.Errors(t, errs)
	if !slices.Equal(updated.Spec.PolicyTypes, []networkingv1.PolicyType{"Ingress", "Egress"}) {
		t.Errorf("types %v", updated.Spec.PolicyTypes)
	}
	if got := NetworkPolicy.Warn(policy(nil, block("10.0.0.1/8")), nil); len(got) != 1 {
		t.Errorf("warnings %q", got)
	}
	checkRow(t, NetworkPolicy, policy(nil), "n", "<none>", "60m")
}

func TestIPAddress(t *testing.T) {
	address := func(ref *networkingv1.ParentReference) *networkingv1.IPAddress {
		return &networkingv1.IPAddress{ObjectMeta: named("10.0.0.1"), Spec: networkingv1.IPAddressSpec{ParentRef: ref}}
	}
	good := address(&networkingv1.ParentReference{Resource: "services", Namespace: "ns", Name: "s"})
	_, errs := kindtest.Create(IPAddress, nil, good)
	kindtest.Errors(t, errs)
	_, errs = kindtest.Create(IPAddress, nil, address(nil))
	kindtest.Errors(t, errs, "spec.parentRef: Required value")
	_, errs = kindtest.Update(IPAddress, nil, address(&networkingv1.ParentReference{Name: "a/b"}), good)
	kindtest.Errors(t, errs, "spec.parentRef.resource: Required value", "spec.parentRef.name: Invalid value", "spec.parentRef: Invalid value: field is immutable")
	for name, valid := range map[string]bool{"10.0.0.1": true, "2001:db8::1": true, "2001:DB8::1": false, "010.0.0.1": false, "a": false} {
		if got := len(IPAddress.ValidateName(name, false)) == 0; got != valid {
			t.Errorf("%s valid: %v", name, got)
		}
	}
	checkRow(t, IPAddress, good, "10.0.0.1", "services/ns/s", "60m")
}

func TestServiceCIDR(t *testing.T) {
	cidr := func(cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: named("c"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	one := cidr("10.0.0.0/16")
	for _, test := range []struct {
		obj, old *networkingv1.ServiceCIDR
		want     []string
	}{
		{obj: one},
		{obj: cidr("10.0.0.0/16", "fd00::/64")},
		{obj: cidr(), want: []string{"spec.cidrs: Required value: at least one CIDR required"}},
		{obj: cidr("10.0.0.0/16", "10.1.0.0/16"), want: []string{"spec.cidrs: Invalid value: may specify no more than one IP for each IP family"}},
		{obj: cidr("10.0.0.1/16"), want: []string{"spec.cidrs[0]: Invalid value"}},
		{obj: cidr("a", "b", "c"), want: []string{"spec.cidrs: Invalid value: may only hold up to 2 values"}},
		{obj: cidr("10.0.0.0/16", "fd00::/64"), old: one},
		{obj: cidr("10.1.0.0/16", "fd00::/64"), old: one, want: []string{"spec.cidrs[0]: Invalid value: field is immutable"}},
		{obj: cidr("10.1.0.0/16"), old: one, want: []string{"spec.cidrs[0]: Invalid value: field is immutable"}},
		{obj: one, old: cidr("10.0.0.0/16", "fd00::/64"), want: []string{"spec.cidrs: Invalid value: field is immutable"}},
	} {
		if test.old == nil {
			_, errs := kindtest.Create(ServiceCIDR, nil, test.obj)
			kindtest.Errors(t, errs, test.want...)
		} else {
			_, errs := kindtest.Update(ServiceCIDR, nil, test.obj, test.old)
			kindtest.Errors(t, errs, test.want...)
		}
	}
	checkRow(t, ServiceCIDR, cidr("10.0.0.0/16", "fd00::/64"), "c", "10.0.0.0/16,fd00::/64", "60m")
}
