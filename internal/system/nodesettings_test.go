package system

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/config"
	"skiff/internal/kubelet/node"
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
