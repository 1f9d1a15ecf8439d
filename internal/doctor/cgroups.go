package doctor

import (
	"context"
	"slices"
	"strings"

	"skiff/internal/kubelet/cgroup"
)

// cgroupState is what the host has of cgroups.
type cgroupState struct {
	// version is 0 if no cgroup file system is mounted.
	version int
	// missing are the controllers that the host does not have, or does not delegate to this container.
	missing []string
	// problem is why the hierarchies cannot be read.
	problem error
}

func readCgroups(context.Context) (cgroupState, error) {
	groups, err := cgroup.New(cgroup.Settings{})
	if err != nil {
		return cgroupState{problem: err}, nil
	}
	return cgroupState{version: groups.Version(), missing: groups.Missing()}, nil
}

// neededControllers are those without which one pod can take from others what they were promised.
var neededControllers = []string{"cpu", "memory", "pids"}

func decideCgroups(s cgroupState) (findings []Finding) {
	if s.problem != nil {
		return []Finding{{
			Severity: Error, Problem: s.problem.Error(), Breaks: "the node does not start", When: whenStarted,
			Fix: "mount cgroup version 2 at /sys/fs/cgroup; a container with skiff needs a cgroup namespace of its own and write access to it",
		}}
	}
	if s.version == 1 {
		findings = append(findings, Finding{
			Severity: Warning, Problem: "the host has cgroup version 1", Breaks: "memoryReservationPolicy, memoryThrottlingFactor, limits of swap and pressure metrics have no effect",
			When: whenNow, Fix: "boot with systemd.unified_cgroup_hierarchy=1, the default of current distributions",
		})
	}
	isNeeded := func(c string) bool { return slices.Contains(neededControllers, c) }
	var needed, others []string
	for _, c := range s.missing {
		if isNeeded(c) {
			needed = append(needed, c)
		} else {
			others = append(others, c)
		}
	}
	if len(needed) > 0 {
		findings = append(findings, Finding{
			Severity: Error, Problem: "cgroup controllers are missing: " + strings.Join(needed, ", "), Breaks: "limits of pods are not enforced: one pod can take what the others need",
			When: whenLater, Fix: "enable them in the kernel's command line (cgroup_enable=memory), or delegate them to the container that skiff runs in",
		})
	}
	if len(others) > 0 {
		findings = append(findings, Finding{
			Severity: Warning, Problem: "cgroup controllers are missing: " + strings.Join(others, ", "), Breaks: "their limits are not enforced", When: "when a pod has such a limit",
			Fix: "enable them in the kernel, if pods use huge pages",
		})
	}
	return findings
}
