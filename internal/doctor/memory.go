package doctor

import (
	"context"
	"fmt"

	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/node"
)

// memoryState is the memory of the host.
type memoryState struct {
	bytes, swap int64
	// isUnified is whether the host has cgroup version 2, in which containers are kept from swap.
	isUnified bool
}

// minMemory is what skiff, containerd and a few pods need: a host with 1 GB, of which the kernel keeps a tenth for itself and does not count it.
const minMemory = 900 << 20

func (h Host) readMemory(context.Context) (memoryState, error) {
	host, err := node.ReadHost("/")
	s := memoryState{bytes: host.Memory, swap: host.Swap, isUnified: cgroup.IsUnified()}
	if h.NoNode {
		s.swap = 0 // it matters to pods only
	}
	return s, err
}

func decideMemory(s memoryState) (findings []Finding) {
	if s.bytes < minMemory {
		findings = append(findings, Finding{
			Severity: Warning, Problem: fmt.Sprintf("the host has %s of memory, less than 1 GB", bytesText(s.bytes)),
			Breaks: "pods are evicted or OOM-killed", When: whenLater, Fix: "use a host with more memory, or run the control plane elsewhere and this host as an agent",
		})
	}
	if s.swap > 0 {
		breaks := "Secrets and other volumes in memory may be written to the disk; a KubeletConfiguration with failSwapOn: true is refused"
		if !s.isUnified {
			breaks += "; containers use swap without a limit, because cgroup version 1 cannot keep them from it"
		}
		findings = append(findings, Finding{
			Severity: Warning, Problem: "swap is enabled: " + bytesText(s.swap), Breaks: breaks, When: "when memory is short",
			Fix: "swapoff -a, and remove it from /etc/fstab, unless pods are meant to swap (memorySwap of the KubeletConfiguration)",
		})
	}
	return findings
}
