package cgroup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/api/podspec"
	"skiff/internal/container"
)

const (
	// The kernel's bounds of cpu.shares.
	minShares, maxShares = 2, 262144
	sharesPerCPU         = 1024
	// minQuota is the kernel's minimum CFS quota in microseconds.
	minQuota = 1000
	// Unlimited means no limit.
	Unlimited = -1
)

// Limits are the limits of a cgroup. Those that are nil are not changed.
type Limits struct {
	// Shares is the CPU weight, as cpu.shares of version 1.
	Shares *uint64
	// Quota is the CPU time in each Period, both in microseconds.
	Quota  *int64
	Period int64
	Memory *int64
	// MemoryMin and MemoryLow protect memory from being reclaimed, MemoryHigh throttles above it (version 2).
	MemoryMin, MemoryLow, MemoryHigh *int64
	Pids                             *int64
	// HugePages are limits in bytes by page size.
	HugePages map[int64]int64
}

// SharesOf converts a CPU request to cpu.shares.
func SharesOf(milliCPU int64) int64 {
	return min(max(milliCPU*sharesPerCPU/1000, minShares), maxShares)
}

// MilliCPUOf converts cpu.shares to the CPU request, rounded up.
func MilliCPUOf(shares int64) int64 { return (shares*1000 + sharesPerCPU - 1) / sharesPerCPU }

// QuotaOf converts a CPU limit to the CFS quota for each period, both in microseconds; 0 means unlimited.
func QuotaOf(milliCPU, period int64) int64 {
	if milliCPU == 0 {
		return 0
	}
	return max(milliCPU*period/1000, minQuota)
}

// weightOf converts cpu.shares to cpu.weight.
func weightOf(shares uint64) uint64 {
	return 1 + (min(max(shares, minShares), maxShares)-minShares)*9999/(maxShares-minShares)
}

// sharesOfWeight converts cpu.weight to cpu.shares, approximately.
func sharesOfWeight(weight uint64) uint64 {
	return minShares + (max(weight, 1)-1)*(maxShares-minShares)/9999
}

// PodLimits are the limits of a pod's cgroup. The pod has a limit if every container, or the pod itself, has one. pages are the huge page
// sizes of the host; those that the pod does not request are limited to zero.
func PodLimits(pod *corev1.Pod, s Settings, pages []int64) Limits {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	cpuLimited, memoryLimited := true, true
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue // they have no resources
		}
		cpuLimited = cpuLimited && !c.Resources.Limits.Cpu().IsZero()
		memoryLimited = memoryLimited && !c.Resources.Limits.Memory().IsZero()
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		cpuLimited = cpuLimited || !pod.Spec.Resources.Limits.Cpu().IsZero()
		memoryLimited = memoryLimited || !pod.Spec.Resources.Limits.Memory().IsZero()
	}
	l := Limits{Period: s.CPUPeriod.Microseconds(), HugePages: hugePages(requests)}
	for _, size := range pages {
		if _, requested := l.HugePages[size]; !requested {
			l.HugePages[size] = 0
		}
	}
	if s.PodPids > 0 {
		l.Pids = &s.PodPids
	}
	l.setMemoryQoS(pod, s, requests.Memory().Value(), limits.Memory().Value(), memoryLimited)
	unlimited := int64(Unlimited)
	l.Shares, l.Quota, l.Memory = new(uint64(SharesOf(requests.Cpu().MilliValue()))), &unlimited, &unlimited
	if podspec.ComputeQOSClass(pod) == corev1.PodQOSBestEffort {
		l.Shares = new(uint64(minShares))
		return l
	}
	hasExclusive := s.HasExclusiveCPUs != nil && s.HasExclusiveCPUs(pod.UID)
	if cpuLimited && !s.NoCPUQuota && !hasExclusive {
		if quota := QuotaOf(limits.Cpu().MilliValue(), l.Period); quota > 0 {
			l.Quota = &quota
		}
	}
	if memoryLimited {
		if bytes := limits.Memory().Value(); bytes > 0 {
			l.Memory = &bytes
		}
	}
	return l
}

