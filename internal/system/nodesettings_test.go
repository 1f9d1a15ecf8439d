package system

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/kubelet"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/node"
	"skiff/internal/kubelet/shutdown"
	"skiff/internal/kubelet/volume"
	"skiff/test/inprocess"
)

// defaultSettings is the configuration of a node without a configuration file.
func defaultSettings(t *testing.T) *kubeletconfig.KubeletConfiguration {
	t.Helper()
	settings, err := new(config.Node).KubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	return settings
}

func TestCheckSwap(t *testing.T) {
	s := defaultSettings(t)
	for _, row := range []struct {
		fail  bool
		swap  int64
		fails bool
	}{{false, 0, false}, {false, 1 << 30, false}, {true, 0, false}, {true, 1 << 30, true}} {
		s.FailSwapOn = &row.fail
		if err := checkSwap(s, node.Host{Swap: row.swap}); (err != nil) != row.fails {
			t.Errorf("failSwapOn: %t with %d bytes of swap: %v", row.fail, row.swap, err)
		}
	}
}

// The cgroup of all pods leaves what is reserved to the system, unless enforceNodeAllocatable is empty or none.
func TestPodLimits(t *testing.T) {
	s := defaultSettings(t)
	s.KubeReserved, s.SystemReserved = map[string]string{"memory": "1Gi", "cpu": "500m"}, map[string]string{"memory": "1Gi"}
	for _, row := range []struct {
		enforced    []string
		memory, cpu string
	}{
		{s.EnforceNodeAllocatable, "6Gi", "3500m"}, {[]string{"pods"}, "6Gi", "3500m"}, {[]string{}, "8Gi", "4"}, {[]string{"none"}, "8Gi", "4"},
	} {
		s.EnforceNodeAllocatable = row.enforced
		limits := podLimits(s, node.Host{CPUs: 4, Memory: 8 << 30})
		if got := limits.Memory().String() + " " + limits.Cpu().String(); got != row.memory+" "+row.cpu {
			t.Errorf("enforceNodeAllocatable: %q limits pods to %s, want %s %s", row.enforced, got, row.memory, row.cpu)
		}
	}
}

// The resolver configuration of the host is read each time, unless it is disabled.
func TestHostDNS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	s := defaultSettings(t)
	s.ResolverConfig = &path
	n := &nodeComponents{settings: s}
	if config, err := n.hostDNS(); err == nil {
		t.Errorf("got %v without a file", config)
	}
	for _, server := range []string{"192.0.2.53", "198.51.100.53"} {
		if err := os.WriteFile(path, []byte("nameserver "+server+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if config, err := n.hostDNS(); err != nil || !slices.Equal(config.Servers, []string{server}) {
			t.Errorf("got %v, %v, want %s", config, err, server)
		}
	}
	s.ResolverConfig = new("")
	if config, err := n.hostDNS(); config != nil || err != nil {
		t.Errorf("got %v, %v although it is disabled", config, err)
	}
}

// TestMissingHostDNS: a host without resolv.conf, or with one that pods cannot have, does not end the start of its node. The node has upstream's event.
func TestMissingHostDNS(t *testing.T) {
	api := inprocess.Start(t, t.Context())
	for name, test := range map[string]struct{ text, want string }{
		"missing": {"", "resolvConf: open PATH: no such file or directory"},
		"long":    {"search a.example b.example\nsearch " + strings.Repeat("x.example ", 40), "Resolv.conf file 'PATH' contains search line consisting of more than 29 domains!"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "resolv.conf")
			if test.text != "" {
				if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			events := client.NewEventBroadcaster(api)
			n := &nodeComponents{nodeOptions: nodeOptions{clusterDomain: "cluster.local"}, settings: defaultSettings(t), log: slog.New(slog.DiscardHandler), client: api,
				informers: client.NewInformers(api), metrics: metrics.New("node"), shutdown: &shutdown.Shutdown{}, volumes: &volume.Volumes{}}
			n.node = node.New(node.Settings{Name: "node-" + name}, node.Dependencies{Client: api, Events: events.NewRecorder("kubelet"), Log: n.log})
			n.settings.ResolverConfig = &path
			if err := n.buildKubelet(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			go func() { _ = events.Run(ctx) }()
			want := strings.ReplaceAll(test.want, "PATH", path)
			for {
				list, _, err := client.For[*corev1.Event](api).List(ctx, metav1.NamespaceDefault, client.Selector{})
				if err != nil {
					t.Fatal(err)
				}
				if slices.ContainsFunc(list, func(e *corev1.Event) bool {
					return e.InvolvedObject.Name == "node-"+name && e.Reason == "CheckLimitsForResolvConf" && e.Message == want
				}) {
					return
				}
			}
		})
	}
}

// TestRuntimeProblem: the condition of a node says why its container runtime is not ready.
func TestRuntimeProblem(t *testing.T) {
	problem := errors.New("not checked")
	n := &nodeComponents{
		kubelet: kubelet.New(kubelet.Config{Client: inprocess.Start(t, t.Context())}), shutdown: &shutdown.Shutdown{}, runtimeProblem: func() error { return problem },
	}
	if err := errors.Join(n.notReadyErrors()...); !errors.Is(err, problem) {
		t.Errorf("error %v", err)
	}
	was := problem
	problem = nil
	if err := errors.Join(n.notReadyErrors()...); errors.Is(err, was) {
		t.Errorf("error %v after the problem has ended", err)
	}
}
