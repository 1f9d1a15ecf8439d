package cri

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"skiff/internal/kubelet/cgroup"
)

// DetectHost reads the host's properties. The kubelet's settings in Host get upstream's defaults.
func DetectHost(seccompRoot string) Host {
	h := Host{SeccompRoot: seccompRoot, CPUQuota: true, CPUPeriod: 100_000, MaskedPaths: maskedPaths()}
	for _, size := range cgroup.HugePageSizes() {
		h.HugePageSizes = append(h.HugePageSizes, cgroup.HugePageName(size))
	}
	h.MemoryCapacity, h.SwapCapacity = memory()
	h.CgroupV2 = cgroup.IsUnified()
	_, err := os.Stat(swapLimitFile(h.CgroupV2))
	h.SwapController = err == nil
	h.AppArmor = appArmorEnabled("/sys")
	return h
}

// appArmorEnabled reports whether AppArmor is enabled, given the path of /sys.
func appArmorEnabled(sys string) bool {
	if _, err := os.Stat(filepath.Join(sys, "kernel/security/apparmor")); err != nil {
		return false
	}
	value, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(value), "Y")
}

// swapLimitFile is a file that exists if swap can be limited. The root cgroup has no limits with cgroup v2, so the process's own cgroup is used.
func swapLimitFile(v2 bool) string {
	if !v2 {
		return "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join("/sys/fs/cgroup", path, "memory.swap.max")
		}
	}
	return ""
}

// memory is the host's memory and swap in bytes; 0 if they cannot be read.
func memory() (total, swap int64) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
		switch {
		case err != nil:
		case fields[0] == "MemTotal:":
			total = kilobytes * 1024
		case fields[0] == "SwapTotal:":
			swap = kilobytes * 1024
		}
	}
	return total, swap
}

// maskedPaths are paths that would reveal details of the host to a container, or let it affect the host.
func maskedPaths() []string {
	paths := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	// The pattern is constant and correct.
	throttles, _ := filepath.Glob("/sys/devices/system/cpu/cpu*/thermal_throttle")
	return append(paths, throttles...)
}
