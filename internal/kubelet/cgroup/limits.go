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
	// The kernel's own bounds of weights.
	minShares, maxShares = 2, 262144
	sharesPerCPU         = 1024
	// minQuota is the least time the kernel lets a group run in a period, in microseconds.
	minQuota = 1000
	// Unlimited is no limit.
	Unlimited = -1
)

// Limits are what a group may use. What is nil is left as it is.
type Limits struct {
	// Shares is the weight of the group's CPU time, as version 1 counts it.
	Shares *uint64
	// Quota is CPU time in a period, both in microseconds.
	Quota  *int64
	Period int64
	Memory *int64
	Pids   *int64
	// HugePages are bytes by page size.
	HugePages map[int64]int64
}

// sharesOf is the weight of requested thousandths of a CPU.
func sharesOf(milli int64) uint64 {
	return uint64(min(max(milli*sharesPerCPU/1000, minShares), maxShares))
}

// quotaOf is the CPU time in a period of so many thousandths of a CPU.
func quotaOf(milli, period int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*period/1000, minQuota)
}

// weightOf is a weight as version 2 counts it.
func weightOf(shares uint64) uint64 {
	return 1 + (min(max(shares, minShares), maxShares)-minShares)*9999/(maxShares-minShares)
}

// sharesOfWeight is the way back, as near as it gets.
func sharesOfWeight(weight uint64) uint64 {
	return minShares + (max(weight, 1)-1)*(maxShares-minShares)/9999
}

// PodLimits are those of a pod's group. A limit holds for the pod where every container has one, or the pod itself; pages are the sizes of huge
// pages the host has, and sizes a pod does not ask for are closed to it.
func PodLimits(pod *corev1.Pod, s Settings, pages []int64) Limits {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	cpuBound, memoryBound := true, true
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue // they have no resources of their own
		}
		cpuBound = cpuBound && !c.Resources.Limits.Cpu().IsZero()
		memoryBound = memoryBound && !c.Resources.Limits.Memory().IsZero()
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		cpuBound = cpuBound || !pod.Spec.Resources.Limits.Cpu().IsZero()
		memoryBound = memoryBound || !pod.Spec.Resources.Limits.Memory().IsZero()
	}
	l := Limits{Period: s.CPUPeriod.Microseconds(), HugePages: hugePages(requests)}
	for _, size := range pages {
		if _, asked := l.HugePages[size]; !asked {
			l.HugePages[size] = 0
		}
	}
	if s.PodPids > 0 {
		l.Pids = &s.PodPids
	}
	unlimited := int64(Unlimited)
	l.Shares, l.Quota, l.Memory = new(sharesOf(requests.Cpu().MilliValue())), &unlimited, &unlimited
	if podspec.QOSClass(pod) == corev1.PodQOSBestEffort {
		l.Shares = new(uint64(minShares))
		return l
	}
	if cpuBound && !s.NoCPUQuota {
		if quota := quotaOf(limits.Cpu().MilliValue(), l.Period); quota > 0 {
			l.Quota = &quota
		}
	}
	if memoryBound {
		if bytes := limits.Memory().Value(); bytes > 0 {
			l.Memory = &bytes
		}
	}
	return l
}

// NodeLimits are those of all pods together.
func NodeLimits(all corev1.ResourceList) Limits {
	l := Limits{HugePages: hugePages(all)}
	if cpu, ok := all[corev1.ResourceCPU]; ok {
		l.Shares = new(sharesOf(cpu.MilliValue()))
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

// setting is one file of a group.
type setting struct {
	controller, file, value string
	// optional files may be absent where their controller is there.
	optional bool
}

// settings are the limits as files of a version. A period stands before its quota, because the kernel judges them together.
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
		for _, file := range []string{"hugetlb." + pageName(size), "hugetlb." + pageName(size) + ".rsvd"} {
			name := file + ".limit_in_bytes"
			if version == 2 {
				name = file + ".max"
			}
			all = append(all, setting{"hugetlb", name, strconv.FormatInt(l.HugePages[size], 10), true})
		}
	}
	return all
}

// pageName is the kernel's name of a page size: 2097152 is "2MB".
func pageName(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	unit := 0
	for ; bytes > 0 && bytes%1024 == 0 && unit < len(units)-1; unit++ {
		bytes /= 1024
	}
	return fmt.Sprintf("%d%s", bytes, units[unit])
}

// hugePageSizes are those the host has.
func hugePageSizes() []int64 {
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

// read reads the limits of a group that a resize may change.
func (g *Groups) read(group string) (Limits, error) {
	l := Limits{}
	at := func(controller, file string) (string, bool, error) {
		tree, ok := g.trees[controller]
		if !ok {
			return "", false, nil
		}
		text, err := os.ReadFile(filepath.Join(tree, g.settings.Root, group, file))
		if err != nil {
			return "", false, fmt.Errorf("read limits of control group %s: %w", group, err)
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
		// A kernel without bandwidth control has no quota to grow.
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

// noLimit is what version 1 shows where memory has no limit, at least.
const noLimit = 1 << 62

// parseLimit reads a limit of either version.
func parseLimit(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= noLimit {
		return Unlimited
	}
	return n
}

// larger takes of wanted what is not less than now.
func larger(now, wanted Limits) Limits {
	grows := func(now, wanted *int64) bool {
		return wanted != nil && (now == nil || *wanted == Unlimited || *now != Unlimited && *wanted >= *now)
	}
	l := Limits{Period: wanted.Period}
	if wanted.Shares != nil && (now.Shares == nil || *wanted.Shares >= *now.Shares) {
		l.Shares = wanted.Shares
	}
	if grows(now.Quota, wanted.Quota) {
		l.Quota = wanted.Quota
	}
	if grows(now.Memory, wanted.Memory) {
		l.Memory = wanted.Memory
	}
	return l
}
