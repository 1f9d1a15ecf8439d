package doctor

import (
	"path/filepath"

	"skiff/internal/network/conflict"
)

// Host is a host on which skiff is to run, or runs, and how.
type Host struct {
	// DataDir is skiff's data directory, KubeletDir the kubelet's. They need not exist yet.
	DataDir, KubeletDir string
	// IsForeignKubelet is set if skiff has not used KubeletDir: pods in it are another kubelet's.
	IsForeignKubelet bool
	// NodeName is the name that the node gets.
	NodeName string
	// Ports are those at which skiff listens.
	Ports []Port
	// CIDRs are those of the cluster.
	CIDRs []conflict.Range
	// Thresholds are the hard eviction thresholds of the kubelet, by signal.
	Thresholds map[string]string
	// IsRunning is whether a skiff with the data directory runs: it has its ports, and has found its networks free.
	IsRunning bool
}

// Checks are the checks of a host.
func (h Host) Checks() []Check {
	checks := []Check{
		examine("kernel", readKernel, decideKernel),
		examine("cgroups", readCgroups, decideCgroups),
		examine("capabilities", readCapabilities, decideCapabilities),
		examine("limits", readLimits, decideLimits),
		examine("memory", h.readMemory, decideMemory),
		examine("file-system", h.readFileSystems, decideFileSystems),
		examine("disk", h.readDisks, decideDisks),
		examine("firewall", h.readFirewall, decideFirewall),
		examine("resolv-conf", h.readResolver, decideResolver),
		examine("clock", readClock, decideClock),
		examine("host-name", h.readHostName, decideHostName),
		examine("init", readInit, decideInit),
		examine("other-kubernetes", h.readOthers, decideOthers),
	}
	if !h.IsRunning {
		checks = append(checks, examine("ports", h.readPorts, decidePorts), examine("networks", h.readNetworks, decideNetworks))
	}
	return checks
}

// containerdDir is the directory of images and writable layers of skiff's own containerd.
func (h Host) containerdDir() string { return filepath.Join(h.DataDir, "containerd") }
