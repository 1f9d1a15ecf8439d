package cri

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"skiff/internal/api/podspec"
	"skiff/internal/api/scheduling"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/podstate"
)

// Host has the properties of the host and the kubelet's settings that affect every configuration. DetectHost reads the host's.
type Host struct {
	// SeccompRoot is the directory of profiles of type Localhost; SeccompDefault makes RuntimeDefault the default profile.
	SeccompRoot    string
	SeccompDefault bool
	// SandboxSeccomp is the file of the seccomp profile of sandboxes; empty means the runtime's default profile.
	SandboxSeccomp string
	// MemoryCapacity and SwapCapacity are in bytes.
	MemoryCapacity, SwapCapacity int64
	// CPUQuota enforces CPU limits with the CFS quota, in periods of CPUPeriod microseconds.
	CPUQuota  bool
	CPUPeriod int64
	// UnlimitedCPUQuota removes the quota of a container, or of a sandbox, with exclusive CPUs.
	UnlimitedCPUQuota bool
	// CgroupV2 reports the host's cgroup version, SwapController whether swap can be limited.
	CgroupV2, SwapController bool
	// MissingControllers are the cgroup controllers that pods cannot use. A runtime refuses limits of these.
	MissingControllers []string
	// LimitedSwap lets burstable pods swap in proportion to their memory requests.
	LimitedSwap bool
	// SingleProcessOOMKill kills only one process of a container that is out of memory, not all (cgroup v2 only).
	SingleProcessOOMKill bool
	// TieredReservation protects the memory that containers request from being reclaimed, and MemoryThrottlingFactor is the part of the memory
	// between request and limit above which a container is throttled, 0 for never (cgroup v2 only).
	TieredReservation      bool
	MemoryThrottlingFactor float64
	// AllocatableMemory returns what a container without a limit can use at most. It is set if MemoryThrottlingFactor is.
	AllocatableMemory func() int64
	// HugePageSizes are the page sizes of the host, such as "2MB".
	HugePageSizes []string
	// AppArmor reports whether AppArmor is enabled on the host.
	AppArmor bool
	// MaskedPaths are hidden from containers unless their procMount is Unmasked.
	MaskedPaths []string
}

// readonlyPaths are read-only in containers.
var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

func (h Host) limits(cpuRequest, cpuLimit, memory *resource.Quantity) *runtimeapi.LinuxContainerResources {
	r := &runtimeapi.LinuxContainerResources{CpuShares: cgroup.SharesOf(cpuRequest.MilliValue()), MemoryLimitInBytes: memory.Value()}
	if h.CPUQuota {
		r.CpuPeriod, r.CpuQuota = h.CPUPeriod, cgroup.QuotaOf(cpuLimit.MilliValue(), h.CPUPeriod)
		if h.UnlimitedCPUQuota {
			r.CpuQuota = cgroup.Unlimited
		}
	}
	if h.CgroupV2 && !h.SingleProcessOOMKill {
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	h.dropMissing(r)
	return r
}

// dropMissing removes the limits of controllers that pods cannot use.
func (h Host) dropMissing(r *runtimeapi.LinuxContainerResources) {
	for _, controller := range h.MissingControllers {
		switch controller {
		case "cpu":
			r.CpuShares, r.CpuQuota, r.CpuPeriod = 0, 0, 0
		case "memory":
			r.MemoryLimitInBytes, r.MemorySwapLimitInBytes, r.Unified = 0, 0, nil
		case "hugetlb":
			r.HugepageLimits = nil
		}
	}
}

// LinuxResources are the cgroup limits of a container, opaque outside this package.
type LinuxResources struct {
	linux *runtimeapi.LinuxContainerResources
}

// ContainerResources returns a container's cgroup limits, for its creation and for a resize. The pod's spec has the allocated resources.
func ContainerResources(pod *corev1.Pod, c *corev1.Container, h Host) LinuxResources {
	return LinuxResources{containerResources(pod, c, h)}
}

// CPUResources are only the CPUs that a container may use, to change them.
func CPUResources(cpus cpuset.CPUSet) LinuxResources {
	return LinuxResources{&runtimeapi.LinuxContainerResources{CpusetCpus: cpus.String()}}
}

func containerResources(pod *corev1.Pod, c *corev1.Container, h Host) *runtimeapi.LinuxContainerResources {
	cpuLimit, memoryLimit := c.Resources.Limits.Cpu(), c.Resources.Limits.Memory()
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		if cpuLimit.IsZero() {
			cpuLimit = pod.Spec.Resources.Limits.Cpu()
		}
		if memoryLimit.IsZero() {
			memoryLimit = pod.Spec.Resources.Limits.Memory()
		}
	}
	cpuRequest := cpuLimit
	if _, requested := c.Resources.Requests[corev1.ResourceCPU]; requested {
		cpuRequest = c.Resources.Requests.Cpu()
	}
	r := h.limits(cpuRequest, cpuLimit, memoryLimit)
	r.OomScoreAdj = oomScore(pod, c, h.MemoryCapacity)
	r.HugepageLimits = hugePageLimits(pod, c, h.HugePageSizes)
	h.limitSwap(r, pod, c)
	if h.CgroupV2 {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		h.setMemoryQoS(r, pod, c)
	}
	h.dropMissing(r)
	return r
}

