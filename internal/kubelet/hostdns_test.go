package kubelet

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/environment"
)

// TestHostDNS: a pod gets the name servers that its host has when it starts, and waits for them.
func TestHostDNS(t *testing.T) {
	var server string
	pod := planned(regular("c"))
	pod.Spec.DNSPolicy = corev1.DNSDefault
	w := newWorker(&Kubelet{Config: Config{
		HostIPs: func() []string { return []string{"192.0.2.1"} },
		HostDNS: func() (*environment.DNSConfig, error) {
			if server == "" {
				return nil, errors.New("no resolv.conf")
			}
			return &environment.DNSConfig{Servers: []string{server}}, nil
		},
	}}, pod)
	if _, err := w.resolver(pod); err == nil {
		t.Error("a pod starts without name servers")
	}
	for _, server = range []string{"192.0.2.53", "198.51.100.53"} {
		got, err := w.resolver(pod)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Servers, []string{server}) {
			t.Errorf("name servers %v, want %s", got.Servers, server)
		}
	}
}
