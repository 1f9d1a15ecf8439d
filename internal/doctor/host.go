package doctor

import (
	"context"
	"path/filepath"

	"skiff/internal/network/conflict"
)

// Host is a host on which skiff is to run, or runs, and how.
type Host struct {
	// DataDir is skiff's data directory, KubeletDir the kubelet's. They need not exist yet.
	DataDir, KubeletDir string
	// IsForeignKubelet is set if skiff has not used KubeletDir: pods in it are another kubelet's.
	IsForeignKubelet bool
	// NoNode is set for a control plane without a node: pods are somebody else's.
	NoNode bool
	// StaticPods is the directory of the node's static pods; empty: it has none.
	StaticPods string
	// NodeName is the name that the node gets.
	NodeName string
	// Ports are those at which skiff listens.
	Ports []Port
	// CIDRs are those of the cluster.
	CIDRs []conflict.Range
	// Thresholds are the hard eviction thresholds of the kubelet, by signal.
	Thresholds map[string]string
	// ConfigurationProblem is what is wrong with the flags of the installed service, or with the configuration file.
	ConfigurationProblem error
	// IsRunning is whether a skiff with the data directory runs: it has its ports, and has found its networks free.
	IsRunning bool
}

// Checks are the checks of a host.
func (h Host) Checks() []Check {
	checks := []Check{
		examine("configuration", h.readConfiguration, decideConfiguration),
		examine("limits", readLimits, decideLimits),
		examine("memory", h.readMemory, decideMemory),
		examine("file-system", h.readFileSystems, decideFileSystems),
		examine("disk", h.readDisks, decideDisks),
		examine("firewall", h.readFirewall, decideFirewall),
		examine("clock", readClock, decideClock),
		examine("init", readInit, decideInit),
	}
	if !h.IsRunning {
		checks = append(checks, examine("ports", h.readPorts, decidePorts))
	}
	if h.NoNode {
		return checks
	}
	checks = append(checks,
		examine("kernel", readKernel, decideKernel),
		examine("cgroups", readCgroups, decideCgroups),
		examine("capabilities", readCapabilities, decideCapabilities),
		examine("resolv-conf", h.readResolver, decideResolver),
		examine("host-name", h.readHostName, decideHostName),
		examine("other-kubernetes", h.readOthers, decideOthers),
	)
	if !h.IsRunning {
		checks = append(checks, examine("networks", h.readNetworks, decideNetworks))
	}
	return checks
}

// containerdDir is the directory of images and writable layers of skiff's own containerd.
func (h Host) containerdDir() string { return filepath.Join(h.DataDir, "containerd") }

func (h Host) readConfiguration(context.Context) (error, error) { return h.ConfigurationProblem, nil }

func decideConfiguration(problem error) []Finding {
	if problem == nil {
		return nil
	}
	return []Finding{{
		Severity: Error, Problem: problem.Error(), Breaks: "skiff does not start. The host was examined as for a server without flags", When: whenStarted,
		Fix: "correct it: docs/configuration.md has the rules, docs/reference.md the flags",
	}}
}