// setMemoryQoS protects the memory that a container requests, and throttles a container before it reaches its limit.
func (h Host) setMemoryQoS(r *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container) {
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	if h.TieredReservation {
		r.Unified["memory.min"], r.Unified["memory.low"] = "0", "0"
		file := "memory.low"
		if podspec.QOSClass(pod) == corev1.PodQOSGuaranteed {
			file = "memory.min"
		}
		r.Unified[file] = strconv.FormatInt(request, 10)
	}
	r.Unified["memory.high"] = "max"
	if h.MemoryThrottlingFactor == 0 {
		return
	}
	if limit == 0 {
		if resourcehelper.IsPodLevelResourcesSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero() {
			return // the pod is throttled as a whole
		}
		limit = h.AllocatableMemory()
	}
	if high := cgroup.MemoryHigh(request, limit, h.MemoryThrottlingFactor); high != cgroup.Unlimited {
		r.Unified["memory.high"] = strconv.FormatInt(high, 10)
	}
}

// limitSwap sets the swap limit of a container. With cgroup v1 the limit is on the sum of memory and swap.
func (h Host) limitSwap(r *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container) {
	switch {
	case !h.SwapController:
	case !h.CgroupV2:
		r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
	default:
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified["memory.swap.max"] = strconv.FormatInt(h.swap(pod, c), 10)
	}
}

// MaySwap reports whether a container may use swap.
func (h Host) MaySwap(pod *corev1.Pod, c *corev1.Container) bool {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	return h.LimitedSwap && h.SwapController && h.CgroupV2 && !podstate.IsCritical(pod) && podspec.QOSClass(pod) == corev1.PodQOSBurstable && request.Cmp(*limit) != 0
}

func (h Host) swap(pod *corev1.Pod, c *corev1.Container) int64 {
	if !h.MaySwap(pod, c) {
		return 0
	}
	request := c.Resources.Requests.Memory()
	if h.MemoryCapacity <= 0 || request.Value() > h.MemoryCapacity {
		return 0
	}
	return int64(float64(request.Value()) / float64(h.MemoryCapacity) * float64(h.SwapCapacity))
}

// Bounds of oom_score_adj: the least likely to be killed, and the most likely.
const (
	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
)

// oomScore is the oom_score_adj of a container: the smaller its memory request, the higher its score, and the sooner the kernel kills it
// when the node is out of memory. The score of a sidecar is at most that of the regular container with the smallest request.
func oomScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	class := podspec.QOSClass(pod)
	switch {
	case podstate.IsCritical(pod) && pod.Spec.PriorityClassName == scheduling.SystemNodeCritical, class == corev1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case class == corev1.PodQOSBestEffort:
		return bestEffortOOMScore
	}
	share := int64(0)
	if resourcehelper.IsPodLevelRequestsSet(pod) {
		// The part of the pod's request that no container requests is divided equally among the containers.
		requested := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
		rest := pod.Spec.Resources.Requests.Memory().Value() - requested.Memory().Value()
		share = max(rest, 0) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
	}
	score := func(request int64) int64 { return 1000 - 1000*(request+share)/max(capacity, 1) }
	result := score(c.Resources.Requests.Memory().Value())
	if isSidecar(c) && len(pod.Spec.Containers) > 0 {
		least := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
		for i := range pod.Spec.Containers {
			least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
		}
		result = min(result, score(least))
	}
	return min(max(result, 1000+guaranteedOOMScore), bestEffortOOMScore-1)
}

// hugePageLimits has a limit for every page size of the host: a size without a limit would be unlimited.
func hugePageLimits(pod *corev1.Pod, c *corev1.Container, sizes []string) []*runtimeapi.HugepageLimit {
	wanted := map[string]uint64{}
	read := func(limits corev1.ResourceList) {
		for name, amount := range limits {
			text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			if size, err := resource.ParseQuantity(text); ok && err == nil {
				wanted[cgroup.HugePageName(size.Value())] = uint64(amount.Value())
			}
		}
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		read(pod.Spec.Resources.Limits)
	}
	read(c.Resources.Limits)
	var limits []*runtimeapi.HugepageLimit
	for _, size := range sizes {
		limits = append(limits, &runtimeapi.HugepageLimit{PageSize: size, Limit: wanted[size]})
	}
	return limits
}