// setMemoryQoS sets what protects a pod's memory and what throttles it, if that is configured.
func (l *Limits) setMemoryQoS(pod *corev1.Pod, s Settings, request, limit int64, limited bool) {
	if s.TieredReservation {
		l.MemoryMin, l.MemoryLow = new(int64(0)), new(int64(0))
		if podspec.ComputeQOSClass(pod) == corev1.PodQOSGuaranteed {
			l.MemoryMin = &request
		} else {
			l.MemoryLow = &request
		}
	}
	if s.MemoryThrottlingFactor > 0 {
		l.MemoryHigh = new(int64(Unlimited))
		// Without resources of the pod its containers are throttled one by one.
		if limited && resourcehelper.IsPodLevelResourcesSet(pod) {
			l.MemoryHigh = new(MemoryHigh(request, limit, s.MemoryThrottlingFactor))
		}
	}
}

// MemoryHigh is the amount of memory above which a cgroup is throttled, rounded down to pages; Unlimited for a cgroup that is given what it may
// use anyway.
func MemoryHigh(request, limit int64, factor float64) int64 {
	if limit == 0 || request == limit {
		return Unlimited
	}
	page := int64(os.Getpagesize())
	high := int64(float64(request)+(float64(limit)-float64(request))*factor) / page * page
	if high <= request {
		return Unlimited
	}
	return high
}

// NodeLimits are the limits of all pods together.
func NodeLimits(all corev1.ResourceList) Limits {
	l := Limits{HugePages: hugePages(all)}
	if cpu, ok := all[corev1.ResourceCPU]; ok {
		l.Shares = new(uint64(SharesOf(cpu.MilliValue())))
	}
	if memory, ok := all[corev1.ResourceMemory]; ok {
		l.Memory = new(memory.Value())
	}
	if pids, ok := all["pid"]; ok {
		l.Pids = new(pids.Value())
	}
	return l
}

// hugePages are the huge pages in a list of resources, bytes by page size.
func hugePages(list corev1.ResourceList) map[int64]int64 {
	pages := map[int64]int64{}
	for name, amount := range list {
		text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if size, err := resource.ParseQuantity(text); ok && err == nil {
			pages[size.Value()] += amount.Value()
		}
	}
	return pages
}

// setting is the value of one file of a cgroup.
type setting struct {
	controller, file, value string
	// optional files may be missing although their controller is enabled.
	optional bool
}

// settings converts the limits to the files of a cgroup version. The period comes before the quota, because the kernel validates them
// together.
func (l Limits) settings(version int) []setting {
	var all []setting
	add := func(controller, file, value string) {
		all = append(all, setting{controller: controller, file: file, value: value})
	}
	number := func(n int64, none string) string {
		if n < 0 {
			return none
		}
		return strconv.FormatInt(n, 10)
	}
	if version == 2 {
		if l.Shares != nil {
			add("cpu", "cpu.weight", strconv.FormatUint(weightOf(*l.Shares), 10))
		}
		if l.Quota != nil {
			add("cpu", "cpu.max", number(*l.Quota, "max")+" "+strconv.FormatInt(l.Period, 10))
		}
		if l.Memory != nil {
			add("memory", "memory.max", number(*l.Memory, "max"))
		}
		if l.MemoryMin != nil {
			add("memory", "memory.min", number(*l.MemoryMin, "max"))
		}
		if l.MemoryLow != nil {
			add("memory", "memory.low", number(*l.MemoryLow, "max"))
		}
		if l.MemoryHigh != nil {
			add("memory", "memory.high", number(*l.MemoryHigh, "max"))
		}
		if l.Pids != nil {
			add("pids", "pids.max", number(*l.Pids, "max"))
		}
	} else {
		if l.Shares != nil {
			add("cpu", "cpu.shares", strconv.FormatUint(*l.Shares, 10))
		}
		if l.Quota != nil {
			all = append(all, setting{"cpu", "cpu.cfs_period_us", strconv.FormatInt(l.Period, 10), *l.Quota < 0})
			all = append(all, setting{"cpu", "cpu.cfs_quota_us", number(*l.Quota, "-1"), *l.Quota < 0})
		}
		if l.Memory != nil {
			add("memory", "memory.limit_in_bytes", number(*l.Memory, "-1"))
		}
		if l.Pids != nil {
			add("pids", "pids.max", number(*l.Pids, "max"))
		}
	}
	for _, size := range slices.Sorted(maps.Keys(l.HugePages)) {
		for _, file := range []string{"hugetlb." + HugePageName(size), "hugetlb." + HugePageName(size) + ".rsvd"} {
			name := file + ".limit_in_bytes"
			if version == 2 {
				name = file + ".max"
			}
			all = append(all, setting{"hugetlb", name, strconv.FormatInt(l.HugePages[size], 10), true})
		}
	}
	return all
}

