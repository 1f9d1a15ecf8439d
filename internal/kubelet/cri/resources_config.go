package cri

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/api/podspec"
)

// Host is what of this machine and of the kubelet's settings goes into every configuration. DetectHost reads the machine's part.
type Host struct {
	// SeccompRoot is the directory of profiles of type Localhost; SeccompDefault makes the runtime's profile the default.
	SeccompRoot    string
	SeccompDefault bool
	// SandboxSeccomp is the file of a profile for the sandboxes' own processes. Without one they have the runtime's.
	SandboxSeccomp string
	// MemoryCapacity and SwapCapacity are in bytes.
	MemoryCapacity, SwapCapacity int64
	// CPUQuota enforces CPU limits, in periods of CPUPeriod microseconds.
	CPUQuota  bool
	CPUPeriod int64
	// CgroupV2 says which hierarchy this host has, SwapController whether swap can be limited in it.
	CgroupV2, SwapController bool
	// LimitedSwap lets burstable pods swap in proportion to their memory requests.
	LimitedSwap bool
	// SingleProcessOOMKill leaves the other processes of a container alive when one is out of memory (cgroup v2 only).
	SingleProcessOOMKill bool
	// HugePageSizes are the sizes this host has, such as "2MB".
	HugePageSizes []string
	// AppArmor says that the host enforces AppArmor profiles.
	AppArmor bool
	// MaskedPaths are hidden from containers that have not asked for an unmasked /proc.
	MaskedPaths []string
}

// readonlyPaths may be read but not written by containers.
var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// The kernel's bounds of CPU shares and of the quota.
const (
	minShares, maxShares = 2, 262144
	minQuota             = 1000 // microseconds
)

// Shares is the weight of an amount of CPU.
func Shares(milliCPU int64) int64 { return min(max(milliCPU*sharesPerCPU/1000, minShares), maxShares) }

// Quota is the time an amount of CPU gets in each period; 0 is unlimited.
func Quota(milliCPU, period int64) int64 {
	if milliCPU == 0 {
		return 0
	}
	return max(milliCPU*period/1000, minQuota)
}

func (h Host) limits(cpuRequest, cpuLimit, memory *resource.Quantity) *runtimeapi.LinuxContainerResources {
	r := &runtimeapi.LinuxContainerResources{CpuShares: Shares(cpuRequest.MilliValue()), MemoryLimitInBytes: memory.Value()}
	if h.CPUQuota {
		r.CpuPeriod, r.CpuQuota = h.CPUPeriod, Quota(cpuLimit.MilliValue(), h.CPUPeriod)
	}
	if h.CgroupV2 && !h.SingleProcessOOMKill {
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return r
}

// ContainerResources are a container's limits, for its creation and for every resize after it. The pod has the resources
// that were allocated to it.
func ContainerResources(pod *corev1.Pod, c *corev1.Container, h Host) *runtimeapi.LinuxContainerResources {
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
	if _, asked := c.Resources.Requests[corev1.ResourceCPU]; asked {
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
		r.Unified["memory.high"] = "max" // nobody is slowed down before the limit
	}
	return r
}

// limitSwap says how much a container may swap. Under cgroup v1 the limit is that of memory and swap together.
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

func (h Host) swap(pod *corev1.Pod, c *corev1.Container) int64 {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	if !h.LimitedSwap || isCritical(pod) || qosClass(pod) != corev1.PodQOSBurstable || request.Cmp(*limit) == 0 {
		return 0
	}
	if h.MemoryCapacity <= 0 || request.Value() > h.MemoryCapacity {
		return 0
	}
	return int64(float64(request.Value()) / float64(h.MemoryCapacity) * float64(h.SwapCapacity))
}

// Bounds of the out-of-memory score: the least likely to be killed, and the most likely.
const (
	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
)

// oomScore says how soon the kernel kills a container when the machine is out of memory: the less of it a container asked for,
// the sooner. A sidecar is killed no sooner than the regular containers it serves.
func oomScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	class := qosClass(pod)
	switch {
	case isCritical(pod) && pod.Spec.PriorityClassName == "system-node-critical", class == corev1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case class == corev1.PodQOSBestEffort:
		return bestEffortOOMScore
	}
	share := int64(0)
	if resourcehelper.IsPodLevelRequestsSet(pod) {
		// What the pod asked for and no container did is everyone's in equal parts.
		asked := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
		rest := pod.Spec.Resources.Requests.Memory().Value() - asked.Memory().Value()
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

// hugePageLimits name every size the host has, because what is not named is not limited.
func hugePageLimits(pod *corev1.Pod, c *corev1.Container, sizes []string) []*runtimeapi.HugepageLimit {
	wanted := map[string]uint64{}
	read := func(limits corev1.ResourceList) {
		for name, amount := range limits {
			text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			if size, err := resource.ParseQuantity(text); ok && err == nil {
				wanted[HugePageSize(size.Value())] = uint64(amount.Value())
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

// HugePageSize is the kernel's name of a page size in bytes: 2097152 is "2MB".
func HugePageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	unit := 0
	for bytes > 0 && bytes%1024 == 0 && unit < len(units)-1 {
		bytes /= 1024
		unit++
	}
	return fmt.Sprintf("%d%s", bytes, units[unit])
}

func qosClass(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return podspec.QOSClass(pod)
}

// systemCritical is the lowest priority that only parts of the system itself have.
const systemCritical = 2_000_000_000

// isCritical tells static pods, their mirrors and pods of the system's own priorities.
func isCritical(pod *corev1.Pod) bool {
	source, named := pod.Annotations["kubernetes.io/config.source"]
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return named && source != "api" || mirror || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}
