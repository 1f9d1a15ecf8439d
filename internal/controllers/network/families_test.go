package network

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAddressTypes(t *testing.T) {
	for _, test := range []struct {
		what     string
		families []corev1.IPFamily
		ip       string
		want     string
	}{
		{"one family", []corev1.IPFamily{corev1.IPv4Protocol}, "10.0.0.1", "[IPv4]"},
		{"two, in the order of the service", []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, "fd00::1", "[IPv6 IPv4]"},
		{"told by the address", nil, "10.0.0.1", "[IPv4]"},
		{"told by the address, six", nil, "fd00::1", "[IPv6]"},
		{"nobody knows: both", nil, corev1.ClusterIPNone, "[IPv4 IPv6]"},
	} {
		s := &corev1.Service{Spec: corev1.ServiceSpec{IPFamilies: test.families, ClusterIP: test.ip}}
		if got := fmt.Sprint(addressTypes(s)); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

func TestAddressOfAPod(t *testing.T) {
	both := []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}}
	for _, test := range []struct {
		what     string
		families []corev1.IPFamily
		ip       string
		pod      []corev1.PodIP
		want     string
	}{
		{"the service's first family", []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, "", both, "fd00::1"},
		{"the family of its address", nil, "10.0.0.1", both, "10.1.0.1"},
		{"the pod's own", nil, corev1.ClusterIPNone, []corev1.PodIP{{IP: "fd00::1"}}, "fd00::1"},
		{"a pod without the family", []corev1.IPFamily{corev1.IPv6Protocol}, "", []corev1.PodIP{{IP: "10.1.0.1"}}, ""},
		{"a pod without addresses", nil, "10.0.0.1", nil, ""},
		{"an address that is none", nil, "10.0.0.1", []corev1.PodIP{{IP: "x"}}, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "1"}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{PodIPs: test.pod}}
		if len(test.pod) > 0 {
			pod.Status.PodIP = test.pod[0].IP
		}
		v := endpointsView{service: &corev1.Service{Spec: corev1.ServiceSpec{IPFamilies: test.families, ClusterIP: test.ip}}}
		got, ok := v.address(pod)
		if ok != (test.want != "") || got.IP != test.want {
			t.Errorf("%s: %q, %v", test.what, got.IP, ok)
		}
		if ok && (*got.NodeName != "n" || got.TargetRef.UID != "1") {
			t.Errorf("%s: %+v", test.what, got)
		}
	}
}

func TestCanonical(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1": "10.0.0.1 IPv4", "010.0.0.1": "10.0.0.1 IPv4", "FD00:0::1": "fd00::1 IPv6", "::ffff:10.0.0.1": "10.0.0.1 IPv4", "": " ", "None": " ",
	} {
		text, family, ok := canonical(address)
		if got := text + " " + string(family); got != want || ok != (want != " ") {
			t.Errorf("%q: %q, %v", address, got, ok)
		}
	}
}

func TestHintsAreWanted(t *testing.T) {
	for _, test := range []struct {
		annotations map[string]string
		want        bool
	}{
		{nil, false},
		{map[string]string{corev1.AnnotationTopologyMode: "Auto"}, true},
		{map[string]string{corev1.AnnotationTopologyMode: "auto"}, true},
		{map[string]string{corev1.AnnotationTopologyMode: "Disabled"}, false},
		{map[string]string{corev1.DeprecatedAnnotationTopologyAwareHints: "Auto"}, true},
		{map[string]string{corev1.DeprecatedAnnotationTopologyAwareHints: "Disabled", corev1.AnnotationTopologyMode: "Auto"}, false},
	} {
		if got := topologyAnnotation(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}}); got != test.want {
			t.Errorf("%v: %v", test.annotations, got)
		}
	}
	for distribution, want := range map[string]bool{"PreferClose": true, "PreferSameZone": true, "PreferSameNode": true, "Random": false} {
		if got := preferred(&distribution); got != want {
			t.Errorf("%s: %v", distribution, got)
		}
	}
	if preferred(nil) {
		t.Error("nothing is preferred by who says nothing")
	}
}

func TestPlaceholder(t *testing.T) {
	v := slicesView{service: aService()}
	placeholder := v.empty(nil, discoveryv1.AddressTypeIPv4)
	if !isPlaceholder(placeholder.DeepCopy(), placeholder) {
		t.Error("a placeholder is none")
	}
	for what, change := range map[string]func(*discoveryv1.EndpointSlice){
		"an endpoint":    func(s *discoveryv1.EndpointSlice) { s.Endpoints = []discoveryv1.Endpoint{{}} },
		"a port":         func(s *discoveryv1.EndpointSlice) { s.Ports = []discoveryv1.EndpointPort{{}} },
		"another label":  func(s *discoveryv1.EndpointSlice) { s.Labels["more"] = "x" },
		"another owner":  func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "other" },
		"no owner":       func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil },
		"a label it had": func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) },
	} {
		slice := placeholder.DeepCopy()
		change(slice)
		if isPlaceholder(slice, placeholder) {
			t.Errorf("with %s it is still a placeholder", what)
		}
	}
}

func TestNamePrefix(t *testing.T) {
	for name, want := range map[string]string{"web": "web-", "web.example": "web.example-", "Web": "Web", "w_b": "w_b"} {
		if got := namePrefix(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
