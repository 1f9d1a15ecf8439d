package kubelet

import (
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
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

// TestMissingHostDNS: pods of a host without resolv.conf wait with upstream's event, and start when it appears.
func TestMissingHostDNS(t *testing.T) {
	b := newTestKubelet(t)
	events := client.NewEventBroadcaster(b.client)
	b.stop()
	var present atomic.Bool
	b.config.Events = events.NewRecorder("kubelet")
	b.config.HostDNS = func() (*environment.DNSConfig, error) {
		if !present.Load() {
			return nil, &fs.PathError{Op: "open", Path: "/etc/resolv.conf", Err: fs.ErrNotExist}
		}
		return &environment.DNSConfig{Servers: []string{"192.0.2.53"}}, nil
	}
	b.start()
	go func() { _ = events.Run(b.ctx) }()
	pod := b.create(regular("a"), func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault })
	b.eventually("event about the sandbox", func() bool {
		list, _, err := client.For[*corev1.Event](b.client).List(b.ctx, pod.Namespace, client.Selector{})
		return err == nil && slices.ContainsFunc(list, func(e *corev1.Event) bool {
			return e.InvolvedObject.UID == pod.UID && e.Reason == "FailedCreatePodSandBox" && e.Message == "Failed to create pod sandbox: open /etc/resolv.conf: file does not exist"
		})
	})
	present.Store(true)
	b.until(pod, "running", running)
}
