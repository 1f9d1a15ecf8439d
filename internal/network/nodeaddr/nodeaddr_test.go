package nodeaddr

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPrimary(t *testing.T) {
	const internal, external, name = corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName
	for _, test := range []struct {
		addresses []corev1.NodeAddress
		want      string
	}{
		{nil, "[]"},
		{[]corev1.NodeAddress{{Type: name, Address: "10.0.0.1"}, {Type: internal, Address: "not an address"}}, "[]"},
		{[]corev1.NodeAddress{{Type: external, Address: "192.0.2.1"}, {Type: internal, Address: "10.0.0.1"}, {Type: internal, Address: "10.0.0.2"}}, "[10.0.0.1]"},
		{[]corev1.NodeAddress{{Type: external, Address: "192.0.2.1"}, {Type: internal, Address: "fd00::1"}}, "[fd00::1 192.0.2.1]"},
		{[]corev1.NodeAddress{{Type: internal, Address: "10.0.0.01"}, {Type: internal, Address: "::ffff:10.0.0.2"}}, "[10.0.0.1]"},
	} {
		if got := fmt.Sprint(Primary(&corev1.Node{Status: corev1.NodeStatus{Addresses: test.addresses}})); got != test.want {
			t.Errorf("%v: %s, want %s", test.addresses, got, test.want)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.0.0.01": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "fd00::1": "fd00::1", "FD00:0::1": "fd00::1",
		"": "", "10.0.0": "", "10.0.0.256": "", "fe80::1%eth0": "", "10.0.0.1/24": "",
	} {
		got := ""
		if a, ok := Parse(text); ok {
			got = a.String()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestPodCIDRs(t *testing.T) {
	for _, test := range []struct {
		spec corev1.NodeSpec
		want string
	}{
		{corev1.NodeSpec{}, "[]"},
		{corev1.NodeSpec{PodCIDR: "10.42.1.7/24"}, "[10.42.1.0/24]"},
		{corev1.NodeSpec{PodCIDR: "10.42.1.0/24", PodCIDRs: []string{"10.42.1.0/24", "fd42::/64", "fd43::/64"}}, "[10.42.1.0/24 fd42::/64]"},
		{corev1.NodeSpec{PodCIDRs: []string{"10.42.1.0"}}, "[]"},
	} {
		if got := fmt.Sprint(PodCIDRs(&corev1.Node{Spec: test.spec})); got != test.want {
			t.Errorf("%v: %s, want %s", test.spec, got, test.want)
		}
	}
}