// HugePageName is the kernel's name of a page size in bytes: 2097152 is "2MB".
func HugePageName(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	unit := 0
	for ; bytes > 0 && bytes%1024 == 0 && unit < len(units)-1; unit++ {
		bytes /= 1024
	}
	return fmt.Sprintf("%d%s", bytes, units[unit])
}

// HugePageSizes are the huge page sizes of the host in bytes.
func HugePageSizes() []int64 {
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return nil
	}
	var sizes []int64
	for _, dir := range dirs {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB")
		if size, err := strconv.ParseInt(text, 10, 64); err == nil {
			sizes = append(sizes, size*1024)
		}
	}
	return sizes
}

// read reads the limits of a cgroup that a resize may change.
func (g *Groups) read(group string) (Limits, error) {
	l := Limits{}
	at := func(controller, file string) (string, bool, error) {
		hierarchy, ok := g.hierarchies[controller]
		if !ok {
			return "", false, nil
		}
		text, err := os.ReadFile(filepath.Join(hierarchy, g.path(group), file))
		if err != nil {
			return "", false, fmt.Errorf("read limits of cgroup %s: %w", group, err)
		}
		return strings.TrimSpace(string(text)), true, nil
	}
	number := func(controller, file string) (*int64, error) {
		text, ok, err := at(controller, file)
		if err != nil || !ok {
			return nil, err
		}
		return new(parseLimit(text)), nil
	}
	var err error
	if g.version == 1 {
		shares, err := number("cpu", "cpu.shares")
		if err != nil {
			return l, err
		}
		if shares != nil {
			l.Shares = new(uint64(*shares))
		}
		// A kernel without CFS bandwidth control has no quota.
		if l.Quota, err = number("cpu", "cpu.cfs_quota_us"); err != nil {
			l.Quota = nil
		}
		l.Memory, err = number("memory", "memory.limit_in_bytes")
		return l, err
	}
	weight, err := number("cpu", "cpu.weight")
	if err != nil {
		return l, err
	}
	if weight != nil {
		l.Shares = new(sharesOfWeight(uint64(*weight)))
	}
	if text, ok, err := at("cpu", "cpu.max"); err == nil && ok {
		quota, _, _ := strings.Cut(text, " ")
		l.Quota = new(parseLimit(quota))
	}
	l.Memory, err = number("memory", "memory.max")
	return l, err
}

// noLimit is a lower bound of what version 1 reports for unlimited memory.
const noLimit = 1 << 62

// parseLimit parses a limit of either version.
func parseLimit(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= noLimit {
		return Unlimited
	}
	return n
}

// raised returns the wanted limits that are not lower than the current ones.
func raised(current, wanted Limits) Limits {
	grows := func(current, wanted *int64) bool {
		return wanted != nil && (current == nil || *wanted == Unlimited || *current != Unlimited && *wanted >= *current)
	}
	l := Limits{Period: wanted.Period}
	if wanted.Shares != nil && (current.Shares == nil || *wanted.Shares >= *current.Shares) {
		l.Shares = wanted.Shares
	}
	if grows(current.Quota, wanted.Quota) {
		l.Quota = wanted.Quota
	}
	if grows(current.Memory, wanted.Memory) {
		l.Memory = wanted.Memory
	}
	return l
}
